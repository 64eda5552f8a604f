"""The check of a position of the log: is there a good record, and if not, what is there?

A record is good if it is well formed (fields.read_fields), names a plausible topic, states its own position
(PHYSICALOFFSET) and has its CRC: that of the whole record if it has one (record_crc.py), otherwise that of
its body (an empty body is not checked, as in RocketMQ).
Source: RocketMQ 5.4.0, CommitLog.checkMessageAndReturnSize, made stricter.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from zlib_ng.zlib_ng import crc32

from trovemq_proto.records.fields import RecordFields, read_fields
from trovemq_proto.records.layout import (
    BLANK_SIZE,
    BODY_CRC_AT,
    CRC_MASK,
    CRC_PROPERTY_SIZE,
    MAGIC_BLANK_BYTES,
    PHYSICAL_OFFSET_AT,
    TOPIC_SIZE_MAX_V2,
)
from trovemq_proto.records.record_crc import looks_like_record_crc, record_crc_property

_TOPIC_CHARACTERS: Final = frozenset(map(chr, range(0x21, 0x7F))) - {"/"}


class RecordState(Enum):
    """The state of a position of the log."""

    RECORD = "record"
    BLANK = "blank"
    """A blank record: the rest of the segment is unused."""
    ZEROS = "zeros"
    """Nothing was written here (the next 8 bytes, or the rest of them, are zero)."""
    TORN = "torn"
    """Bytes that are not a well-formed record of this place."""
    STALE = "stale"
    """A whole record that says that it lies elsewhere: bytes of an older use of the file."""
    DAMAGED = "damaged"
    """A well-formed record that does not have its CRC."""
    UNREADABLE = "unreadable"
    """The disk does not return these bytes (found by readers of files, not by check_record)."""


def check_record(
    data: memoryview, position: int, limit: int, *, physical_offset: int | None, check_crc: bool = True
) -> tuple[RecordState, int]:
    """The state at `position` of `data`, whose log ends (or whose segment ends) at `limit` <= len(data).

    physical_offset: the log position of data[position], compared with the record's; None: not compared.
    Returns the state and the record's size in bytes (0 for ZEROS, TORN, STALE). Never raises for any bytes.
    """
    fields = read_fields(data, position, limit)
    if fields is None:
        return _check_no_record(data, position, limit)
    topic = data[fields.topic_position : fields.topic_position + fields.topic_size]
    plausible = is_plausible_topic(str(topic, "utf-8", "replace"))
    elsewhere = physical_offset is not None and physical_offset != _stored_physical_offset(data, position)
    if plausible and not elsewhere:
        if check_crc and not crc_matches(data, fields):
            return RecordState.DAMAGED, fields.size
        return RecordState.RECORD, fields.size
    if crc_matches(data, fields):
        return (RecordState.STALE if plausible else RecordState.TORN), 0
    # With a CRC property where its lengths say that it ends, it is a record: its topic or place is damaged.
    return (RecordState.DAMAGED, fields.size) if _has_record_crc(data, fields) else (RecordState.TORN, 0)


def is_plausible_topic(topic: str) -> bool:
    """Whether it is 1 to 255 visible ASCII characters that can name a directory: more names than brokers
    accept, but random bytes rarely pass."""
    return (
        0 < len(topic) <= TOPIC_SIZE_MAX_V2
        and _TOPIC_CHARACTERS.issuperset(topic)
        and topic not in (".", "..")
    )


def crc_matches(data: bytes | memoryview, fields: RecordFields) -> bool:
    """Whether a well-formed record has the CRC that it states: the whole record's, or else the body's."""
    end = fields.position + fields.size
    if _has_record_crc(data, fields):
        return data[end - CRC_PROPERTY_SIZE : end] == record_crc_property(data, fields.position, end)
    if fields.property_size and data[end - 1] == 0:
        return False  # the end was lost, with the CRC property: no properties end with a zero
    return not fields.body_size or body_crc_matches(data, fields)


def _has_record_crc(data: bytes | memoryview, fields: RecordFields) -> bool:
    has_space = fields.property_size >= CRC_PROPERTY_SIZE
    return has_space and looks_like_record_crc(data, fields.position + fields.size)


def body_crc_matches(data: bytes | memoryview, fields: RecordFields) -> bool:
    crc_at = fields.position + BODY_CRC_AT
    stored = int.from_bytes(data[crc_at : crc_at + 4])
    body = data[fields.body_position : fields.body_position + fields.body_size]
    return stored == crc32(body) & CRC_MASK


def _check_no_record(data: memoryview, position: int, limit: int) -> tuple[RecordState, int]:
    head = bytes(data[position : min(position + BLANK_SIZE, limit)])
    if not any(head):
        return RecordState.ZEROS, 0
    if len(head) == BLANK_SIZE and head[4:] == MAGIC_BLANK_BYTES:
        size = int.from_bytes(head[:4], signed=True)
        if BLANK_SIZE <= size <= limit - position:
            return RecordState.BLANK, size
    return RecordState.TORN, 0


def _stored_physical_offset(data: memoryview, position: int) -> int:
    at = position + PHYSICAL_OFFSET_AT
    return int.from_bytes(data[at : at + 8], signed=True)
