"""Reads and writes the frames with record batches without copying the records.

They are ordinary protobuf messages of message.proto and consumer.proto; protobuf's own code would copy the
records into the message and out of it again. On the wire (protobuf encoding; a tag byte is
field number << 3 | wire type):

AppendFrame                              FetchReply, ConsumeReply: the field that is written here
| tag  | field    | form               | | tag  | field   | form              |
|------|----------|--------------------| |------|---------|-------------------|
| 0x08 | frame_id | varint             | | 0x1A | records | length and bytes  |
| 0x12 | topic    | length and bytes   |
| 0x18 | queue_id | varint             |
| 0x22 | records  | length and bytes   |
| 0x28 | one_way  | varint             |

Unknown fields are skipped; of a repeated field the last one counts, as protobuf requires.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from trovemq_proto.positions import QueueId
from trovemq_proto.v1 import consumer_pb2, message_pb2
from trovemq_proto.varints import read_varint, write_varint
from trovemq_store.files.files import Buffer

RECORDS_TAG: Final = b"\x1a"

FIELDS_MAX: Final = 256
"""Of an AppendFrame: a frame of 8 MiB could have four million, which no loop of Python reads in time."""

_VARINT: Final = 0
_FIXED64: Final = 1
_BYTES: Final = 2
_FIXED32: Final = 5
_FRAME_ID: Final = 0x08
_TOPIC: Final = 0x12
_RECORDS: Final = 0x22
_INT64_MAX: Final = (1 << 63) - 1
_MORE: Final = 0x80  # set in each byte of a number but the last


@dataclass(slots=True)
class AppendFrame:
    """One frame of an Append stream. `records` is a view of the received message: the frame's own, and
    writable, if `owned`; else it may be valid only until the callback returns that received the message."""

    frame_id: int = 0
    topic: str = ""
    queue_id: QueueId = QueueId(0)
    records: memoryview | bytes = b""
    one_way: bool = False
    owned: bool = False
    fault: str = ""  # the fault of the frame; the fields above then have the part that was read


def read_append_frame(data: Buffer) -> AppendFrame:
    """Reads a frame; never raises. A frame that cannot be read has its `fault` set, and does not end the
    stream. A bytearray is the frame's from now on."""
    frame = AppendFrame(owned=isinstance(data, bytearray))
    try:
        _read_fields(frame, data)
    except (IndexError, ValueError) as error:
        frame.fault = f"the frame is not an AppendFrame: {error}"
    return frame


read_append_frame.takes_view = True  # type: ignore[attr-defined]  # trovemq_rpc need not copy the message


def _read_fields(frame: AppendFrame, data: Buffer) -> None:
    view = memoryview(data)
    position, end = 0, len(data)
    fields_remaining = FIELDS_MAX
    while position < end and fields_remaining:
        fields_remaining -= 1
        tag = data[position]
        position += 1
        if tag >= _MORE:
            tag, position = read_varint(data, position - 1)
        wire_type = tag & 7
        if wire_type == _BYTES:
            size = data[position]
            position += 1
            if size >= _MORE:
                size, position = read_varint(data, position - 1)
            if size > end - position:
                raise ValueError(f"field {tag >> 3} is cut")
            if tag == _RECORDS:
                frame.records = view[position : position + size]
            elif tag == _TOPIC:
                frame.topic = str(view[position : position + size], "utf-8", "replace")
            position += size
        elif wire_type == _VARINT:
            value = data[position]
            position += 1
            if value >= _MORE:
                value, position = read_varint(data, position - 1)
            if tag == _FRAME_ID and value <= _INT64_MAX:
                frame.frame_id = value
            else:
                _set_number(frame, tag >> 3, value)
        elif wire_type in (_FIXED64, _FIXED32):
            position += 8 if wire_type == _FIXED64 else 4
        else:
            raise ValueError(f"field {tag >> 3} has the unknown form {wire_type}")
    if position != end:
        cut = position > end
        raise ValueError("the last field is cut" if cut else f"it has more than {FIELDS_MAX} fields")


def _set_number(frame: AppendFrame, field: int, value: int) -> None:
    if field == 1:
        frame.frame_id = value - (1 << 64) if value >> 63 else value
    elif field == 3:
        value &= 0xFFFFFFFF
        frame.queue_id = QueueId(value - (1 << 32) if value >> 31 else value)
    elif field == 5:
        frame.one_way = bool(value)


def write_with_records(
    head: message_pb2.FetchReply | consumer_pb2.ConsumeReply, slices: Iterable[memoryview], byte_count: int
) -> bytes:
    """Serialises the reply `head` (without records) with these slices as its records; each byte is copied
    once."""
    if not byte_count:
        return head.SerializeToString()
    return b"".join((head.SerializeToString(), RECORDS_TAG, write_varint(byte_count), *slices))
