"""Import of the consumer state of a store that RocketMQ used last.

| RocketMQ has                      | becomes                                                            |
|-----------------------------------|--------------------------------------------------------------------|
| consumerOffset.json               | the offsets of the groups; our own earlier events are void         |
| consumerOrderInfo.json            | messages in flight of orderly groups, until the time that it has   |
| pending check points (revive log) | unacknowledged messages are delivered once more, as retry messages |
| retry topics                      | read with the topic, from the stored offset or else the beginning  |
"""

from __future__ import annotations

from collections.abc import Collection

from trovemq_broker.groups.delivery.context import Context
from trovemq_broker.groups.delivery.delivery import Delivery
from trovemq_broker.groups.delivery.group_topics import GroupTopicTable
from trovemq_broker.groups.delivery.leases import Lease
from trovemq_broker.groups.delivery.order_info import OrderInfo, load_order_info
from trovemq_broker.groups.delivery.queue_state import QueueState
from trovemq_broker.groups.delivery.records import properties_of, reconsume_times_of
from trovemq_broker.groups.delivery.retry_copies import retry_copy
from trovemq_broker.groups.delivery.revive_log import CheckPoint, ReviveLog, mark_revive_log_processed
from trovemq_proto.positions import EpochMs, QueueId, QueueOffset
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.events.codec import Event, EventKind
from trovemq_store.events.receipt_handle import SourceKind
from trovemq_store.events.sources import RETRY_TOPIC_PROPERTY, kind_of
from trovemq_store.files.files import FileSystem


def import_from_rocketmq(
    delivery: Delivery, store: MessageStore, files: FileSystem, waiting: Collection[int], now_ms: EpochMs
) -> None:
    """To be called after the events were replayed and before settle(). `waiting`: offsets in the wheel's
    queue of all records that wait for a revive topic; they need not wait afterwards. TroveError DISK_FULL,
    CREATE_MAPPED_FILE_FAILED, STORE_FAILED, UNKNOWN_ERROR: then it is to be called again."""
    context, pairs = delivery.context, delivery.group_topics
    for group in pairs.groups():
        if pairs.forget(group, None):
            context.add(Event(EventKind.FORGOTTEN, now_ms, group))
    for (group, topic, queue_id), info in load_order_info(files).items():
        if context.is_orderly(group):
            _take_order_info(context, pairs, group, topic, queue_id, info, now_ms)
    for point, offsets in ReviveLog(store, waiting).in_flight():
        _revive(context, point, offsets, now_ms)
    mark_revive_log_processed(store)


def _take_order_info(
    context: Context,
    pairs: GroupTopicTable,
    group: str,
    topic: str,
    queue_id: QueueId,
    info: OrderInfo,
    now_ms: EpochMs,
) -> None:
    """Makes the unconsumed messages of the entry messages in flight, under leases for which no handle
    exists."""
    queue = context.store.consume_queues.get(topic, queue_id)
    stored = context.store.offsets.get(group, topic, queue_id)
    offsets = info.offsets
    if queue is None or stored is None or not offsets:
        return
    outstanding = [offset for index, offset in enumerate(offsets) if not info.consumed(index)]
    if (
        not outstanding
        or outstanding[0] != max(stored, queue.min_offset)
        or outstanding[-1] >= queue.max_offset
    ):
        return  # the entry is of an earlier time: only the group's offset counts
    state = pairs.add(group, topic, queue_id, outstanding[0])
    context.add(Event(EventKind.STARTED, now_ms, group, topic, queue_id, outstanding[0]))
    for offset in outstanding:
        _lease_out(context, state, offset, info, now_ms)
    if offsets[-1] >= state.next_offset:
        context.add(
            Event(
                EventKind.ADVANCED,
                now_ms,
                group,
                topic,
                queue_id,
                state.next_offset,
                until=offsets[-1] + 1,
            )
        )
        state.mark_examined(offsets[-1] + 1)


def _lease_out(context: Context, state: QueueState, offset: int, info: OrderInfo, now_ms: EpochMs) -> None:
    number, until_ms = state.take_lease_number(), info.visible_ms(offset)
    attempt = info.deliveries(offset)
    lease = Lease(number, attempt, offset, offset + 1, until_ms, now_ms, "", renewed=False)
    state.open_under(lease, range(offset, offset + 1))
    context.add(
        Event(
            EventKind.RECEIVED,
            now_ms,
            state.group,
            state.topic,
            state.queue_id,
            offset,
            until=until_ms,
            attempt=attempt,
            lease=number,
        )
    )


def _revive(context: Context, point: CheckPoint, offsets: list[int], now_ms: EpochMs) -> None:
    """Appends retry messages for the unacknowledged messages of a check point, visible when RocketMQ would
    have revived it."""
    queue = context.store.consume_queues.get(point.t, point.q)
    kind, topic = kind_of(point.c, point.t)
    copies = []
    for offset in offsets:
        if queue is None or not queue.min_offset <= offset < queue.max_offset:
            continue  # retention has removed it
        physical_offset, size, _ = queue.unit(QueueOffset(offset))
        record = context.records.read(physical_offset, size)
        if record is None:
            context.damaged_count += 1
            continue
        if kind is SourceKind.CLASSIC_RETRY:
            topic = properties_of(record).get(RETRY_TOPIC_PROPERTY, "")
        copy = retry_copy(
            context,
            point.c,
            topic,
            record,
            deliveries=reconsume_times_of(record) + 1,
            received_ms=point.pt,
            visible_ms=point.revive_ms,
            now_ms=now_ms,
        )
        if copy is not None:
            copies.append(copy)
    if copies:
        context.writer.append(copies, now_ms)
