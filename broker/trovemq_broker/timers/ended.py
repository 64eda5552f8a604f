"""Queue offsets of ended timers, which are collected while events are replayed.

Invariant: covers() finds the added offsets and nothing else, whatever the order and the overlaps.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class EndedOffsets:
    """Ranges of offsets of each source."""

    def __init__(self) -> None:
        self._ranges: dict[int, list[tuple[int, int]]] = {}
        self._merged: dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def add(self, source: int, begin: int, end: int) -> None:
        """The offsets [begin, end)."""
        ranges = self._ranges.setdefault(source, [])
        if ranges and ranges[-1][1] == begin:
            ranges[-1] = (ranges[-1][0], end)
        else:
            ranges.append((begin, end))
        self._merged.pop(source, None)

    def add_all(self, other: EndedOffsets) -> None:
        for source, ranges in other._ranges.items():
            for begin, end in ranges:
                self.add(source, begin, end)

    def covers(self, source: int, offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of the offsets have ended."""
        if source not in self._ranges:
            return np.zeros(len(offsets), np.bool_)
        if source not in self._merged:
            self._merged[source] = _merge(self._ranges[source])
        begins, ends = self._merged[source]
        index = np.searchsorted(begins, offsets, "right") - 1
        found: NDArray[np.bool_] = (index >= 0) & (offsets < ends[index])
        return found


def _merge(ranges: list[tuple[int, int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Begins and ends of the same offsets, sorted; each end is the highest up to there."""
    pairs = np.array(sorted(ranges), np.int64)
    return pairs[:, 0], np.maximum.accumulate(pairs[:, 1])
