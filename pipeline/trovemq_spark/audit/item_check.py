"""Index items of one segment's records: every key of every record has its item, every item its record.

The rules (check.index_rules) are those of a scrub, which checks the whole log in one pass. Here they are
applied to one segment at a time: the items that name an offset of the segment are compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trovemq_spark.audit.found import FindingList
from trovemq_spark.audit.store import AuditedStore, IndexFacts
from trovemq_spark.log.segments import SegmentFile
from trovemq_store.check import layouts
from trovemq_store.check.findings import EACH_MAX
from trovemq_store.check.index_rules import key_items, mix, wrong_item, wrong_seconds
from trovemq_store.check.layouts import IndexView
from trovemq_store.index.index_file import seconds_since
from trovemq_store.log.projection import DispatchBatch

Int64s = NDArray[np.int64]


@dataclass(slots=True)
class ItemCounts:
    """Items compared, and differences that are not faults: records after the index's end, duplicate items,
    tags without an item, items of damaged records."""

    compared: int = 0
    unindexed: int = 0
    unindexed_from: int = -1
    double: int = 0
    tagless: int = 0
    damaged: int = 0


class _Items(NamedTuple):
    """Items of all index files that name this segment's offsets, by offset (stable)."""

    physical: Int64s
    hashes: Int64s
    seconds: Int64s
    numbers: Int64s
    files: Int64s
    """Which of store.index_files."""


def open_view(store: AuditedStore, facts: IndexFacts) -> IndexView:
    """The file's arrays. Raises ValueError if it is smaller than its numbers require; StorageError."""
    view = store.files.open(facts.path).view()
    return layouts.view_index(facts.path, view, store.sizes.index_slot_count, store.sizes.index_item_count)


class ItemCheck:
    """Call run() for each run of the segment in log order, then finish()."""

    def __init__(self, store: AuditedStore, segment: SegmentFile, found: FindingList) -> None:
        self._store = store
        self._found = found
        self._items = _items_in(store, segment)
        self._matched = np.zeros(len(self._items.physical), np.bool_)
        """Which items' offsets a run has covered."""
        self._counts = ItemCounts(compared=len(self._items.physical))
        self._is_note = not store.clean

    def run(self, run: DispatchBatch) -> None:
        begin = run.physical_offset + int(run.records.positions[0])
        low, high = np.searchsorted(self._items.physical, [begin, run.end]).tolist()
        self._matched[low:high] = True
        items = key_items(run, tags=True)
        there = mix(self._items.physical[low:high], self._items.hashes[low:high])
        starts, times = run.physical_offset + run.records.positions, run.records.store_timestamps
        if np.array_equal(there, items.numbers):  # each item belongs to its record, and none is missing
            self._check_times(np.arange(low, high), starts, times)
            return
        right = np.isin(there, items.numbers)
        for item in (np.flatnonzero(~right)[:EACH_MAX] + low).tolist():
            self._add_wrong(item)
        self._check_times(np.flatnonzero(right) + low, starts, times)
        self._counts.double += max(len(there) - len(items.numbers), 0)
        without = items.physical_offsets[items.alive & ~np.isin(items.numbers, there)]
        self._count_missing(run, without, there)

    def _check_times(self, items: Int64s, starts: Int64s, times: Int64s) -> None:
        """Checks the seconds of these items; those of a file's item 1 have no meaning (see index_file.py)."""
        begins = np.array([file.begin for file in self._store.index_files], np.int64)[
            self._items.files[items]
        ]
        stored = times[np.searchsorted(starts, self._items.physical[items])]
        expected = seconds_since(begins, stored)
        wrong = (self._items.seconds[items] != expected) & (self._items.numbers[items] != 1)
        for i in np.flatnonzero(wrong)[:EACH_MAX].tolist():
            item = int(items[i])
            path, at = self._place(item)
            what = wrong_seconds(self._items.numbers[item], self._items.seconds[item], expected[i])
            self._found.of("indexTime").add(path, at, what, note=self._is_note)

    def _count_missing(self, run: DispatchBatch, without: Int64s, there: NDArray[np.uint64]) -> None:
        """Counts keys without an item: after the last item the index only lags, before it they are lost.
        without: the records' offsets, one entry for each key or tag without an item."""
        if not self._store.index_files:
            return
        complete_below = self._store.complete_below
        required = key_items(run, tags=False)
        offsets = required.physical_offsets
        missing = required.alive & ~np.isin(required.numbers, there)
        for physical in np.unique(offsets[missing & (offsets < complete_below)])[:EACH_MAX].tolist():
            path, at = self._store.log_place(physical)
            self._found.of("indexMissing").add(
                path, at, f"the record at {physical} has keys without an item", note=self._is_note
            )
        lagging = np.unique(offsets[missing & (offsets >= complete_below)])
        if len(lagging) and self._counts.unindexed_from < 0:
            self._counts.unindexed_from = int(lagging[0])
        self._counts.unindexed += len(lagging)
        lost = np.count_nonzero(missing & (offsets < complete_below))
        self._counts.tagless += max(int(np.count_nonzero(without < complete_below)) - int(lost), 0)

    def finish(self, end: int, damages: Sequence[tuple[int, int]], *, is_last: bool) -> ItemCounts:
        """`end`: where the segment's records end."""
        for item in np.flatnonzero(~self._matched).tolist():
            physical = int(self._items.physical[item])
            if any(begin <= physical < stop for begin, stop in damages):
                self._counts.damaged += 1
            elif not (is_last and physical >= end):  # after the log's end: reported with its file
                self._add_wrong(item)
        return self._counts

    def _place(self, item: int) -> tuple[str, int]:
        number = int(self._items.numbers[item])
        slots = layouts.HEADER_SIZE + layouts.SLOT_SIZE * self._store.sizes.index_slot_count
        return self._store.index_files[int(self._items.files[item])].path, slots + layouts.ITEM_SIZE * number

    def _add_wrong(self, item: int) -> None:
        items = self._items
        path, at = self._place(item)
        what = wrong_item(items.numbers[item], items.hashes[item], items.physical[item])
        self._found.of("indexItem").add(path, at, what)


def _items_in(store: AuditedStore, segment: SegmentFile) -> _Items:
    parts = [
        _items_of(store, number, segment)
        for number, facts in enumerate(store.index_files)
        if facts.item_count > 1 and facts.lowest < segment.end and facts.highest >= segment.start
    ]
    if not parts:
        return _Items(*(np.empty(0, np.int64) for _ in range(5)))
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    order = np.argsort(columns[0], kind="stable")
    return _Items(*(column[order] for column in columns))


def _items_of(store: AuditedStore, number: int, segment: SegmentFile) -> _Items:
    facts = store.index_files[number]
    items = open_view(store, facts).items[1 : facts.item_count]
    physical = items["physical_offset"].astype(np.int64)
    chosen = np.flatnonzero((physical >= segment.start) & (physical < segment.end))
    return _Items(
        physical[chosen],
        items["hash"][chosen].astype(np.int64),
        items["seconds"][chosen].astype(np.int64),
        chosen + 1,
        np.full(len(chosen), number, np.int64),
    )
