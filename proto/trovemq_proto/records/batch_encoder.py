"""Batches of records from the messages of one topic.

Three ways, one result: a few messages are encoded one by one (encode_record); for messages whose unique keys,
keys and tags have one size each, everything but the bodies is a byte matrix, filled column by column; any
others get their headers from a matrix and their property blocks one by one. A row of the matrix, the body
left out at the stroke:

| header (layout.py) / topic with its length | i16 | UNIQ_KEY, KEYS, TAGS, the user's, the CRC property |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray
from zlib_ng.zlib_ng import crc32

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records.columns import SMALL_BATCH_MAX
from trovemq_proto.records.encode import encode_record, host_flags, topic_field
from trovemq_proto.records.internal_properties import Writer
from trovemq_proto.records.layout import (
    BODY_CRC_AT,
    CRC_MASK,
    CRC_PROPERTY_EMPTY,
    FLAG_AT,
    HEADERS,
    HOST_SIZE_IPV4,
    HOST_SIZE_IPV6,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    TOTAL_SIZE_AT,
    host_bits,
    magic_of_topic,
)
from trovemq_proto.records.priorities import PROPERTY_PRIORITY, check_priority_text
from trovemq_proto.records.properties import (
    UNIQUE_KEY_SIZE_MAX,
    check_block_size,
    check_key,
    check_property,
    check_tag,
    check_unique_key,
    encode_properties,
)

Body = bytes | bytearray | memoryview
Keys = str | Sequence[str] | None
Bytes2D = NDArray[np.uint8]
Column = bytes | Bytes2D
"""Bytes that all rows of a matrix have, or a part of the matrix."""

_UNIQ_KEY: Final = f"{PROPERTY_UNIQ_KEY}\x01".encode()
_KEYS: Final = f"{PROPERTY_KEYS}\x01".encode()
_TAGS: Final = f"{PROPERTY_TAGS}\x01".encode()
_VALUE_END: Final = b"\x02"


class BatchEncoder:
    """Encodes batches of messages of one topic.

    store_host_ipv6, append_property_crc: as the broker's route says. born_host_ipv6: the form of the
    born_host given to encode (left out, it is zeros until the broker fills it in). The broker's own fields
    (offsets, store time, store host, CRC property) are zero until patch_batch. writer: who gives the
    properties. Raises TroveError TOPIC_ILLEGAL.
    """

    def __init__(
        self,
        topic: str,
        *,
        store_host_ipv6: bool = False,
        append_property_crc: bool = False,
        born_host_ipv6: bool = False,
        writer: Writer = Writer.USER,
    ) -> None:
        self.topic: Final = topic
        self._writer: Final = writer
        self._magic: Final = magic_of_topic(topic)
        self._topic_field: Final = topic_field(topic, self._magic)
        self._sys_flag: Final = host_flags(0, born_host_ipv6, store_host_ipv6)
        self._header: Final = HEADERS[host_bits(self._sys_flag)]
        self._no_born_host: Final = bytes(HOST_SIZE_IPV6 if born_host_ipv6 else HOST_SIZE_IPV4)
        self._no_store_host: Final = bytes(HOST_SIZE_IPV6 if store_host_ipv6 else HOST_SIZE_IPV4)
        self._block_end: Final = CRC_PROPERTY_EMPTY if append_property_crc else b""

    def encode(
        self,
        bodies: Sequence[Body],
        *,
        queue_id: int,
        unique_keys: Sequence[str] | Bytes2D,
        keys: Sequence[Keys] | None = None,
        tags: Sequence[str | None] | str | None = None,
        properties: Sequence[Mapping[str, str] | None] | Mapping[str, str] | None = None,
        flags: Sequence[int] | int = 0,
        born_timestamp: int,
        born_host: bytes | None = None,
    ) -> bytearray:
        """The records of these n messages, one after the other.

        Sequences have n elements; unique_keys may be uint8[n, k] (UniqueKeyGenerator.take_matrix, not
        checked again); an element of keys is one key, several, or None; one tag or one mapping of
        properties is given to all; flags are i32, born_timestamp is epoch ms.
        Raises TroveError KEY_ILLEGAL, TAG_ILLEGAL, UNIQUE_KEY_ILLEGAL, PROPERTY_ILLEGAL,
        PROPERTIES_SIZE_EXCEEDED, REQUEST_ILLEGAL (sequences of other lengths).
        """
        count = len(bodies)
        _check_counts(count, unique_keys, keys, tags, properties, flags)
        born_host = self._no_born_host if born_host is None else born_host
        assert len(born_host) == len(self._no_born_host), f"born host of {len(born_host)} bytes"
        head = self._head(queue_id, born_timestamp, born_host)
        if count > SMALL_BATCH_MAX:
            columns = self._block_columns(unique_keys, keys, tags, properties)
            if columns is not None:
                return self._encode_alike(head, bodies, columns, flags)
        blocks = self._blocks(count, unique_keys, keys, tags, properties)
        if count > SMALL_BATCH_MAX:
            return self._encode_joined(head, bodies, blocks, flags)
        return bytearray().join(
            encode_record(
                self.topic,
                bytes(bodies[i]),
                queue_id=queue_id,
                properties=blocks[i],
                flag=flags if isinstance(flags, int) else flags[i],
                born_timestamp=born_timestamp,
                born_host=born_host,
                store_host=self._no_store_host,
            )
            for i in range(count)
        )

    def _head(self, queue_id: int, born_timestamp: int, born_host: bytes) -> bytes:
        """The header that all records of a batch have, with sizes, CRC and flag left zero."""
        magic = self._magic - (1 << 32)
        before = (0, magic, 0, queue_id, 0, 0, 0, self._sys_flag, born_timestamp, born_host)
        return self._header.pack(*before, 0, self._no_store_host, 0, 0, 0)

    # --- properties alike: the bytes between two bodies are a row of a matrix ---

    def _encode_alike(
        self, head: bytes, bodies: Sequence[Body], columns: list[Column], flags: Sequence[int] | int
    ) -> bytearray:
        block_size = sum(map(_width, columns))
        check_block_size(block_size)
        row = [head, self._topic_field, block_size.to_bytes(2), *columns]
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
        # A row is the head and the tail of one record; cut after the heads it is a tail and the next head.
        gaps = _rows(flat, len(head), count, width)
        gaps[-1] = gaps[-1][: width - len(head)]
        parts: list[Body] = [flat[: len(head)].tobytes()] * (2 * count + 1)
        parts[1::2] = bodies
        parts[2::2] = gaps
        return bytearray().join(parts)

    def _block_columns(
        self,
        unique_keys: Sequence[str] | Bytes2D,
        keys: Sequence[Keys] | None,
        tags: Sequence[str | None] | str | None,
        properties: Sequence[Mapping[str, str] | None] | Mapping[str, str] | None,
    ) -> list[Column] | None:
        """The property block as columns; None when the messages are not alike or something is illegal."""
        if not isinstance(properties, Mapping) and properties is not None:
            return None
        own = _own_block(properties, self._writer)
        uniques = unique_keys if isinstance(unique_keys, np.ndarray) else _column(unique_keys, " \x01\x02")
        if uniques is None or not 0 < uniques.shape[1] <= UNIQUE_KEY_SIZE_MAX:
            return None
        columns: list[Column] = [_UNIQ_KEY, uniques, _VALUE_END]
        if keys is not None:
            key_column = _column(keys, " \x01\x02")
            if key_column is None:
                return None
            columns += [_KEYS, key_column, _VALUE_END]
        if isinstance(tags, str):
            own = _tag_block(tags) + own
        elif tags is not None:
            tag_column = _column(tags, "|\x01\x02")
            if tag_column is None or not all(tag and tag.strip() for tag in set(tags)):
                return None
            columns += [_TAGS, tag_column, _VALUE_END]
        return [*columns, own + self._block_end]

    # --- not alike: blocks one by one ---

    def _encode_joined(
        self, head: bytes, bodies: Sequence[Body], blocks: list[bytes], flags: Sequence[int] | int
    ) -> bytearray:
        block_sizes = np.fromiter(map(len, blocks), np.int64, len(blocks))
        heads = np.empty((len(bodies), len(head)), np.uint8)
        heads[:] = np.frombuffer(head, np.uint8)
        _fill_header(heads, len(head), len(head) + len(self._topic_field) + 2 + block_sizes, bodies, flags)
        lengths = [size.to_bytes(2) for size in map(len, blocks)]
        parts: list[Body] = [self._topic_field] * (5 * len(bodies))
        parts[::5] = _rows(heads, 0, len(bodies), len(head))
        parts[1::5] = bodies
        parts[3::5] = lengths
        parts[4::5] = blocks
        return bytearray().join(parts)

    def _blocks(
        self,
        count: int,
        unique_keys: Sequence[str] | Bytes2D,
        keys: Sequence[Keys] | None,
        tags: Sequence[str | None] | str | None,
        properties: Sequence[Mapping[str, str] | None] | Mapping[str, str] | None,
    ) -> list[bytes]:
        """The property block of each message; as message_properties, but checked by the column."""
        if isinstance(unique_keys, np.ndarray):
            rows = _rows(np.ascontiguousarray(unique_keys), 0, count, unique_keys.shape[1])
            unique_keys = [row.decode("ascii", "replace") for row in rows]
        if isinstance(tags, str) or tags is None:
            tags = [tags] * count
        if isinstance(properties, Mapping) or properties is None:
            own = [_own_block(properties, self._writer)] * count
        else:
            own = [_own_block(row, self._writer) for row in properties]
        _check_each(unique_keys, " \x01\x02", check_unique_key)
        heads = [f"{PROPERTY_UNIQ_KEY}\x01{unique_key}\x02".encode() for unique_key in unique_keys]
        key_blocks = [b""] * count if keys is None else _key_blocks(keys)
        tag_blocks = {tag: _tag_block(tag) for tag in set(tags)}
        parts = zip(heads, key_blocks, map(tag_blocks.__getitem__, tags), own, strict=True)
        blocks = [b"".join((*row, self._block_end)) for row in parts]
        check_block_size(max(map(len, blocks), default=0))
        return blocks


def _key_blocks(keys: Sequence[Keys]) -> list[bytes]:
    lists = [(own,) if isinstance(own, str) else tuple(own or ()) for own in keys]
    _check_each([key for own in lists for key in own], " \x01\x02", check_key)
    return [f"{PROPERTY_KEYS}\x01{' '.join(own)}\x02".encode() if own else b"" for own in lists]


def _tag_block(tag: str | None) -> bytes:
    return b"" if tag is None else _TAGS + check_tag(tag).encode() + _VALUE_END


def _own_block(properties: Mapping[str, str] | None, writer: Writer) -> bytes:
    for name, value in (properties or {}).items():
        if name == PROPERTY_PRIORITY:
            check_priority_text(value)
        else:
            check_property(name, value, writer)
    return encode_properties(properties) if properties else b""


def _check_each(texts: Sequence[str], forbidden: str, check: Callable[[str], object]) -> None:
    """check(text) for each text, left out when one look at all of them shows that it cannot fail."""
    joined = "".join(texts)
    suspicious = any(character in joined for character in forbidden) or not joined.isascii()
    if suspicious or not all(texts) or max(map(len, texts), default=0) > UNIQUE_KEY_SIZE_MAX:
        for text in texts:
            check(text)


def _fill_header(
    matrix: Bytes2D,
    head_size: int,
    sizes_without_body: int | NDArray[np.int64],
    bodies: Sequence[Body],
    flags: Sequence[int] | int,
) -> None:
    """Writes TOTALSIZE, BODYCRC, FLAG and the bodies' lengths into the headers that begin the rows."""
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


def _check_counts(count: int, *columns: object) -> None:
    for column in columns:
        if isinstance(column, str | Mapping | int) or column is None:
            continue
        assert isinstance(column, Sequence | np.ndarray), type(column)
        if isinstance(column, np.ndarray):
            assert column.dtype == np.uint8, column.dtype
            assert column.ndim == 2, column.shape
            assert column.shape[1] > 0, column.shape
        if len(column) != count:
            raise TroveError(
                errors.REQUEST_ILLEGAL, f"{count} bodies, but {len(column)} of what goes with them"
            )
