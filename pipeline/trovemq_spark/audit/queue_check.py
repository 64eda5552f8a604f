"""One consume queue when the runs of all segments are together: holes and duplicates of its queue offsets,
units that are missing at its end, and units of no record."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from trovemq_spark.audit.found import Counted, FoundList
from trovemq_spark.audit.segment_check import RUN_DTYPE, unit_text
from trovemq_spark.audit.store import AuditedStore, QueueFacts, QueueKey, QueueReader
from trovemq_store.check.findings import EACH_MAX
from trovemq_store.check.layouts import Records
from trovemq_store.index.consume_queue import BLANK_SIZE, ROOT_DIRECTORY, UNIT_SIZE

Int64s = NDArray[np.int64]
_UNITS_AT_ONCE: Final = 65_536


class LogBounds:
    """The checked log: [begin, end), and the places in it of whose records nothing is known (damaged, or in a
    segment that is missing)."""

    def __init__(self, begin: int, end: int, unknown: list[tuple[int, int]]) -> None:
        ordered = sorted(unknown)
        self.begin: Final = begin
        self.end: Final = end
        self._begins: Final = np.array([begin for begin, _ in ordered], np.int64)
        self._ends: Final = np.array([end for _, end in ordered], np.int64)

    def are_unknown(self, physical: Int64s) -> NDArray[np.bool_]:
        at = np.searchsorted(self._begins, physical, "right") - 1
        if not len(self._begins):
            return np.zeros(len(physical), np.bool_)
        return (at >= 0) & (physical < self._ends[at])

    def has_unknown(self, begin: int, end: int) -> bool:
        """Whether something between these offsets is not known."""
        return bool(np.any((self._begins < end) & (self._ends > begin)))


def check_queue(
    store: AuditedStore, log: LogBounds, item: tuple[QueueKey, list[NDArray[np.void]]]
) -> Counted:
    """item: a queue and its runs of each segment, in log order; none where only files of it are there."""
    key, parts = item
    runs = np.concatenate(parts) if parts else np.empty(0, RUN_DTYPE)
    return _QueueCheck(store, log, key).run(runs)


class _QueueCheck:
    def __init__(self, store: AuditedStore, log: LogBounds, key: QueueKey) -> None:
        self._store = store
        self._log = log
        self._key = key
        self._found = FoundList()
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
        """A hole is nothing to report where what lies between its neighbours in the log is not known."""
        if not len(ordered):
            return
        furthest = np.maximum.accumulate(ordered["end"])
        holes = np.flatnonzero(ordered["first"][1:] > furthest[:-1]) + 1
        named = 0
        for i in holes.tolist():
            before, after = int(ordered["last"][i - 1]), int(ordered["physical"][i])
            if self._log.has_unknown(min(before, after), max(before, after)) or named == EACH_MAX:
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
            physical = units["physical_offset"].astype(np.int64)
            surplus = (units["size"] != BLANK_SIZE) & (units["size"] > 0) & (physical >= floor)
            surplus &= ~self._log.are_unknown(physical)
            self._add_surplus(reader, offsets[surplus], units[surplus])

    def _add_surplus(self, reader: QueueReader, offsets: Int64s, units: Records) -> None:
        for offset, unit in zip(offsets[:EACH_MAX].tolist(), units[:EACH_MAX], strict=True):
            behind = int(unit["physical_offset"]) >= self._log.end
            what = "lies behind the log's end" if behind else "belongs to no record"
            path, at = reader.place(offset)
            note = behind and not self._store.clean
            self._found.of("unitExtra").add(path, at, f"unit {offset}, {unit_text(unit)}, {what}", note=note)
        if len(offsets) > EACH_MAX:
            path, at = reader.place(int(offsets[EACH_MAX]))
            what = f"{len(offsets) - EACH_MAX} more units from here on belong to no record"
            note = not self._store.clean and int(units[EACH_MAX]["physical_offset"]) >= self._log.end
            self._found.of("unitExtra").add(path, at, what, note=note)


def _uncovered(facts: QueueFacts, ordered: NDArray[np.void]) -> list[tuple[int, int]]:
    """The written units for which no record of the log asked, as ranges of queue offsets."""
    furthest = np.r_[facts.first, np.maximum(np.maximum.accumulate(ordered["end"]), facts.first)]
    begins = furthest
    ends = np.minimum(np.r_[ordered["first"], facts.end], facts.end)
    chosen = np.flatnonzero(ends > begins)
    return list(zip(begins[chosen].tolist(), ends[chosen].tolist(), strict=True))
