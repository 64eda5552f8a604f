"""Messages that a client sends unencoded (unary Send): checked and encoded here, one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from broker.store_settings import StoreSettings
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records import (
    BatchEncoder,
    check_key,
    check_property,
    check_tag,
    check_unique_key,
)

INT32_MIN: Final = -(2**31)
INT32_MAX: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """One message as its sender gave it; empty text means that it is not set."""

    body: bytes
    tag: str = ""
    keys: Sequence[str] = ()
    unique_key: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)
    flag: int = 0
    born_timestamp: int = 0  # epoch ms; 0 = now


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
        check_property(name, value)
    if not INT32_MIN <= message.flag <= INT32_MAX:
        raise TroveError(errors.REQUEST_ILLEGAL, f"flag {message.flag} is no 32-bit number")


class OutgoingEncoder:
    """Encodes messages for one store: its host form and its property CRC."""

    def __init__(
        self, settings: StoreSettings, store_host_ipv6: bool, next_unique_key: Callable[[], str]
    ) -> None:
        self._settings = settings
        self._store_host_ipv6 = store_host_ipv6
        self._next_unique_key = next_unique_key

    def encode(
        self,
        messages: Sequence[OutgoingMessage],
        *,
        topic: str,
        queue_id: int,
        born_host: bytes | None,
        now_ms: int,
    ) -> bytes:
        """The messages as one run of records. Raises what check_outgoing raises, PROPERTIES_SIZE_EXCEEDED."""
        encoder = BatchEncoder(
            topic,
            store_host_ipv6=self._store_host_ipv6,
            append_property_crc=self._settings.append_property_crc,
            born_host_ipv6=born_host is not None and len(born_host) == 20,
        )
        records = []
        for message in messages:
            check_outgoing(message, self._settings.body_size_max)
            records.append(
                encoder.encode(
                    [message.body],
                    queue_id=queue_id,
                    unique_keys=[message.unique_key or self._next_unique_key()],
                    keys=[message.keys],
                    tags=[message.tag or None],
                    properties=[message.properties],
                    flags=message.flag,
                    born_timestamp=message.born_timestamp or now_ms,
                    born_host=born_host,
                )
            )
        return b"".join(records)
