"""Properties of TroveMQ's own, and who may write each. All protocols use this table.

| property                  | written by | says                                                              |
|---------------------------|------------|-------------------------------------------------------------------|
| `TROVEMQ_TX_ID`           | the broker | the atomic transaction that the record belongs to (run_mark.py)   |
| `TROVEMQ_TX_NUMBER`       | the broker | the record's number in it                                         |
| `TROVEMQ_TX_COUNT`        | the broker | how many records it has                                           |
| `TROVEMQ_TX_BEGIN`        | the broker | where its first record lies                                       |
| `TROVEMQ_WITHDRAWN`       | the broker | the unique key of a half message that was rolled back             |
| `TROVEMQ_WITHDRAWN_TOPIC` | the broker | the topic of that message                                         |
| `TROVEMQ_RESENT`          | the broker | physical offset of the dead letter that was sent again as this    |
| `TROVEMQ_PRODUCER`        | the SDK    | the idempotent producer that sent the message                     |
| `TROVEMQ_SEQUENCE`        | the SDK    | the message's number among those of that producer                 |
| `TROVEMQ_KEY_SIZES`       | the SDK    | the sizes of the keys in KEYS, if one has spaces (keys.py)        |

The prefix is reserved: no other name begins with it. The SDK's properties are accepted in the native protocol
(Append, Send), also from an application that numbers its messages itself; not in RocketMQ's, where the broker
writes the sizes of keys. No receiver sees these names: they are left out of a message for a program, and of a
message that is sent again (except the sizes of keys in a dead letter).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final

from trovemq_proto.records.layout import (
    PROPERTY_KEY_SIZES,
    PROPERTY_PRODUCER,
    PROPERTY_RESENT,
    PROPERTY_SEQUENCE,
    PROPERTY_TX_BEGIN,
    PROPERTY_TX_COUNT,
    PROPERTY_TX_ID,
    PROPERTY_TX_NUMBER,
    PROPERTY_WITHDRAWN,
    PROPERTY_WITHDRAWN_TOPIC,
    RESERVED_PROPERTIES,
    VALUE_END,
)

INTERNAL_PREFIX: Final = "TROVEMQ_"
TRANSIENT_PREFIX: Final = "__RMQ.TRANSIENT."
"""The prefix of properties that a RocketMQ broker adds to a message for one delivery."""


class Writer(Enum):
    """Who writes a property."""

    USER = "user"
    SDK = "SDK"
    BROKER = "broker"


INTERNAL_PROPERTIES: Final[Mapping[str, Writer]] = MappingProxyType(
    {
        PROPERTY_TX_ID: Writer.BROKER,
        PROPERTY_TX_NUMBER: Writer.BROKER,
        PROPERTY_TX_COUNT: Writer.BROKER,
        PROPERTY_TX_BEGIN: Writer.BROKER,
        PROPERTY_WITHDRAWN: Writer.BROKER,
        PROPERTY_WITHDRAWN_TOPIC: Writer.BROKER,
        PROPERTY_RESENT: Writer.BROKER,
        PROPERTY_PRODUCER: Writer.SDK,
        PROPERTY_SEQUENCE: Writer.SDK,
        PROPERTY_KEY_SIZES: Writer.SDK,
    }
)
_PREFIX: Final = INTERNAL_PREFIX.encode()
OF_SDK: Final = tuple(name.encode() for name, who in INTERNAL_PROPERTIES.items() if who is Writer.SDK)
_VALUE_END: Final = bytes([VALUE_END])


def is_internal(name: str) -> bool:
    return name.startswith(INTERNAL_PREFIX)


def is_reserved(name: str, writer: Writer = Writer.USER) -> bool:
    """Whether the name has a meaning of RocketMQ's own, or of ours, and this writer may not write it."""
    if name.startswith(INTERNAL_PREFIX):
        return writer is Writer.USER or INTERNAL_PROPERTIES.get(name) is not writer
    return name in RESERVED_PROPERTIES or name.startswith(TRANSIENT_PREFIX)


def without_internal(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties that a receiver may see."""
    return {name: value for name, value in properties.items() if not is_internal(name)}


def forbidden_name(block: bytes) -> str | None:
    """A name in this property block that a client's record may not have; None if there is none."""
    if _PREFIX not in block:
        return None
    for piece in block.split(_VALUE_END):
        name, _, value = piece.partition(b"\x01")
        if value and name.startswith(_PREFIX) and name not in OF_SDK:
            return name.decode("utf-8", "replace")
    return None
