"""How far one group has come in one queue that is received by priority.

Beside QueueState, which has the messages in flight, there is one cursor a priority: a message of priority p
that is not in flight was delivered or skipped if its offset lies below cursors[p], and waits if not. So the
state has the same size however many messages wait.

Invariants
- Everything below `waiting_from` was delivered or skipped, of whatever priority; it never passes a message
  that waits nor the state's next_offset, and the group's committed offset never passes it.
- Cursors and waiting_from go up only, except by reset_to() and cut().
- Each offset that is open and whose lease has ended is once in `came_back` or `ended`, or in the state's
  `ready` where it is loose.
- `came_back`, `ended`, `was_skipped` and `counted` are of this process alone: after a start the first two are
  made from the leases, the others begin at 0.
"""

from __future__ import annotations

from array import array

from broker.groups.delivery.offset_heap import OffsetHeap
from trovemq_proto.records.priorities import PRIORITY_COUNT


class Counted:
    """How many messages of one priority lie in the offsets [begin, end); see priority_waiting.py."""

    __slots__ = ("begin", "count", "end")

    def __init__(self) -> None:
        self.begin = self.end = self.count = 0


class ByPriority:
    __slots__ = ("came_back", "counted", "cursors", "ended", "waiting_count", "waiting_from", "was_skipped")

    def __init__(self, offset: int) -> None:
        self.cursors = [offset] * PRIORITY_COUNT
        self.waiting_from = offset
        self.came_back = [OffsetHeap() for _ in range(PRIORITY_COUNT)]
        """Offsets whose lease has ended (some are settled since)."""
        self.ended = array("q")
        """Such offsets that are packed and whose priority has not been read yet."""
        self.was_skipped = [0] * PRIORITY_COUNT
        """Messages of other priorities that were delivered since one of this priority was, while it
        waited."""
        self.counted = [Counted() for _ in range(PRIORITY_COUNT)]
        """The waiting messages of each priority, as far as they were counted for the metric."""
        self.waiting_count: int | None = 0
        """Messages that wait below the state's next_offset; None if they must be counted again."""

    def next_from(self, priority: int) -> int:
        """The first offset at which a message of that priority may wait."""
        return max(self.cursors[priority], self.waiting_from)

    def save(self) -> tuple[list[int], int, int]:
        """(cursors, waiting_from, waiting_count or -1)."""
        return list(self.cursors), self.waiting_from, -1 if self.waiting_count is None else self.waiting_count

    def restore(self, cursors: list[int], waiting_count: int) -> None:
        """The result of save(), into an object that was made at waiting_from."""
        self.cursors = list(cursors)
        self.waiting_count = None if waiting_count < 0 else waiting_count

    def reset_to(self, offset: int) -> None:
        """The group reads on at `offset`, whatever was before."""
        self.__init__(offset)  # type: ignore[misc]

    def drop_below(self, offset: int) -> None:
        """Everything below is consumed, by whatever the group did elsewhere."""
        self.cursors = [max(cursor, offset) for cursor in self.cursors]
        self.waiting_from = max(self.waiting_from, offset)
        self.waiting_count = None

    def cut(self, end: int) -> None:
        """The queue ends earlier than known."""
        self.cursors = [min(cursor, end) for cursor in self.cursors]
        self.waiting_from = min(self.waiting_from, end)
        self.waiting_count = None

    def passed(self, priority: int, cursor: int, waiting_from: int, waiting_count: int) -> None:
        """The messages of one priority that a receive delivered or skipped; waiting_count: -1 for None."""
        self.waiting_count = None if waiting_count < 0 else waiting_count
        self.cursors[priority] = max(self.cursors[priority], cursor)
        self.waiting_from = max(self.waiting_from, waiting_from)
