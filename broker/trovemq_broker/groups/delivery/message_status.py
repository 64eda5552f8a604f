"""The status of one message in one group: read-only, to explain why it is not consumed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from trovemq_broker.groups.delivery.context import Context
from trovemq_broker.groups.delivery.leases import Lease
from trovemq_broker.groups.delivery.orderly_receiver import message_group_of
from trovemq_broker.groups.delivery.priority_receiver import was_skipped
from trovemq_broker.groups.delivery.queue_state import QueueState
from trovemq_proto.positions import EpochMs
from trovemq_proto.records.priorities import PRIORITY_COUNT

PRIORITIES_READ_MAX: Final = 65_536
"""The most further units that one answer reads, if priorities of waiting messages are not known yet."""


class MessagePhase(Enum):
    OPEN = "open"  # delivered; `lease` has its end
    HELD = "held"  # examined, and waits
    CONSUMED = "consumed"
    NEW = "new"  # not examined


@dataclass(frozen=True, slots=True)
class LeaseView:
    """A copy of a lease. `over`: its messages may be delivered again."""

    offset: int
    number: int
    client_id: str
    attempt: int
    received_ms: int
    until_ms: EpochMs
    renewed: bool
    over: bool


@dataclass(frozen=True, slots=True)
class MessageStatus:
    """`lock`: in an orderly group, the message in flight of the same message group that blocks this one.
    `ahead`: in a queue that is received by priority, the number of messages before this one; None in other
    queues, or if that is not known yet."""

    phase: MessagePhase
    committed: int
    next_offset: int
    lease: LeaseView | None = None
    lock: LeaseView | None = None
    ahead: int | None = None


def message_status(
    context: Context, state: QueueState, offset: int, message_group: str, priority: int, now_ms: EpochMs
) -> MessageStatus:
    """The status of the message at that offset; `message_group` and `priority` are those of the message."""
    lease = state.open.get(offset)
    if lease is not None:
        phase = MessagePhase.OPEN
    elif offset in state.held:
        phase = MessagePhase.HELD
    elif offset < state.next_offset:
        phase = MessagePhase.NEW if was_skipped(context, state, offset) else MessagePhase.CONSUMED
    else:
        phase = MessagePhase.NEW
    view = _view(offset, lease, now_ms) if lease is not None else None
    lock = None
    waits = phase in (MessagePhase.HELD, MessagePhase.NEW) or (view is not None and view.over)
    if waits and context.is_orderly(state.group):
        lock = _lock(context, state, offset, message_group, now_ms)
    ahead = _ahead(context, state, offset, priority) if phase is MessagePhase.NEW else None
    return MessageStatus(phase, state.committed, state.next_offset, view, lock, ahead)


def _ahead(context: Context, state: QueueState, offset: int, priority: int) -> int | None:
    order, places = state.order, context.priority_order
    if order is None:
        return None
    if not places.catch_up(state.topic, state.queue_id, order.waiting_from, PRIORITIES_READ_MAX):
        return None
    queue = context.store.consume_queues.get(state.topic, state.queue_id)
    end = queue.max_offset if queue is not None else 0
    ends = [offset, *[end] * (PRIORITY_COUNT - 1 - priority)]
    return sum(
        places.count(state.topic, state.queue_id, other, order.next_from(other), until)
        for other, until in enumerate(ends, priority)
    )


def _lock(
    context: Context, state: QueueState, offset: int, message_group: str, now_ms: EpochMs
) -> LeaseView | None:
    """The message with the lowest offset among those in flight of the message group. In an orderly group at
    most `ordered_window_max` messages are examined; after a start, their message groups are read from the
    log."""
    for other in state.outstanding_offsets():
        lease = state.open.get(other)
        if other == offset or lease is None or lease.over(now_ms):
            continue
        key = state.keys.get(other)
        if key is None:
            key = message_group_of(context.record_of(state, other))
        if key == message_group:
            return _view(other, lease, now_ms)
    return None


def _view(offset: int, lease: Lease, now_ms: EpochMs) -> LeaseView:
    return LeaseView(
        offset,
        lease.number,
        lease.client_id,
        lease.attempt,
        lease.received_ms,
        lease.until_ms,
        lease.renewed,
        lease.over(now_ms),
    )
