"""Messages that were delivered as often as their group allows: copies in `%DLQ%group`.

Invariant: the copy is in the log before the message counts as consumed. A message that cannot be copied
(store/trovemq_store/engine/copy_failures.py) counts as consumed without one; it stays in its own topic.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from trovemq_broker.groups.delivery.context import Context
from trovemq_broker.groups.delivery.group_topic import GroupTopic
from trovemq_broker.groups.delivery.leases import Lease
from trovemq_broker.groups.delivery.queue_state import QueueState
from trovemq_proto.positions import EpochMs, QueueId
from trovemq_proto.records.layout import PROPERTY_DEAD_ID, PROPERTY_DEAD_TOPIC
from trovemq_proto.records.message import decode_stored
from trovemq_store.engine.record_writer import NewRecord
from trovemq_store.files.fault_points import fault_point
from trovemq_store.topics.names import DEAD_LETTER_PREFIX

READS_OF_COPY: Final = 16
COPIED_BYTES_OF_READ: Final = 4_096


def reads_of_copy(record: memoryview) -> int:
    """The cost of a copy, in reads of a receive: 16, and one more for each 4 KiB."""
    return READS_OF_COPY + len(record) // COPIED_BYTES_OF_READ


def dead_letter_topic(group: str) -> str:
    return f"{DEAD_LETTER_PREFIX}{group}"


def copy_to_dead_letters(
    context: Context, pair: GroupTopic, record: memoryview, deliveries: int, now_ms: EpochMs
) -> None:
    """Appends the copy of the record to the group's dead-letter topic, which is created if it is missing, and
    counts it. Raises the TroveErrors of MessageStore.append; LIMIT_EXCEEDED, DISK_FULL, STORE_FAILED and
    SERVICE_NOT_AVAILABLE, too, if the topic is not created."""

    def made() -> NewRecord:
        name = dead_letter_topic(pair.group)
        context.store.topics.ensure_internal(name, 1, now_ms=now_ms)
        return context.writer.checked(_dead_letter(context, name, pair.topic, record, deliveries))

    copy = context.writer.copy_failures.copied("dead letter", record, made)
    if copy is None:
        return
    fault_point("delivery.before_dead_letter")
    (result,) = context.writer.append([copy], now_ms)
    fault_point("delivery.after_dead_letter")
    context.store.offsets.needs_log(result.end)
    context.dead_letter_count += 1
    pair.dead_letter_count += 1


def copy_open_message(
    context: Context, pair: GroupTopic, state: QueueState, lease: Lease, offset: int, now_ms: EpochMs
) -> None:
    """Appends the copy of a message in flight; one that cannot be read is only counted."""
    record = context.record_of(state, offset)
    if record is None:
        context.damaged_count += 1
        return
    copy_to_dead_letters(context, pair, record, lease.attempt, now_ms)


def _dead_letter(context: Context, name: str, topic: str, record: memoryview, deliveries: int) -> NewRecord:
    message = decode_stored(record)
    copy = replace(
        NewRecord.copy_of(message, name, QueueId(0)), reconsume_times=max(deliveries, message.reconsume_times)
    )
    # A client may have written these; then the letter, sent again, would go to a topic of the client's
    # choice.
    copy = copy.with_properties({"RETRY_TOPIC": None, PROPERTY_DEAD_TOPIC: None, PROPERTY_DEAD_ID: None})
    copy = context.writer.informed(copy, {PROPERTY_DEAD_TOPIC: topic})
    return context.writer.informed(copy, {PROPERTY_DEAD_ID: message.message_id})
