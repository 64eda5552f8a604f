"""Builds the state from its events, at a start.

Invariant: apply() changes a state exactly as the live operation did when it added the event; the order of the
log is the order of the operations. Only complete() adds leases to their pairs.
"""

from __future__ import annotations

from trovemq_broker.groups.delivery.by_priority import ByPriority
from trovemq_broker.groups.delivery.context import Context
from trovemq_broker.groups.delivery.group_topics import GroupTopicTable
from trovemq_broker.groups.delivery.leases import Lease
from trovemq_broker.groups.delivery.queue_state import QueueState
from trovemq_proto.positions import EpochMs, PhysicalOffset
from trovemq_store.events.codec import Event, EventKind
from trovemq_store.events.receipt_handle import SourceKind
from trovemq_store.events.sources import kind_of

_SETTLED = (EventKind.ACKNOWLEDGED, EventKind.DEAD_LETTERED, EventKind.RETRIED)


def apply(pairs: GroupTopicTable, event: Event) -> None:
    """Applies one event of this package's kinds."""
    assert event.kind < EventKind.TIMER_ENDED, "those are of other packages"
    if event.kind is EventKind.FORGOTTEN:
        pairs.forget(event.group, event.topic or None)
        return
    state = pairs.state(event.group, event.topic, event.queue_id)
    if state is None:
        state = pairs.add(event.group, event.topic, event.queue_id, event.offset)
    state.next_lease = max(state.next_lease, event.lease + 1)
    if event.kind is EventKind.RECEIVED:
        _receive(state, event)
    elif event.kind in _SETTLED:
        _consume(state, event)
    elif event.kind is EventKind.CHANGED:
        _change(state, event)
    elif event.kind is EventKind.HELD:
        _hold(state, event)
    elif event.kind is EventKind.ADVANCED:
        state.mark_examined(event.until)
    elif event.kind is EventKind.PASSED:
        _pass(state, event)
    elif event.kind is EventKind.IN_LOG_ORDER:
        state.order = None
    elif event.kind is EventKind.RESET:
        state.reset_to(event.offset)
    elif event.kind is EventKind.MOVED and (event.offset in state.open or event.offset in state.held):
        state.moved[event.offset] = PhysicalOffset(event.physical_offset)
    assert state.committed <= state.next_offset, "every event keeps this"


def _lease_of(event: Event, received_ms: EpochMs) -> Lease:
    return Lease(
        event.lease,
        event.attempt,
        event.offset,
        event.offset + event.count,
        EpochMs(event.until),
        received_ms,
        event.client_id,
        event.renewed,
    )


def _receive(state: QueueState, event: Event) -> None:
    lease = _lease_of(event, event.time_ms)
    first, end = max(event.offset, state.committed), event.offset + event.count
    known_end = min(end, state.next_offset)
    if first < known_end:
        if event.attempt > 1:
            state.note_redelivered(range(first, known_end), event.attempt)
        state.open_under(lease, range(first, known_end))
    if known_end < end and state.order is not None:
        state.order.waiting_count = None  # until the PASSED event
    if known_end < end:
        state.open_under(lease, range(max(first, known_end), end))


def _hold(state: QueueState, event: Event) -> None:
    if state.order is not None:  # the messages waited by priority
        state.held.add_range(event.offset, event.offset + event.count)
        return
    for offset in range(max(event.offset, state.next_offset), event.offset + event.count):
        state.hold(offset)


def _pass(state: QueueState, event: Event) -> None:
    if state.order is None:
        state.order = ByPriority(state.next_offset)
    state.order.passed(event.attempt, event.offset, event.until, event.physical_offset)
    state.mark_examined(event.until)
    state.advance()


def _consume(state: QueueState, event: Event) -> None:
    end = event.offset + event.count
    if event.kind is EventKind.DEAD_LETTERED:
        state.mark_examined(end)  # a new message can be one
    elif event.kind is EventKind.RETRIED:
        state.ended_lease = max(state.ended_lease, event.lease)
    for offset in range(event.offset, end):
        state.settle(offset)


def _change(state: QueueState, event: Event) -> None:
    """Applies another end of the same lease, or a separate lease for one message."""
    offsets = range(event.offset, event.offset + event.count)
    leases = {id(lease): lease for offset in offsets if (lease := state.open.get(offset)) is not None}
    same = [lease for lease in leases.values() if lease.number == event.lease]
    for lease in same:
        lease.until_ms, lease.renewed, lease.attempt = EpochMs(event.until), event.renewed, event.attempt
    if not same and len(leases) == 1:
        (before,) = leases.values()
        lease = _lease_of(event, before.received_ms)
        lease.returned = True
        state.open_under(lease, offsets)


def complete(context: Context, pairs: GroupTopicTable) -> None:
    """Completes the replay; to be called once, after all events."""
    for state in list(pairs.states()):
        _complete_state(context, state)
    pairs.complete()
    for state in pairs.states():
        if state.kind is SourceKind.CLASSIC_RETRY:
            pairs.fill_topics(state)
    for state in pairs.states():
        _register_leases(context, pairs, state)


def _complete_state(context: Context, state: QueueState) -> None:
    stored = context.store.offsets.get(state.group, state.topic, state.queue_id)
    if stored is not None and stored > state.committed:
        state.drop_below(stored)
    queue = context.store.consume_queues.get(state.topic, state.queue_id)
    end = queue.max_offset if queue is not None else 0
    if state.next_offset > end:
        _cut(state, end)
    log_end = context.store.end_offset
    for offset in [offset for offset, at in state.moved.items() if at >= log_end]:
        del state.moved[offset]  # the log has lost the copy: another record will lie there
    if stored != state.committed:
        context.commit(state)


def _cut(state: QueueState, end: int) -> None:
    """Cuts the state to the queue, which ends earlier because a power cut removed its tail."""
    for offset in state.outstanding_offsets():
        if offset >= end:
            state.settle(offset)
    state.next_offset = end
    if state.order is not None:
        state.order.cut(end)
    state.committed = min(state.committed, end)
    state.advance()


def _register_leases(context: Context, pairs: GroupTopicTable, state: QueueState) -> None:
    if state.kind is not SourceKind.CLASSIC_RETRY and state.open.packed.clock.live:
        state.open.push_clock()
        context.timed.update(pairs.of_state(state))
    if state.order is not None:
        state.order.ended = state.open.packed.ended_offsets()
    state.ready.clear()
    seen = {id(lease): (offset, lease) for offset, lease in _readable_first(state)}
    for offset, lease in seen.values():
        kind, topic = kind_of(state.group, state.topic)
        if kind is SourceKind.CLASSIC_RETRY:
            topic = state.keys.get(offset, "")
        if lease.ended or not topic:  # without a topic no record of it can be read: the next receive skips it
            state.end_lease(lease)
        else:
            context.note_lease(pairs.pair(state.group, topic), state, lease)


def _readable_first(state: QueueState) -> list[tuple[int, Lease]]:
    """The open messages, first those whose record can be read."""
    return sorted(state.open.loose.items(), key=lambda item: (item[0] in state.keys, item[0]))
