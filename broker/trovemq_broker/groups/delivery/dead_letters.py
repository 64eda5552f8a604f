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
from trovemq_proto.records.dead_letter_reason import (
    EXPIRED,
    PROPERTIES,
    RETURNED,
    TEXT_SIZE_MAX,
    DeadLetterReason,
    cut,
)
from trovemq_proto.records.layout import PROPERTY_DEAD_ID, PROPERTY_DEAD_TEXT, PROPERTY_DEAD_TOPIC
from trovemq_proto.records.message import decode_stored
from trovemq_store.engine.record_writer import NewRecord, RecordWriter
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
    context: Context,
    pair: GroupTopic,
    record: memoryview,
    deliveries: int,
    reason: DeadLetterReason,
    now_ms: EpochMs,
) -> None:
    """Appends the copy of the record to the group's dead-letter topic, which is created if it is missing, and
    counts it. Raises the TroveErrors of MessageStore.append; LIMIT_EXCEEDED, DISK_FULL, STORE_FAILED and
    SERVICE_NOT_AVAILABLE, too, if the topic is not created."""

    def made() -> NewRecord:
        name = dead_letter_topic(pair.group)
        context.store.topics.ensure_internal(name, 1, now_ms=now_ms)
        letter = _dead_letter(context.writer, name, pair.topic, record, deliveries)
        return context.writer.checked(with_reason(context.writer, letter, reason))

    copy = context.writer.copy_failures.copied("dead letter", record, made)
    if copy is None:
        return
    fault_point("delivery.before_dead_letter")
    (result,) = context.writer.append([copy], now_ms)
    fault_point("delivery.after_dead_letter")
    context.store.offsets.needs_log(result.end)
    context.dead_letters[reason.kind] += 1
    pair.dead_letter_count += 1


def copy_open_message(
    context: Context,
    pair: GroupTopic,
    state: QueueState,
    lease: Lease,
    offset: int,
    reason: DeadLetterReason,
    now_ms: EpochMs,
) -> None:
    """Appends the copy of a message in flight; one that cannot be read is only counted. The times of the
    reason are added here."""
    record = context.record_of(state, offset)
    if record is None:
        context.damaged_count += 1
        return
    reason = replace(reason, times=state.delivery_times(offset))
    copy_to_dead_letters(context, pair, record, lease.attempt, reason, now_ms)


def _dead_letter(
    writer: RecordWriter, name: str, topic: str, record: memoryview, deliveries: int
) -> NewRecord:
    message = decode_stored(record)
    copy = replace(
        NewRecord.copy_of(message, name, QueueId(0)), reconsume_times=max(deliveries, message.reconsume_times)
    )
    # A client may have written these; then the letter, sent again, would go to a topic of the client's
    # choice.
    copy = copy.with_properties(dict.fromkeys(("RETRY_TOPIC", PROPERTY_DEAD_TOPIC, PROPERTY_DEAD_ID)))
    copy = writer.informed(copy, {PROPERTY_DEAD_TOPIC: topic})
    return writer.informed(copy, {PROPERTY_DEAD_ID: message.message_id})


def reason_of_end(state: QueueState, offset: int) -> DeadLetterReason:
    """Why an open message whose last attempt is over becomes a dead letter."""
    lease = state.open.get(offset)
    kind = RETURNED if lease is None or lease.returned else EXPIRED
    return DeadLetterReason(kind, times=state.delivery_times(offset))


def with_reason(writer: RecordWriter, letter: NewRecord, reason: DeadLetterReason) -> NewRecord:
    """The letter with as much of the reason as its record has space for, and no other reason."""
    reason = reason.bounded()
    if any(name in letter.properties for name in PROPERTIES):
        letter = letter.with_properties(dict.fromkeys(PROPERTIES))
    properties = reason.properties()
    whole = letter.with_properties(properties)
    if writer.has_space(whole):
        return whole
    text = properties.pop(PROPERTY_DEAD_TEXT, "")
    for name, value in properties.items():
        letter = writer.informed(letter, {name: value})
    size = TEXT_SIZE_MAX
    while text and (size := size // 2):
        shorter = letter.with_properties({PROPERTY_DEAD_TEXT: cut(text, size)})
        if writer.has_space(shorter):
            return shorter
    return letter
