"""The commit offset: up to it, all nodes that count hold the log.

Invariants
- It never goes back, and is the end of an append: an atomic run is committed as a whole.
- It counts each node of the confirmed in-sync set and of every set that may still be confirmed.
- Before the epoch record of this leadership is committed, nothing of it is, because a record of a former
  epoch may be replaced although each node holds it (Raft, figure 8; rule 2 of the design).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from trovemq_broker.replication.frames import Offset

APPEND_ENDS_MAX: Final = 65_536
"""Ends that are kept. Beyond it neighbours are joined: the commit then moves in larger steps."""


class CommitOffset:
    """`known`: committed in a former epoch. `epoch_end`: the end of this leadership's epoch record."""

    def __init__(self, known: Offset, epoch_end: Offset) -> None:
        assert known < epoch_end, "the epoch record comes after all that is committed"
        self.offset = known
        self._epoch_end: Final = epoch_end
        self._ends: deque[Offset] = deque([epoch_end])

    @property
    def is_open(self) -> bool:
        """Whether the epoch record is committed: producers are served from then on."""
        return self.offset >= self._epoch_end

    def appended(self, end: Offset) -> None:
        """An append has ended there; or nothing was appended since the last call, because it was refused."""
        assert end >= self._last, "appends follow each other"
        if end == self._last:
            return
        if len(self._ends) >= APPEND_ENDS_MAX:
            self._ends.pop()
        self._ends.append(end)

    def held(self, positions: Iterable[Offset]) -> bool:
        """Moves to the last append that ends at or before each of the positions. Whether it moved."""
        least, before = min(positions), self.offset
        while self._ends and self._ends[0] <= least:
            self.offset = self._ends.popleft()
        return self.offset > before

    @property
    def _last(self) -> Offset:
        return self._ends[-1] if self._ends else self.offset
