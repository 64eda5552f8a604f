"""AckMessage: requests to commands, results to replies.

Two readers make the same command. Protobuf reads every request; read_acknowledge() reads, without protobuf,
those of one entry in the form in which official clients write it:

| bytes | field |
| --- | --- |
| 0x0a, size, Resource | group |
| 0x12, size, Resource | topic |
| 0x1a, size, the entry: | entries |
| 0x0a, size, text | message_id |
| 0x12, size, text | receipt_handle |

All of them are ASCII; so each size is one byte, and each text is UTF-8.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from trovemq_broker.server.wire.resources import group_name, topic_to_read
from trovemq_broker.server.wire.statuses import OK_SIZED, OK_STATUS, status_of
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2
from trovemq_proto.varints import write_varint

ENTRIES_MAX: Final = 4_096
"""Entries of one AckMessage."""
NAMES_KEPT: Final = 1_024
"""Pairs of a group and a topic whose bytes in requests are known."""
SIZE_MAX: Final = 0x7F
"""Bytes of a field whose size is one byte."""


class Acknowledge(NamedTuple):
    """The command: messages that the group has consumed."""

    group: str
    topic: str
    message_ids: list[bytes]
    """As UTF-8."""
    handles: list[bytes]
    """The receipt handle of each message, as UTF-8."""


def acknowledge_of(request: service_pb2.AckMessageRequest) -> Acknowledge:
    """The command of a request. Raises TroveError REQUEST_ILLEGAL, GROUP_ILLEGAL, TOPIC_ILLEGAL."""
    entries = request.entries
    if not 1 <= len(entries) <= ENTRIES_MAX:
        raise TroveError(errors.REQUEST_ILLEGAL, f"{len(entries)} entries; there may be 1 to {ENTRIES_MAX}")
    return Acknowledge(
        group_name(request.group),
        topic_to_read(request.topic),
        [entry.message_id.encode() for entry in entries],
        [entry.receipt_handle.encode() for entry in entries],
    )


def read_acknowledge(data: bytes) -> Acknowledge | None:
    """The command of a serialised request. None if it has another form, or its names are not legal: protobuf
    reads it then."""
    if not data.isascii():
        return None
    size = len(data)
    try:
        topic_at = 2 + data[1]
        entry_at = topic_at + 2 + data[topic_at + 1]
        id_end = entry_at + 4 + data[entry_at + 3]
        if (
            data[0] == 0x0A
            and data[topic_at] == 0x12
            and data[entry_at] == 0x1A
            and data[entry_at + 1] == size - entry_at - 2
            and data[entry_at + 2] == 0x0A
            and data[id_end] == 0x12
            and data[id_end + 1] == size - id_end - 2
        ):
            group, topic = _names(data[:entry_at])
            return Acknowledge(group, topic, [data[entry_at + 4 : id_end]], [data[id_end + 2 :]])
    except (IndexError, DecodeError, TroveError):
        pass
    return None


@lru_cache(maxsize=NAMES_KEPT)
def _names(data: bytes) -> tuple[str, str]:
    """Group and topic of a request that has nothing else. Raises DecodeError, TroveError."""
    request = service_pb2.AckMessageRequest.FromString(data)
    return group_name(request.group), topic_to_read(request.topic)


def acknowledge_reply(
    command: Acknowledge, refused: Mapping[int, TroveError]
) -> service_pb2.AckMessageResponse:
    """One result for each entry, in order. `refused`: by index, why a message is not acknowledged."""
    response = service_pb2.AckMessageResponse()
    status, codes = OK_STATUS, set()
    for index, (message_id, handle) in enumerate(zip(command.message_ids, command.handles, strict=True)):
        error = refused.get(index)
        status = OK_STATUS if error is None else status_of(error)
        codes.add(status.code)
        response.entries.add(message_id=message_id.decode(), receipt_handle=handle.decode(), status=status)
    if len(codes) == 1:
        response.status.CopyFrom(status)
    else:
        response.status.code = v2.MULTIPLE_RESULTS
    return response


def serialised_reply(
    command: Acknowledge, refused: Mapping[int, TroveError]
) -> service_pb2.AckMessageResponse | bytes:
    """acknowledge_reply(), serialised already if it is to one message that is consumed."""
    if not refused and len(command.handles) == 1 and command.handles[0]:
        return _reply_of_consumed(command.message_ids[0], command.handles[0])
    return acknowledge_reply(command, refused)


def _reply_of_consumed(message_id: bytes, handle: bytes) -> bytes:
    """The serialised AckMessageResponse to one message that is consumed:

    | bytes | field |
    | --- | --- |
    | 0x0a, size, Status | status: OK |
    | 0x12, size, the entry: | entries |
    | 0x0a, size, text | message_id; left out if it is empty |
    | 0x12, size, text | receipt_handle |
    | 0x1a, size, Status | status: OK |
    """
    id_size, handle_size = len(message_id), len(handle)
    size = id_size + handle_size + _ENTRY_REST
    if message_id and size <= SIZE_MAX:
        return b"%b\x12%c\x0a%c%b\x12%c%b%b" % (_BEGIN, size, id_size, message_id, handle_size, handle, _END)
    named = b"\x0a%b%b" % (write_varint(id_size), message_id) if message_id else b""
    entry = b"%b\x12%b%b%b" % (named, write_varint(handle_size), handle, _END)
    return b"%b\x12%b%b" % (_BEGIN, write_varint(len(entry)), entry)


_BEGIN: Final = b"\x0a" + OK_SIZED
_END: Final = b"\x1a" + OK_SIZED
_ENTRY_REST: Final = 4 + len(_END)
"""Bytes of an entry with short texts, without these."""
