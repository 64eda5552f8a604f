"""Batches of records from the messages of one topic.

A few messages are encoded one by one (encode_record), and so are many if NumPy is not installed;
batch_matrix.py encodes many at once. The result is the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, cast

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.numpy_extra import PLAIN_ENCODED_MAX, has_numpy
from trovemq_proto.records.encode import encode_record, host_flags, topic_field
from trovemq_proto.records.internal_properties import Writer
from trovemq_proto.records.layout import (
    CRC_PROPERTY_EMPTY,
    HEADERS,
    HOST_SIZE_IPV4,
    HOST_SIZE_IPV6,
    host_bits,
    magic_of_topic,
)
from trovemq_proto.records.property_blocks import Keys, Properties, Tags, property_blocks

if TYPE_CHECKING:
    from trovemq_proto.records.batch_matrix import Body, Bytes2D


class BatchEncoder:
    """Encodes batches of messages of one topic.

    store_host_ipv6, append_property_crc: as the broker's route says. born_host_ipv6: the form of the
    born_host given to encode (left out, it is zeros until the broker fills it in). The broker's own fields
    (offsets, store time, store host, CRC property) are zero until patch_batch. writer: who writes the
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
        tags: Tags = None,
        properties: Properties = None,
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
        if count > PLAIN_ENCODED_MAX and has_numpy():
            head = self._head(queue_id, born_timestamp, born_host)
            return self._encode_many(head, bodies, unique_keys, keys, tags, properties, flags)
        blocks = self._blocks(unique_keys, keys, tags, properties)
        assert len(blocks) == count, "each message has its property block"
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

    def _encode_many(
        self,
        head: bytes,
        bodies: Sequence[Body],
        unique_keys: Sequence[str] | Bytes2D,
        keys: Sequence[Keys] | None,
        tags: Tags,
        properties: Properties,
        flags: Sequence[int] | int,
    ) -> bytearray:
        from trovemq_proto.records.batch_matrix import block_columns, encode_alike, encode_joined

        columns = block_columns(unique_keys, keys, tags, properties, writer=self._writer, end=self._block_end)
        if columns is not None:
            return encode_alike(head, self._topic_field, bodies, columns, flags)
        blocks = self._blocks(unique_keys, keys, tags, properties)
        return encode_joined(head, self._topic_field, bodies, blocks, flags)

    def _blocks(
        self,
        unique_keys: Sequence[str] | Bytes2D,
        keys: Sequence[Keys] | None,
        tags: Tags,
        properties: Properties,
    ) -> list[bytes]:
        """The property block of each message."""
        if not isinstance(unique_keys, Sequence):
            from trovemq_proto.records.batch_matrix import key_texts

            unique_keys = key_texts(unique_keys)
        return property_blocks(unique_keys, keys, tags, properties, writer=self._writer, end=self._block_end)

    def _head(self, queue_id: int, born_timestamp: int, born_host: bytes) -> bytes:
        """The header that all records of a batch have, with sizes, CRC and flag left zero."""
        magic = self._magic - (1 << 32)
        before = (0, magic, 0, queue_id, 0, 0, 0, self._sys_flag, born_timestamp, born_host)
        return self._header.pack(*before, 0, self._no_store_host, 0, 0, 0)


def _check_counts(count: int, *columns: object) -> None:
    for column in columns:
        if isinstance(column, str | Mapping | int) or column is None:
            continue
        if not isinstance(column, Sequence):
            matrix = cast("Bytes2D", column)
            assert matrix.dtype == "uint8", matrix.dtype
            assert matrix.ndim == 2, matrix.shape
            assert matrix.shape[1] > 0, matrix.shape
            size = len(matrix)
        else:
            size = len(column)
        if size != count:
            raise TroveError(errors.REQUEST_ILLEGAL, f"{count} bodies, but {size} of what goes with them")
