"""Where the parts of many records lie, computed with NumPy for all of them at once.

Two forms: records that follow one another, have one size and equal length fields (a uniform batch) are read
through strided views; any other batch is read through sliding views, one big-endian integer at every byte.
Both find exactly the fields that fields.read_fields finds record by record.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trovemq_proto.records.cached import cached_property
from trovemq_proto.records.fields import RecordFields, read_fields
from trovemq_proto.records.layout import (
    BODY_AT,
    HOST_SIZE_EXTRA,
    MAGIC_AT,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_SIZE_MIN,
    SYS_FLAG_AT,
    TOTAL_SIZE_AT,
)

Int64s = NDArray[np.int64]

_MAGIC_V1_SIGNED = MAGIC_V1 - (1 << 32)
_MAGIC_V2_SIGNED = MAGIC_V2 - (1 << 32)


@dataclass(frozen=True)
class Geometry:
    """Positions and sizes (int64[n]) of the parts of n records.

    `well_formed`: how many records from the first on are well formed; columns of later ones mean nothing.
    `stride`: the records' size when the batch is uniform, else 0.
    """

    well_formed: int
    stride: int
    sys_flags: NDArray[np.int32]
    body_positions: Int64s
    body_sizes: Int64s
    topic_positions: Int64s
    topic_sizes: Int64s
    property_positions: Int64s
    property_sizes: Int64s

    @cached_property
    def born_shifts(self) -> Int64s:
        """Bytes by which an IPv6 born host moves the later fields."""
        return HOST_SIZE_EXTRA * (self.sys_flags >> 4 & 1).astype(np.int64)


def measure(data: memoryview, positions: Int64s, sizes: Int64s) -> Geometry:
    """The geometry of records that lie wholly within `data` (0 <= position, position + size <= len(data))."""
    return _measure_uniform(data, positions, sizes) or _measure_any(data, positions, sizes)


def uniform_geometry(first: RecordFields, positions: Int64s) -> Geometry:
    """The geometry of well-formed records that follow one another and have the length fields of the first."""
    count, shifts = len(positions), positions - first.position
    return Geometry(
        well_formed=count,
        stride=first.size,
        sys_flags=np.full(count, first.sys_flag, np.int32),
        body_positions=shifts + first.body_position,
        body_sizes=np.full(count, first.body_size, np.int64),
        topic_positions=shifts + first.topic_position,
        topic_sizes=np.full(count, first.topic_size, np.int64),
        property_positions=shifts + first.property_position,
        property_sizes=np.full(count, first.property_size, np.int64),
    )


def strided(data: memoryview, dtype: str, at: int, count: int, stride: int) -> NDArray[np.signedinteger]:
    """`count` integers, `stride` bytes apart, the first at byte `at`; a view."""
    return np.ndarray((count,), dtype, data, at, (stride,))


def strided_rows(data: memoryview, at: int, count: int, width: int, stride: int) -> NDArray[np.uint8]:
    """`count` rows of `width` bytes, `stride` bytes apart, the first at byte `at`; a view."""
    return np.ndarray((count, width), np.uint8, data, at, (stride, 1))


def sliding(data: memoryview, dtype: str) -> NDArray[np.signedinteger]:
    """The integer that begins at each byte of `data`; a view. Index it with arrays, never take() it."""
    return np.ndarray((len(data) - int(dtype[-1]) + 1,), dtype, data, 0, (1,))


def sliding_rows(data: memoryview, starts: Int64s, width: int) -> NDArray[np.uint8]:
    """uint8[n, width]: the `width` bytes from each of these starts on, all within the buffer; a copy."""
    if not width or not len(starts):
        return np.empty((len(starts), width), np.uint8)
    windows = np.ndarray((len(data) - width + 1,), f"V{width}", data, 0, (1,))
    return windows[starts].view(np.uint8).reshape(len(starts), width)


def _measure_uniform(data: memoryview, positions: Int64s, sizes: Int64s) -> Geometry | None:
    count = len(positions)
    if count == 0:
        return None
    first, size = int(positions[0]), int(sizes[0])
    if int(positions[-1]) - first != (count - 1) * size or (sizes != size).any():
        return None
    if count > 2 and (np.diff(positions) != size).any():
        return None
    fields = read_fields(data, first, first + size)
    if fields is None or fields.size != size:
        return None
    # Equal length fields at equal places make every record as well formed as the first.
    topic_at = fields.topic_position - (1 if data[first + MAGIC_AT + 3] == MAGIC_V1 & 0xFF else 2)
    for dtype, at in (
        (">i4", first + TOTAL_SIZE_AT),
        (">i4", first + MAGIC_AT),
        (">i4", first + SYS_FLAG_AT),
        (">i4", fields.body_position - 4),
        (">i2", topic_at) if fields.topic_position - topic_at == 2 else (">i1", topic_at),
        (">i2", fields.property_position - 2),
    ):
        column = strided(data, dtype, at, count, size)
        if count > 1 and (column != column[0]).any():
            return None
    return uniform_geometry(fields, positions)


def _measure_any(data: memoryview, positions: Int64s, sizes: Int64s) -> Geometry:
    """Every index below is valid for any bytes: a record that failed a test is read at its start instead."""
    if len(data) < RECORD_SIZE_MIN:
        return _nothing_well_formed(len(positions))
    ints, shorts = sliding(data, ">i4"), sliding(data, ">i2")
    signed_bytes = sliding(data, ">i1")
    good = sizes >= RECORD_SIZE_MIN
    starts = np.where(good, positions, 0)
    ends = starts + sizes
    good &= ints[starts] == sizes
    magic = ints[starts + MAGIC_AT]
    is_v2 = magic == _MAGIC_V2_SIGNED
    good &= (magic == _MAGIC_V1_SIGNED) | is_v2
    topic_length_sizes = 1 + is_v2.astype(np.int64)
    sys_flags = ints[starts + SYS_FLAG_AT].astype(np.int32)
    shifts = HOST_SIZE_EXTRA * ((sys_flags >> 4 & 1) + (sys_flags >> 5 & 1)).astype(np.int64)

    body_positions = starts + BODY_AT + shifts
    good &= body_positions + topic_length_sizes + 2 <= ends
    body_sizes = ints[np.where(good, body_positions - 4, starts)].astype(np.int64)
    topic_positions = body_positions + body_sizes + topic_length_sizes
    good &= (body_sizes >= 0) & (topic_positions + 2 <= ends)
    readable = np.where(good, topic_positions, starts + 2)
    topic_sizes = np.where(is_v2, shorts[readable - 2], signed_bytes[readable - 1]).astype(np.int64)
    property_positions = topic_positions + topic_sizes + 2
    good &= (topic_sizes >= 0) & (property_positions <= ends)
    property_sizes = shorts[np.where(good, property_positions - 2, starts)].astype(np.int64)
    good &= (property_sizes >= 0) & (property_positions + property_sizes == ends)
    return Geometry(
        well_formed=len(good) if good.all() else int(np.argmin(good)),
        stride=0,
        sys_flags=sys_flags,
        body_positions=body_positions,
        body_sizes=body_sizes,
        topic_positions=topic_positions,
        topic_sizes=topic_sizes,
        property_positions=property_positions,
        property_sizes=property_sizes,
    )


def _nothing_well_formed(count: int) -> Geometry:
    zeros = np.zeros(count, np.int64)
    return Geometry(0, 0, zeros.astype(np.int32), zeros, zeros, zeros, zeros, zeros, zeros)
