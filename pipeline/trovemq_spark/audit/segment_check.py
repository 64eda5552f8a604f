"""Checks one segment of the log: its records, and the consume-queue units and index items that they should
have.

It compares records with units and items, and items with records. queue_check.py finds surplus units and holes
when it has the runs of all segments.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trovemq_proto.positions import PhysicalOffset
from trovemq_spark.audit.found import Counted, FindingList
from trovemq_spark.audit.item_check import ItemCheck, ItemCounts
from trovemq_spark.audit.store import AuditedStore, QueueKey, QueueReader
from trovemq_spark.log.scan import ScanBounds, scan_segment
from trovemq_spark.log.segments import SegmentFile
from trovemq_store.check.findings import EACH_MAX
from trovemq_store.check.layouts import Records
from trovemq_store.check.log_rules import report_damage, written_bytes
from trovemq_store.check.queue_rules import by_queue, report_unequal, units_of
from trovemq_store.log.projection import DispatchBatch
from trovemq_store.log.reader import Damage
from trovemq_store.log.segments import DIRECTORY as LOG_DIRECTORY

Int64s = NDArray[np.int64]
RUN_DTYPE: Final = np.dtype([("first", "i8"), ("end", "i8"), ("physical", "i8"), ("last", "i8")])
"""Consecutive queue offsets [first, end); physical offsets of the first and last record."""


@dataclass(slots=True)
class SegmentResult:
    """The content of one segment. `end`: where its records end; `runs`: by queue, in log order."""

    segment: SegmentFile
    end: int = 0
    records: int = 0
    dead_records: int = 0
    units: int = 0
    last_store_timestamp: int = 0
    damages: list[tuple[PhysicalOffset, PhysicalOffset]] = field(default_factory=list)
    runs: dict[QueueKey, NDArray[np.void]] = field(default_factory=dict)
    bytes_after: int = 0
    """Bytes that are not zero after the last segment's records."""
    items: ItemCounts = field(default_factory=ItemCounts)
    found: Counted = field(default_factory=Counted)


def check_segment(store: AuditedStore, checks: frozenset[str], file: SegmentFile) -> SegmentResult:
    """Reads one segment. checks: some of "log", "queues", "index"; each of them requires reading the log."""
    return _SegmentCheck(store, checks, file).run()


class _SegmentCheck:
    def __init__(self, store: AuditedStore, checks: frozenset[str], file: SegmentFile) -> None:
        self._store = store
        self._checks = checks
        self._found = FindingList()
        self._result = SegmentResult(file, end=file.start)
        self._readers: dict[QueueKey, QueueReader] = {}
        self._runs: dict[QueueKey, list[NDArray[np.void]]] = {}
        has_items = "index" in checks and store.index_is_readable
        self._items = ItemCheck(store, file, self._found) if has_items else None

    def run(self) -> SegmentResult:
        store, result = self._store, self._result
        segment = store.log.open_segment(result.segment)
        is_last = result.segment == store.log.segments[-1]
        bounds = ScanBounds(segment.start, segment.end, store.known_end, is_last)
        for step in scan_segment(segment, bounds, check_crc="log" in self._checks):
            if isinstance(step, Damage):
                self._damage(step)
            else:
                self._run(step)
        if is_last:
            result.bytes_after = written_bytes(segment.file, max(result.end - segment.start, 0))
        if self._items is not None:
            result.items = self._items.finish(result.end, result.damages, is_last=is_last)
        result.runs = {key: _merged(np.concatenate(runs)) for key, runs in self._runs.items()}
        result.found = Counted.of(self._found)
        return result

    def _damage(self, damage: Damage) -> None:
        begin, end = damage.physical_offset, damage.end
        self._result.damages.append((begin, end))
        self._result.end = end
        if "log" in self._checks:
            segment = self._result.segment
            place = f"{LOG_DIRECTORY}/{segment.name}", begin - segment.start
            report_damage(self._found.of("log"), place, damage)

    def _run(self, run: DispatchBatch) -> None:
        result, records = self._result, run.records
        alive = self._store.deletions.alive_mask(records, run.physical_offset)
        run = replace(run, alive=alive)
        result.records += len(records)
        result.dead_records += 0 if alive is None else int((~alive).sum())
        result.end = run.end
        result.last_store_timestamp = max(result.last_store_timestamp, int(records.store_timestamps.max()))
        if "queues" in self._checks:
            self._compare_units(run)
        if self._items is not None:
            self._items.run(run)

    # --- units ----------------------------------------------------------------------------------------
    def _compare_units(self, run: DispatchBatch) -> None:
        expected = units_of(run)
        for key, indexes in by_queue(run):
            offsets, units = run.records.queue_offsets[indexes], expected[indexes]
            self._runs.setdefault(key, []).append(
                _runs_of(offsets, units["physical_offset"].astype(np.int64))
            )
            facts = self._store.queues.get(key)
            if facts is None:
                continue  # a queue without files: reported once, in queue_check.py
            reader = self._readers.setdefault(key, self._store.reader(key))
            within = (offsets >= 0) & (offsets < facts.end)
            within &= reader.has_file(offsets)
            self._compare(reader, offsets[within], units[within])

    def _compare(self, reader: QueueReader, offsets: Int64s, expected: Records) -> None:
        actual = reader.at(offsets)
        self._result.units += len(offsets)
        wrong = np.flatnonzero(actual != expected)
        for i in wrong[:EACH_MAX].tolist():
            found = self._found.of(_kind_of(actual[i], expected[i]))
            report_unequal(found, reader, int(offsets[i]), actual[i], expected[i])
        if len(wrong) > EACH_MAX:
            path, at = reader.place(int(offsets[wrong[EACH_MAX]]))
            what = f"{len(wrong) - EACH_MAX} more units from here on are not those of the log"
            self._found.of("unitPlace").add(path, at, what)


def _kind_of(actual: np.void, expected: np.void) -> str:
    """The fault of the unit: its first wrong field."""
    for name, kind in (("physical_offset", "unitPlace"), ("size", "unitSize")):
        if actual[name] != expected[name]:
            return kind
    return "unitTagsCode"


def _runs_of(offsets: Int64s, physical: Int64s) -> NDArray[np.void]:
    """The runs of consecutive queue offsets among these, in log order."""
    begins = np.flatnonzero(np.r_[True, np.diff(offsets) != 1])
    lasts = np.r_[begins[1:], len(offsets)] - 1
    runs = np.empty(len(begins), RUN_DTYPE)
    runs["first"], runs["end"] = offsets[begins], offsets[lasts] + 1
    runs["physical"], runs["last"] = physical[begins], physical[lasts]
    return runs


def _merged(runs: NDArray[np.void]) -> NDArray[np.void]:
    """The runs, with consecutive ones joined."""
    begins = np.flatnonzero(np.r_[True, runs["first"][1:] != runs["end"][:-1]])
    lasts = np.r_[begins[1:], len(runs)] - 1
    merged = runs[begins].copy()
    merged["end"], merged["last"] = runs["end"][lasts], runs["last"][lasts]
    return merged
