"""The progress of one group in one queue that is received by priority.

QueueState has the messages in flight; this adds one cursor per priority: a message of priority p that is not
in flight was delivered or skipped if its offset lies below cursors[p], and waits if not. So the size of the
state does not depend on the number of waiting messages.

Invariants
- All messages below `waiting_from`, of any priority, were delivered or skipped. It never passes a message
  that waits nor the state's next_offset, and the group's committed offset never passes it.
- Cursors and waiting_from go up only, except by reset_to() and cut().
- Each open offset whose lease has ended is in `returned` or `ended`, or in the state's `ready` if it is
  loose; twice if its ended lease was changed late, and ended again.
- `returned`, `ended`, `was_skipped` and `counted` are not stored: after a start the first two are built from
  the leases, the others begin at 0.
"""

from __future__ import annotations

from array import array

from trovemq_broker.groups.delivery.offset_heap import OffsetHeap
from trovemq_proto.records.priorities import PRIORITY_COUNT


class Counted:
    """How many messages of one priority lie in the offsets [begin, end); see priority_waiting.py."""

    __slots__ = ("begin", "count", "end")

    def __init__(self) -> None:
        self.begin = self.end = self.count = 0


class ByPriority:
    __slots__ = ("counted", "cursors", "ended", "returned", "waiting_count", "waiting_from", "was_skipped")

    def __init__(self, offset: int) -> None:
        self.cursors = [offset] * PRIORITY_COUNT
        self.waiting_from = offset
        self.returned = [OffsetHeap() for _ in range(PRIORITY_COUNT)]
        """By priority: offsets whose lease has ended (some have been settled since)."""
        self.ended = array("q")
        """Packed offsets whose lease has ended and whose priority has not been read yet."""
        self.was_skipped = [0] * PRIORITY_COUNT
        """By priority: the messages of other priorities that were delivered while one of this priority
        waited, since the last delivery of this priority."""
        self.counted = [Counted() for _ in range(PRIORITY_COUNT)]
        """By priority: the waiting messages, as far as they were counted for the metric."""
        self.waiting_count: int | None = 0
        """The number of messages that wait below the state's next_offset; None if they must be counted
        again."""

    def next_from(self, priority: int) -> int:
        """The first offset at which a message of that priority may wait."""
        return max(self.cursors[priority], self.waiting_from)

    def save(self) -> tuple[list[int], int, int]:
        """(cursors, waiting_from, waiting_count or -1)."""
        return list(self.cursors), self.waiting_from, -1 if self.waiting_count is None else self.waiting_count

    def restore(self, cursors: list[int], waiting_count: int) -> None:
        """Restores the result of save() into an object that was created at waiting_from."""
        self.cursors = list(cursors)
        self.waiting_count = None if waiting_count < 0 else waiting_count

    def reset_to(self, offset: int) -> None:
        """The group continues at `offset`; everything else is forgotten."""
        self.__init__(offset)  # type: ignore[misc]

    def drop_below(self, offset: int) -> None:
        """Everything below `offset` counts as consumed, because the stored offset of the group is higher."""
        self.cursors = [max(cursor, offset) for cursor in self.cursors]
        self.waiting_from = max(self.waiting_from, offset)
        self.waiting_count = None

    def cut(self, end: int) -> None:
        """The queue ends at `end`, earlier than known."""
        self.cursors = [min(cursor, end) for cursor in self.cursors]
        self.waiting_from = min(self.waiting_from, end)
        self.waiting_count = None

    def passed(self, priority: int, cursor: int, waiting_from: int, waiting_count: int) -> None:
        """A receive delivered or skipped the messages of one priority below `cursor`; waiting_count: -1 for
        None."""
        self.waiting_count = None if waiting_count < 0 else waiting_count
        self.cursors[priority] = max(self.cursors[priority], cursor)
        self.waiting_from = max(self.waiting_from, waiting_from)
