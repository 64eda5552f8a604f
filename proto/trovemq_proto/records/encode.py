"""One record from one message: the readable form of batch_encoder.py, which encodes many.

Property order: UNIQ_KEY, KEYS, TAGS, the user's, then the reserved CRC property. WAIT is never written. The
broker's own fields (offsets, store time, store host) are zero until patch_batch fills them in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from struct import Struct

from zlib_ng.zlib_ng import crc32

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records.layout import (
    BLANK_SIZE,
    CRC_MASK,
    CRC_PROPERTY_EMPTY,
    CRC_PROPERTY_SIZE,
    HEADERS,
    HOST_SIZE_IPV4,
    HOST_SIZE_IPV6,
    MAGIC_BLANK_BYTES,
    MAGIC_V1,
    PROPERTIES_SIZE_MAX,
    SYS_FLAG_BORN_HOST_IPV6,
    SYS_FLAG_STORE_HOST_IPV6,
    TOPIC_SIZE_MAX_V2,
    host_bits,
    magic_of_topic,
)
from trovemq_proto.records.properties import check_block_size, encode_properties


def encode_record(
    topic: str,
    body: bytes,
    *,
    queue_id: int = 0,
    properties: Mapping[str, str] | bytes = b"",
    flag: int = 0,
    sys_flag: int = 0,
    queue_offset: int = 0,
    physical_offset: int = 0,
    born_timestamp: int = 0,
    born_host: bytes = bytes(HOST_SIZE_IPV4),
    store_timestamp: int = 0,
    store_host: bytes = bytes(HOST_SIZE_IPV4),
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
    body_crc: int | None = None,
    magic: int | None = None,
    append_property_crc: bool = False,
) -> bytes:
    """One record. `body` is written as it is (compress it before and say so in sys_flag).

    properties: a mapping (written in its order, unchecked) or a ready block; the hosts' sizes (8 or 20)
    decide the IPv6 bits of sys_flag; body_crc and magic default to the right ones. Raises TroveError
    TOPIC_ILLEGAL, PROPERTIES_SIZE_EXCEEDED, PROPERTY_ILLEGAL.
    """
    block = properties if isinstance(properties, bytes) else encode_properties(properties)
    if append_property_crc:
        block += CRC_PROPERTY_EMPTY
    check_block_size(len(block))
    magic = magic_of_topic(topic) if magic is None else magic
    sys_flag = host_flags(sys_flag, len(born_host) == HOST_SIZE_IPV6, len(store_host) == HOST_SIZE_IPV6)
    tail = topic_field(topic, magic) + len(block).to_bytes(2) + block
    header = HEADERS[host_bits(sys_flag)]
    head = header.pack(
        header.size + len(body) + len(tail),
        magic - (1 << 32),
        crc32(body) & CRC_MASK if body_crc is None else body_crc,
        queue_id,
        flag,
        queue_offset,
        physical_offset,
        sys_flag,
        born_timestamp,
        born_host,
        store_timestamp,
        store_host,
        reconsume_times,
        prepared_transaction_offset,
        len(body),
    )
    return b"".join((head, body, tail))


class SingleRecords:
    """Encodes records of one topic, queue and form, with the common parts made once.

    Raises TroveError TOPIC_ILLEGAL.
    """

    __slots__ = ("_end", "_hosts", "_magic", "_offsets", "_pack", "_queue_id", "_size", "_topic")

    def __init__(
        self, topic: str, queue_id: int, *, born_host: bytes, store_host: bytes, append_property_crc: bool
    ) -> None:
        magic = magic_of_topic(topic)
        sys_flag = host_flags(0, len(born_host) == HOST_SIZE_IPV6, len(store_host) == HOST_SIZE_IPV6)
        header = HEADERS[host_bits(sys_flag)]
        self._topic = topic_field(topic, magic)
        self._end = CRC_PROPERTY_EMPTY if append_property_crc else b""
        self._size = header.size + len(self._topic) + 2  # without body and properties
        # The fields that differ are packed between those that are the same in every record.
        same = header.pack(
            0, magic - (1 << 32), 0, queue_id, 0, 0, 0, sys_flag, 0, born_host, 0, store_host, 0, 0, 0
        )
        self._magic, self._queue_id = same[4:8], same[12:16]
        self._offsets, self._hosts = same[20:40], same[48:-4]  # with the constant fields after them
        self._pack = _head_packer(len(self._hosts))

    def encode(self, body: bytes, block: bytes, born_timestamp: int, flag: int = 0) -> bytes:
        """One record; `block`: its encoded properties. Raises TroveError PROPERTIES_SIZE_EXCEEDED."""
        pieces: list[bytes] = []
        self.add(pieces, body, block, born_timestamp, flag)
        return b"".join(pieces)

    def add(self, pieces: list[bytes], body: bytes, block: bytes, born_timestamp: int, flag: int = 0) -> int:
        """Adds the pieces of one record, which the caller joins with the rest of its frame, and returns the
        record's size. Raises TroveError PROPERTIES_SIZE_EXCEEDED."""
        body_size, block_size, end = len(body), len(block), self._end
        if end:
            block += end
            block_size += CRC_PROPERTY_SIZE
        if block_size > PROPERTIES_SIZE_MAX:
            check_block_size(block_size)
        size = self._size + body_size + block_size
        head = self._pack(
            size,
            self._magic,
            crc32(body) & CRC_MASK,
            self._queue_id,
            flag,
            self._offsets,
            born_timestamp,
            self._hosts,
            body_size,
        )
        pieces += (head, body, self._topic, block_size.to_bytes(2), block)
        return size


@lru_cache
def _head_packer(hosts_size: int) -> Callable[..., bytes]:
    """Packs a header. hosts_size: bytes of the hosts and of the fields between and after them."""
    return Struct(f">i4si4si20sq{hosts_size}si").pack


def blank_record(remaining: int) -> bytes:
    """The 8 bytes that end a segment with `remaining` free bytes."""
    assert remaining >= BLANK_SIZE, f"{remaining} bytes left"
    assert remaining < 1 << 31, "the size is an i32"
    return remaining.to_bytes(4) + MAGIC_BLANK_BYTES


def host_flags(sys_flag: int, born_host_ipv6: bool, store_host_ipv6: bool) -> int:
    """sys_flag with its two host bits set or cleared."""
    sys_flag &= ~(SYS_FLAG_BORN_HOST_IPV6 | SYS_FLAG_STORE_HOST_IPV6)
    return (
        sys_flag
        | (SYS_FLAG_BORN_HOST_IPV6 if born_host_ipv6 else 0)
        | (SYS_FLAG_STORE_HOST_IPV6 if store_host_ipv6 else 0)
    )


def topic_field(topic: str, magic: int) -> bytes:
    """The topic with its length before it. Raises TroveError TOPIC_ILLEGAL."""
    raw = topic.encode("utf-8", "replace")
    size_max = 127 if magic == MAGIC_V1 else TOPIC_SIZE_MAX_V2
    if not 0 < len(raw) <= size_max:
        raise TroveError(errors.TOPIC_ILLEGAL, f"the topic has {len(raw)} bytes, expected 1..{size_max}")
    return len(raw).to_bytes(1 if magic == MAGIC_V1 else 2) + raw
