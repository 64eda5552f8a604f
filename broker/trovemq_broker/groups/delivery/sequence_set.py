"""A set of queue offsets as sorted ranges: adjacent offsets cost 16 bytes together.

    starts  i64 ...   first offset of each range
    ends    i64 ...   offset after each range

Invariant: starts[0] < ends[0] < starts[1] < ends[1] < ...: ranges have members and never touch.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import chain


class SequenceSet:
    """A look-up is a binary search; a change in the middle also moves the ranges after it."""

    __slots__ = ("_count", "_ends", "_starts")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._starts = array("q")
        self._ends = array("q")
        self._count = 0
        for first, end in ranges:
            self.add_range(first, end)

    def __len__(self) -> int:
        """The number of offsets."""
        return self._count

    def __contains__(self, offset: int) -> bool:
        at = bisect_right(self._starts, offset) - 1
        return at >= 0 and offset < self._ends[at]

    def __iter__(self) -> Iterator[int]:
        """All offsets, ascending. The set must not change meanwhile."""
        return chain.from_iterable(map(range, self._starts, self._ends))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SequenceSet):
            return NotImplemented
        return self._starts == other._starts and self._ends == other._ends

    __hash__ = None  # type: ignore[assignment]

    @property
    def byte_count(self) -> int:
        """Bytes that the ranges take."""
        return len(self._starts) * (self._starts.itemsize + self._ends.itemsize)

    def ranges(self) -> list[tuple[int, int]]:
        """[first, end) of each range, ascending."""
        return list(zip(self._starts, self._ends, strict=True))

    def first(self) -> int | None:
        """The lowest offset."""
        return self._starts[0] if self._starts else None

    def add(self, offset: int) -> None:
        self.add_range(offset, offset + 1)

    def add_range(self, first: int, end: int) -> None:
        """Adds the offsets first .. end - 1; ranges that touch become one."""
        if first >= end:
            return
        starts, ends = self._starts, self._ends
        low = bisect_left(ends, first)  # the first range that does not end before, touching ones included
        high = bisect_right(starts, end)  # the first range that begins after it
        if low < high:
            first, end = min(first, starts[low]), max(end, ends[high - 1])
        self._replace(low, high, [(first, end)])

    def discard(self, offset: int) -> None:
        self.discard_range(offset, offset + 1)

    def discard_range(self, first: int, end: int) -> None:
        """Removes first .. end - 1 from the set."""
        if first >= end:
            return
        starts, ends = self._starts, self._ends
        low = bisect_right(ends, first)  # the first range with an offset at or after `first`
        high = bisect_left(starts, end)
        if low >= high:
            return
        kept = [(starts[low], min(first, ends[low])), (max(end, starts[high - 1]), ends[high - 1])]
        self._replace(low, high, [(begin, stop) for begin, stop in kept if begin < stop])

    def clear(self) -> None:
        del self._starts[:], self._ends[:]
        self._count = 0

    def _replace(self, low: int, high: int, ranges: list[tuple[int, int]]) -> None:
        starts, ends = self._starts, self._ends
        self._count += sum(end - first for first, end in ranges)
        self._count -= sum(ends[low:high]) - sum(starts[low:high])
        starts[low:high] = array("q", [first for first, _ in ranges])
        ends[low:high] = array("q", [end for _, end in ranges])
