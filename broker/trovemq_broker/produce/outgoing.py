"""Checks and encodes messages that a client sends unencoded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Never

from trovemq_broker.produce.append import batch_size_limit
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, QueueId
from trovemq_proto.records import (
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    SingleRecords,
    check_key,
    check_property,
    check_tag,
    check_unique_key,
    encode_properties,
)
from trovemq_proto.records.internal_properties import Writer
from trovemq_proto.records.layout import HOST_SIZE_IPV4, HOST_SIZE_IPV6, PROPERTIES_SIZE_MAX
from trovemq_proto.records.properties import check_block_size
from trovemq_store.settings import StoreSettings

FORMS_KNOWN: Final = 16_384  # queues and senders whose records' common parts are kept: about 10 MB at most
INT32_MIN: Final = -(2**31)
INT32_MAX: Final = 2**31 - 1
_NO_BORN_HOST: Final = bytes(HOST_SIZE_IPV4)


@dataclass(slots=True)
class OutgoingMessage:
    """One message from its sender; an empty text means that a field is not set. Not to be changed (frozen,
    it would take three times as long to make)."""

    body: bytes
    tag: str = ""
    keys: Sequence[str] = ()
    unique_key: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)
    flag: int = 0
    born_timestamp: EpochMs = EpochMs(0)  # epoch ms; 0 = now
    system_properties: Mapping[str, str] = field(default_factory=dict)
    """Properties that one of the broker's protocols stores under RocketMQ's own names; they are not
    checked."""

    def stored_properties(self, unique_key: str) -> dict[str, str]:
        """The property block's names and values, in the encoder's order; `unique_key` is for a message
        without one."""
        found = {PROPERTY_UNIQ_KEY: self.unique_key or unique_key}
        if keys := " ".join(self.keys):
            found[PROPERTY_KEYS] = keys
        if self.tag:
            found[PROPERTY_TAGS] = self.tag
        if self.properties:
            found.update(self.properties)
        if self.system_properties:
            found.update(self.system_properties)
        return found


def check_outgoing(message: OutgoingMessage, body_size_max: int) -> None:
    """Raises TroveError: MESSAGE_SIZE_EXCEEDED, KEY_ILLEGAL, TAG_ILLEGAL, UNIQUE_KEY_ILLEGAL, …"""
    if len(message.body) > body_size_max:
        raise TroveError(
            errors.MESSAGE_SIZE_EXCEEDED,
            f"the body has {len(message.body)} bytes, the limit is {body_size_max}",
            body_size_max=body_size_max,
        )
    for key in message.keys:
        check_key(key)
    if message.tag:
        check_tag(message.tag)
    if message.unique_key:
        check_unique_key(message.unique_key)
    for name, value in message.properties.items():
        check_property(name, value, Writer.SDK)
    if not INT32_MIN <= message.flag <= INT32_MAX:
        raise TroveError(errors.REQUEST_ILLEGAL, f"flag {message.flag} is not a 32-bit number")


class OutgoingEncoder:
    """Encodes messages for one store: its host form and its property CRC."""

    def __init__(
        self, settings: StoreSettings, store_host_ipv6: bool, next_unique_key: Callable[[], str]
    ) -> None:
        self._settings = settings
        self.batch_size_max: Final = batch_size_limit(settings)
        self._no_store_host = bytes(HOST_SIZE_IPV6 if store_host_ipv6 else HOST_SIZE_IPV4)
        self._next_unique_key = next_unique_key
        self._singles = lru_cache(maxsize=FORMS_KNOWN)(self._single_records)

    def _single_records(self, topic: str, queue_id: QueueId, born_host: bytes) -> SingleRecords:
        return SingleRecords(
            topic,
            queue_id,
            born_host=born_host,
            store_host=self._no_store_host,
            append_property_crc=self._settings.append_property_crc,
        )

    def encode(
        self,
        messages: Sequence[OutgoingMessage],
        *,
        topic: str,
        queue_id: QueueId,
        born_host: bytes | None,
        now_ms: EpochMs,
    ) -> bytes:
        """The messages as one run of records.

        Raises the errors of check_outgoing, PROPERTIES_SIZE_EXCEEDED, TOPIC_ILLEGAL, BATCH_SIZE_EXCEEDED.
        """
        for message in messages:
            check_outgoing(message, self._settings.body_size_max)
        singles = self._singles(topic, queue_id, born_host or _NO_BORN_HOST)
        return self._joined(
            [
                singles.encode(
                    message.body,
                    encode_properties(
                        message.stored_properties("" if message.unique_key else self._next_unique_key())
                    ),
                    message.born_timestamp or now_ms,
                    message.flag,
                )
                for message in messages
            ]
        )

    def encode_rows(
        self,
        topic: str,
        queue_id: QueueId,
        born_host: bytes,
        rows: Iterable[tuple[bytes, bytes, EpochMs]],
    ) -> bytes:
        """add_row() of several messages, as one run of records. rows: body, block and born time of each."""
        pieces: list[bytes] = []
        for row in rows:
            self.add_row(pieces, topic, queue_id, born_host, *row)
        return self._joined(pieces)

    def add_row(
        self,
        pieces: list[bytes],
        topic: str,
        queue_id: QueueId,
        born_host: bytes,
        body: bytes,
        block: bytes,
        born_timestamp: EpochMs,
    ) -> int:
        """Adds the pieces of the record of a message that has passed the checks of its protocol; `block`: its
        properties. Returns the record's size.

        Raises TroveError PROPERTIES_SIZE_EXCEEDED, TOPIC_ILLEGAL, BATCH_SIZE_EXCEEDED.
        """
        if len(block) > PROPERTIES_SIZE_MAX:
            check_block_size(len(block))
        before = len(pieces)
        size = self._singles(topic, queue_id, born_host).add(pieces, body, block, born_timestamp)
        if size > self.batch_size_max:
            del pieces[before:]
            self._refuse_size(size)
        return size

    def _joined(self, records: list[bytes]) -> bytes:
        joined = records[0] if len(records) == 1 else b"".join(records)
        if len(joined) > self.batch_size_max:
            self._refuse_size(len(joined))
        return joined

    def _refuse_size(self, size: int) -> Never:
        raise TroveError(
            errors.BATCH_SIZE_EXCEEDED,
            f"the messages take {size} bytes, the limit is {self.batch_size_max}",
            batch_size_max=self.batch_size_max,
        )
