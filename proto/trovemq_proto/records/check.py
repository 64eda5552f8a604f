"""Records as recovery sees them: is there a good record here, and how far does the run of good ones go?

A record is good when it is well formed (fields.read_fields), names a plausible topic, says that it lies
where it lies (PHYSICALOFFSET) and its body has the CRC that it states (an empty body is not checked, as in
RocketMQ). Source: RocketMQ 5.4.0, CommitLog.checkMessageAndReturnSize, made stricter.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from isal.isal_zlib import crc32

from trovemq_proto.records.fields import RecordFields, read_fields
from trovemq_proto.records.layout import (
    BLANK_SIZE,
    BODY_CRC_AT,
    MAGIC_BLANK,
    PHYSICAL_OFFSET_AT,
    TOPIC_SIZE_MAX_V2,
)

_BLANK_MAGIC_BYTES: Final = MAGIC_BLANK.to_bytes(4)
_VISIBLE_ASCII: Final = frozenset(map(chr, range(0x21, 0x7F)))
CRC_MASK: Final = 0x7FFFFFFF


class RecordState(Enum):
    """What lies at a position of the log."""

    RECORD = "record"
    BLANK = "blank"
    """A blank record: the rest of the segment is unused."""
    ZEROS = "zeros"
    """Nothing was written here (the next 8 bytes, or what is left of them, are zero)."""
    TORN = "torn"
    """Bytes that are no well-formed record of this place."""
    DAMAGED = "damaged"
    """A well-formed record whose body does not have its CRC."""


def check_record(
    data: memoryview, position: int, limit: int, *, physical_offset: int | None, check_crc: bool = True
) -> tuple[RecordState, int]:
    """What lies at `position` of `data`, whose log ends (or whose segment ends) at `limit` <= len(data).

    physical_offset: the log position of data[position], compared with the record's; None: not compared.
    Returns the state and the record's size in bytes (0 for ZEROS and TORN). Never raises for any bytes.
    """
    fields = read_fields(data, position, limit)
    if fields is None:
        return _check_no_record(data, position, limit)
    topic = data[fields.topic_position : fields.topic_position + fields.topic_size]
    if not is_plausible_topic(str(topic, "utf-8", "replace")):
        return RecordState.TORN, 0
    if physical_offset is not None and physical_offset != _stored_physical_offset(data, position):
        return RecordState.TORN, 0
    if check_crc and fields.body_size and not body_crc_matches(data, fields):
        return RecordState.DAMAGED, fields.size
    return RecordState.RECORD, fields.size


def is_plausible_topic(topic: str) -> bool:
    """1..255 visible ASCII characters: wider than the names that brokers accept, narrower than chance."""
    return 0 < len(topic) <= TOPIC_SIZE_MAX_V2 and _VISIBLE_ASCII.issuperset(topic)


def body_crc_matches(data: bytes | memoryview, fields: RecordFields) -> bool:
    crc_at = fields.position + BODY_CRC_AT
    stored = int.from_bytes(data[crc_at : crc_at + 4])
    body = data[fields.body_position : fields.body_position + fields.body_size]
    return stored == crc32(body) & CRC_MASK


def _check_no_record(data: memoryview, position: int, limit: int) -> tuple[RecordState, int]:
    head = bytes(data[position : min(position + BLANK_SIZE, limit)])
    if not any(head):
        return RecordState.ZEROS, 0
    if len(head) == BLANK_SIZE and head[4:] == _BLANK_MAGIC_BYTES:
        size = int.from_bytes(head[:4], signed=True)
        if BLANK_SIZE <= size <= limit - position:
            return RecordState.BLANK, size
    return RecordState.TORN, 0


def _stored_physical_offset(data: memoryview, position: int) -> int:
    at = position + PHYSICAL_OFFSET_AT
    return int.from_bytes(data[at : at + 8], signed=True)
