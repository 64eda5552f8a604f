"""The state of one group in one queue: messages in flight, waiting messages, progress.

Every offset of the queue is one of these:

| offset                     | is                                                                        |
|----------------------------|---------------------------------------------------------------------------|
| in `open`                  | delivered and not settled: invisible, or ready again when its lease ended |
| in `held`                  | examined and not delivered yet                                            |
| other, below `next_offset` | consumed                                                                  |
| from `next_offset` on      | not examined                                                              |

Invariants
- committed <= every offset of open and held < next_offset; committed == next_offset if both are empty.
- `open` and `held` have no offset in common.
- `ready` has every loose offset of `open` whose lease has ended (and perhaps offsets that were settled
  since, or one twice: its ended lease was changed late, and ended again); make_ready() adds packed ones.
- Messages that were acknowledged out of order are not stored: they are the offsets between committed and
  next_offset that are neither in `open` nor in `held`. So they take no space, and consumed() computes their
  ranges from the pending messages.
- Lease numbers are ascending: none is used twice.

In a queue that is received by priority, `order` has the waiting messages (by_priority.py): offsets between
order.waiting_from and next_offset may wait even if they are neither open nor held. committed never passes
waiting_from. Packed messages of such a state whose lease has ended stay packed until they are delivered;
`order` has their offsets.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappush, merge
from typing import Final

from trovemq_broker.groups.delivery.by_priority import ByPriority
from trovemq_broker.groups.delivery.lease_rows import BLOCK_BITS, BLOCK_SIZE
from trovemq_broker.groups.delivery.leases import Lease
from trovemq_broker.groups.delivery.open_messages import OpenMessages
from trovemq_broker.groups.delivery.sequence_set import SequenceSet
from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueId
from trovemq_proto.records.dead_letter_reason import TIMES_MAX
from trovemq_store.events.receipt_handle import SourceKind

REDELIVERED_MAX: Final = 4_096


class QueueState:
    """The state of one (group, topic, queue). `topic` is the one in which the messages lie, perhaps a retry
    topic."""

    __slots__ = (
        "blocked",
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
        "order",
        "queue_id",
        "ready",
        "redelivered",
        "topic",
        "unblocked",
    )

    def __init__(self, group: str, topic: str, queue_id: QueueId, kind: SourceKind, offset: int) -> None:
        self.group = group
        self.topic = topic
        self.queue_id = queue_id
        self.kind = kind
        self.committed = offset
        self.next_offset = offset
        self.next_lease = 1
        self.ended_lease = 0
        """Handles of leases up to this one are void."""
        self.open: OpenMessages[QueueState] = OpenMessages(self)
        self.held = SequenceSet()
        self.ready: list[int] = []
        self.moved: dict[int, PhysicalOffset] = {}
        """By offset: the physical offset of the record, if it differs from that in the consume queue."""
        self.keys: dict[int, str] = {}
        """By offset: the key that separates messages: the message group, or the original topic of a classic
        retry."""
        self.redelivered: dict[int, tuple[EpochMs, ...]] = {}
        """By offset of an open message: when it was delivered before the last time. Of the first
        REDELIVERED_MAX messages only."""
        self.order: ByPriority | None = None
        """The group's progress by priority; None if the queue is received in its own order."""
        self.unblocked = True
        """Whether a message was settled or returned since held messages were last examined."""
        self.blocked = False
        """Orderly groups: whether the last receive did not deliver open messages whose lease has ended,
        because another message of their message group was in flight."""

    # --- changes ---------------------------------------------------------------------------------------
    def take_lease_number(self) -> int:
        number = self.next_lease
        self.next_lease = number + 1
        return number

    def open_under(self, lease: Lease, offsets: range) -> None:
        """Makes the offsets open under the lease, in whose range they are; new ones move next_offset."""
        assert lease.first <= offsets.start <= offsets.stop <= lease.end, "the lease covers its messages"
        if offsets.stop <= self.next_offset:
            for offset in offsets:
                self._leave(offset)
            if self.held:
                self.held.discard_range(offsets.start, offsets.stop)
        else:
            assert offsets.start >= self.next_offset, "new messages and old ones are delivered apart"
            self._advance_to(offsets.start)
            self.next_offset = offsets.stop
        loose = self.open.loose
        loose.update(dict.fromkeys(offsets, lease))
        lease.live += len(offsets)
        if len(loose) > self.open.pack_at:
            self._pack(lease)

    def note_redelivered(self, offsets: range, attempt: int) -> None:
        """Keeps the times of the earlier deliveries; to be called before open_under()."""
        for offset in offsets:
            if len(self.redelivered) >= REDELIVERED_MAX and offset not in self.redelivered:
                continue
            # a delivery that counted as no attempt is left out
            if times := self.delivery_times(offset)[: attempt - 1]:
                self.redelivered[offset] = times

    def hold(self, offset: int) -> None:
        """Adds a new message that waits."""
        assert offset >= self.next_offset, "old messages are held already, open or consumed"
        assert self.order is None, "in a queue received by priority new messages wait without being held"
        self._advance_to(offset)
        self.held.add(offset)
        self.next_offset = offset + 1

    def mark_examined(self, offset: int) -> None:
        """Marks everything below `offset` as examined; messages there that are neither open nor held are
        consumed."""
        self._advance_to(max(offset, self.next_offset))

    def settle(self, offset: int) -> bool:
        """Marks the message as consumed. True if committed moved."""
        lease = self.open.pop(offset)
        if lease is not None:
            lease.live -= 1
            if len(self.open.loose) > self.open.pack_at:
                self._pack()
        else:
            self.held.discard(offset)
        if self.moved:
            self.moved.pop(offset, None)
        if self.keys:
            self.keys.pop(offset, None)
        if self.redelivered:
            self.redelivered.pop(offset, None)
        self.unblocked = True
        return offset == self.committed and self.advance()

    def settle_run(self, lease: Lease, offsets: range) -> bool:
        """Marks messages that are open under the lease as consumed. True if committed moved."""
        loose = self.open.loose
        if self.moved or self.keys or lease.live < len(offsets):  # live is less if it was packed meanwhile
            return max([self.settle(offset) for offset in offsets])
        for offset in offsets:
            del loose[offset]
        if self.redelivered:
            for offset in offsets:
                self.redelivered.pop(offset, None)
        lease.live -= len(offsets)
        self.unblocked = True
        if len(loose) > self.open.pack_at:
            self._pack()
        return offsets.start == self.committed and self.advance()

    def end_lease(self, lease: Lease) -> None:
        """Ends the lease: its messages may be delivered again."""
        lease.ended = True
        self.unblocked = True
        for offset in range(lease.first, lease.end):
            if self.open.loose.get(offset) is lease:
                heappush(self.ready, offset)

    def end_due(self, lease: Lease, now_ms: EpochMs) -> bool:
        """Ends the leases of an entry that a heap returned at now_ms: a lease, or the clock of packed ones.
        True if messages may be delivered again."""
        if lease is not self.open.packed.clock:
            self.end_lease(lease)
            return True
        some = self.open.packed.end_until(now_ms, None if self.order is None else self.order.ended)
        self.open.push_clock()
        self.unblocked = self.unblocked or some
        return some

    def make_ready(self, count: int) -> None:
        """Adds packed messages, so that `ready` has the lowest `count` messages that may be delivered
        again."""
        self.open.loosen_ended(count)

    def reset_to(self, offset: int) -> int:
        """Continues at `offset`; forgets open and held messages. Returns how many messages were open."""
        count = len(self.open)
        self.open.clear()
        self.held.clear()
        self.ready.clear()
        self.moved.clear()
        self.keys.clear()
        self.redelivered.clear()
        self.committed = self.next_offset = offset
        if self.order is not None:
            self.order.reset_to(offset)
        self.ended_lease = self.next_lease - 1
        self.unblocked = True
        return count

    def advance(self) -> bool:
        """Moves committed over consumed messages. True if it moved."""
        before = at = self.committed
        loose, held, end = self.open.loose, self.held, self.next_offset
        if self.open.packed.count:
            end = self.open.lowest_packed(end)
        if held:
            end = min(end, held.first() or 0)
        if self.order is not None:
            end = min(end, self.order.waiting_from)
        if not loose:
            at = max(at, end)
        while at < end and at not in loose:
            at += 1
        self.committed = at
        return at != before

    def drop_below(self, offset: int) -> None:
        """Marks everything below `offset` as consumed, because the stored offset of the group is higher."""
        for outstanding in self.outstanding_before(offset):
            self.settle(outstanding)
        self.next_offset = max(self.next_offset, offset)
        if self.order is not None:
            self.order.drop_below(offset)
        self.advance()

    # --- reading --------------------------------------------------------------------------------------
    def delivery_times(self, offset: int) -> tuple[EpochMs, ...]:
        """When an open message was delivered, as far as known, the latest last; at most TIMES_MAX."""
        lease = self.open.get(offset)
        if lease is None:
            return ()
        return (*self.redelivered.get(offset, ()), lease.received_ms)[-TIMES_MAX:]

    def outstanding_offsets(self) -> list[int]:
        """Every offset that is open or held, in order."""
        return list(self.each_outstanding())

    def each_outstanding(self) -> Iterator[int]:
        """Every offset that is open or held, in order, without building a list; the state must not change
        meanwhile."""
        return merge(self.open, self.held) if self.held else iter(self.open)

    def outstanding_before(self, offset: int) -> list[int]:
        """The outstanding offsets below `offset`."""
        found = []
        for outstanding in self.each_outstanding():
            if outstanding >= offset:
                break
            found.append(outstanding)
        return found

    def consumed(self) -> SequenceSet:
        """The messages acknowledged out of order: consumed, and not below committed."""
        outstanding = SequenceSet(self.held.ranges())
        for offset in sorted(self.open.loose):
            outstanding.add(offset)
        whole = (1 << BLOCK_SIZE) - 1
        for block, mask in self.open.packed.blocks():
            first = block << BLOCK_BITS
            if mask == whole:
                outstanding.add_range(first, first + BLOCK_SIZE)
                continue
            for bit in range(BLOCK_SIZE):
                if mask >> bit & 1:
                    outstanding.add(first + bit)
        found, at = SequenceSet(), self.committed
        for first, end in outstanding.ranges():
            found.add_range(at, first)
            at = end
        found.add_range(at, self.next_offset)
        return found

    def _pack(self, kept: Lease | None = None) -> None:
        if not self.keys and self.kind is not SourceKind.CLASSIC_RETRY:  # these have keys, or will have
            self.open.pack(kept)

    def _advance_to(self, offset: int) -> None:
        """Moves next_offset to `offset`; committed follows if nothing is pending."""
        if self.committed == self.next_offset and self.order is None:
            self.committed = offset
        self.next_offset = offset

    def _leave(self, offset: int) -> None:
        lease = self.open.get(offset)
        if lease is not None:
            lease.live -= 1
