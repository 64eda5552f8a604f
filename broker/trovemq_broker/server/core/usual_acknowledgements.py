"""AckMessage as RocketMQ's clients send it: one message a call, many calls at the same time.

The usual calls of one turn are handled together: their requests are read by hand, and the messages of a group
and topic are consumed in one step. A request is usual if it has this form, and its message is in flight:

| bytes | field |
| --- | --- |
| 0x0a, size, Resource | group |
| 0x12, size, Resource | topic |
| 0x1a, size, the entry: | entries |
| 0x0a, size, text | message_id |
| 0x12, size, text | receipt_handle |

All of them are ASCII; so each size is one byte, and each text is UTF-8. The entry of the reply begins with
the bytes of this one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError

from trovemq_broker.server.core.parts import RocketmqParts
from trovemq_broker.server.wire.resources import group_name, topic_to_read
from trovemq_broker.server.wire.statuses import OK_SIZED, client_id_of
from trovemq_proto.errors import TroveError
from trovemq_proto.rocketmq.v2 import service_pb2
from trovemq_proto.varints import write_varint

NAMES_KEPT: Final = 1_024
SIZE_MAX: Final = 0x7F
"""Bytes of a field whose size is one byte."""

_END: Final = b"\x1a" + OK_SIZED
_BEGIN: Final = [b"\x0a%b\x12%b" % (OK_SIZED, write_varint(size + len(_END))) for size in range(SIZE_MAX + 1)]
"""The reply before an entry, by the size of the request's entry."""


class UsualRequest(NamedTuple):
    """The parts of a request."""

    names: bytes
    """Group and topic."""
    entry: bytes
    handle: bytes


class UsualAcknowledgements:
    """Those of one broker. `wake`(group, topic): wakes receives for messages that waited for those which are
    now consumed."""

    def __init__(self, parts: RocketmqParts, wake: Callable[[str, str], None]) -> None:
        self._parts = parts
        self._wake = wake
        self._names: dict[bytes, tuple[str, str]] = {}
        """Group and topic, by their bytes in requests."""

    def answer(self, calls: list[Any]) -> list[bytes | None]:
        """The replies to the usual calls; None for any other: nothing was done for it."""
        replies: list[bytes | None] = [None] * len(calls)
        found: dict[tuple[str, str], list[tuple[int, UsualRequest]]] = {}
        for place, call in enumerate(calls):
            request = read_usual(call.keep())
            if request is None:
                break  # it may name messages that later calls name, too: it comes before these
            names = self._names.get(request.names) or self._read_names(request.names)
            if names is None or not _has_client_id(call):
                break
            found.setdefault(names, []).append((place, request))
        for (group, topic), some in found.items():
            handles = [request.handle for _, request in some]
            done = self._parts.delivery.acknowledge_mixed(group, topic, handles, self._parts.clock_ms())
            for (place, request), is_done in zip(some, done, strict=True):
                if is_done:
                    replies[place] = reply_to_entry(request.entry)
            self._wake(group, topic)
        return replies

    def _read_names(self, data: bytes) -> tuple[str, str] | None:
        """None if they are malformed, or illegal."""
        try:
            request = service_pb2.AckMessageRequest.FromString(data)
            names = group_name(request.group), topic_to_read(request.topic)
        except (DecodeError, TroveError):
            return None
        if len(self._names) >= NAMES_KEPT:
            self._names.clear()
        self._names[data] = names
        return names


def read_usual(data: bytes) -> UsualRequest | None:
    """None if it has another form."""
    if not data.isascii():
        return None
    size = len(data)
    try:
        topic_at = 2 + data[1]
        entry_at = topic_at + 2 + data[topic_at + 1]
        handle_at = entry_at + 4 + data[entry_at + 3]
        if (
            data[0] == 0x0A
            and data[topic_at] == 0x12
            and data[entry_at] == 0x1A
            and data[entry_at + 1] == size - entry_at - 2
            and data[entry_at + 2] == 0x0A
            and data[entry_at + 3]  # the reply would not have an empty id
            and data[handle_at] == 0x12
            and data[handle_at + 1] == size - handle_at - 2
        ):
            return UsualRequest(data[:entry_at], data[entry_at + 2 :], data[handle_at + 2 :])
    except IndexError:
        pass
    return None


def reply_to_entry(entry: bytes) -> bytes:
    """The serialised AckMessageResponse to one message that is consumed; see `acknowledging.reply_of_one`."""
    return b"%b%b%b" % (_BEGIN[len(entry)], entry, _END)


def _has_client_id(call: Any) -> bool:
    try:
        client_id_of(call)
    except TroveError:
        return False
    return True
