"""Encodes many messages of one topic with NumPy: the fast way of batch_encoder.py.

If all unique keys have the same size, and so have all keys and all tags, then everything but the bodies is a
matrix of bytes that is filled column by column. Otherwise only the headers are, and the property blocks are
made one by one. A row of the matrix; the body comes at the stroke:

| header (layout.py) / topic with its length | i16 | UNIQ_KEY, KEYS, TAGS, the user's, the CRC property |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray
from zlib_ng.zlib_ng import crc32

from trovemq_proto.records.internal_properties import Writer
from trovemq_proto.records.layout import (
    BODY_CRC_AT,
    CRC_MASK,
    FLAG_AT,
    PROPERTY_KEYS,
    PROPERTY_UNIQ_KEY,
    TOTAL_SIZE_AT,
)
from trovemq_proto.records.properties import UNIQUE_KEY_SIZE_MAX, check_block_size
from trovemq_proto.records.property_blocks import (
    TAGS_BEGIN,
    VALUE_END,
    Keys,
    Properties,
    Tags,
    own_block,
    tag_block,
)

Body = bytes | bytearray | memoryview
Bytes2D = NDArray[np.uint8]
Column = bytes | Bytes2D
"""Bytes that are the same in all rows, or a part of the matrix."""

_UNIQ_KEY: Final = f"{PROPERTY_UNIQ_KEY}\x01".encode()
_KEYS: Final = f"{PROPERTY_KEYS}\x01".encode()


def block_columns(
    unique_keys: Sequence[str] | Bytes2D,
    keys: Sequence[Keys] | None,
    tags: Tags,
    properties: Properties,
    *,
    writer: Writer,
    end: bytes,
) -> list[Column] | None:
    """The property blocks as columns, of which `end` is the last. None if the messages are not alike, or one
    of them is illegal."""
    if not isinstance(properties, Mapping) and properties is not None:
        return None
    own = own_block(properties, writer)
    uniques = unique_keys if isinstance(unique_keys, np.ndarray) else _column(unique_keys, " \x01\x02")
    if uniques is None or not 0 < uniques.shape[1] <= UNIQUE_KEY_SIZE_MAX:
        return None
    columns: list[Column] = [_UNIQ_KEY, uniques, VALUE_END]
    if keys is not None:
        key_column = _column(keys, " \x01\x02")
        if key_column is None:
            return None
        columns += [_KEYS, key_column, VALUE_END]
    if isinstance(tags, str):
        own = tag_block(tags) + own
    elif tags is not None:
        tag_column = _column(tags, "|\x01\x02")
        if tag_column is None or not all(tag and tag.strip() for tag in set(tags)):
            return None
        columns += [TAGS_BEGIN, tag_column, VALUE_END]
    return [*columns, own + end]


def encode_alike(
    head: bytes, topic_field: bytes, bodies: Sequence[Body], columns: list[Column], flags: Sequence[int] | int
) -> bytearray:
    """The records that have these columns as property blocks. `head`: a header without sizes, CRC and
    flag."""
    block_size = sum(map(_width, columns))
    check_block_size(block_size)
    row = [head, topic_field, block_size.to_bytes(2), *columns]
    width = sum(map(_width, row))
    count = len(bodies)
    flat = np.empty(count * width + len(head), np.uint8)
    matrix = flat[: count * width].reshape(count, width)
    at = 0
    for column in row:
        end = at + _width(column)
        matrix[:, at:end] = np.frombuffer(column, np.uint8) if isinstance(column, bytes) else column
        at = end
    _fill_header(matrix, len(head), width, bodies, flags)
    # Each row is the head and the tail of a record. Cut after the heads, a row is a tail and the next head.
    gaps = _rows(flat, len(head), count, width)
    gaps[-1] = gaps[-1][: width - len(head)]
    parts: list[Body] = [flat[: len(head)].tobytes()] * (2 * count + 1)
    parts[1::2] = bodies
    parts[2::2] = gaps
    return bytearray().join(parts)


def encode_joined(
    head: bytes, topic_field: bytes, bodies: Sequence[Body], blocks: list[bytes], flags: Sequence[int] | int
) -> bytearray:
    """The records with these property blocks. `head`: as in encode_alike."""
    block_sizes = np.fromiter(map(len, blocks), np.int64, len(blocks))
    heads = np.empty((len(bodies), len(head)), np.uint8)
    heads[:] = np.frombuffer(head, np.uint8)
    _fill_header(heads, len(head), len(head) + len(topic_field) + 2 + block_sizes, bodies, flags)
    lengths = [size.to_bytes(2) for size in map(len, blocks)]
    parts: list[Body] = [topic_field] * (5 * len(bodies))
    parts[::5] = _rows(heads, 0, len(bodies), len(head))
    parts[1::5] = bodies
    parts[3::5] = lengths
    parts[4::5] = blocks
    return bytearray().join(parts)


def key_texts(unique_keys: Bytes2D) -> list[str]:
    """The keys as texts."""
    rows = _rows(np.ascontiguousarray(unique_keys), 0, *unique_keys.shape)
    return [row.decode("ascii", "replace") for row in rows]


def _fill_header(
    matrix: Bytes2D,
    head_size: int,
    sizes_without_body: int | NDArray[np.int64],
    bodies: Sequence[Body],
    flags: Sequence[int] | int,
) -> None:
    """Writes TOTALSIZE, BODYCRC, FLAG and the bodies' lengths into the headers at the beginning of the
    rows."""
    count = len(bodies)
    body_sizes = np.fromiter(map(len, bodies), np.int64, count)

    def column(at: int) -> NDArray[np.int32]:
        return np.ndarray((count,), ">i4", matrix, at, matrix.strides[:1])

    column(TOTAL_SIZE_AT)[:] = sizes_without_body + body_sizes
    column(BODY_CRC_AT)[:] = np.fromiter(map(crc32, bodies), np.uint32, count) & CRC_MASK
    column(FLAG_AT)[:] = np.array(flags, np.int32)
    column(head_size - 4)[:] = body_sizes


def _rows(matrix: NDArray[np.uint8], at: int, count: int, width: int) -> list[bytes]:
    """`count` runs of `width` bytes, the first at byte `at` of the array's memory."""
    rows: list[bytes] = np.ndarray((count,), f"V{width}", matrix, at).tolist()
    return rows


def _width(column: Column) -> int:
    return len(column) if isinstance(column, bytes) else int(column.shape[1])


def _column(texts: Sequence[object], forbidden: str) -> Bytes2D | None:
    """uint8[n, k] of n ASCII texts of k >= 1 characters, none of them forbidden; else None."""
    try:
        joined = "".join(texts)  # type: ignore[arg-type]  # anything that is not text raises TypeError
    except TypeError:
        return None
    width, rest = divmod(len(joined), len(texts))
    if not width or rest or not joined.isascii() or any(character in joined for character in forbidden):
        return None
    if set(map(len, texts)) != {width}:  # type: ignore[arg-type]
        return None
    return np.frombuffer(joined.encode(), np.uint8).reshape(len(texts), width)
