"""Determines where a group begins to read a queue."""

from __future__ import annotations

from trovemq_broker.groups.delivery.context import Context
from trovemq_proto.positions import QueueId, QueueOffset
from trovemq_store.engine.queues import readable_units
from trovemq_store.events.receipt_handle import SourceKind


def start_offset(
    context: Context, group: str, topic: str, queue_id: QueueId, kind: SourceKind, *, first_time: bool
) -> int:
    """The group's stored offset if there is one, else the offset by ConsumerSettings.new_group_start.

    Retry topics, and queues that the topic got after the group first read it or had an offset of it, are read
    from their beginning.
    """
    queue = context.store.consume_queues.get(topic, queue_id)
    low, high = (queue.min_offset, queue.max_offset) if queue is not None else (0, 0)
    stored = context.store.offsets.get(group, topic, queue_id)
    if stored is not None:
        return min(max(stored, low), high)
    if kind is not SourceKind.TOPIC or not first_time or queue is None or low == high:
        return low
    start = context.settings.new_group_start
    if start == "begin":
        return low
    if start == "end":
        return high
    physical_offset = int(readable_units(queue, QueueOffset(low), 1)["physical_offset"][0])
    if low == 0 and context.store.end_offset - physical_offset <= context.settings.recent_bytes_max:
        return 0
    return high - 1  # as RocketMQ's broker, which includes the last message
