"""A heap of offsets, at 8 bytes each: a sorted array whose elements are removed from the front, and a small
heap of offsets that were added later.

Invariant: array[at:] is ascending, and has no offset that was removed.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Final

import numpy as np

NEW_MIN: Final = 1_024
_NEW_SHARE: Final = 16
"""The heap is merged into the array when it has more than 1/16 of its size."""


class OffsetHeap:
    __slots__ = ("_at", "_new", "_sorted")

    def __init__(self) -> None:
        self._sorted = array("q")
        self._at = 0
        self._new: list[int] = []

    def __len__(self) -> int:
        return len(self._sorted) - self._at + len(self._new)

    def __iter__(self) -> Iterator[int]:
        """All offsets, in no order; the heap must not change meanwhile."""
        yield from self._sorted[self._at :]
        yield from self._new

    def first(self) -> int:
        """The lowest offset. The heap must not be empty."""
        if self._at == len(self._sorted):
            return self._new[0]
        first = self._sorted[self._at]
        return min(first, self._new[0]) if self._new else first

    def push(self, offset: int) -> None:
        heappush(self._new, offset)
        if len(self._new) > max(NEW_MIN, len(self._sorted) // _NEW_SHARE):
            self._sort()

    def pop(self) -> int:
        """Removes and returns the lowest offset. The heap must not be empty."""
        if self._new and (self._at == len(self._sorted) or self._new[0] < self._sorted[self._at]):
            return heappop(self._new)
        offset = self._sorted[self._at]
        self._at += 1
        if 2 * self._at > len(self._sorted):
            del self._sorted[: self._at]
            self._at = 0
        return offset

    def _sort(self) -> None:
        both = np.array(self._sorted[self._at :] + array("q", self._new), np.int64)
        both.sort(kind="stable")  # a merge, because there are two sorted runs
        self._sorted = array("q")
        self._sorted.frombytes(both.tobytes())
        self._at = 0
        self._new.clear()
