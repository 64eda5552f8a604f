"""Checks messages before they are stored, in the order of RocketMQ.

(docs/rocketmq-protocol.md, "Checks of a message")

| check                                                      | limit             | error                    |
|------------------------------------------------------------|-------------------|--------------------------|
| body not empty                                             |                   | BODY_EMPTY               |
| body size                                                  | the store's       | MESSAGE_SIZE_EXCEEDED    |
| number of user properties                                  | 128               | PROPERTIES_SIZE_EXCEEDED |
| property name not reserved; no control character in them   |                   | PROPERTY_ILLEGAL         |
| tag: not only blanks, no `|`, no control character         |                   | TAG_ILLEGAL              |
| each key: not only blanks, no control character            |                   | KEY_ILLEGAL              |
| UTF-8 bytes of user properties, tag and keys               | 16,384            | PROPERTIES_SIZE_EXCEEDED |
| message id: not blank, no space, no control character      | 255 bytes         | UNIQUE_KEY_ILLEGAL       |
| recovery duration of a transaction                         | 3,600 s           | REQUEST_ILLEGAL          |
| delivery timestamp                                         | the store's       | DELIVERY_TIME_ILLEGAL    |
| message group: not only blanks, no control character       | 63 bytes          | MESSAGE_GROUP_ILLEGAL    |
| priority                                                   | 0 to 9            | PROPERTY_ILLEGAL         |
| a priority and a message group                             | not both          | REQUEST_ILLEGAL          |

An empty tag, key or message group counts as none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from trovemq_broker.server.wire.rocketmq_messages import duration_ms, timestamp_ms
from trovemq_proto import errors
from trovemq_proto.errors import ErrorSpec, TroveError
from trovemq_proto.positions import EpochMs
from trovemq_proto.records.internal_properties import is_reserved
from trovemq_proto.records.priorities import check_priority
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2

USER_PROPERTIES_MAX: Final = 128
PROPERTIES_BYTES_MAX: Final = 16_384
MESSAGE_ID_BYTES_MAX: Final = 255
TEXTS_SIZE_MAX: Final = MESSAGE_ID_BYTES_MAX
"""Bytes of id, tag and keys that are_legal() takes."""
MESSAGE_GROUP_BYTES_MAX: Final = 63
RECOVERY_MS_MAX: Final = 3_600_000

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]").search
_LEGAL: Final = re.compile(r"[!-{}~]*").fullmatch
"""ASCII without a blank, a `|` or a control character: text that every check below takes."""
_UTF8_BYTES_MAX: Final = 4  # of one character


def check_message(message: v2.Message, body_size_max: int, delivery_ms_max: int) -> None:
    """Raises TroveError by the table above. `delivery_ms_max`: the latest delivery time, epoch ms."""
    check_body(message.body, body_size_max)
    system = message.system_properties
    if message.user_properties or not are_legal(system.message_id, system.tag, system.keys):
        check_texts(system.message_id, system.tag, system.keys, message.user_properties)
    if system.HasField("orphaned_transaction_recovery_duration"):
        check_recovery(duration_ms(system.orphaned_transaction_recovery_duration))
    if system.HasField("delivery_timestamp"):
        check_delivery(timestamp_ms(system.delivery_timestamp), delivery_ms_max)
    check_order(system.message_group, system.priority if system.HasField("priority") else None)


def check_body(body: bytes, body_size_max: int) -> None:
    """Raises TroveError BODY_EMPTY, MESSAGE_SIZE_EXCEEDED."""
    if not body:
        raise TroveError(errors.BODY_EMPTY)
    if len(body) > body_size_max:
        raise TroveError(
            errors.MESSAGE_SIZE_EXCEEDED,
            f"the body has {len(body)} bytes, the limit is {body_size_max}",
            body_size_max=body_size_max,
        )


def check_recovery(recovery_ms: int) -> None:
    """Raises TroveError REQUEST_ILLEGAL for a time that a transaction may not wait for its first check."""
    if not 0 <= recovery_ms <= RECOVERY_MS_MAX:
        raise TroveError(
            errors.REQUEST_ILLEGAL,
            f"a recovery duration of {recovery_ms} ms is not 0 to {RECOVERY_MS_MAX}",
            field="orphaned_transaction_recovery_duration",
        )


def check_delivery(deliver_ms: EpochMs, delivery_ms_max: int) -> None:
    """Raises TroveError DELIVERY_TIME_ILLEGAL for a delivery time after the latest one; both epoch ms."""
    if deliver_ms > delivery_ms_max:
        raise TroveError(
            errors.DELIVERY_TIME_ILLEGAL,
            f"the delivery time {deliver_ms} is later than {delivery_ms_max}, the latest one now",
        )


def check_order(message_group: str, priority: int | None) -> None:
    """Raises TroveError MESSAGE_GROUP_ILLEGAL, PROPERTY_ILLEGAL; REQUEST_ILLEGAL for both at once."""
    if message_group:
        _check_group(message_group)
    if priority is not None:
        check_priority(priority)
        if message_group:
            raise TroveError(
                errors.REQUEST_ILLEGAL,
                "a message has a priority or a message group, whose order is that of sending; not both",
                field="priority",
            )


def are_legal(message_id: str, tag: str, keys: Iterable[str]) -> bool:
    """Whether these texts pass a quick check, as most do. Others may be legal, too."""
    texts = "".join((message_id, tag, *keys))
    return len(message_id) > 0 and len(texts) <= TEXTS_SIZE_MAX and _LEGAL(texts) is not None


def check_texts(message_id: str, tag: str, keys: Sequence[str], properties: Mapping[str, str]) -> None:
    """Raises TroveError by the table above for the texts of a message."""
    texts = _check_properties(properties) if properties else []
    if tag:
        _check_tag(tag)
        texts.append(tag)
    if keys:
        for key in keys:
            _check_text(key, errors.KEY_ILLEGAL, "a key")
        texts.extend(keys)
    if texts:
        _check_total(texts)
    _check_message_id(message_id)


def _check_properties(properties: Mapping[str, str]) -> list[str]:
    """The names and values of the properties."""
    if len(properties) > USER_PROPERTIES_MAX:
        raise TroveError(
            errors.PROPERTIES_SIZE_EXCEEDED,
            f"{len(properties)} properties, the limit is {USER_PROPERTIES_MAX}",
        )
    for name in properties:
        if is_reserved(name):
            raise TroveError(errors.PROPERTY_ILLEGAL, f"the property name {name!r} is reserved", name=name)
    texts = [*properties.keys(), *properties.values()]
    if _CONTROL("".join(texts)):
        raise TroveError(errors.PROPERTY_ILLEGAL, "a property's name or value has a control character")
    return texts


def _check_tag(tag: str) -> None:
    _check_text(tag, errors.TAG_ILLEGAL, "the tag")
    if "|" in tag:
        raise TroveError(errors.TAG_ILLEGAL, "the tag has a |")


def _check_text(text: str, spec: ErrorSpec, what: str) -> None:
    if text and text.isspace():
        raise TroveError(spec, f"{what} is blank")
    if _CONTROL(text):
        raise TroveError(spec, f"{what} has a control character")


def _check_total(texts: list[str]) -> None:
    joined = "".join(texts)
    if len(joined) * _UTF8_BYTES_MAX <= PROPERTIES_BYTES_MAX:
        return
    size = len(joined.encode())
    if size > PROPERTIES_BYTES_MAX:
        raise TroveError(
            errors.PROPERTIES_SIZE_EXCEEDED,
            f"properties, tag and keys take {size} bytes, the limit is {PROPERTIES_BYTES_MAX}",
        )


def _check_message_id(message_id: str) -> None:
    if not message_id or message_id.isspace():
        raise TroveError(errors.UNIQUE_KEY_ILLEGAL, "the message id is blank")
    if not message_id.isalnum() and (" " in message_id or _CONTROL(message_id)):
        raise TroveError(errors.UNIQUE_KEY_ILLEGAL, "the message id has a space or a control character")
    if len(message_id) > MESSAGE_ID_BYTES_MAX or (
        not message_id.isascii() and len(message_id.encode()) > MESSAGE_ID_BYTES_MAX
    ):
        raise TroveError(
            errors.UNIQUE_KEY_ILLEGAL, f"the message id has more than {MESSAGE_ID_BYTES_MAX} bytes"
        )


def _check_group(group: str) -> None:
    _check_text(group, errors.MESSAGE_GROUP_ILLEGAL, "the message group")
    if len(group.encode()) > MESSAGE_GROUP_BYTES_MAX:
        raise TroveError(
            errors.MESSAGE_GROUP_ILLEGAL, f"the message group has more than {MESSAGE_GROUP_BYTES_MAX} bytes"
        )


def kind_of(message: v2.Message) -> v2.MessageType:
    """The message's type by its content; the declared type counts for transactions and for types that are not
    served."""
    system = message.system_properties
    stated = system.message_type
    if stated == v2.TRANSACTION:
        return v2.TRANSACTION
    if stated == v2.LITE or system.HasField("lite_topic"):
        return v2.LITE
    if system.HasField("delivery_timestamp"):
        return v2.DELAY
    if stated == v2.PRIORITY or system.HasField("priority"):
        return v2.PRIORITY
    return v2.FIFO if system.message_group else v2.NORMAL
