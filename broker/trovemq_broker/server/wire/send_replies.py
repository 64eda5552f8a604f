"""The replies of SendMessage. The reply to one stored message, the common one, is written by hand.

A SendMessageResponse with one entry; the names are those of service.proto:

| bytes | field |
| --- | --- |
| 0x0a, size, Status | status: OK |
| 0x12, size, the entry | entries |

and the entry:

| bytes | field |
| --- | --- |
| 0x0a, size, Status | status: OK |
| 0x12, size, text | message_id |
| 0x1a, size, text | transaction_id: the same text |
| 0x20, number | offset: left out if it is 0 |

Sizes and numbers are varints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from trovemq_broker.server.wire.statuses import OK_SIZED, OK_STATUS, status_of
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueOffset
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2
from trovemq_proto.varints import write_varint
from trovemq_store.engine.message_store import AppendResult


@dataclass(frozen=True, slots=True)
class Stored:
    """The result of one message: record number `index` of `result`."""

    result: AppendResult | None
    index: int = 0
    recall_handle: str = ""
    error: TroveError | None = None


def reply_of(message_ids: Sequence[str], stored: list[Stored]) -> service_pb2.SendMessageResponse:
    """One entry for each message."""
    response = service_pb2.SendMessageResponse()
    codes = set()
    for message_id, one in zip(message_ids, stored, strict=True):
        entry = response.entries.add()
        entry.message_id = entry.transaction_id = message_id
        if one.result is not None:
            entry.offset = one.result.queue_offset(one.index)
        if one.recall_handle:
            entry.recall_handle = one.recall_handle
        status = OK_STATUS if one.error is None else status_of(one.error)
        entry.status.CopyFrom(status)
        codes.add(status.code)
    if len(codes) == 1:
        response.status.CopyFrom(status)
    else:
        response.status.code = v2.MULTIPLE_RESULTS
    return response


_OK_FIELD: Final = b"\x0a" + OK_SIZED
_SMALL: Final = [bytes((number,)) for number in range(0x80)]
_ID_SIZE_SHORT: Final = (0x7F - len(_OK_FIELD) - 2 * 2 - 11) // 2
"""Bytes of a message id that two times leave the entry's size below 0x80, with the longest offset."""


def reply_of_stored(message_id: str, queue_offset: QueueOffset) -> bytes:
    """The serialised reply to a send of one message that is stored as durably as the flush mode promises."""
    text = message_id.encode()
    if len(text) <= _ID_SIZE_SHORT:
        # all sizes are one byte each
        size = _SMALL[len(text)]
        offset = b"\x20" + write_varint(queue_offset) if queue_offset else b""
        entry = b"%b\x12%b%b\x1a%b%b%b" % (_OK_FIELD, size, text, size, text, offset)
        return b"%b\x12%b%b" % (_OK_FIELD, _SMALL[len(entry)], entry)
    sized = write_varint(len(text)) + text
    offset = b"\x20" + write_varint(queue_offset) if queue_offset else b""
    entry = b"%b\x12%b\x1a%b%b" % (_OK_FIELD, sized, sized, offset)
    return b"%b\x12%b%b" % (_OK_FIELD, write_varint(len(entry)), entry)
