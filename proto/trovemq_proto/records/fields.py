"""One record's fields, read in plain Python: the readable form of geometry.py, which reads many."""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, QueueOffset
from trovemq_proto.records.layout import (
    BODY_AT,
    MAGIC_AT,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTIES_SIZE_MAX,
    QUEUE_OFFSET_AT,
    RECORD_SIZE_MIN,
    STORE_TIMESTAMP_AT,
    SYS_FLAG_AT,
    born_shift,
    header_shift,
)

Bytes = bytes | memoryview
ROWS_MAX: Final = 32
"""Records of a batch that cost less as rows, in plain Python, than as columns: bench/appends.py, "32 any";
in the client, bench/second_paths.py, "spans"."""

_SIZE_MAGIC_SYS_FLAG: Final = Struct(f">iI{SYS_FLAG_AT - MAGIC_AT - 4}xi")
_INT: Final = Struct(">i")
_UNSIGNED_INT: Final = Struct(">I")
_LONG: Final = Struct(">q")
_SHORT: Final = Struct(">h")
_UNSIGNED_SHORT: Final = Struct(">H")
_BYTE: Final = Struct(">b")


class RecordFields(NamedTuple):
    """Where the parts of a record lie (positions in its buffer) and its first few header fields."""

    position: int
    size: int
    sys_flag: int
    body_position: int
    body_size: int
    topic_position: int
    topic_size: int
    property_position: int
    property_size: int


def store_timestamp(data: Bytes, position: int, sys_flag: int | None = None) -> EpochMs:
    """STORETIMESTAMP, epoch ms, of the record at `position`; its sys flag is read if it is not given."""
    if sys_flag is None:
        (sys_flag,) = _INT.unpack_from(data, position + SYS_FLAG_AT)
    (timestamp,) = _LONG.unpack_from(data, position + STORE_TIMESTAMP_AT + born_shift(sys_flag))
    return EpochMs(timestamp)


def read_fields(
    data: Bytes, position: int, limit: int, property_size_max: int = PROPERTIES_SIZE_MAX
) -> RecordFields | None:
    """The record at `position`, or None when no well-formed v1 or v2 record lies within [position, limit).

    Well formed: TOTALSIZE of at least 91 fits, the magic is v1 or v2, and the lengths of body, topic and
    properties add up to TOTALSIZE exactly. limit <= len(data).
    """
    if limit - position < RECORD_SIZE_MIN:
        return None
    size, magic, sys_flag = _SIZE_MAGIC_SYS_FLAG.unpack_from(data, position)
    if not RECORD_SIZE_MIN <= size <= limit - position or magic not in (MAGIC_V1, MAGIC_V2):
        return None
    end = position + size
    topic_length_size = 1 if magic == MAGIC_V1 else 2
    body = position + BODY_AT + header_shift(sys_flag)
    if body + topic_length_size + 2 > end:
        return None
    (body_size,) = _INT.unpack_from(data, body - 4)
    topic = body + body_size + topic_length_size
    if body_size < 0 or topic + 2 > end:
        return None
    (topic_size,) = (_BYTE if magic == MAGIC_V1 else _SHORT).unpack_from(data, topic - topic_length_size)
    properties = topic + topic_size + 2
    if topic_size < 0 or properties > end:
        return None
    (property_size,) = _UNSIGNED_SHORT.unpack_from(data, properties - 2)
    if property_size > property_size_max or properties + property_size != end:
        return None
    return RecordFields(
        position, size, sys_flag, body, body_size, topic, topic_size, properties, property_size
    )


def queue_offset(data: Bytes, position: int) -> QueueOffset:
    """QUEUEOFFSET of the record at `position`."""
    (offset,) = _LONG.unpack_from(data, position + QUEUE_OFFSET_AT)
    return QueueOffset(offset)


def has_few_records(data: memoryview) -> bool:
    """Whether ROWS_MAX records or fewer fill `data`, or one of the first is not well formed."""
    position, last = 0, len(data) - RECORD_SIZE_MIN
    for _ in range(ROWS_MAX):
        if position > last:
            return True
        (size,) = _UNSIGNED_INT.unpack_from(data, position)
        if size < RECORD_SIZE_MIN:
            return True
        position += size
    return position >= len(data)


def split_fields(data: Bytes) -> Iterator[RecordFields]:
    """The fields of the records that fill `data` exactly. Raises TroveError BATCH_ILLEGAL at other bytes."""
    position = 0
    while position < len(data):
        fields = read_fields(data, position, len(data))
        if fields is None:
            raise TroveError(errors.BATCH_ILLEGAL, f"no well-formed record at byte {position} of {len(data)}")
        yield fields
        position += fields.size


def split_records(data: bytes) -> Iterator[bytes]:
    """The records that fill `data` exactly. Raises TroveError BATCH_ILLEGAL at other bytes."""
    for fields in split_fields(data):
        yield data[fields.position : fields.position + fields.size]
