"""Export at a clean stop, so that RocketMQ continues where this broker stopped.

Groups that are not orderly: every message in flight becomes a retry message, visible when its lease ends; the
group's offset is after it. Receipt handles are void from then on. Orderly groups: the group's offset is the
first unconsumed message, and consumerOrderInfo.json has the messages in flight after it; RocketMQ delivers
nothing from the queue until they are visible. Queues that are received by priority: the group's offset is the
first message that waits or is in flight, and nothing is copied. RocketMQ delivers all messages after it
again, even consumed ones; this broker continues where it stopped.

Invariant: a copy is in the log before its original counts as consumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from trovemq_broker.groups.delivery.context import Context
from trovemq_broker.groups.delivery.group_topics import GroupTopicTable
from trovemq_broker.groups.delivery.order_info import OFFSETS_MAX, OrderInfo, save_order_info
from trovemq_broker.groups.delivery.queue_receiver import first_attempt
from trovemq_broker.groups.delivery.queue_state import QueueState
from trovemq_broker.groups.delivery.retry_copies import retry_copy
from trovemq_broker.groups.delivery.revive_log import mark_revive_log_processed
from trovemq_proto.positions import EpochMs, QueueId
from trovemq_store.engine.record_writer import NewRecord
from trovemq_store.engine.steps import Steps
from trovemq_store.events.codec import Event, EventKind
from trovemq_store.events.receipt_handle import SourceKind
from trovemq_store.events.sources import kind_of
from trovemq_store.files.fault_points import fault_point
from trovemq_store.files.files import FileSystem

_BATCH: Final = 64
"""Messages that are copied in one append."""


def export_to_rocketmq(context: Context, pairs: GroupTopicTable, files: FileSystem, now_ms: EpochMs) -> None:
    """Exports all pending messages. TroveError DISK_FULL, CREATE_MAPPED_FILE_FAILED, STORE_FAILED,
    UNKNOWN_ERROR; messages before the failed one are exported."""
    orderly: dict[tuple[str, str, QueueId], OrderInfo] = {}
    for state in list(pairs.states()):
        if context.is_orderly(state.group) and state.kind is SourceKind.TOPIC:
            if state.open:
                orderly[state.group, state.topic, state.queue_id] = _order_info(state, now_ms)
        elif state.order is None:
            for _ in copy_steps(context, state, state.outstanding_offsets(), now_ms):
                pass
        context.commit(state)
    fault_point("delivery.before_order_info")
    save_order_info(files, orderly)
    fault_point("delivery.after_order_info")
    mark_revive_log_processed(context.store)


def copy_steps(
    context: Context,
    state: QueueState,
    offsets: Sequence[int],
    now_ms: EpochMs,
    *,
    classic: bool = False,
) -> Steps[None]:
    """Copies messages that are open, held or not delivered yet to a retry topic (`classic`: the group's
    classic one); then they are consumed. The errors of export_to_rocketmq()."""
    for begin in range(0, len(offsets), _BATCH):
        part = [one for one in offsets[begin : begin + _BATCH] if not _is_consumed(state, one)]
        copies = [
            copy for offset in part if (copy := _copy(context, state, offset, now_ms, classic)) is not None
        ]
        if copies:
            fault_point("delivery.before_retry")
            context.writer.append(copies, now_ms)
            fault_point("delivery.after_retry")
        for offset in part:
            _retried(context, state, offset, now_ms)
        context.events.flush(now_ms)  # if this is interrupted, only these are delivered twice
        yield


def _is_consumed(state: QueueState, offset: int) -> bool:
    return offset < state.next_offset and offset not in state.open and offset not in state.held


def _copy(
    context: Context, state: QueueState, offset: int, now_ms: EpochMs, classic: bool
) -> NewRecord | None:
    record = context.record_of(state, offset)
    if record is None:
        context.damaged_count += 1
        return None
    kind, topic = kind_of(state.group, state.topic)
    if kind is SourceKind.CLASSIC_RETRY:
        topic = state.keys.get(offset, "")
    lease = state.open.get(offset)
    return retry_copy(
        context,
        state.group,
        topic,
        record,
        deliveries=lease.attempt if lease is not None else first_attempt(state, record) - 1,
        received_ms=lease.received_ms if lease is not None else now_ms,
        visible_ms=lease.until_ms if lease is not None and not lease.over(now_ms) else now_ms,
        now_ms=now_ms,
        classic=classic,
    )


def _retried(context: Context, state: QueueState, offset: int, now_ms: EpochMs) -> None:
    if offset >= state.next_offset:
        begin, end = state.next_offset, offset + 1
        state.mark_examined(end)
        context.add(
            Event(EventKind.ADVANCED, now_ms, state.group, state.topic, state.queue_id, begin, until=end)
        )
    last_lease = state.next_lease - 1
    state.ended_lease = last_lease
    state.settle(offset)
    context.add(
        Event(
            EventKind.RETRIED,
            now_ms,
            state.group,
            state.topic,
            state.queue_id,
            offset,
            lease=last_lease,
        )
    )


def _order_info(state: QueueState, now_ms: EpochMs) -> OrderInfo:
    """The entry of the first offsets from committed on; held messages count as visible."""
    first, end = state.committed, min(state.next_offset, state.committed + OFFSETS_MAX)
    info = OrderInfo(popTime=now_ms, i=0, o=[first, *range(1, end - first)], l=now_ms)
    info.ot, info.oc = {}, {}
    for offset in range(first, end):
        lease = state.open.get(offset)
        if lease is None:
            if offset not in state.held:
                info.cm |= 1 << offset - first
            continue
        info.ot[str(offset)] = now_ms if lease.ended else lease.until_ms
        if lease.attempt > 1:
            info.oc[str(offset)] = lease.attempt - 1
    return info
