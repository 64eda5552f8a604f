"""Many plain records that differ in bodies and values only, as a producer sends them: checked and patched as
a matrix of bytes, in a few calls for all of them.

Such records have one size, the same properties in the same order, and values of the same sizes; each ends
with a CRC property. One is checked by itself (plain_records.py). Then the others are as fit as it is:
- All bytes that a check looks at are those of that record: the header's fields, the lengths, the topic,
  the names of the properties and the bytes that end names and values.
- A value ends no name and no value, and does not have the prefix of internal names.
- Of a time of birth and a port the upper bytes are that record's; the lower ones may have any value.
- Each body has the CRC that its record states.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from zlib_ng.zlib_ng import crc32

from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueOffset
from trovemq_proto.records.fields import RecordFields
from trovemq_proto.records.geometry import strided, strided_rows
from trovemq_proto.records.internal_properties import INTERNAL_PREFIX
from trovemq_proto.records.layout import (
    BODY_AT,
    BODY_CRC_AT,
    BORN_HOST_AT,
    BORN_TIMESTAMP_AT,
    CRC_MASK,
    CRC_PROPERTY_DIGITS,
    CRC_PROPERTY_SIZE,
    FLAG_AT,
    HOST_SIZE_IPV4,
    NAME_END,
    PHYSICAL_OFFSET_AT,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    RECONSUME_TIMES_AT,
    STORE_TIMESTAMP_AT,
    SYS_FLAG_AT,
    TOTAL_SIZE_AT,
    VALUE_END,
)
from trovemq_proto.records.record_crc import DIGITS_AT
from trovemq_proto.records.validate import BORN_TIMESTAMP_MAX, PORT_MAX

_NAME_END: Final = bytes([NAME_END])
_VALUE_END: Final = bytes([VALUE_END])
_INTERNAL: Final = INTERNAL_PREFIX.encode()
_SAME: Final = 0xFF
"""In a mask: the byte is that of the record that was checked by itself."""
_BORN_LOW_BITS: Final = 40
_BORN_HIGH_END: Final = BORN_TIMESTAMP_MAX >> _BORN_LOW_BITS
"""With upper bytes below it, each time of birth is a legal one."""
assert PORT_MAX == 0xFFFF, "a port with the upper bytes of a legal one is legal"


class UniformRecords(NamedTuple):
    """Records that fill their buffer, one after the other. first: the fields of the first one."""

    first: RecordFields
    record_count: int


def _head_mask() -> NDArray[np.uint8]:
    mask = np.zeros(BODY_AT, np.uint8)
    for begin, end in (
        (TOTAL_SIZE_AT, BODY_CRC_AT),  # with MAGIC
        (QUEUE_ID_AT, FLAG_AT),
        (SYS_FLAG_AT, BORN_TIMESTAMP_AT + 8 - _BORN_LOW_BITS // 8),
        (BORN_HOST_AT + 4, BORN_HOST_AT + 6),  # the upper half of the port
        (RECONSUME_TIMES_AT, BODY_AT),  # with PREPAREDTRANSACTIONOFFSET and the body's length
    ):
        mask[begin:end] = _SAME
    return mask


_HEAD_MASK: Final = _head_mask()


class UniformForm:
    """The bytes that records have like `first`, a plain record at the begin of `data`. Nothing else is kept
    of it, so that one form serves for many batches."""

    def __init__(self, data: memoryview, first: RecordFields) -> None:
        assert first.position == 0, "the first record begins the buffer"
        self.first: Final = first
        self._tail_at: Final = first.body_position + first.body_size
        block = bytes(data[first.property_position : first.size])
        before = first.property_position - self._tail_at
        self._tail_mask: Final = np.array([_SAME] * before + _block_mask(block), np.uint8)
        self._head: Final = (np.frombuffer(data[:BODY_AT], np.uint8) & _HEAD_MASK).tobytes()
        tail = np.frombuffer(data[self._tail_at : first.size], np.uint8)
        assert len(tail) == len(self._tail_mask), "each byte after the body has its place in the mask"
        self._tail: Final = (tail & self._tail_mask).tobytes()

    def read(self, data: memoryview) -> UniformRecords | None:
        """The records, if all that fill `data` are of this form."""
        size, total = self.first.size, len(data)
        count, rest = divmod(total, size)
        if rest or data[:4] != self._head[:4]:
            return None
        heads = strided_rows(data, 0, count, BODY_AT, size)
        if (heads & _HEAD_MASK).tobytes() != self._head * count:
            return None
        tails = strided_rows(data, self._tail_at, count, size - self._tail_at, size)
        if (tails & self._tail_mask).tobytes() != self._tail * count:
            return None
        values = (tails | self._tail_mask).tobytes()
        if _NAME_END in values or _VALUE_END in values or _INTERNAL in values:
            return None
        begins, length = range(BODY_AT, total, size), self.first.body_size
        stated = strided(data, ">i4", BODY_CRC_AT, count, size).tolist()
        if [crc32(data[at : at + length]) & CRC_MASK for at in begins] != stated:
            return None
        return UniformRecords(self.first, count)


def uniform_form(data: memoryview, first: RecordFields) -> UniformForm | None:
    """The form of records like `first`; None if its time of birth does not bound the others'."""
    born_ms = int.from_bytes(data[BORN_TIMESTAMP_AT : BORN_TIMESTAMP_AT + 8])
    return UniformForm(data, first) if born_ms >> _BORN_LOW_BITS < _BORN_HIGH_END else None


def _block_mask(block: bytes) -> list[int]:
    """Of a property block: 0 for each byte of a value."""
    mask: list[int] = []
    for piece in block.split(_VALUE_END):
        name, separator, value = piece.partition(_NAME_END)
        mask += [_SAME] * len(name + separator) + [0] * len(value) + [_SAME]
    return mask[:-1]  # after the last piece nothing ends


def patch_uniform(
    data: memoryview,
    records: UniformRecords,
    *,
    first_queue_offset: QueueOffset,
    physical_offset: PhysicalOffset,
    store_timestamp: EpochMs,
    store_host: bytes,
    born_host: bytes | None,
) -> None:
    """patch_batch() of these records, in place, with their CRC properties. store_host: 8 bytes; born_host:
    None, or one of another form than IPv4: the client's stays."""
    assert len(store_host) == HOST_SIZE_IPV4, "store host of another form"
    assert first_queue_offset >= 0, "queue offsets count from 0"
    size, count, total = records.first.size, records.record_count, len(data)
    queue_offsets = np.arange(first_queue_offset, first_queue_offset + count, dtype=np.int64)
    strided(data, ">i8", QUEUE_OFFSET_AT, count, size)[:] = queue_offsets
    physical_offsets = np.arange(physical_offset, physical_offset + total, size, dtype=np.int64)
    strided(data, ">i8", PHYSICAL_OFFSET_AT, count, size)[:] = physical_offsets
    at, same = STORE_TIMESTAMP_AT, store_timestamp.to_bytes(8) + store_host
    if born_host is not None and len(born_host) == HOST_SIZE_IPV4:
        at, same = BORN_HOST_AT, born_host + same
    strided_rows(data, at, count, len(same), size)[:] = np.frombuffer(same, np.uint8)
    covered = size - CRC_PROPERTY_SIZE
    crcs = [crc32(data[begin : begin + covered]) & CRC_MASK for begin in range(0, total, size)]
    digits = np.frombuffer(b"%010d" * count % tuple(crcs), np.uint8).reshape(count, CRC_PROPERTY_DIGITS)
    strided_rows(data, covered + DIGITS_AT, count, CRC_PROPERTY_DIGITS, size)[:] = digits[:, ::-1]
