"""Bounds the number of parts of a request, before protobuf parses it.

A request of a few megabytes can have a million keys, tags or properties of some bytes each. Protobuf makes an
object of each, which takes twenty times the memory and most of a second, only to be refused by the service.
So the parts of a large request are counted first, in its bytes: the walk ends at the limit.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final, TypeVar

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.varints import read_varint

SIZE_ALWAYS_FINE: Final = 262_144
"""Requests up to this size are not examined: they cannot have too many parts."""
PARTS_MAX: Final = 65_536
"""The most fields of a request, including those of inner messages; a packed list counts with its bytes."""

_TEXTS: Final = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)

Request = TypeVar("Request", bound=Message)


def check_parts(data: bytes, descriptor: Any, parts_max: int = PARTS_MAX) -> None:
    """Raises TroveError LIMIT_EXCEEDED if the bytes of a message of this type have more parts than
    `parts_max`. Bytes that are not a message pass: their decoder reports them."""
    if len(data) <= SIZE_ALWAYS_FINE:
        return
    try:
        left = _walk(data, 0, len(data), descriptor, parts_max)
    except (IndexError, ValueError):
        return
    if left < 0:
        raise TroveError(
            errors.LIMIT_EXCEEDED, f"the {descriptor.name} has more than {parts_max} fields and elements"
        )


def bounded(request_type: type[Request]) -> Callable[[bytes], Request]:
    """A function that parses messages of the type, after `check_parts`."""
    descriptor: Any = request_type.DESCRIPTOR

    def read(data: bytes) -> Request:
        check_parts(data, descriptor)
        return request_type.FromString(data)

    return read


@cache
def _inner(descriptor: Descriptor) -> dict[int, Descriptor | None]:
    """The fields to walk into, by number: messages, and packed lists (None)."""
    return {
        field.number: field.message_type
        for field in descriptor.fields
        if field.message_type is not None or (field.is_repeated and field.type not in _TEXTS)
    }


def _walk(data: bytes, position: int, end: int, descriptor: Descriptor, left: int) -> int:
    """Counts parts. Returns how many of `left` remain; negative: there are more."""
    inner = _inner(descriptor)
    while position < end and left >= 0:
        left -= 1
        tag, position = read_varint(data, position)
        match tag & 7:
            case 0:  # a number
                while data[position] >= 0x80:
                    position += 1
                position += 1
            case 1:  # 64 bits
                position += 8
            case 5:  # 32 bits
                position += 4
            case 2:  # text, bytes, a message, a packed list
                size, position = read_varint(data, position)
                if position + size > end:
                    raise ValueError("a field is cut")
                if tag >> 3 in inner:
                    kind = inner[tag >> 3]
                    left = left - size if kind is None else _walk(data, position, position + size, kind, left)
                position += size
            case _:
                raise ValueError("a group, or an unknown form")
    return left
