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

from trovemq_store.check import layouts
from trovemq_store.check.checked_store import CheckedStore, OpenIndex
from trovemq_store.check.findings import EACH_MAX, Findings
from trovemq_store.check.index_chains import ChainCheck
from trovemq_store.check.layouts import IndexView
from trovemq_store.log.projection import DispatchBatch

_MIX: Final = np.uint64(0x9E37_79B9_7F4A_7C15)
_ITEMS_AT_ONCE: Final = 4096
_SECONDS_MAX: Final = (1 << 31) - 1

Int64s = NDArray[np.int64]
Numbers = NDArray[np.uint64]


class IndexCheck:
    """check_files() first, then every run and damage of the log in order, then finish()."""

    def __init__(self, store: CheckedStore, index: OpenIndex, findings: Findings) -> None:
        self._store = store
        self._index = index
        self._findings = findings
        self._files = [file for file in index.files if file.item_count > 1]
        self._file = 0
        self._item = 1
        self._position = 0
        self._unindexed_count = self._double_count = self._tagless_count = self._damaged_count = 0
        self._unindexed_from = -1
        self._begins: dict[str, int] = {}
        self._kept = index.kept
        self.item_count = 0

    # --- the files by themselves --------------------------------------------------------------------
    def check_files(self) -> Generator[IndexView | None, bool | None, None]:
        """Chains and headers. Yields a file before it is read, None after each step; is sent whether the
        disk does not give it: then no items are compared with records."""
        note = not self._store.clean
        for file in self._index.files:
            self._check_count(file)
        for number, file in enumerate(self._files):
            unreadable = yield file
            if unreadable:
                self._kept = False
                continue
            growing = self._store.live and number == len(self._files) - 1
            for _ in ChainCheck(file, self._findings, growing=growing, note=note).steps():
                yield None
            self._check_header(file)

    def _check_count(self, file: IndexView) -> None:
        """Of one beyond what the file can hold ChainCheck tells; 0 reads as 1."""
        counted = int(file.header["item_count"])
        if max(counted, int(counted == 0)) != file.item_count and counted <= len(file.items):
            self._findings.add(file.path, 36, f"names {counted} items, has {file.item_count}")

    def _check_header(self, file: IndexView) -> None:
        first, last = file.items["physical_offset"][[1, file.item_count - 1]].tolist()
        for name, at, expected in (("begin_physical_offset", 16, first), ("end_physical_offset", 24, last)):
            if int(file.header[name]) != expected:
                what = f"{name} is {file.header[name]}, its item says {expected}"
                self._findings.add(file.path, at, what, note=not self._store.clean)

    # --- items and records --------------------------------------------------------------------------
    def run(self, run: DispatchBatch) -> None:
        if not self._kept or not len(run.records):
            return
        begin = run.physical_offset + int(run.records.positions[0])
        self._pass(max(begin, self._position))  # of records that went meanwhile, or are damaged
        record_index, allowed, allowed_offsets, alive_at_all = _items_of(run, tags=True)
        found = [(_numbers(file, first, stop), file, first) for file, first, stop in self._take(run.end)]
        self._position = run.end
        there = np.concatenate([np.empty(0, np.uint64), *(numbers for numbers, _, _ in found)])
        if np.array_equal(there, allowed):
            timestamps = run.records.store_timestamps[record_index]
            for numbers, file, first in found:
                self._check_times(file, first, timestamps[: len(numbers)])
                timestamps = timestamps[len(numbers) :]
            return
        for numbers, file, first in found:
            for i in np.flatnonzero(~np.isin(numbers, allowed))[:EACH_MAX].tolist():
                self._add_wrong(file, first + i)
        self._double_count += max(len(there) - len(allowed), 0)
        _, required, offsets, alive = _items_of(run, tags=False)
        missing = alive & ~np.isin(required, there)
        self._count_missing(offsets[missing])
        missing_at_all = allowed_offsets[alive_at_all & ~np.isin(allowed, there)]
        self._tagless_count += self._count_passed(missing_at_all) - self._count_passed(offsets[missing])

    def damage(self, begin: int, end: int) -> None:
        """Nothing is known of the records of [begin, end): they may have items."""
        if self._kept:
            self._pass(max(begin, self._position))
            self._damaged_count += sum(stop - first for _, first, stop in self._take(end))
            self._position = max(self._position, end)

    def _pass(self, begin: int) -> None:
        """The cursor goes to the items of records at or behind `begin`: there is no record in between."""
        for file, first, stop in self._take(begin):
            physical = file.items["physical_offset"][first:stop]
            extra = (
                np.flatnonzero((physical >= self._store.min_offset) & (physical >= self._position)) + first
            )
            for item in extra[:EACH_MAX].tolist():
                self._add_wrong(file, item)
        self._position = max(self._position, begin)

    def _take(self, end: int) -> Iterator[tuple[IndexView, int, int]]:
        """(file, first item, item behind the last) from the cursor on, of records below `end`."""
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
    def _stop(file: IndexView, first: int, end: int) -> int:
        """The first item from `first` on that is of a record at or behind `end`."""
        for begin in range(first, file.item_count, _ITEMS_AT_ONCE):
            stop = min(begin + _ITEMS_AT_ONCE, file.item_count)
            behind = np.flatnonzero(file.items["physical_offset"][begin:stop] >= end)
            if len(behind):
                return begin + int(behind[0])
        return file.item_count

    @staticmethod
    def _is_stray(file: IndexView, item: int, end: int) -> bool:
        """Whether the items behind it are of records below `end`, so that it cannot be right."""
        return item + 1 < file.item_count and int(file.items["physical_offset"][item + 1]) < end

    def _check_times(self, file: IndexView, first: int, timestamps: Int64s) -> None:
        """Header times, and the seconds of the items from `first` on; those of item 1 mean nothing (the quirk
        in index_file.py). timestamps: the store times of the items' records."""
        begin = self._begins.get(file.path, int(file.header["begin_timestamp"]))
        if first == 1:
            begin = int(timestamps[0])
        self._begins[file.path] = begin
        self._check_header_times(file, first, timestamps, begin)
        expected = np.clip((timestamps - begin) // 1000, 0, _SECONDS_MAX) if begin > 0 else 0 * timestamps
        wrong = file.items["seconds"][first : first + len(timestamps)] != expected
        if first == 1:
            wrong[0] = False
        for i in np.flatnonzero(wrong)[:EACH_MAX].tolist():
            item = first + i
            what = f"item {item} says {file.items['seconds'][item]} seconds, its record {expected[i]}"
            self._findings.add(file.path, file.item_offset(item), what, note=not self._store.clean)

    def _check_header_times(self, file: IndexView, first: int, timestamps: Int64s, begin: int) -> None:
        last = file.item_count - 1
        there = int(file.header["begin_timestamp"]), int(file.header["end_timestamp"])
        # A recovery that cannot read the last record takes the time from its item.
        estimate = begin + 1000 * int(file.items["seconds"][last])
        wrong = []
        if first == 1 and there[0] != int(timestamps[0]):
            wrong.append((0, "begin_timestamp", there[0], int(timestamps[0])))
        if first + len(timestamps) > last and there[1] not in (int(timestamps[-1]), estimate):
            wrong.append((8, "end_timestamp", there[1], int(timestamps[-1])))
        for at, name, found, known in wrong:
            what = f"{name} is {found}, its record says {known}"
            self._findings.add(file.path, at, what, note=not self._store.clean)

    def _add_wrong(self, file: IndexView, item: int) -> None:
        there = file.items[item]
        what = (
            f"item {item} (hash {there['hash']}, record {there['physical_offset']}) is no key of that record"
        )
        self._findings.add(file.path, file.item_offset(item), what)

    # --- what is missing ----------------------------------------------------------------------------
    def _count_passed(self, offsets: Int64s) -> int:
        """How many of them the index has passed: behind its last item it only lags."""
        return int(np.count_nonzero(offsets < self._index.complete_below))

    def _count_missing(self, offsets: Int64s) -> None:
        """Keys without an item: behind the last item the index only lags, before it they are lost."""
        for physical_offset in np.unique(offsets[offsets < self._index.complete_below]).tolist():
            what = f"record {physical_offset} has keys without an item"
            self._findings.add(layouts.INDEX_DIRECTORY, 0, what, note=not self._store.clean)
        behind = np.unique(offsets[offsets >= self._index.complete_below])
        if len(behind) and self._unindexed_count == 0:
            self._unindexed_from = int(behind[0])
        self._unindexed_count += len(behind)

    def finish(self, end: int) -> None:
        """After the last run; `end` is the log's end. Items behind the end of a live store's checked part
        are of records that were appended meanwhile."""
        if not self._kept:
            return
        self._pass(end)
        for file in self._files[self._file :] if not self._store.live else ():
            first = self._item if file is self._files[self._file] else 1
            what = f"{file.item_count - first} items from item {first} on lie behind the log's end"
            self._findings.add(file.path, file.item_offset(first), what, note=True)
        if self._unindexed_count and self._files and not self._store.live:
            what = f"{self._unindexed_count} records from {self._unindexed_from} on are not indexed yet"
            self._note(what)
        if self._double_count:
            self._note(f"{self._double_count} items stand twice")
        if self._tagless_count:
            self._note(f"{self._tagless_count} tags have no item, as in stores of RocketMQ before 5.4")
        if self._damaged_count:
            self._note(f"{self._damaged_count} items are of damaged records")

    def _note(self, what: str) -> None:
        self._findings.add(layouts.INDEX_DIRECTORY, 0, what, note=True)


def complete_below(files: list[IndexView]) -> int:
    """A stopped store's index has every key of the records below: before its last item nothing is missing."""
    return max((int(file.items["physical_offset"][1 : file.item_count].max()) for file in files
                if file.item_count > 1), default=-1)  # fmt: skip


def _items_of(run: DispatchBatch, *, tags: bool) -> tuple[Int64s, Numbers, Int64s, NDArray[np.bool_]]:
    """The items that a run's records have: the records' indexes, mixed numbers, physical offsets, and whether
    they are alive.

    A record of a deleted topic may still have its items, but need not.
    """
    record_index, hashes = run.records.index_entries(tags)
    offsets = run.physical_offset + run.records.positions[record_index]
    alive = np.ones(len(offsets), np.bool_) if run.alive is None else run.alive[record_index]
    return record_index, mix(offsets, hashes.astype(np.int64)), offsets, alive


def _numbers(file: IndexView, first: int, stop: int) -> Numbers:
    items = file.items[first:stop]
    return mix(items["physical_offset"].astype(np.int64), items["hash"].astype(np.int64))


def mix(physical_offsets: Int64s, hashes: Int64s) -> Numbers:
    """One number for each pair: equal pairs give equal numbers, others all but never do."""
    return physical_offsets.astype(np.uint64) * _MIX + hashes.astype(np.uint64)
