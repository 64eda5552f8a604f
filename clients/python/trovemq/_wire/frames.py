"""Frames with record batches, without a copy of the records.

A frame has up to some megabytes in one `bytes` field, which protobuf would copy twice on each side. So
protobuf handles the rest of the message, and the code here this one field, in protobuf's own encoding (each
field: varint tag = number << 3 | type, then by type):

    type  meaning            encoding
    0     varint             7 bits a byte, low first, high bit = more follows
    1     fixed 64           8 bytes
    2     bytes, messages    varint length, then that many bytes
    5     fixed 32           4 bytes

    AppendFrame:  08 frame_id | 12 len topic | 18 queue_id | 22 len records | 28 one_way
    FetchReply, ConsumeReply:  1A len records, among other fields
"""

from __future__ import annotations

from collections.abc import Iterable

from trovemq.fetched import Buffer
from trovemq_proto.varints import write_varint

_RECORDS_FIELD = 3


def read_varint(data: bytes | bytearray, position: int) -> tuple[int, int]:
    """The number at `position`, and its end. Raises IndexError if the data ends within it."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def append_head(topic: str, queue_id: int) -> bytes:
    """The part of an AppendFrame that all frames of a queue have in common."""
    name = topic.encode()
    return b"".join((b"\x12", write_varint(len(name)), name, b"\x18", write_varint(queue_id)))


def append_frame(*, frame_id: int, head: bytes, records: Iterable[Buffer], size: int, one_way: bool) -> bytes:
    """A serialised AppendFrame. `head`: topic and queue, from append_head(); `records`: the pieces of the
    records, of `size` bytes together. Makes one copy of them."""
    end = b"\x28\x01" if one_way else b""
    return b"".join((b"\x08", write_varint(frame_id), head, b"\x22", write_varint(size), *records, end))


def split_records(data: bytes | bytearray) -> tuple[memoryview, bytes]:
    """The records of a serialised FetchReply or ConsumeReply (a view of `data`) and the message without them.

    Raises:
        ValueError: `data` is not protobuf message.
    """
    view = memoryview(data)
    records, rest, position = view[:0], [], 0
    while position < len(data):
        start = position
        try:
            position, content = _skip_field(data, position)
        except IndexError:
            raise ValueError(f"a FetchReply of {len(data)} bytes is cut at byte {start}") from None
        if position > len(data):
            raise ValueError(f"a field of a FetchReply of {len(data)} bytes ends at byte {position}")
        if data[start] == _RECORDS_FIELD << 3 | 2:
            records = view[content:position]
        else:
            rest.append(data[start:position])
    return records, b"".join(rest)


def _skip_field(data: bytes | bytearray, position: int) -> tuple[int, int]:
    """The end of the field at `position`, and the beginning of its content."""
    tag, position = read_varint(data, position)
    kind = tag & 7
    if kind == 0:
        return read_varint(data, position)[1], position
    if kind == 2:
        size, position = read_varint(data, position)
        return position + size, position
    if kind in (1, 5):
        return position + (8 if kind == 1 else 4), position
    raise ValueError(f"wire type {kind} at byte {position}")
