"""Bounds the number of parts of a request, before protobuf parses it.

A request of a few megabytes can have a million keys, tags or properties of some bytes each. Protobuf makes an
object of each, which takes twenty times the memory and most of a second, only to be refused by the service.
So the parts of a large request are counted first, in its bytes: the walk ends at the limit.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.varints import read_varint

SIZE_ALWAYS_FINE: Final = 262_144
"""Requests up to this size are not examined: they cannot have too many parts."""
PARTS_MAX: Final = 65_536
"""The most fields of a request, including those of inner messages that have lists or messages; a packed list
counts with its bytes."""

_TEXTS: Final = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)


def check_parts(
    data: bytes,
    descriptor: Any,
    parts_max: int = PARTS_MAX,
    advice: str = "",
    always_fine: int | None = None,
) -> None:
    """Raises TroveError LIMIT_EXCEEDED if the bytes of a message of this type have more parts than
    `parts_max`. Bytes that are not a message pass: their decoder reports them. `always_fine`: as
    SIZE_ALWAYS_FINE, of a limit that is lower."""
    if len(data) <= (SIZE_ALWAYS_FINE if always_fine is None else always_fine):
        return
    try:
        left = _walk(data, 0, len(data), descriptor, parts_max)
    except (IndexError, ValueError):
        return
    if left < 0:
        raise TroveError(
            errors.LIMIT_EXCEEDED,
            f"the {descriptor.name} has more than {parts_max} fields and elements{advice}",
        )


class BoundedReader:
    """Parses messages of a type after `check_parts`. Raises TroveError."""

    __slots__ = ("advice", "parts_max", "request_type")

    def __init__(self, request_type: type[Message], parts_max: int = PARTS_MAX, advice: str = "") -> None:
        """`advice`: ends the refusal's text."""
        self.request_type: Final = request_type
        self.parts_max: Final = parts_max
        self.advice: Final = advice

    def __call__(self, data: bytes) -> Any:
        check_parts(data, self.request_type.DESCRIPTOR, self.parts_max, self.advice)
        return self.request_type.FromString(data)


@cache
def _inner(descriptor: Descriptor) -> dict[int, Descriptor | None]:
    """The fields to walk into, by number: messages that have parts, and packed lists (None)."""
    return {
        field.number: field.message_type
        for field in descriptor.fields
        if (field.message_type is not None and not _is_flat(field.message_type))
        or (field.message_type is None and field.is_repeated and field.type not in _TEXTS)
    }


@cache
def _is_flat(descriptor: Descriptor) -> bool:
    """Whether protobuf makes one object of such a message, whatever its bytes are: none of its fields is a
    list or a message. It is one part."""
    return not any(field.is_repeated or field.message_type is not None for field in descriptor.fields)


def _walk(data: bytes, position: int, end: int, descriptor: Descriptor, left: int) -> int:
    """Counts parts. Returns how many of `left` remain; negative: there are more."""
    inner = _inner(descriptor)
    while position < end and left >= 0:
        left -= 1
        tag = data[position]  # most tags and sizes have one byte
        position += 1
        if tag >= 0x80:
            tag, position = read_varint(data, position - 1)
        match tag & 7:
            case 2:  # text, bytes, a message, a packed list
                size = data[position]
                position += 1
                if size >= 0x80:
                    size, position = read_varint(data, position - 1)
                if position + size > end:
                    raise ValueError("a field is cut")
                if tag >> 3 in inner:
                    kind = inner[tag >> 3]
                    left = left - size if kind is None else _walk(data, position, position + size, kind, left)
                position += size
            case 0:  # a number
                while data[position] >= 0x80:
                    position += 1
                position += 1
            case 1:  # 64 bits
                position += 8
            case 5:  # 32 bits
                position += 4
            case _:
                raise ValueError("a group, or an unknown form")
    return left
