"""Checks one consume queue after all segments: holes and duplicates of its queue offsets, missing units at
its end, and units without a record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trovemq_proto.positions import PhysicalOffset
from trovemq_spark.audit.found import Counted, FindingList
from trovemq_spark.audit.segment_check import RUN_DTYPE
from trovemq_spark.audit.store import AuditedStore, QueueFacts, QueueKey, QueueReader
from trovemq_store.check.findings import EACH_MAX
from trovemq_store.check.queue_rules import UnknownPlaces, report_surplus, surplus_units
from trovemq_store.index.consume_queue import ROOT_DIRECTORY, UNIT_SIZE

_UNITS_AT_ONCE: Final = 65_536


@dataclass(frozen=True, slots=True)
class LogBounds:
    """The checked log: [begin, end), and the places in it whose records are unknown (damaged, or in a missing
    segment)."""

    begin: int
    end: int
    unknown: UnknownPlaces


def check_queue(
    store: AuditedStore, log: LogBounds, item: tuple[QueueKey, list[NDArray[np.void]]]
) -> Counted:
    """item: a queue and its runs of each segment, in log order; no runs if only files of it exist."""
    key, parts = item
    runs = np.concatenate(parts) if parts else np.empty(0, RUN_DTYPE)
    return _QueueCheck(store, log, key).run(runs)


class _QueueCheck:
    def __init__(self, store: AuditedStore, log: LogBounds, key: QueueKey) -> None:
        self._store = store
        self._log = log
        self._key = key
        self._found = FindingList()
        self._name = f"queue {key[1]} of topic {key[0]}"

    def run(self, runs: NDArray[np.void]) -> Counted:
        ordered = runs[np.argsort(runs["first"], kind="stable")]
        self._check_sequence(ordered)
        facts = self._store.queues.get(self._key)
        if facts is None:
            if len(ordered):
                first = int(ordered["first"][0])
                directory = f"{ROOT_DIRECTORY}/{self._key[0]}/{self._key[1]}"
                self._add_missing(directory, first * UNIT_SIZE, first, int(ordered["end"].max()))
            return Counted.of(self._found)
        reader = self._store.reader(self._key)
        if len(ordered):
            self._check_ends(reader, facts, ordered)
        for begin, end in _uncovered(facts, ordered):
            self._check_surplus(reader, begin, end)
        return Counted.of(self._found)

    # --- the sequence of the records' queue offsets ---------------------------------------------------
    def _check_sequence(self, ordered: NDArray[np.void]) -> None:
        """A hole is not a finding if the log between its neighbours is unknown."""
        if not len(ordered):
            return
        furthest = np.maximum.accumulate(ordered["end"])
        holes = np.flatnonzero(ordered["first"][1:] > furthest[:-1]) + 1
        named = 0
        for i in holes.tolist():
            before = PhysicalOffset(int(ordered["last"][i - 1]))
            after = PhysicalOffset(int(ordered["physical"][i]))
            if self._log.unknown.any_in(min(before, after), max(before, after)) or named == EACH_MAX:
                continue
            named += 1
            path, at = self._store.log_place(after)
            what = (
                f"{self._name} has no record of the offsets {furthest[i - 1]} to {ordered['first'][i] - 1}, "
                f"which come before {ordered['first'][i]}"
            )
            self._found.of("queueHole").add(path, at, what)
        twice = np.flatnonzero(ordered["first"][1:] < furthest[:-1]) + 1
        for i in twice[:EACH_MAX].tolist():
            self._add_twice(ordered, i, int(furthest[i - 1]))

    def _add_twice(self, ordered: NDArray[np.void], i: int, furthest: int) -> None:
        other = max(range(i), key=lambda j: int(ordered["end"][j]))
        later = i if ordered["physical"][i] > ordered["physical"][other] else other
        path, at = self._store.log_place(int(ordered["physical"][later]))
        first, last = int(ordered["first"][i]), min(int(ordered["end"][i]), furthest) - 1
        self._found.of("queueDuplicate").add(
            path, at, f"{self._name} has the offsets {first} to {last} twice"
        )

    # --- units of the ends, units of no record --------------------------------------------------------
    def _check_ends(self, reader: QueueReader, facts: QueueFacts, ordered: NDArray[np.void]) -> None:
        first, end = int(ordered["first"][0]), int(ordered["end"].max())
        if first < facts.first:
            path, _ = reader.place(first)
            what = f"units {first} to {facts.first - 1} are missing: their files are gone"
            self._found.of("unitMissing").add(path, 0, what)
        if facts.end < end:
            path, at = reader.place(facts.end)
            self._add_missing(path, at, max(facts.end, first), end)

    def _add_missing(self, path: str, at: int, begin: int, end: int) -> None:
        what = f"units {begin} to {end - 1} are missing"
        self._found.of("unitMissing").add(path, at, what, note=not self._store.clean)

    def _check_surplus(self, reader: QueueReader, begin: int, end: int) -> None:
        floor = max(self._log.begin, self._store.deletions.deleted_below(self._key[0]))
        for chunk in range(begin, end, _UNITS_AT_ONCE):
            offsets = np.arange(chunk, min(chunk + _UNITS_AT_ONCE, end))
            units = reader.at(offsets)
            surplus = surplus_units(units, PhysicalOffset(floor), self._log.unknown) & (units["size"] > 0)
            report_surplus(
                self._found.of("unitExtra"),
                reader,
                offsets[surplus],
                units[surplus],
                PhysicalOffset(self._log.end),
                clean=self._store.clean,
            )


def _uncovered(facts: QueueFacts, ordered: NDArray[np.void]) -> list[tuple[int, int]]:
    """The written units without a record in the log, as ranges of queue offsets."""
    furthest = np.r_[facts.first, np.maximum(np.maximum.accumulate(ordered["end"]), facts.first)]
    begins = furthest
    ends = np.minimum(np.r_[ordered["first"], facts.end], facts.end)
    chosen = np.flatnonzero(ends > begins)
    return list(zip(begins[chosen].tolist(), ends[chosen].tolist(), strict=True))
