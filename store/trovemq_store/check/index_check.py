"""Index files against the log: every key of every record has its item, and every item its record.

Items lie in log order, so those of a run of records are the next ones. A key that RocketMQ indexed twice
after a crash is a note, as every reader must expect it (docs/store-format.md, "Keys of a message").

Invariant: the items before the cursor (file, item) have been compared; they are of records below `_position`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trovemq_proto.positions import LOG_ORIGIN, PhysicalOffset
from trovemq_store.check import layouts
from trovemq_store.check.checked_store import CheckedStore, OpenIndex
from trovemq_store.check.findings import EACH_MAX, Findings
from trovemq_store.check.index_chains import ChainCheck
from trovemq_store.check.index_rules import (
    Numbers,
    check_count,
    check_header_offsets,
    check_header_times,
    key_items,
    mix,
    wrong_item,
    wrong_seconds,
)
from trovemq_store.check.layouts import IndexView
from trovemq_store.index.index_file import seconds_since
from trovemq_store.log.projection import DispatchBatch

_ITEMS_AT_ONCE: Final = 4096

Int64s = NDArray[np.int64]


class IndexCheck:
    """check_files() first, then every run and damage of the log in order, then finish()."""

    def __init__(self, store: CheckedStore, index: OpenIndex, findings: Findings) -> None:
        self._store = store
        self._index = index
        self._findings = findings
        self._files = [file for file in index.files if file.item_count > 1]
        self._file = 0
        self._item = 1
        self._position = LOG_ORIGIN
        self._unindexed_count = self._double_count = self._tagless_count = self._damaged_count = 0
        self._unindexed_from = -1
        self._begins: dict[str, int] = {}
        self._kept = index.kept
        self.item_count = 0

    # --- chains and headers --------------------------------------------------------------------------
    def check_files(self) -> Generator[IndexView | None, bool | None, None]:
        """Checks chains and headers. Yields a file before it is read, None after each step. Send True if the
        disk does not return the file: then no items are compared with records."""
        note = not self._store.clean
        for file in self._index.files:
            check_count(file, self._findings)
        for number, file in enumerate(self._files):
            unreadable = yield file
            if unreadable:
                self._kept = False
                continue
            growing = self._store.live and number == len(self._files) - 1
            for _ in ChainCheck(file, self._findings, growing=growing, note=note).steps():
                yield None
            check_header_offsets(file, self._findings, note=note)

    # --- items and records --------------------------------------------------------------------------
    def run(self, run: DispatchBatch) -> None:
        if not self._kept or not len(run.records):
            return
        self._skip_to(max(run.offset_of(0), self._position))  # of records removed meanwhile, or damaged
        items = key_items(run, tags=True)
        found = [
            (_numbers(file, first, stop), file, first) for file, first, stop in self._items_below(run.end)
        ]
        self._position = run.end
        there = np.concatenate([np.empty(0, np.uint64), *(numbers for numbers, _, _ in found)])
        if np.array_equal(there, items.numbers):
            timestamps = run.records.store_timestamps[items.record_index]
            for numbers, file, first in found:
                self._check_times(file, first, timestamps[: len(numbers)])
                timestamps = timestamps[len(numbers) :]
            return
        for numbers, file, first in found:
            for i in np.flatnonzero(~np.isin(numbers, items.numbers))[:EACH_MAX].tolist():
                self._add_wrong(file, first + i)
        self._double_count += max(len(there) - len(items.numbers), 0)
        required = key_items(run, tags=False)
        offsets = required.physical_offsets
        missing = required.alive & ~np.isin(required.numbers, there)
        self._count_missing(offsets[missing])
        missing_at_all = items.physical_offsets[items.alive & ~np.isin(items.numbers, there)]
        self._tagless_count += self._count_complete(missing_at_all) - self._count_complete(offsets[missing])

    def damage(self, begin: PhysicalOffset, end: PhysicalOffset) -> None:
        """Nothing is known of the records of [begin, end): they may have items."""
        if self._kept:
            self._skip_to(max(begin, self._position))
            self._damaged_count += sum(stop - first for _, first, stop in self._items_below(end))
            self._position = max(self._position, end)

    def _skip_to(self, begin: PhysicalOffset) -> None:
        """Moves the cursor to the items of records at or after `begin`: there is no record in between."""
        for file, first, stop in self._items_below(begin):
            physical = file.items["physical_offset"][first:stop]
            extra = (
                np.flatnonzero((physical >= self._store.min_offset) & (physical >= self._position)) + first
            )
            for item in extra[:EACH_MAX].tolist():
                self._add_wrong(file, item)
        self._position = max(self._position, begin)

    def _items_below(self, end: PhysicalOffset) -> Iterator[tuple[IndexView, int, int]]:
        """(file, first item, item after the last) from the cursor on, of records below `end`."""
        while self._file < len(self._files):
            file, first = self._files[self._file], self._item
            stop = self._stop(file, first, end)
            if stop > first:
                self._item = stop
                self.item_count += stop - first
                yield file, first, stop
            elif not self._is_stray(file, stop, end):
                return
            else:
                self._add_wrong(file, stop)
                self._item = stop + 1
            if self._item >= file.item_count:
                self._file, self._item = self._file + 1, 1

    @staticmethod
    def _stop(file: IndexView, first: int, end: PhysicalOffset) -> int:
        """The first item from `first` on whose record is at or after `end`."""
        for begin in range(first, file.item_count, _ITEMS_AT_ONCE):
            stop = min(begin + _ITEMS_AT_ONCE, file.item_count)
            beyond = np.flatnonzero(file.items["physical_offset"][begin:stop] >= end)
            if len(beyond):
                return begin + int(beyond[0])
        return file.item_count

    @staticmethod
    def _is_stray(file: IndexView, item: int, end: PhysicalOffset) -> bool:
        """Whether the items after it are of records below `end`, so that it cannot be right."""
        return item + 1 < file.item_count and int(file.items["physical_offset"][item + 1]) < end

    def _check_times(self, file: IndexView, first: int, timestamps: Int64s) -> None:
        """Header times, and the seconds of the items from `first` on; those of item 1 mean nothing (the quirk
        in index_file.py). timestamps: the store times of the items' records."""
        begin = self._begins.get(file.path, int(file.header["begin_timestamp"]))
        if first == 1:
            begin = int(timestamps[0])
        self._begins[file.path] = begin
        begins = int(timestamps[0]) if first == 1 else None
        ends = int(timestamps[-1]) if first + len(timestamps) == file.item_count else None
        note = not self._store.clean
        check_header_times(file, self._findings, begins, ends, begin, note=note)
        expected = seconds_since(begin, timestamps)
        wrong = file.items["seconds"][first : first + len(timestamps)] != expected
        if first == 1:
            wrong[0] = False
        for i in np.flatnonzero(wrong)[:EACH_MAX].tolist():
            item = first + i
            what = wrong_seconds(item, file.items["seconds"][item], expected[i])
            self._findings.add(file.path, file.item_offset(item), what, note=note)

    def _add_wrong(self, file: IndexView, item: int) -> None:
        there = file.items[item]
        what = wrong_item(item, there["hash"], there["physical_offset"])
        self._findings.add(file.path, file.item_offset(item), what)

    # --- missing items ------------------------------------------------------------------------------
    def _count_complete(self, offsets: Int64s) -> int:
        """How many of the records the index has passed: later ones are only not indexed yet."""
        return int(np.count_nonzero(offsets < self._index.complete_below))

    def _count_missing(self, offsets: Int64s) -> None:
        """Counts the records with keys without an item: before the last item they are lost, after it the
        index only lags."""
        for physical_offset in np.unique(offsets[offsets < self._index.complete_below]).tolist():
            what = f"record {physical_offset} has keys without an item"
            self._findings.add(layouts.INDEX_DIRECTORY, 0, what, note=not self._store.clean)
        beyond = np.unique(offsets[offsets >= self._index.complete_below])
        if len(beyond) and self._unindexed_count == 0:
            self._unindexed_from = int(beyond[0])
        self._unindexed_count += len(beyond)

    def finish(self, end: PhysicalOffset) -> None:
        """Call after the last run; `end` is the log's end. In a live store, items after the end of the
        checked part are of records that were appended meanwhile."""
        if not self._kept:
            return
        self._skip_to(end)
        for file in self._files[self._file :] if not self._store.live else ():
            first = self._item if file is self._files[self._file] else 1
            what = f"{file.item_count - first} items from item {first} on lie after the log's end"
            self._findings.add(file.path, file.item_offset(first), what, note=True)
        if self._unindexed_count and self._files and not self._store.live:
            what = f"{self._unindexed_count} records from {self._unindexed_from} on are not indexed yet"
            self._note(what)
        if self._double_count:
            self._note(f"{self._double_count} duplicate items")
        if self._tagless_count:
            self._note(f"{self._tagless_count} tags have no item, as in stores of RocketMQ before 5.4")
        if self._damaged_count:
            self._note(f"{self._damaged_count} items are of damaged records")

    def _note(self, what: str) -> None:
        self._findings.add(layouts.INDEX_DIRECTORY, 0, what, note=True)


def complete_below(files: list[IndexView]) -> PhysicalOffset:
    """A stopped store's index has every key of the records below: before its last item nothing is missing."""
    return PhysicalOffset(max((int(file.items["physical_offset"][1 : file.item_count].max()) for file in files
                if file.item_count > 1), default=-1))  # fmt: skip


def _numbers(file: IndexView, first: int, stop: int) -> Numbers:
    items = file.items[first:stop]
    return mix(items["physical_offset"].astype(np.int64), items["hash"].astype(np.int64))
