"""Receives from one queue of a topic with `order = priority`, for a group that is not orderly.

The next message is the one with the highest priority, and among those the one with the lowest queue offset; a
returned message (whose lease has ended) has the place of its priority and offset. A message that the filter
drops is consumed when it is the next one, as in other queues.

`priority_starvation_max` (n) bounds how long a lower priority waits. While a message waits, its priority's
count is the number of messages of other priorities that this queue has delivered to this group since the last
message of that priority. A priority whose count has reached n is next, the one with the highest count first.
So the first message of a priority is delivered after at most n + 8 messages of others (8: the other
priorities that may be due as well). While the group has as many messages in flight as it may have, only
returned messages are delivered: new ones wait beyond the bound, and come first afterwards. n = 0: no bound,
higher priorities always come first. The counts begin at 0 when the broker starts.

Orderly groups do not use this: they receive every queue in the order of sending.

Invariants
- The cursor of a priority passes a message when it was delivered, or is consumed (filtered, unreadable).
- RECEIVED events come before their PASSED events: if the latter are lost, the message is in flight and is not
  delivered again as a new one.
"""

from __future__ import annotations

from array import array
from heapq import heappush
from itertools import chain
from typing import Final

from trovemq_broker.groups.delivery.by_priority import ByPriority
from trovemq_broker.groups.delivery.context import Context
from trovemq_broker.groups.delivery.group_topic import GroupTopic
from trovemq_broker.groups.delivery.lease_writer import Batch
from trovemq_broker.groups.delivery.priority_order import PriorityOrder
from trovemq_broker.groups.delivery.queue_receiver import QueueReceiver
from trovemq_broker.groups.delivery.queue_state import QueueState
from trovemq_broker.groups.delivery.records import properties_of
from trovemq_proto.positions import EpochMs, QueueOffset
from trovemq_proto.records.priorities import PRIORITY_COUNT, PRIORITY_DEFAULT, priority_of
from trovemq_store.engine.queue_units import BLANK_UNIT_SIZE, readable_units
from trovemq_store.events.codec import Event, EventKind
from trovemq_store.files.files import ScarceError

_NONE: Final = -1
_STEP: Final = 1 << 20
"""Units that one call of catch_up() reads where all must be known."""
SORTED_MAX: Final = 2_048
"""The most returned records whose priority one receive reads."""
_COUNTED_MAX: Final = 65_536
"""If the number of waiting messages is unknown, a receive counts them among at most this many offsets."""


class PriorityReceiver(QueueReceiver):
    """Receives from one queue for one receive."""

    def __init__(self, context: Context, pair: GroupTopic, state: QueueState, batch: Batch) -> None:
        super().__init__(context, pair, state, batch)
        self._places: PriorityOrder = context.priority_order
        self._order = _order_of(context, state, batch.request.now_ms)
        self._before = list(self._order.cursors)
        self._new: list[int] = [_NONE] * PRIORITY_COUNT
        """By priority: the offset of the next new message."""
        self._new_remaining = context.settings.in_flight_max - len(state.open)
        """How many new messages may still be delivered."""
        self._known = False
        """Whether the offsets of all new messages are known."""
        self._passed = 0
        """The number of new messages that cursors have passed."""
        queue = context.store.consume_queues.get(state.topic, state.queue_id)
        first, self._end = (queue.min_offset, queue.max_offset) if queue is not None else (0, 0)
        if first > self._order.waiting_from:
            self._order.waiting_count = None  # retention has removed some of them
        self._next_before = state.next_offset
        self._deferred: list[tuple[int, int]] = []
        """(priority, offset) of returned messages that could not be delivered now: they stay returned."""

    def take(self) -> None:
        """Delivers as many messages as the batch still needs."""
        try:
            self._take()
        except ScarceError as error:
            self._batch.failure = error
            self._known = False
        for priority, offset in self._deferred:
            self._order.returned[priority].push(offset)
        self._finish()

    def _take(self) -> None:
        batch, state = self._batch, self._state
        if not self._sort_returned():
            batch.unfinished = True  # the next call sorts further ones
            return
        if state.held:
            self._take_held()
        lowest = self._order.waiting_from
        self._known = self._places.catch_up(state.topic, state.queue_id, lowest, batch.units_remaining)
        if self._known:
            for priority in range(PRIORITY_COUNT):
                self._find_new(priority)
            while not batch.full and (priority := self._choose()) != _NONE:
                if batch.reads_remaining <= 0:
                    batch.unfinished = True
                    break
                self._take_from(priority)
        else:
            batch.unfinished = True  # the next call reads further ones

    # --- the choice of a priority ---------------------------------------------------------------------
    def _choose(self) -> int:
        """The priority whose message is next; _NONE if there is none."""
        order, may_have_new = self._order, self._new_remaining > 0
        can = [
            p for p in range(PRIORITY_COUNT) if order.returned[p] or (may_have_new and self._new[p] != _NONE)
        ]
        if not can:
            return _NONE
        bound = self._context.settings.priority_starvation_max
        if bound:
            longest = max(can, key=lambda p: (order.was_skipped[p], p))
            if order.was_skipped[longest] >= bound:
                return longest
        return can[-1]

    def _delivered(self, priority: int) -> None:
        """Counts a delivery of that priority: the waiting messages of the others were skipped."""
        order = self._order
        for other in range(PRIORITY_COUNT):
            waits = other != priority and (self._new[other] != _NONE or order.returned[other])
            order.was_skipped[other] = order.was_skipped[other] + 1 if waits else 0

    # --- one message ----------------------------------------------------------------------------------
    def _take_from(self, priority: int) -> None:
        back, new = self._order.returned[priority], self._new[priority]
        self._batch.reads_remaining -= 1
        wanted = self._batch.wanted
        if back and (new == _NONE or self._new_remaining <= 0 or back.first() < new):
            self._redeliver(priority, back.pop())
        else:
            self._take_next(priority, new)
        if self._batch.wanted != wanted:
            self._delivered(priority)

    def _redeliver(self, priority: int, offset: int) -> None:
        lease = self._state.open.get(offset)
        if lease is None or not lease.ended or self.lease_writer.has(offset):
            return  # settled, or delivered again since
        try:
            taken = self._offer(offset, lease.attempt + 1)
        except ScarceError:
            self._deferred.append((priority, offset))
            raise
        if not taken:
            self._deferred.append((priority, offset))

    def _take_next(self, priority: int, offset: int) -> None:
        known = offset in self._state.open or offset in self._state.held  # its PASSED event was lost
        record = None if known else self._new_record(offset)
        following = self._next_offset(priority, max(offset + 1, self._order.waiting_from))
        # All that may fail is read: from here on the message is delivered, or dropped.
        self._order.cursors[priority] = offset + 1
        self._passed += 1
        self._new[priority] = following
        if record is not None and self._batch.passes(record):
            self._new_remaining -= 1
            self.lease_writer.deliver(offset, 1, (record,), len(record))

    def _new_record(self, offset: int) -> memoryview | None:
        """The record; None if it is not for this group or cannot be read."""
        state = self._state
        queue = self._context.store.consume_queues.get(state.topic, state.queue_id)
        if queue is None or not queue.min_offset <= offset < queue.max_offset:
            return None
        ((physical_offset, size, code),) = readable_units(queue, QueueOffset(offset), 1).tolist()
        hashes = self._filter.tag_hashes
        if size == BLANK_UNIT_SIZE or (size and hashes is not None and code not in hashes):
            return None
        record = self._context.records.read(physical_offset, size)
        if record is None:
            self._context.damaged_count += 1
        return record

    def _find_new(self, priority: int) -> None:
        self._new[priority] = self._next_offset(priority, self._order.next_from(priority))

    def _next_offset(self, priority: int, begin: int) -> int:
        state = self._state
        found = self._places.next_offset(state.topic, state.queue_id, priority, begin)
        return _NONE if found is None else found

    def _sort_returned(self) -> bool:
        """Finds the priorities of returned messages. False if there are too many for one receive."""
        state, order = self._state, self._order
        for _ in range(SORTED_MAX):
            source: list[int] | array[int] = state.ready or order.ended
            if not source:
                return True
            offset = source.pop()
            if state.open.has_ended(offset):
                try:
                    record = self._context.record_of(state, offset)
                except ScarceError:
                    source.append(offset)
                    raise
                priority = PRIORITY_DEFAULT if record is None else priority_of(properties_of(record))
                order.returned[priority].push(offset)
        return not state.ready and not order.ended

    # --- the end --------------------------------------------------------------------------------------
    def _finish(self) -> None:
        self.lease_writer.finish()
        state, order, context = self._state, self._order, self._context
        committed = state.committed
        if self._known:
            end = max(self._end, state.next_offset)
            order.waiting_from = max(order.waiting_from, min([end, *(o for o in self._new if o != _NONE)]))
        state.mark_examined(order.waiting_from)
        self._count_waiting()
        for priority, (before, cursor) in enumerate(zip(self._before, order.cursors, strict=True)):
            if cursor != before:
                _record_passed(context, state, priority, self._batch.request.now_ms)
        if state.advance() or state.committed != committed:
            context.commit(state)

    def _count_waiting(self) -> None:
        """Adds to waiting_count the messages that next_offset has passed and no cursor."""
        state, order = self._state, self._order
        if order.waiting_from >= state.next_offset:
            order.waiting_count = 0
        elif order.waiting_count is not None:
            order.waiting_count += state.next_offset - self._next_before - self._passed
        elif self._known and state.next_offset - order.waiting_from <= _COUNTED_MAX:
            order.waiting_count = waiting_count(self._places, state)


def _order_of(context: Context, state: QueueState, now_ms: EpochMs) -> ByPriority:
    """The state's order; created now if the queue was not received by priority before."""
    if state.order is None:
        state.order = ByPriority(state.next_offset)
        state.order.ended = state.open.packed.ended_offsets()
        _record_passed(context, state, 0, now_ms)
    return state.order


def _record_passed(context: Context, state: QueueState, priority: int, now_ms: EpochMs) -> None:
    assert state.order is not None, "the queue is received by priority"
    assert state.order.waiting_from <= state.next_offset, "messages that were passed were examined"
    context.add(
        Event(
            EventKind.PASSED,
            now_ms,
            state.group,
            state.topic,
            state.queue_id,
            state.order.cursors[priority],
            until=state.order.waiting_from,
            attempt=priority,
            physical_offset=-1 if state.order.waiting_count is None else state.order.waiting_count,
        )
    )


def waiting_count(places: PriorityOrder, state: QueueState) -> int:
    """The number of messages below next_offset that wait. `places` has caught up."""
    order = state.order
    if order is None:
        return 0
    return sum(
        places.count(state.topic, state.queue_id, priority, order.next_from(priority), state.next_offset)
        for priority in range(PRIORITY_COUNT)
    )


def was_skipped(context: Context, state: QueueState, offset: int) -> bool:
    """Whether a message below next_offset that is neither open nor held was skipped, because messages of
    higher priorities came first, and still waits."""
    order = state.order
    if order is None or offset < order.waiting_from:
        return False
    record = context.record_of(state, offset)
    return record is not None and offset >= order.cursors[priority_of(properties_of(record))]


def waiting_of(places: PriorityOrder, state: QueueState) -> int:
    """The number of messages of the queue that wait below next_offset; reads further units if needed."""
    order = state.order
    if order is None or order.waiting_from >= state.next_offset:
        return 0
    if order.waiting_count is None:
        while not places.catch_up(state.topic, state.queue_id, order.waiting_from, _STEP):
            pass
        order.waiting_count = waiting_count(places, state)
    return order.waiting_count


def receive_in_log_order(context: Context, state: QueueState, now_ms: EpochMs) -> None:
    """Ends the receiving by priority, because the topic no longer has `order = priority` or the group has
    become orderly: messages that wait below next_offset are held, and delivered first; later ones are
    received in the queue's own order."""
    order, places = state.order, context.priority_order
    assert order is not None, "the queue was received by priority"
    assert order.waiting_from <= state.next_offset, "messages that were passed were examined"
    while not places.catch_up(state.topic, state.queue_id, order.waiting_from, _STEP):
        pass
    for priority in range(PRIORITY_COUNT):
        begin = order.next_from(priority)
        offset = places.next_offset(state.topic, state.queue_id, priority, begin)
        while offset is not None and offset < state.next_offset:
            if offset not in state.open:
                state.held.add(offset)
            offset = places.next_offset(state.topic, state.queue_id, priority, offset + 1)
    for first, end in state.held.ranges():
        context.add(
            Event(EventKind.HELD, now_ms, state.group, state.topic, state.queue_id, first, end - first)
        )
    context.add(Event(EventKind.IN_LOG_ORDER, now_ms, state.group, state.topic, state.queue_id))
    state.order = None
    state.unblocked = True
    for offset in chain(order.ended, *order.returned):
        if offset in state.open.loose:  # loosen_ended() finds those that are packed
            heappush(state.ready, offset)
