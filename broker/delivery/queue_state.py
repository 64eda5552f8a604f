"""What one group owes of one queue: what it has been handed, what waits, how far it has come.

Every offset of the queue is one of these:

| offset                     | is                                                                       |
|----------------------------|--------------------------------------------------------------------------|
| in `open`                  | handed out and not settled: invisible, or ready again when its lease ended |
| in `held`                  | looked at and not handed out yet                                         |
| other, below `next_offset` | consumed                                                                 |
| from `next_offset` on      | not looked at                                                            |

Invariants
- committed <= every offset of open and held < next_offset; committed == next_offset where both are empty.
- `open` and `held` have no offset in common.
- `ready` has every offset of `open` whose lease has ended (and perhaps offsets that are settled since).
- Lease numbers rise: none is used twice.
"""

from __future__ import annotations

from heapq import heappush

from broker.delivery.leases import Lease
from broker.delivery.receipt_handle import SourceKind


class QueueState:
    """One (group, topic, queue). `topic` is where the messages lie, perhaps a retry topic."""

    __slots__ = (
        "committed",
        "ended_lease",
        "group",
        "held",
        "keys",
        "kind",
        "moved",
        "next_lease",
        "next_offset",
        "open",
        "queue_id",
        "ready",
        "topic",
        "unblocked",
    )

    def __init__(self, group: str, topic: str, queue_id: int, kind: SourceKind, offset: int) -> None:
        self.group = group
        self.topic = topic
        self.queue_id = queue_id
        self.kind = kind
        self.committed = offset
        self.next_offset = offset
        self.next_lease = 1
        self.ended_lease = 0
        """Handles of leases up to this one are void."""
        self.open: dict[int, Lease] = {}
        self.held: set[int] = set()
        self.ready: list[int] = []
        self.moved: dict[int, int] = {}
        """Where the record of an offset lies now, where that is not what the consume queue says."""
        self.keys: dict[int, str] = {}
        """By what messages are kept apart: their message group, or the original topic of a classic retry."""
        self.unblocked = True
        """Something was settled, or came back, since held messages were last looked at."""

    # --- the changes -----------------------------------------------------------------------------------
    def take_lease_number(self) -> int:
        number = self.next_lease
        self.next_lease = number + 1
        return number

    def hand_out(self, lease: Lease, offsets: range) -> None:
        """The offsets (of the lease's range) are open under the lease; new ones move next_offset."""
        if offsets.stop <= self.next_offset:
            for offset in offsets:
                self._leave(offset)
            self.held.difference_update(offsets)
        else:
            assert offsets.start >= self.next_offset, "new messages and old ones are handed out apart"
            self._advance_to(offsets.start)
            self.next_offset = offsets.stop
        self.open.update(dict.fromkeys(offsets, lease))
        lease.live += len(offsets)

    def hold(self, offset: int) -> None:
        """A new message waits."""
        assert offset >= self.next_offset
        self._advance_to(offset)
        self.held.add(offset)
        self.next_offset = offset + 1

    def look_past(self, offset: int) -> None:
        """Everything below `offset` was looked at; what is neither open nor held of it is consumed."""
        self._advance_to(max(offset, self.next_offset))

    def settle(self, offset: int) -> bool:
        """The message is consumed. True where committed moved."""
        lease = self.open.pop(offset, None)
        if lease is not None:
            lease.live -= 1
        else:
            self.held.discard(offset)
        if self.moved:
            self.moved.pop(offset, None)
        if self.keys:
            self.keys.pop(offset, None)
        self.unblocked = True
        return offset == self.committed and self.advance()

    def settle_run(self, lease: Lease, offsets: range) -> bool:
        """Messages that are open under the lease are consumed. True where committed moved."""
        if self.moved or self.keys:
            return max([self.settle(offset) for offset in offsets])
        open_ = self.open
        for offset in offsets:
            del open_[offset]
        lease.live -= len(offsets)
        self.unblocked = True
        return offsets.start == self.committed and self.advance()

    def end_lease(self, lease: Lease) -> None:
        """Its messages may be handed out again."""
        lease.ended = True
        self.unblocked = True
        for offset in range(lease.first, lease.end):
            if self.open.get(offset) is lease:
                heappush(self.ready, offset)

    def go_on_at(self, offset: int) -> int:
        """Forgets what is open and held. Returns how many messages were open."""
        count = len(self.open)
        for lease in self.open.values():
            lease.live = 0
        self.open.clear()
        self.held.clear()
        self.ready.clear()
        self.moved.clear()
        self.keys.clear()
        self.committed = self.next_offset = offset
        self.ended_lease = self.next_lease - 1
        self.unblocked = True
        return count

    def advance(self) -> bool:
        """Moves committed over what is consumed. True where it moved."""
        before = at = self.committed
        open_, held, end = self.open, self.held, self.next_offset
        if not open_ and not held:
            at = end
        while at < end and at not in open_ and at not in held:
            at += 1
        self.committed = at
        return at != before

    def drop_below(self, offset: int) -> None:
        """Everything below is consumed, by whatever the group did elsewhere."""
        for owed in [owed for owed in (*self.open, *self.held) if owed < offset]:
            self.settle(owed)
        self.next_offset = max(self.next_offset, offset)
        self.advance()

    # --- what is there --------------------------------------------------------------------------------
    def owed(self) -> list[int]:
        """Every offset that is open or held, in order."""
        return sorted((*self.open, *self.held))

    def _advance_to(self, offset: int) -> None:
        """next_offset moves to `offset`; committed follows where nothing is owed."""
        if self.committed == self.next_offset:
            self.committed = offset
        self.next_offset = offset

    def _leave(self, offset: int) -> None:
        lease = self.open.get(offset)
        if lease is not None:
            lease.live -= 1
