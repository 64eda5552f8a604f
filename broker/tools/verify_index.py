"""Index files against the log: every key of every record has its item, the chains and the headers are right.

Items lie in log order, so the items of a run of records are found by their physical offsets. A key that
RocketMQ indexed twice after a crash (spec 4.2) is a note, as every reader must expect it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from broker.projection import DispatchBatch
from broker.tools import layouts
from broker.tools.findings import Findings
from broker.tools.layouts import IndexView
from broker.tools.store_view import StoreView

_MIX: Final = np.uint64(0x9E37_79B9_7F4A_7C15)

Int64s = NDArray[np.int64]


class IndexCheck:
    """Feed it every run of the log, then finish(). Chains and headers are checked when it is made.

    Only the files that hold items of the present run have their offsets in memory (8 bytes an item).
    """

    def __init__(self, view: StoreView, findings: Findings) -> None:
        self._view = view
        self._findings = findings
        files = (self._read(path) for path in layouts.index_paths(view.files))
        self._files = [file for file in files if file is not None and len(file.used)]
        self._loaded: dict[int, Int64s] = {}
        self._last_physical_offset = -1
        self._position = view.log.min_offset
        self._unindexed_count = self._double_count = self._tagless_count = 0
        self._unindexed_from = -1
        for file in self._files:
            self._check_chains(file)
            self._check_order(file)

    def _read(self, path: str) -> IndexView | None:
        slots, items = self._view.settings.index_slot_count, self._view.settings.index_item_count
        size, wanted = self._view.files.file_size(path), layouts.index_file_size(slots, items)
        if size != wanted:
            self._findings.add(path, 0, f"has {size} bytes, {slots} slots and {items} items take {wanted}")
            return None
        return layouts.read_index(self._view.files, path, slots, items)

    def _check_chains(self, file: IndexView) -> None:
        """Recomputes slots and chains from the items' hashes."""
        note = not self._view.clean
        hashes = file.used["hash"].astype(np.int64)
        if int(file.header["item_count"]) > len(file.items):
            self._findings.add(
                file.path, 36, f"names {file.header['item_count']} items, has {len(file.items)}"
            )
        if len(hashes) and int(hashes.min()) < 0:
            item = int(np.argmax(hashes < 0)) + 1
            self._findings.add(
                file.path, file.item_offset(item), f"item {item} has a negative hash", note=note
            )
        slots_of = np.abs(hashes) % len(file.slots)
        previous, newest = chains_of(slots_of, len(file.slots))
        for i in np.flatnonzero(file.used["previous"] != previous):
            what = (
                f"item {i + 1} names item {file.used['previous'][i]} as the one before it, not {previous[i]}"
            )
            self._findings.add(file.path, file.item_offset(int(i) + 1), what, note=note)
        for slot in np.flatnonzero(file.slots != newest):
            at = layouts.HEADER_SIZE + layouts.SLOT_SIZE * int(slot)
            what = f"slot {slot} names item {file.slots[slot]}, not {newest[slot]}"
            self._findings.add(file.path, at, what, note=note)
        if len(hashes):
            self._check_header(file)

    def _check_header(self, file: IndexView) -> None:
        first, last = file.used["physical_offset"][[0, -1]].tolist()
        for name, at, expected in (("begin_physical_offset", 16, first), ("end_physical_offset", 24, last)):
            if int(file.header[name]) != expected:
                what = f"{name} is {file.header[name]}, its item says {expected}"
                self._findings.add(file.path, at, what, note=not self._view.clean)

    def _check_order(self, file: IndexView) -> None:
        offsets = file.used["physical_offset"]
        self._last_physical_offset = max(self._last_physical_offset, int(offsets.max()))
        backwards = np.flatnonzero(offsets[1:] < offsets[:-1])
        if len(backwards):
            item = int(backwards[0]) + 2
            what = f"item {item} is of an older record than the one before it"
            self._findings.add(file.path, file.item_offset(item), what)

    def run(self, run: DispatchBatch) -> None:
        if not len(run.records):
            return
        allowed, allowed_offsets, alive_at_all = _items_of(run, tags=True)
        required, offsets, alive = _items_of(run, tags=False)
        found = [np.empty(0, np.uint64)]
        for number, first, stop in self._ranges(self._position, run.end):
            found.append(self._check_items(number, first, stop, allowed))
        self._position = run.end
        there = np.concatenate(found)
        missing = alive & ~np.isin(required, there)
        self._double_count += max(len(there) - len(allowed), 0)
        self._count_missing(offsets[missing])
        missing_at_all = allowed_offsets[alive_at_all & ~np.isin(allowed, there)]
        self._tagless_count += self._count_passed(missing_at_all) - self._count_passed(offsets[missing])

    def _count_passed(self, offsets: Int64s) -> int:
        """How many of them the index has passed: behind its last item it only lags."""
        return int(np.count_nonzero(offsets < self._last_physical_offset))

    def _ranges(self, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
        """(file number, first item, item behind the last) of the items whose records lie in [begin, end)."""
        for number, file in enumerate(self._files):
            lowest, highest = file.used["physical_offset"][[0, -1]].tolist()
            if highest < begin:
                self._loaded.pop(number, None)
            elif lowest < end:
                offsets = self._offsets(number)
                yield number, int(np.searchsorted(offsets, begin)), int(np.searchsorted(offsets, end))

    def _offsets(self, number: int) -> Int64s:
        if number not in self._loaded:
            self._loaded[number] = self._files[number].used["physical_offset"].astype(np.int64)
        return self._loaded[number]

    def _check_items(
        self, number: int, first: int, stop: int, expected: NDArray[np.uint64]
    ) -> NDArray[np.uint64]:
        file = self._files[number]
        items = file.used[first:stop]
        there = mix(self._offsets(number)[first:stop], items["hash"].astype(np.int64))
        for i in np.flatnonzero(~np.isin(there, expected)):
            item = first + int(i) + 1
            pair = f"hash {items['hash'][i]}, record {items['physical_offset'][i]}"
            what = f"item {item} ({pair}) is no key of that record"
            self._findings.add(file.path, file.item_offset(item), what)
        return there

    def _count_missing(self, offsets: Int64s) -> None:
        """Keys without an item: behind the last item the index only lags, before it they are lost."""
        for physical_offset in np.unique(offsets[offsets < self._last_physical_offset]).tolist():
            what = f"record {physical_offset} has keys without an item"
            self._findings.add(layouts.INDEX_DIRECTORY, 0, what, note=not self._view.clean)
        behind = np.unique(offsets[offsets >= self._last_physical_offset])
        if len(behind) and self._unindexed_count == 0:
            self._unindexed_from = int(behind[0])
        self._unindexed_count += len(behind)

    def finish(self, end: int) -> None:
        """After the last run; `end` is the log's end."""
        for file in self._files:
            behind = np.flatnonzero(file.used["physical_offset"] >= end)
            if len(behind):
                item = int(behind[0]) + 1
                what = f"{len(behind)} items from item {item} on lie behind the log's end"
                self._findings.add(file.path, file.item_offset(item), what, note=True)
        if self._unindexed_count and self._files:
            what = f"{self._unindexed_count} records from {self._unindexed_from} on are not indexed yet"
            self._note(what)
        if self._double_count:
            self._note(f"{self._double_count} items stand twice")
        if self._tagless_count:
            self._note(f"{self._tagless_count} tags have no item, as in stores of RocketMQ before 5.4")

    def _note(self, what: str) -> None:
        self._findings.add(layouts.INDEX_DIRECTORY, 0, what, note=True)


def _items_of(run: DispatchBatch, *, tags: bool) -> tuple[NDArray[np.uint64], Int64s, NDArray[np.bool_]]:
    """The items that a run's records have: mixed numbers, the records' physical offsets, and whether alive.

    A record of a deleted topic may still have its items, but need not.
    """
    record_index, hashes = run.records.index_entries(tags)
    offsets = run.physical_offset + run.records.positions[record_index]
    alive = np.ones(len(offsets), np.bool_) if run.alive is None else run.alive[record_index]
    return mix(offsets, hashes.astype(np.int64)), offsets, alive


def chains_of(slots_of: Int64s, slot_count: int) -> tuple[Int64s, Int64s]:
    """(the item before each in its chain, the newest item of each slot); items count from 1, 0 = none."""
    order = np.argsort(slots_of, kind="stable")
    previous = np.zeros(len(slots_of), np.int64)
    same = slots_of[order][1:] == slots_of[order][:-1]
    previous[order[1:][same]] = order[:-1][same] + 1
    newest = np.zeros(slot_count, np.int64)
    newest[slots_of] = np.arange(1, len(slots_of) + 1)
    return previous, newest


def mix(physical_offsets: Int64s, hashes: Int64s) -> NDArray[np.uint64]:
    """One number for each pair: equal pairs give equal numbers, others all but never do."""
    return physical_offsets.astype(np.uint64) * _MIX + hashes.astype(np.uint64)
