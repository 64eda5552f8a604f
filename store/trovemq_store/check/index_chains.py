"""The hash table of one index file: every item is in exactly one chain, that of its slot.

The check needs no sorting, and one byte of memory per item. If each item names an older one of its slot, or
none, and no item is named twice, then the items of a slot are one chain if all but the newest are named.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trovemq_store.check import layouts
from trovemq_store.check.findings import EACH_MAX, Findings
from trovemq_store.check.layouts import IndexView

AT_ONCE: Final = 8_192
"""Items, or slots, in one step."""

Int64s = NDArray[np.int64]
Bools = NDArray[np.bool_]


class ChainCheck:
    """steps() yields after each step; it compares the items that the file had when it was opened.

    growing: items are put into the file meanwhile. note: recovery repairs the findings.
    """

    def __init__(self, file: IndexView, findings: Findings, *, growing: bool, note: bool) -> None:
        self._growing = growing
        self._file = file
        self._findings = findings
        self._note = note
        self._reached = np.zeros(file.item_count, np.bool_)
        self._chain_count = 0

    def steps(self) -> Iterator[None]:
        file = self._file
        if int(file.header["item_count"]) > len(file.items):
            what = f"names {file.header['item_count']} items, has {len(file.items)}"
            self._findings.add(file.path, 36, what)
        highest = -1
        for begin in range(1, file.item_count, AT_ONCE):
            end = min(begin + AT_ONCE, file.item_count)
            highest = self._check_order(begin, end, highest)
            self._check_links(begin, end)
            yield
        used = int(file.header["slot_count_used"])
        if used != self._chain_count and file.item_count > 1:
            what = f"hashSlotCount is {used}, its items make {self._chain_count} chains"
            self._findings.add(file.path, 32, what, note=self._note)
        for begin in range(0, len(file.slots), AT_ONCE):
            self._check_slots(begin, min(begin + AT_ONCE, len(file.slots)))
            yield
        for begin in range(1, file.item_count, AT_ONCE):
            end = min(begin + AT_ONCE, file.item_count)
            lost = np.flatnonzero(~self._reached[begin:end]) + begin
            self._add_items(lost, "is in no chain: no look-up finds it")
            yield

    def _slots_of(self, hashes: NDArray[np.int32]) -> Int64s:
        return np.abs(hashes.astype(np.int64)) % len(self._file.slots)

    def _check_order(self, begin: int, end: int, highest: int) -> int:
        physical = self._file.items["physical_offset"][begin:end].astype(np.int64)
        highest_before = np.maximum.accumulate(np.r_[highest, physical])
        backwards = np.flatnonzero(physical < highest_before[:-1])
        if len(backwards):
            item = int(backwards[0]) + begin
            what = f"item {item} is of an older record than one before it"
            self._findings.add(self._file.path, self._file.item_offset(item), what)
        return int(highest_before[-1])

    def _check_links(self, begin: int, end: int) -> None:
        items = self._file.items[begin:end]
        hashes = items["hash"].astype(np.int32)
        self._add_items(np.flatnonzero(hashes < 0) + begin, "has a negative hash")
        numbers, previous = np.arange(begin, end), items["previous"].astype(np.int64)
        named = previous != 0
        older = named & (previous > 0) & (previous < numbers)
        same = older.copy()
        earlier = self._file.items["hash"][previous[older]].astype(np.int32)
        same[older] = self._slots_of(earlier) == self._slots_of(hashes[older])
        for i in np.flatnonzero(named & ~same).tolist()[:EACH_MAX]:
            kind = "of another chain" if older[i] else "no older one"
            self._add(int(numbers[i]), f"names item {previous[i]} as the one before it, which is {kind}")
        targets = previous[same]
        twice = self._reached[targets]
        first = np.zeros(len(targets), np.bool_)
        first[np.unique(targets, return_index=True)[1]] = True
        for number in numbers[same][twice | ~first].tolist()[:EACH_MAX]:
            self._add(number, "names an item before it that another one names too")
        self._reached[targets] = True
        self._chain_count += int(np.count_nonzero(~named))

    def _check_slots(self, begin: int, end: int) -> None:
        file, count = self._file, self._file.item_count
        heads = file.slots[begin:end].astype(np.int64)
        known = min(file.item_count_now, len(file.items)) if self._growing else count
        while True:  # items put since the file was opened lead to those that were there
            newer = (heads >= count) & (heads < known)
            previous = file.items["previous"][np.where(newer, heads, 0)].astype(np.int64)
            newer &= previous < heads
            if not newer.any():
                break
            heads = np.where(newer, np.maximum(previous, 0), heads)
        inside = (heads > 0) & (heads < count)
        right = inside.copy()
        hashes = file.items["hash"][heads[inside]].astype(np.int32)
        right[inside] = self._slots_of(hashes) == np.flatnonzero(inside) + begin
        right[right] = ~self._reached[heads[right]]
        for i in np.flatnonzero((heads != 0) & ~right).tolist()[:EACH_MAX]:
            at = layouts.HEADER_SIZE + layouts.SLOT_SIZE * (begin + i)
            what = f"slot {begin + i} names item {heads[i]}, which is not the newest one of its chain"
            self._findings.add(file.path, at, what, note=self._note)
        self._reached[heads[right]] = True

    def _add_items(self, items: Int64s, what: str) -> None:
        for item in items[:EACH_MAX].tolist():
            self._add(item, what)
        if len(items) > EACH_MAX:
            self._add(int(items[EACH_MAX]), f"and {len(items) - EACH_MAX - 1} more after it: {what}")

    def _add(self, item: int, what: str) -> None:
        place = self._file.item_offset(item)
        self._findings.add(self._file.path, place, f"item {item} {what}", note=self._note)
