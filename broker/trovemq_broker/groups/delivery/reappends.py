"""Appends pending records again before retention removes their segment, so that none is lost.

The copy lies in an internal topic that no group reads; the message stays in its queue, under its lease, and
its receipt handle stays valid.

Invariant: until the copy can be read, the old record counts. A record that cannot be copied
(store/trovemq_store/engine/copy_failures.py) is removed with its segment.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from trovemq_broker.groups.delivery.context import Context
from trovemq_broker.groups.delivery.group_topics import GroupTopicTable
from trovemq_broker.groups.delivery.queue_state import QueueState
from trovemq_broker.groups.delivery.retry_reappends import (
    carried_copy,
    carry_unread,
    lowest_unread,
    unread_before,
)
from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueId
from trovemq_store.events.codec import Event, EventKind
from trovemq_store.files.fault_points import fault_point

CARRIED_TOPIC: Final = "rmq_sys_trovemq_carried"
CARRIED_QUEUE_ID: Final = QueueId(0)
_BATCH: Final = 64
"""Records that are copied in one append."""


def reappend_live_records_before(
    context: Context, pairs: GroupTopicTable, physical_offset: PhysicalOffset, now_ms: EpochMs
) -> int:
    """Appends every pending record below physical_offset again; returns how many. TroveError DISK_FULL,
    CREATE_MAPPED_FILE_FAILED, STORE_FAILED, UNKNOWN_ERROR; records before the failed one are copied."""
    count = 0
    for state in list(pairs.states()):
        below = [offset for offset, _ in _outstanding_records(context, state, physical_offset)]
        for begin in range(0, len(below), _BATCH):
            count += _carry(context, state, below[begin : begin + _BATCH], now_ms)
    return count + carry_unread(context, pairs, physical_offset, now_ms)


def live_records_before(
    context: Context, pairs: GroupTopicTable, physical_offset: PhysicalOffset
) -> Iterator[PhysicalOffset]:
    """The physical offsets of the pending records below physical_offset."""
    for state in list(pairs.states()):
        yield from (at for _, at in _outstanding_records(context, state, physical_offset))
    yield from unread_before(context, pairs, physical_offset)


def lowest_live_record(context: Context, pairs: GroupTopicTable) -> PhysicalOffset | None:
    """The lowest physical offset of a record that is open, held, or an unread retry."""
    lowest = [low for state in pairs.states() if (low := _lowest_of(context, state)) is not None]
    unread = lowest_unread(context, pairs)
    return min(lowest if unread is None else [*lowest, unread], default=None)


def _lowest_of(context: Context, state: QueueState) -> PhysicalOffset | None:
    """The lowest pending record of one state. Records lie in the order of their offsets, except moved
    ones."""
    moved = [state.moved[offset] for offset in state.moved]
    for offset in state.each_outstanding():
        if offset not in state.moved:
            at = context.physical_offset_of(state, offset)
            if at is not None:
                moved.append(at)
                break
    return min(moved, default=None)


def _outstanding_records(
    context: Context, state: QueueState, physical_offset: PhysicalOffset
) -> list[tuple[int, PhysicalOffset]]:
    """(offset, physical offset) of the pending messages whose record lies below physical_offset. Records lie
    in the order of their offsets, except moved ones: so only some of the pending ones are examined."""
    queue = context.store.consume_queues.get(state.topic, state.queue_id)
    end = queue.lower_bound(physical_offset) if queue is not None else 0
    found = []
    for offset in [*state.outstanding_before(end), *(moved for moved in state.moved if moved >= end)]:
        at = context.physical_offset_of(state, offset)
        if at is not None and at < physical_offset:
            found.append((offset, at))
    return found


def _carry(context: Context, state: QueueState, offsets: list[int], now_ms: EpochMs) -> int:
    context.store.topics.ensure_internal(CARRIED_TOPIC, 1, now_ms=now_ms)
    copies, carried = [], []
    for offset in offsets:
        record = context.record_of(state, offset)
        copy = None if record is None else carried_copy(context, record, CARRIED_TOPIC, CARRIED_QUEUE_ID)
        if copy is not None:
            copies.append(copy)
            carried.append(offset)
    fault_point("delivery.before_carry")
    for offset, result in zip(carried, context.writer.append(copies, now_ms) if copies else [], strict=True):
        state.moved[offset] = result.physical_offset
        context.add(
            Event(
                EventKind.MOVED,
                now_ms,
                state.group,
                state.topic,
                state.queue_id,
                offset,
                physical_offset=result.physical_offset,
            )
        )
    return len(carried)
