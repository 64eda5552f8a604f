"""The record of a delayed message, as RocketMQ stores it in `rmq_sys_wheel_timer`.

(docs/store-format.md, "Timer messages", and docs/store-format.md, "Properties that stay on disk")

A delayed message is stored in queue 0 of the wheel topic, with these properties besides its own:

| property           | value                                                                             |
|--------------------|-----------------------------------------------------------------------------------|
| REAL_TOPIC         | the topic to which it will be delivered                                           |
| REAL_QID           | the queue of that topic                                                           |
| TIMER_DELIVER_MS   | the delivery time, epoch ms, to the millisecond                                   |
| TIMER_OUT_MS       | the same for RocketMQ: the second before, so that its wheel is never early        |
| TIMER_ROLL_TIMES   | how often the record was appended again; it then replaces the earlier one         |
| TIMER_ENQUEUE_MS   | of a copy: when it was stored to wait                                             |
| TIMER_DEQUEUE_MS   | of a delivered copy: when it was delivered                                        |
| TIMER_DEL_UNIQKEY  | a delete marker: the unique key of the message that is not to be delivered        |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from trovemq_proto.positions import EpochMs, QueueId
from trovemq_proto.records import PROPERTY_TAGS, PROPERTY_UNIQ_KEY, parse_properties
from trovemq_proto.records.check import crc_matches
from trovemq_proto.records.fields import read_fields
from trovemq_proto.records.layout import (
    CRC_PROPERTY_SIZE,
    HEADERS,
    PROPERTIES_SIZE_MAX,
    PROPERTY_CRC,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TIMER_OUT_MS,
    SYS_FLAG_BORN_HOST_IPV6,
    SYS_FLAG_STORE_HOST_IPV6,
    SYS_FLAG_TRANSACTION_MASK,
    host_bits,
)
from trovemq_proto.records.property_block import without
from trovemq_store.engine.record_writer import NewRecord

WHEEL_TOPIC: Final = "rmq_sys_wheel_timer"
WHEEL_QUEUE_ID: Final = QueueId(0)

ROLL_TIMES: Final = "TIMER_ROLL_TIMES"
ENQUEUE_MS: Final = "TIMER_ENQUEUE_MS"
DEQUEUE_MS: Final = "TIMER_DEQUEUE_MS"
DELETED_UNIQUE_KEY: Final = "TIMER_DEL_UNIQKEY"
RECALL_TAG: Final = "_RECALL_TAG_"

PRECISION_MS: Final = 1_000
"""The precision of RocketMQ's wheel (timerPrecisionMs)."""
TIME_MAX: Final = EpochMs((1 << 53) - 1)
"""A later time in a record is ignored."""
_MARKER_BODY: Final = b"0"
PROPERTIES_SPACE_MAX: Final = PROPERTIES_SIZE_MAX - CRC_PROPERTY_SIZE
"""The most bytes of a property block to which the CRC property can still be added."""
NOT_COPIED_FLAGS: Final = SYS_FLAG_BORN_HOST_IPV6 | SYS_FLAG_STORE_HOST_IPV6 | SYS_FLAG_TRANSACTION_MASK


class DelayedDelivery(NamedTuple):
    """The delivery that a record in the wheel topic or a schedule queue names."""

    topic: str
    queue_id: QueueId
    deliver_ms: EpochMs
    unique_key: str
    roll_times: int
    deleted_unique_key: str  # of a delete marker


def wheel_out_ms(deliver_ms: EpochMs) -> int:
    """TIMER_OUT_MS of a message for deliver_ms: the last whole second before it.

    RocketMQ empties the slot of a second when that second is over.
    """
    return (deliver_ms - 1) // PRECISION_MS * PRECISION_MS


def delayed_record(record: NewRecord, deliver_ms: EpochMs, now_ms: EpochMs) -> NewRecord:
    """The record for the wheel topic, to be delivered at deliver_ms (epoch ms) to record.topic and
    record.queue_id. A time before now_ms counts as now_ms."""
    deliver_ms = max(deliver_ms, now_ms)
    waiting = record.with_properties(
        {
            PROPERTY_REAL_TOPIC: record.topic,
            PROPERTY_REAL_QUEUE_ID: str(record.queue_id),
            PROPERTY_TIMER_DELIVER_MS: str(deliver_ms),
            PROPERTY_TIMER_OUT_MS: str(wheel_out_ms(deliver_ms)),
        }
    )
    return replace(waiting, topic=WHEEL_TOPIC, queue_id=WHEEL_QUEUE_ID)


def delete_marker(
    topic: str, queue_id: QueueId, deliver_ms: EpochMs, unique_key: str, now_ms: EpochMs
) -> NewRecord:
    """The record that cancels the delivery of a message in that slot, for RocketMQ and for a start of this
    broker."""
    properties = {
        PROPERTY_UNIQ_KEY: unique_key,
        PROPERTY_TAGS: RECALL_TAG,
        DELETED_UNIQUE_KEY: unique_key,
    }
    marker = NewRecord(topic, queue_id, _MARKER_BODY, properties, born_timestamp=now_ms)
    return delayed_record(marker, deliver_ms, now_ms)


class WaitingRecord(NamedTuple):
    """The whole record of a delayed message, checked against its CRC."""

    waiting: DelayedDelivery
    body: bytes
    properties: dict[str, str]
    property_size: int
    born_timestamp: EpochMs
    born_host: bytes
    store_timestamp: EpochMs
    flag: int
    sys_flag: int
    reconsume_times: int
    block: bytes
    record: bytes

    def rolled(self) -> NewRecord:
        """The record that replaces this one when the message is appended again; it is due at the same
        time."""
        changes = {ROLL_TIMES: str(self.waiting.roll_times + 1), ENQUEUE_MS: str(self.store_timestamp)}
        added = sum(len(name) + len(value) + 2 for name, value in changes.items())
        copy = NewRecord(
            self.waiting.topic,
            self.waiting.queue_id,
            self.body,
            self.properties,
            self.born_timestamp,
            self.born_host,
            self.flag,
            self.sys_flag,
            self.reconsume_times,
            block=self.block,
        )
        if self.property_size + added <= PROPERTIES_SPACE_MAX:  # they are for information only
            copy = copy.with_properties(changes)
        return delayed_record(copy, self.waiting.deliver_ms, EpochMs(0))

    def redirected(self, topic: str, changes: Mapping[str, str]) -> NewRecord:
        """The record that replaces this one when the message is for queue 0 of another topic, and has these
        properties."""
        waiting = self.waiting._replace(topic=topic, queue_id=QueueId(0))
        return self._replace(waiting=waiting).rolled().with_properties(changes)


def read_record(record: memoryview, schedule_ms: int | None = None) -> WaitingRecord | None:
    """The record of a delayed message; None if it is damaged or is not one. `schedule_ms`: the delivery time
    of a record in a schedule queue, which is in its unit (docs/store-format.md, "Delay levels")."""
    data = bytes(record)
    fields = read_fields(data, 0, len(data))
    if fields is None or not crc_matches(data, fields):
        return None
    properties = parse_properties(data[fields.property_position :])
    waiting = waiting_of(properties, schedule_ms)
    if waiting is None:
        return None
    properties.pop(PROPERTY_CRC, None)
    header = HEADERS[host_bits(fields.sys_flag)].unpack_from(data)
    return WaitingRecord(
        waiting,
        data[fields.body_position : fields.body_position + fields.body_size],
        properties,
        fields.property_size,
        born_timestamp=header[8],
        born_host=header[9],
        store_timestamp=header[10],
        flag=header[4],
        sys_flag=fields.sys_flag & ~NOT_COPIED_FLAGS,
        reconsume_times=header[12],
        block=without(data[fields.property_position :], (PROPERTY_CRC,)),
        record=data,
    )


def read_waiting(record: memoryview, schedule_ms: int | None = None) -> DelayedDelivery | None:
    """The delivery that a record names, without a check of its CRC. None if it is neither a delayed message
    nor a delete marker."""
    fields = read_fields(record, 0, len(record))
    if fields is None:
        return None
    begin = fields.property_position
    return waiting_of(parse_properties(bytes(record[begin : begin + fields.property_size])), schedule_ms)


def waiting_of(properties: Mapping[str, str], schedule_ms: int | None = None) -> DelayedDelivery | None:
    """The delivery that these properties name; None if they name none."""
    topic = properties.get(PROPERTY_REAL_TOPIC)
    queue_id = _integer(properties, PROPERTY_REAL_QUEUE_ID)
    deliver_ms = _deliver_ms(properties) if schedule_ms is None else schedule_ms
    if not topic or queue_id is None or deliver_ms is None or not 0 < deliver_ms <= TIME_MAX:
        return None
    return DelayedDelivery(
        topic,
        QueueId(queue_id),
        EpochMs(deliver_ms),
        properties.get(PROPERTY_UNIQ_KEY, ""),
        _integer(properties, ROLL_TIMES) or 0,
        properties.get(DELETED_UNIQUE_KEY, "") if schedule_ms is None else "",
    )


def _deliver_ms(properties: Mapping[str, str]) -> int | None:
    """The exact time if the record has it, else the end of the second to which it was rounded: RocketMQ
    stores no exact time for a delay that was given in seconds."""
    out_ms = _integer(properties, PROPERTY_TIMER_OUT_MS)
    if out_ms is None:
        return None
    exact = _integer(properties, PROPERTY_TIMER_DELIVER_MS)
    if exact is not None and out_ms < exact <= out_ms + PRECISION_MS:
        return exact
    return out_ms + PRECISION_MS


def _integer(properties: Mapping[str, str], name: str) -> int | None:
    text = properties.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None
