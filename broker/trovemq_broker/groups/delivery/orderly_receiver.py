"""Receives from one queue for an orderly group: one client at a time has messages of a message group.

The lock is on (queue, message group); the messages of a queue without a message group form one group.

Invariants
- While a message of a message group is invisible, no other message of that group is delivered.
- No message of a message group is delivered while an earlier one is unconsumed, except after that one in the
  same receive.
- At most `ordered_window_max` offsets lie between committed and next_offset.
"""

from __future__ import annotations

from trovemq_broker.groups.delivery.context import Context
from trovemq_broker.groups.delivery.group_topic import GroupTopic
from trovemq_broker.groups.delivery.lease_writer import READS_OF_REDELIVERY, Batch, LeaseWriter
from trovemq_broker.groups.delivery.queue_state import QueueState
from trovemq_broker.groups.delivery.records import properties_of
from trovemq_proto.positions import PhysicalOffset, QueueOffset
from trovemq_proto.records.layout import PROPERTY_SHARDING_KEY
from trovemq_store.engine.queue_units import BLANK_UNIT_SIZE, readable_units
from trovemq_store.files.files import ScarceError


def message_group_of(record: memoryview | None) -> str:
    """The message group of the record; "" if it has none."""
    return properties_of(record).get(PROPERTY_SHARDING_KEY, "") if record is not None else ""


class OrderlyReceiver:
    """Receives from one queue for one receive."""

    def __init__(self, context: Context, pair: GroupTopic, state: QueueState, batch: Batch) -> None:
        self._context = context
        self._state = state
        self._batch = batch
        self._max_attempts = batch.request.group.max_attempts
        self._blocked: set[str] = set()
        """The message groups of which no later message may be delivered now."""
        self._postponed = False
        """Whether a message could not be handled now: the next receive must try again."""
        self._lease_writer = LeaseWriter(context, pair, state, batch)

    def take(self) -> None:
        """Delivers as many messages as the batch still needs and the order allows."""
        state, batch = self._state, self._batch
        if not state.unblocked and not self._has_new():
            return
        self._blocked = {
            state.keys.get(offset, "") for offset, lease in state.open.items() if not lease.ended
        }
        examined_to = None
        try:
            examined_all = self._take_outstanding()
            state.ready.clear()  # the leases show which messages are visible again
            if examined_all and not batch.full:
                state.unblocked = self._postponed
                examined_to = self._take_new()
        except ScarceError as error:
            batch.failure = error
            state.unblocked = True
        self._lease_writer.finish(examined_to)

    def _has_new(self) -> bool:
        state = self._state
        queue = self._context.store.consume_queues.get(state.topic, state.queue_id)
        return queue is not None and state.next_offset < queue.max_offset

    def _take_outstanding(self) -> bool:
        """Delivers returned and held messages, in order. False if it stopped before the last one: then no new
        one may be delivered."""
        state, changed, blocked = self._state, False, False
        for offset in state.outstanding_offsets():
            if self._batch.full:
                return False
            key, lease = state.keys.get(offset, ""), state.open.get(offset)
            if key in self._blocked:
                if lease is not None and lease.ended:
                    blocked = state.blocked = True
                continue
            if self._batch.reads_remaining <= 0:
                self._batch.unfinished |= changed
                return False
            self._batch.reads_remaining -= READS_OF_REDELIVERY
            record = self._context.record_of(state, offset)
            if record is None and self._context.waits_for_copy(state, offset):
                self._blocked.add(key)
                self._postponed = True
                continue
            if record is not None and not self._batch.passes(record) and self._batch.is_reserved(record):
                self._blocked.add(key)
                self._postponed = True
                continue
            if record is None or not self._batch.passes(record):
                self._context.damaged_count += record is None
                self._lease_writer.drop(offset)
                changed = True
                continue
            attempt = lease.attempt + 1 if lease is not None else 1
            if attempt > self._max_attempts:
                if self._lease_writer.dead_letter(offset, attempt, record, new=False):
                    changed = True
                else:
                    self._blocked.add(key)
                    self._postponed = True
                continue
            self._lease_writer.deliver(offset, attempt, (record,), len(record))
            changed = True
        state.blocked = blocked
        return True

    def _take_new(self) -> int | None:
        state, batch = self._state, self._batch
        queue = self._context.store.consume_queues.get(state.topic, state.queue_id)
        if queue is None or state.next_offset >= queue.max_offset:
            return None
        begin = max(state.next_offset, queue.min_offset)
        start = state.committed if state.committed < state.next_offset else begin
        end = min(queue.max_offset, start + self._context.settings.ordered_window_max)
        if begin >= end:
            return None
        units = readable_units(queue, QueueOffset(begin), end - begin)
        rows = zip(units["physical_offset"].tolist(), units["size"].tolist(), strict=True)
        for offset, (physical_offset, size) in enumerate(rows, begin):
            if batch.full:
                return offset
            if batch.reads_remaining <= 0:
                batch.unfinished = True
                return offset
            if not self._take_examined(offset, physical_offset, size):
                state.unblocked = True  # it is reserved for another member, which is woken
                return offset
        if end < queue.max_offset and state.committed == state.next_offset:
            batch.unfinished = True  # the filter took no message of the window: the next window can follow
        return end

    def _take_examined(self, offset: int, physical_offset: PhysicalOffset, size: int) -> bool:
        """Delivers, holds or consumes one new message. False if it is reserved for another member."""
        if size == BLANK_UNIT_SIZE:
            return True
        self._batch.reads_remaining -= 1
        record = self._context.records.read(physical_offset, size)
        if record is None:
            self._context.damaged_count += 1
            return True
        if not self._batch.passes(record):
            return not self._batch.is_reserved(record)
        key = message_group_of(record)
        if key in self._blocked:
            self._lease_writer.hold(offset, key)
        else:
            self._state.keys[offset] = key
            self._lease_writer.deliver(offset, 1, (record,), len(record))
        return True
