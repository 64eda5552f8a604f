"""One record by itself, in the form of nearly every single message: checked and patched without columns.

A record is plain if it fills its bytes, both of its hosts are IPv4, and nothing of it needs a second look: no
compression, no property that another module decides about, fewer than a sector of properties. Whatever is not
plain, and whatever is to be refused, goes the way of batches (validate.py, patch.py), which gives the reason.
So a plain record is one that validate_batch() takes, that has no mark of a kind (a group, a delivery time, a
priority) and that log/sectors.py takes; patch() writes the same as patch_batch().
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from zlib_ng.zlib_ng import crc32

from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueOffset
from trovemq_proto.records.encode import topic_field
from trovemq_proto.records.fields import RecordFields
from trovemq_proto.records.internal_properties import INTERNAL_PREFIX
from trovemq_proto.records.layout import (
    BODY_AT,
    BORN_HOST_AT,
    CRC_MASK,
    CRC_PROPERTY_PREFIX,
    CRC_PROPERTY_SIZE,
    HEADERS,
    HOST_SIZE_IPV4,
    NAME_END,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TIMER_DELIVER_MS,
    QUEUE_OFFSET_AT,
    RECORD_SIZE_MIN,
    STORE_HOST_AT,
    STORE_TIMESTAMP_AT,
    VALUE_END,
    magic_of_topic,
)
from trovemq_proto.records.priorities import PROPERTY_PRIORITY
from trovemq_proto.records.record_crc import DIGITS_AT, looks_like_record_crc, record_crc_property
from trovemq_proto.records.validate import BORN_TIMESTAMP_MAX, PORT_MAX

PROPERTIES_SIZE_MAX_PLAIN: Final = 511
"""One byte less than a sector of the disk."""

_HEADER: Final = HEADERS[0]
_OFFSETS: Final = Struct(">qq")  # QUEUEOFFSET, PHYSICALOFFSET
_HOSTS: Final = Struct(">8sq8s")  # BORNHOST, STORETIMESTAMP, STOREHOST
_STORED: Final = Struct(">q8s")  # STORETIMESTAMP, STOREHOST
assert STORE_TIMESTAMP_AT == BORN_HOST_AT + HOST_SIZE_IPV4, "they are written together"
assert STORE_HOST_AT == STORE_TIMESTAMP_AT + 8, "they are written together"
_VALUE_END: Final = bytes([VALUE_END])
_DIGITS: Final = DIGITS_AT - CRC_PROPERTY_SIZE
_INTERNAL: Final = INTERNAL_PREFIX.encode()
_TIMER, _GROUP, _PRIORITY = (
    name.encode() + bytes([NAME_END])
    for name in (PROPERTY_TIMER_DELIVER_MS, PROPERTY_SHARDING_KEY, PROPERTY_PRIORITY)
)


class PlainForm:
    """The values that every plain record of one queue has.

    append_property_crc: a CRC property at the end of its properties, which patch() fills.
    """

    def __init__(self, topic: str, queue_id: int, body_size_max: int, *, append_property_crc: bool) -> None:
        magic = magic_of_topic(topic)
        self._magic: Final = magic - (1 << 32)
        self._queue_id: Final = queue_id
        self._body_size_max: Final = body_size_max
        self._append_property_crc: Final = append_property_crc
        self._topic_field: Final = topic_field(topic, magic)
        self._topic_size: Final = len(topic.encode())
        self._rest_size: Final = BODY_AT + len(self._topic_field) + 2

    def read(self, data: memoryview) -> RecordFields | None:
        """The plain record that fills `data`; None if there is none."""
        size = len(data)
        if size < RECORD_SIZE_MIN:
            return None
        header = _HEADER.unpack_from(data)
        (
            total,
            magic,
            crc,
            queue_id,
            _,
            _,
            _,
            sys_flag,
            born_ms,
            born_host,
            _,
            _,
            consumed,
            prepared,
            length,
        ) = header
        property_size = size - self._rest_size - length
        if (
            total != size
            or magic != self._magic
            or queue_id != self._queue_id
            or sys_flag
            or consumed
            or prepared
            or not 0 <= length <= self._body_size_max
            or not 0 <= property_size <= PROPERTIES_SIZE_MAX_PLAIN
            or not 0 <= born_ms <= BORN_TIMESTAMP_MAX
            or int.from_bytes(born_host[4:]) > PORT_MAX
        ):
            return None
        properties_at = size - property_size
        body_end = BODY_AT + length
        middle = bytes(data[body_end:properties_at])
        if middle != self._topic_field + property_size.to_bytes(2):
            return None
        if not self._takes(bytes(data[properties_at:])) or crc32(data[BODY_AT:body_end]) & CRC_MASK != crc:
            return None
        topic_at = properties_at - 2 - self._topic_size
        return RecordFields(
            0, size, 0, BODY_AT, length, topic_at, self._topic_size, properties_at, property_size
        )

    def _takes(self, properties: bytes) -> bool:
        """Whether a plain record may have this property block."""
        if _INTERNAL in properties or _TIMER in properties or _GROUP in properties or _PRIORITY in properties:
            return False
        if self._append_property_crc:
            return (
                properties[-1:] == _VALUE_END
                and properties[-CRC_PROPERTY_SIZE:_DIGITS] == CRC_PROPERTY_PREFIX
            )
        if not properties:
            return True
        # The name of the CRC property has only five letters and digits: it looks like none that has nine.
        size = len(properties)
        has_crc = size >= CRC_PROPERTY_SIZE and (
            not properties[-CRC_PROPERTY_SIZE:_DIGITS].isalnum() and looks_like_record_crc(properties, size)
        )
        return properties[-1:] == _VALUE_END and not has_crc


def patch(
    data: memoryview,
    *,
    append_property_crc: bool,
    queue_offset: QueueOffset,
    physical_offset: PhysicalOffset,
    store_timestamp: EpochMs,
    store_host: bytes,
    born_host: bytes | None,
) -> None:
    """patch_batch() of a plain record, in place. store_host: 8 bytes; born_host: None, or one of another form
    than IPv4: the client's stays."""
    assert len(store_host) == HOST_SIZE_IPV4, "store host of another form"
    assert queue_offset >= 0, "queue offsets count from 0"
    _OFFSETS.pack_into(data, QUEUE_OFFSET_AT, queue_offset, physical_offset)
    if born_host is not None and len(born_host) == HOST_SIZE_IPV4:
        _HOSTS.pack_into(data, BORN_HOST_AT, born_host, store_timestamp, store_host)
    else:
        _STORED.pack_into(data, STORE_TIMESTAMP_AT, store_timestamp, store_host)
    if append_property_crc:
        data[-CRC_PROPERTY_SIZE:] = record_crc_property(data, 0, len(data))
