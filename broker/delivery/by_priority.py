"""How far one group has come in one queue that is received by priority.

Beside QueueState, which says what is in flight, there is one cursor a priority: a message of priority p
that is not in flight was handed out or passed over if its offset lies below cursors[p], and waits if not.
So the state has the same size however many messages wait.

Invariants
- Everything below `waiting_from` was handed out or passed over, of whatever priority; it never passes a
  message that waits, and the group's committed offset never passes it.
- Cursors and waiting_from go up only, but for go_on_at() and cut().
- `came_back` and `passed_over` are of this process alone: after a start the first is made from the leases,
  the second begins at 0.
"""

from __future__ import annotations

from trovemq_proto.records.priorities import PRIORITY_COUNT


class ByPriority:
    __slots__ = ("came_back", "cursors", "passed_over", "waiting_count", "waiting_from")

    def __init__(self, offset: int) -> None:
        self.cursors = [offset] * PRIORITY_COUNT
        self.waiting_from = offset
        self.came_back: list[list[int]] = [[] for _ in range(PRIORITY_COUNT)]
        """Heaps of offsets whose lease has ended (some are settled since)."""
        self.passed_over = [0] * PRIORITY_COUNT
        """Messages of other priorities that were delivered since one of this priority was, while it
        waited."""
        self.waiting_count: int | None = 0
        """Messages that wait below the state's next_offset; None where they must be counted again."""

    def next_from(self, priority: int) -> int:
        """The first offset at which a message of that priority may wait."""
        return max(self.cursors[priority], self.waiting_from)

    def save(self) -> tuple[list[int], int, int]:
        """(cursors, waiting_from, waiting_count or -1)."""
        return list(self.cursors), self.waiting_from, -1 if self.waiting_count is None else self.waiting_count

    def restore(self, cursors: list[int], waiting_count: int) -> None:
        """What save() gave, into one that was made at waiting_from."""
        self.cursors = list(cursors)
        self.waiting_count = None if waiting_count < 0 else waiting_count

    def go_on_at(self, offset: int) -> None:
        """The group reads on at `offset`, whatever was before."""
        self.__init__(offset)  # type: ignore[misc]

    def drop_below(self, offset: int) -> None:
        """Everything below is consumed, by whatever the group did elsewhere."""
        self.cursors = [max(cursor, offset) for cursor in self.cursors]
        self.waiting_from = max(self.waiting_from, offset)
        self.waiting_count = None

    def cut(self, end: int) -> None:
        """The queue ends before what was known."""
        self.cursors = [min(cursor, end) for cursor in self.cursors]
        self.waiting_from = min(self.waiting_from, end)
        self.waiting_count = None

    def passed(self, priority: int, cursor: int, waiting_from: int, waiting_count: int) -> None:
        """What a receive has handed out or passed over of one priority; waiting_count: -1 for None."""
        self.waiting_count = None if waiting_count < 0 else waiting_count
        self.cursors[priority] = max(self.cursors[priority], cursor)
        self.waiting_from = max(self.waiting_from, waiting_from)
