"""QueryMessage by key over several brokers: the requests to each, their replies, and the reply of all.

The scroll id of such a reply holds the place on each broker that has more messages: URL-safe base64 of JSON,
`{broker: scroll id there}`, after the letter b. A scroll id of one broker begins with a number.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError

from trovemq_broker.server.wire.statuses import OK_STATUS, ProtocolError
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.rocketmq.v2 import admin_pb2
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2

_MARK: Final = "b"
BROKERS_MAX: Final = 1_024
SCROLL_SIZE_MAX: Final = 1 << 18
MISSING_SHOWN_MAX: Final = 8


class Part(NamedTuple):
    """A broker's messages, newest first, where they continue there ("" at their end), and their number."""

    messages: Sequence[Any]
    scroll_id: str
    total: int


def part_request(request: admin_pb2.ListMessageRequest, scroll_id: str, count_max: int) -> Any:
    """The request to one broker, from a place on."""
    asked = admin_pb2.ListMessageRequest()
    asked.CopyFrom(request)
    asked.scroll_id, asked.max_message_nums = scroll_id, count_max
    return asked


def part_of(reply: bytes, broker: str) -> Part | TroveError:
    """TOPIC_NOT_FOUND as a value. Raises other refusals; BROKER_UNREACHABLE if it is not readable."""
    try:
        found = admin_pb2.ListMessageResponse.FromString(reply)
    except DecodeError:
        raise TroveError(errors.BROKER_UNREACHABLE, f"the reply of {broker} is not readable") from None
    if found.status.code == v2.TOPIC_NOT_FOUND:
        return TroveError(errors.TOPIC_NOT_FOUND, f"broker {broker}: {found.status.message}")
    if found.status.code != OK_STATUS.code:
        raise ProtocolError(found.status.code, f"broker {broker}: {found.status.message}")
    return Part(found.messages, found.scroll_id, len(found.messages))


def store_ms(message: Any) -> int:
    """When the message was stored."""
    return int(message.system_properties.store_timestamp.ToMilliseconds())


def merged_reply(messages: Sequence[Any], scroll_id: str, missing: Sequence[str]) -> Any:
    """`missing`: why each broker whose messages are not in it did not answer."""
    reply = admin_pb2.ListMessageResponse(status=OK_STATUS, messages=messages, scroll_id=scroll_id)
    if missing:
        more = f"; and {len(missing) - MISSING_SHOWN_MAX} more" if len(missing) > MISSING_SHOWN_MAX else ""
        reply.status.code = v2.MULTIPLE_RESULTS
        reply.status.message = f"messages are missing: {'; '.join(missing[:MISSING_SHOWN_MAX])}{more}"
    return reply


def scroll_id_of(places: Mapping[str, str]) -> str:
    """Of the brokers that have more messages; "" without any."""
    if not places:
        return ""
    return _MARK + base64.urlsafe_b64encode(json.dumps(dict(sorted(places.items()))).encode()).decode()


def places_of(scroll_id: str) -> dict[str, str] | None:
    """The places; None for a scroll id of one broker, and without one. TroveError CURSOR_ILLEGAL."""
    if not scroll_id.startswith(_MARK):
        return None
    try:
        if len(scroll_id) > SCROLL_SIZE_MAX:
            raise ValueError("too long")
        found = json.loads(base64.b64decode(scroll_id[1:].encode("ascii"), b"-_", validate=True))
        if not isinstance(found, dict) or not 0 < len(found) <= BROKERS_MAX:
            raise TypeError("no places")
        if not all(type(place) is str for place in found.values()):
            raise TypeError("no place")
    except (binascii.Error, UnicodeError, ValueError, TypeError, RecursionError):
        raise TroveError(errors.CURSOR_ILLEGAL, "the scroll id is none of a query by key") from None
    return found
