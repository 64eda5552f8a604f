"""Records that differ in bodies and values only, as a producer sends many: checked as a matrix of bytes, in a
few calls for all of them.

Such records have one size, the same properties in the same order, and values of the same sizes; each ends
with a CRC property. The first one is checked by its queue's rules (queue_rules.py). The others are fit, too:
- All bytes that a check looks at are those of that record: the header's fields, the lengths, the topic,
  the names of the properties and the bytes that end names and values.
- A value ends no name and no value, and does not have the prefix of internal names.
- Of a time of birth and a port the upper bytes are that record's; the lower ones may have any value.
- Each body has the CRC that its record states.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from operator import itemgetter
from typing import Final

import numpy as np
from numpy.typing import NDArray
from zlib_ng.zlib_ng import crc32

from trovemq_proto.records.fields import RecordFields
from trovemq_proto.records.geometry import strided, strided_rows
from trovemq_proto.records.internal_properties import INTERNAL_PREFIX
from trovemq_proto.records.layout import (
    BODY_AT,
    BODY_CRC_AT,
    BORN_HOST_AT,
    BORN_TIMESTAMP_AT,
    CRC_MASK,
    FLAG_AT,
    NAME_END,
    QUEUE_ID_AT,
    RECONSUME_TIMES_AT,
    SYS_FLAG_AT,
    TOTAL_SIZE_AT,
    VALUE_END,
)
from trovemq_proto.records.limits import BORN_TIMESTAMP_MAX, PORT_MAX

_NAME_END: Final = bytes([NAME_END])
_VALUE_END: Final = bytes([VALUE_END])
PIECES_KEPT_MAX: Final = 1_024
"""Records of a batch whose pieces are kept for the next batch of that form, about 150 KB: bench/appends.py,
"1000 alike"."""
FORMS_KNOWN: Final = 1_024  # about 2 MB, besides those that QueueRules keep
_INTERNAL: Final = INTERNAL_PREFIX.encode()
_SAME: Final = 0xFF
"""In a mask: the byte is that of the record that was checked alone."""
_BORN_LOW_BITS: Final = 40
_BORN_HIGH_END: Final = BORN_TIMESTAMP_MAX >> _BORN_LOW_BITS
"""With upper bytes below it, each time of birth is a legal one."""
assert PORT_MAX == 0xFFFF, "a port with the upper bytes of a legal one is legal"


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
    """The bytes that records have like `first`, a fit record with IPv4 hosts at the start of `data`, but for
    its queue id and its topic. Nothing else is kept of it, so that one form serves for many batches, and for
    all queues whose topics have names of one length."""

    __slots__ = ("_head_begin", "_head_end", "_properties", "_tail_at", "_tail_mask", "first")

    def __init__(self, data: memoryview, first: RecordFields) -> None:
        assert first.position == 0, "the first record begins the buffer"
        self.first: Final = first
        head = (np.frombuffer(data[:BODY_AT], np.uint8) & _HEAD_MASK).tobytes()
        self._head_begin: Final = head[:QUEUE_ID_AT]
        self._head_end: Final = head[FLAG_AT:]
        self._tail_at: Final = first.body_position + first.body_size
        # The topic with its length before it, the length of the properties, the properties.
        length_at = first.property_position - 2
        properties = bytes(data[length_at : first.size])
        mask = b"\xff\xff" + _block_mask(properties[2:])
        assert len(mask) == len(properties), "each byte of the properties has its place in the mask"
        self._properties: Final = (
            np.frombuffer(properties, np.uint8) & np.frombuffer(mask, np.uint8)
        ).tobytes()
        self._tail_mask: Final = np.frombuffer(b"\xff" * (length_at - self._tail_at) + mask, np.uint8)

    def fits(self, data: memoryview, queue_id: int, topic_field: bytes) -> bool:
        """Whether all records that fill `data` are of this form and queue. topic_field: as encode.py's; as
        long as that of the first record."""
        size, total = self.first.size, len(data)
        count, rest = divmod(total, size)
        if rest or data[:4] != self._head_begin[:4]:
            return False
        assert count > 0, "a record begins the buffer"
        head = self._head_begin + queue_id.to_bytes(4, signed=True) + self._head_end
        tail = topic_field + self._properties
        assert len(tail) == size - self._tail_at, "a topic of the same length"
        heads = strided_rows(data, 0, count, BODY_AT, size)
        if (heads & _HEAD_MASK).tobytes() != head * count:
            return False
        tails = strided_rows(data, self._tail_at, count, len(tail), size)
        if (tails & self._tail_mask).tobytes() != tail * count:
            return False
        values = (tails | self._tail_mask).tobytes()
        if _NAME_END in values or _VALUE_END in values or _INTERNAL in values:
            return False
        crcs = strided_crcs(data, BODY_AT, self.first.body_size, size)
        return bool((strided(data, ">i4", BODY_CRC_AT, count, size) == crcs).all())


class UniformForms:
    """The forms that were learnt last, for all queues of a store. By the sizes of a record and of its topic,
    which decide where most of its parts lie; of forms with the same sizes the last one is kept."""

    def __init__(self) -> None:
        self._forms: dict[tuple[int, int], UniformForm] = {}

    def get(self, record_size: int, topic_size: int) -> UniformForm | None:
        return self._forms.get((record_size, topic_size))

    def learn(self, data: memoryview, first: RecordFields) -> UniformForm | None:
        """The form of records like `first`; None if its time of birth does not bound the others'."""
        born_ms = int.from_bytes(data[BORN_TIMESTAMP_AT : BORN_TIMESTAMP_AT + 8])
        if born_ms >> _BORN_LOW_BITS >= _BORN_HIGH_END:
            return None
        if len(self._forms) >= FORMS_KNOWN:
            self._forms.clear()
        form = self._forms[first.size, first.topic_size] = UniformForm(data, first)
        return form


def _block_mask(block: bytes) -> bytes:
    """Of a property block: 0 for each byte of a value."""
    pieces = []
    for piece in block.split(_VALUE_END):
        name, separator, value = piece.partition(_NAME_END)
        pieces.append(b"\xff" * len(name + separator) + bytes(len(value)))
    return b"\xff".join(pieces)


def strided_crcs(data: memoryview, begin: int, length: int, stride: int) -> NDArray[np.int64]:
    """The CRC of `length` bytes of each record, the first at `begin`, the next ones `stride` bytes apart."""
    count = len(data) // stride
    cut = (_kept_pieces if count <= PIECES_KEPT_MAX else _pieces)(begin, length, stride, count)
    return np.fromiter(map(crc32, cut(data)), np.int64, count) & CRC_MASK


def _pieces(
    begin: int, length: int, stride: int, count: int
) -> Callable[[memoryview], tuple[memoryview, ...]]:
    """Cuts a buffer into these pieces, two or more."""
    begins = range(begin, begin + stride * count, stride)
    slices = [slice(at, at + length) for at in begins]
    return itemgetter(*slices)


_kept_pieces = lru_cache(maxsize=32)(_pieces)  # a producer's batches are of one size: to cut is half the work
