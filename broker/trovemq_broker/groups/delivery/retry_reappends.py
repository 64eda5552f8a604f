"""Unread retries in a retry topic are pending, too: before their segment is removed, each is appended again
at the end of its topic, and the original counts as read.

Invariant: the copies are appended and the read position moves in one step; after a crash between the two
writes a message is delivered twice, never lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from trovemq_broker.groups.delivery.context import Context
from trovemq_broker.groups.delivery.group_topics import GroupTopicTable
from trovemq_broker.groups.delivery.queue_state import QueueState
from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueId, QueueOffset
from trovemq_proto.records.message import decode_stored
from trovemq_store.engine.queue_messages import messages_from
from trovemq_store.engine.record_writer import NewRecord
from trovemq_store.events.codec import Event, EventKind
from trovemq_store.index.consume_queue import ConsumeQueue
from trovemq_store.topics.names import RETRY_PREFIX

_BATCH: Final = 64
"""Records that are copied in one append."""


def carry_unread(
    context: Context, pairs: GroupTopicTable, physical_offset: PhysicalOffset, now_ms: EpochMs
) -> int:
    """Appends the unread retries below that offset again; returns how many. TroveError DISK_FULL,
    CREATE_MAPPED_FILE_FAILED, STORE_FAILED, UNKNOWN_ERROR; records before the failed one are copied."""
    count = 0
    for queue, state, first in list(_unread(context, pairs)):
        end = queue.lower_bound(physical_offset)
        for begin in range(first, end, _BATCH):
            stop = min(begin + _BATCH, end)
            found = messages_from(
                context.store, queue.topic, queue.queue_id, QueueOffset(begin), QueueOffset(stop)
            )
            made = [carried_copy(context, m.record, queue.topic, queue.queue_id) for _, m in found]
            copies = [copy for copy in made if copy is not None]
            if copies:
                context.writer.append(copies, now_ms)
            _read_up_to(context, queue, state, begin, stop, now_ms)
            count += len(copies)
    return count


def carried_copy(
    context: Context, record: bytes | memoryview, topic: str, queue_id: QueueId
) -> NewRecord | None:
    """The record for that queue; None if it cannot be copied."""

    def made() -> NewRecord:
        return context.writer.checked(NewRecord.copy_of(decode_stored(record), topic, queue_id))

    return context.writer.copy_failures.copied("retention", record, made)


def unread_before(
    context: Context, pairs: GroupTopicTable, physical_offset: PhysicalOffset
) -> Iterator[PhysicalOffset]:
    """The physical offsets of the unread retries below that offset."""
    for queue, _, begin in list(_unread(context, pairs)):
        for offset in range(begin, queue.lower_bound(physical_offset)):
            at, _, _ = queue.unit(QueueOffset(offset))
            if at >= 0:
                yield at


def lowest_unread(context: Context, pairs: GroupTopicTable) -> PhysicalOffset | None:
    """The physical offset of the lowest unread retry."""
    return min(
        (queue.physical_before(QueueOffset(begin)) for queue, _, begin in _unread(context, pairs)),
        default=None,
    )


def _unread(
    context: Context, pairs: GroupTopicTable
) -> Iterator[tuple[ConsumeQueue, QueueState | None, int]]:
    """Each queue of a retry topic with unread messages: with the state of the group that reads it, if there
    is one, and the offset of the first of them."""
    queues = context.store.consume_queues
    names = [name for name in queues.topics() if name.startswith(RETRY_PREFIX)]
    if not names:
        return
    states = {(state.topic, state.queue_id): state for state in pairs.states()}
    for name in names:
        for queue in queues.queues(name):
            state = states.get((name, queue.queue_id))
            begin = state.next_offset if state is not None else _stored(context, queue)
            if max(begin, queue.min_offset) < queue.max_offset:
                yield queue, state, max(begin, queue.min_offset)


def _stored(context: Context, queue: ConsumeQueue) -> int:
    """The offset at which the group continues if it has not read the topic since the start; the end of the
    queue if there is no group."""
    groups = _groups(context, queue.topic)
    known = [context.store.offsets.get(group, queue.topic, queue.queue_id) for group in groups]
    return max((offset or 0 for offset in known), default=queue.max_offset)


def _groups(context: Context, name: str) -> set[str]:
    """The possible owners of a retry topic: `group`, `group_topic` or `group+topic` follows the prefix."""
    rest = name[len(RETRY_PREFIX) :]
    heads = [rest, *(rest[:at] for at, character in enumerate(rest) if character in "_+")]
    known = {head for head in heads if context.groups.get(head) is not None}
    return known.union(context.store.offsets.groups(name))


def _read_up_to(
    context: Context, queue: ConsumeQueue, state: QueueState | None, begin: int, end: int, now_ms: EpochMs
) -> None:
    if state is None:
        for group in _groups(context, queue.topic):
            context.store.offsets.commit(group, queue.topic, queue.queue_id, QueueOffset(end))
        return
    state.mark_examined(end)
    context.add(Event(EventKind.ADVANCED, now_ms, state.group, state.topic, state.queue_id, begin, until=end))
    context.commit(state)
