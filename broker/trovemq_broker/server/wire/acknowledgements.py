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

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
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

    names: tuple[str, str]
    """Group and topic."""
    message_ids: Sequence[bytes]
    """As UTF-8."""
    handles: Sequence[bytes]
    """The receipt handle of each message, as UTF-8."""
    entry: bytes = b""
    """Id and handle as the reply has them, if there is one message and both are short."""


_new_acknowledge: Final = partial(tuple.__new__, Acknowledge)  # without a Python call for each


def acknowledge_of(request: service_pb2.AckMessageRequest) -> Acknowledge:
    """The command of a request. Raises TroveError REQUEST_ILLEGAL, GROUP_ILLEGAL, TOPIC_ILLEGAL."""
    entries = request.entries
    if not 1 <= len(entries) <= ENTRIES_MAX:
        raise TroveError(errors.REQUEST_ILLEGAL, f"{len(entries)} entries; there may be 1 to {ENTRIES_MAX}")
    message_ids = tuple(entry.message_id.encode() for entry in entries)
    handles = tuple(entry.receipt_handle.encode() for entry in entries)
    entry = _short_entry(message_ids[0], handles[0]) if len(entries) == 1 else b""
    names = group_name(request.group), topic_to_read(request.topic)
    return Acknowledge(names, message_ids, handles, entry)


def _short_entry(message_id: bytes, handle: bytes) -> bytes:
    """Empty if a text is, or has no size of one byte in an entry of such a size."""
    size = len(message_id) + len(handle) + 4
    if not message_id or not handle or size > SIZE_MAX:
        return b""
    return b"\x0a%c%b\x12%c%b" % (len(message_id), message_id, len(handle), handle)


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
            message_id, handle = data[entry_at + 4 : id_end], data[id_end + 2 :]
            entry = data[entry_at + 2 :] if message_id and handle else b""
            return _new_acknowledge((_names(data[:entry_at]), (message_id,), (handle,), entry))
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


def consumed_reply(command: Acknowledge) -> service_pb2.AckMessageResponse | bytes:
    """The reply if every message is consumed. To one message that official clients acknowledge, it is
    serialised already:

    | bytes | field |
    | --- | --- |
    | 0x0a, size, Status | status: OK |
    | 0x12, size, the entry: | entries |
    | 0x0a, size, text | message_id |
    | 0x12, size, text | receipt_handle |
    | 0x1a, size, Status | status: OK |
    """
    entry = command.entry
    return b"%b%b%b" % (_BEGINS[len(entry)], entry, _END) if entry else acknowledge_reply(command, {})


_END: Final = b"\x1a" + OK_SIZED
_BEGINS: Final = [
    b"\x0a%b\x12%b" % (OK_SIZED, write_varint(size + len(_END))) for size in range(SIZE_MAX + 1)
]
"""The reply up to its entry, by the size of Acknowledge.entry."""
