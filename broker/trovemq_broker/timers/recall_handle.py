"""The handle with which a client recalls a delayed message before its time.

URL-safe base64 (with its padding) of five texts, separated by one space each, as in RocketMQ:

| part       | text                                       |
|------------|--------------------------------------------|
| version    | `v1`                                       |
| topic      | the real topic                             |
| broker     | name of the broker that has the message    |
| deliver ms | when it will be delivered, epoch ms        |
| message id | its unique key                             |
"""

from __future__ import annotations

from base64 import b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from dataclasses import dataclass
from typing import Final

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs

VERSION: Final = "v1"
HANDLE_SIZE_MAX: Final = 2_048
_PART_COUNT: Final = 5
_DELIVER_MS_MAX: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class RecallHandle:
    topic: str
    broker: str
    deliver_ms: EpochMs
    message_id: str


def encode_recall_handle(topic: str, broker: str, deliver_ms: EpochMs, message_id: str) -> str:
    """The handle as text. No part is empty or has a space."""
    parts = (VERSION, topic, broker, str(deliver_ms), message_id)
    assert all(parts), "no part is empty"
    assert not any(" " in part for part in parts), "spaces separate the parts"
    return urlsafe_b64encode(" ".join(parts).encode()).decode("ascii")


def decode_recall_handle(handle: str) -> RecallHandle:
    """The parts of a handle; padding may be missing. TroveError RECALL_HANDLE_ILLEGAL."""
    if len(handle) > HANDLE_SIZE_MAX:
        raise _illegal(f"has {len(handle)} characters, more than {HANDLE_SIZE_MAX}")
    try:
        raw = b64decode(handle + "=" * (-len(handle) % 4), altchars=b"-_", validate=True)
        parts = raw.decode("utf-8").split(" ")
    except (Base64Error, ValueError) as error:
        raise _illegal("is not a URL-safe base64 of a text") from error
    if len(parts) != _PART_COUNT or parts[0] != VERSION or not all(parts):
        raise _illegal(f"is not of the form {VERSION} TOPIC BROKER MILLISECONDS ID")
    _, topic, broker, deliver_ms, message_id = parts
    if not (deliver_ms.isascii() and deliver_ms.isdigit() and int(deliver_ms) <= _DELIVER_MS_MAX):
        raise _illegal("has no legal time")
    return RecallHandle(topic, broker, EpochMs(int(deliver_ms)), message_id)


def _illegal(what: str) -> TroveError:
    return TroveError(errors.RECALL_HANDLE_ILLEGAL, f"the recall handle {what}", field="recall_handle")
