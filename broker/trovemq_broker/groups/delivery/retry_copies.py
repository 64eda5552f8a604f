"""Makes copies of messages in flight as RocketMQ does for unacknowledged messages of pop consumers: records
of the pop retry topic, stored directly or through the timer wheel.

Invariant: RECONSUMETIMES of a copy is the number of deliveries so far.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

from trovemq_broker.groups.delivery.context import Context
from trovemq_broker.timers.wheel_records import WHEEL_TOPIC, delayed_record
from trovemq_proto.positions import EpochMs, QueueId
from trovemq_proto.records.check import is_plausible_topic
from trovemq_proto.records.message import decode_stored
from trovemq_store.engine.record_writer import NewRecord
from trovemq_store.events.receipt_handle import SourceKind
from trovemq_store.events.sources import RETRY_TOPIC_PROPERTY, source_topic

FIRST_POP_TIME_PROPERTY: Final = "1ST_POP_TIME"


def retry_copy(
    context: Context,
    group: str,
    topic: str,
    record: memoryview,
    *,
    deliveries: int,
    received_ms: EpochMs,
    visible_ms: EpochMs,
    now_ms: EpochMs,
    classic: bool = False,
) -> NewRecord | None:
    """The copy to append; creates the topics that it needs. A classic retry with no topic (""), or an illegal
    one, stays a classic retry; with `classic` each copy is one, and names the topic. None if the record
    cannot be copied. TroveError LIMIT_EXCEEDED, DISK_FULL, STORE_FAILED, SERVICE_NOT_AVAILABLE: a topic that
    it needs was not created."""

    def made() -> NewRecord:
        times = _Times(received_ms, visible_ms, now_ms)
        target = source_topic(SourceKind.POP_RETRY, group, topic)
        if classic or not topic or not is_plausible_topic(target):
            target = source_topic(SourceKind.CLASSIC_RETRY, group, topic)
        copy = _retry_copy(context, target, record, deliveries, times)
        if classic and topic:
            copy = context.writer.informed(copy, {RETRY_TOPIC_PROPERTY: topic})
        return context.writer.checked(copy)

    return context.writer.copy_failures.copied("retry", record, made)


class _Times(NamedTuple):
    received_ms: EpochMs
    visible_ms: EpochMs
    now_ms: EpochMs


def _retry_copy(context: Context, name: str, record: memoryview, deliveries: int, times: _Times) -> NewRecord:
    received_ms, visible_ms, now_ms = times
    context.store.topics.ensure_internal(name, 1, now_ms=now_ms)
    message = decode_stored(record)
    copy = replace(NewRecord.copy_of(message, name, QueueId(0)), reconsume_times=deliveries)
    first_pop = message.properties.get(FIRST_POP_TIME_PROPERTY) or str(received_ms)
    copy = context.writer.informed(copy, {FIRST_POP_TIME_PROPERTY: first_pop})
    if visible_ms <= max(
        now_ms, 0
    ):  # no timer has a time before 1970, which a clock that was never set may have
        return copy
    context.store.topics.ensure_internal(WHEEL_TOPIC, 1, now_ms=now_ms)
    delayed = delayed_record(copy, visible_ms, now_ms)
    return delayed if context.writer.has_space(delayed) else copy  # better early than never
