"""Makes the copy of a delayed message's record for its real topic from the record's bytes.

The properties that were added for the wait stay, as with RocketMQ.
"""

from __future__ import annotations

from typing import NamedTuple

from trovemq_broker.timers.wheel_records import DEQUEUE_MS, ENQUEUE_MS, NOT_COPIED_FLAGS, PROPERTIES_SPACE_MAX
from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueId
from trovemq_proto.records.check import crc_matches
from trovemq_proto.records.encode import encode_record
from trovemq_proto.records.fields import read_fields
from trovemq_proto.records.layout import (
    HEADERS,
    PROPERTIES_SIZE_MAX,
    PROPERTY_CRC,
    PROPERTY_REAL_QUEUE_ID,
    host_bits,
    magic_of_topic,
)
from trovemq_proto.records.property_block import edited, terminated, value_of, without

_BODY_CRC, _FLAG, _PHYSICAL_OFFSET, _BORN_MS, _BORN_HOST, _STORE_MS, _RECONSUME_TIMES = 2, 4, 6, 8, 9, 10, 12
"""Members of an unpacked header."""


class Target(NamedTuple):
    """The topic of copies, and how records are written there."""

    topic: str
    magic: int
    queue_count: int
    store_host: bytes
    append_property_crc: bool

    @classmethod
    def of(cls, topic: str, queue_count: int, store_host: bytes, append_property_crc: bool) -> Target:
        return cls(topic, magic_of_topic(topic), queue_count, store_host, append_property_crc)


def delivered_copy(
    record: memoryview, physical_offset: PhysicalOffset, target: Target, now_ms: EpochMs, *, annotated: bool
) -> tuple[QueueId, bytes] | None:
    """(queue id, bytes) of the copy of the record at that offset; None if the record is damaged.

    annotated: the copy gets the times of its storing and of its delivery, if there is space.
    """
    data = bytes(record)
    fields = read_fields(data, 0, len(data))
    if fields is None or not crc_matches(data, fields):
        return None
    header = HEADERS[host_bits(fields.sys_flag)].unpack_from(data)
    block = data[fields.property_position :]
    queue_id = value_of(block, PROPERTY_REAL_QUEUE_ID)
    if header[_PHYSICAL_OFFSET] != physical_offset or queue_id is None or not queue_id.isdigit():
        return None
    block = without(block, (PROPERTY_CRC,))
    if len(block) < PROPERTIES_SIZE_MAX:
        block = terminated(block)  # old clients omit the last 0x02
    if annotated and block == terminated(block):
        block = _with_times(block, header[_STORE_MS], now_ms)
    # A record that was stored without the CRC property may have no space for it: then its copy has none.
    append_property_crc = target.append_property_crc and len(block) <= PROPERTIES_SPACE_MAX
    queue = QueueId(int(queue_id) % target.queue_count)
    return queue, encode_record(
        target.topic,
        data[fields.body_position : fields.body_position + fields.body_size],
        queue_id=queue,
        properties=block,
        flag=header[_FLAG],
        sys_flag=fields.sys_flag & ~NOT_COPIED_FLAGS,
        born_timestamp=header[_BORN_MS],
        born_host=header[_BORN_HOST],
        store_host=target.store_host,
        reconsume_times=header[_RECONSUME_TIMES],
        body_crc=header[_BODY_CRC] if fields.body_size else None,
        magic=target.magic,
        append_property_crc=append_property_crc,
    )


def _with_times(block: bytes, stored_ms: int, now_ms: EpochMs) -> bytes:
    """Adds the two times. They are for information only: a block without space stays as it is."""
    changes = {DEQUEUE_MS: str(now_ms)}
    if value_of(block, ENQUEUE_MS) is None:
        changes = {ENQUEUE_MS: str(stored_ms)} | changes
    changed = edited(block, changes)
    return changed if len(changed) <= PROPERTIES_SPACE_MAX else block
