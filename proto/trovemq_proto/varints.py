"""Protobuf's variable-length numbers: seven bits per byte, the lowest first; the top bit is set if more bytes
follow."""

from __future__ import annotations

from typing import Final

_SMALL: Final = [bytes([value]) for value in range(0x80)]


def read_varint(data: bytes | bytearray | memoryview, position: int) -> tuple[int, int]:
    """(the number, 0..2**64-1; the position after it). Raises IndexError for a cut number, ValueError for
    more than 10 bytes."""
    value = data[position]
    position += 1
    if value < 0x80:
        return value, position
    value &= 0x7F
    for shift in range(7, 70, 7):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, position
    raise ValueError("a number has more than 10 bytes")


def write_varint(value: int) -> bytes:
    """The bytes of a number, which is not negative."""
    assert value >= 0, "negative numbers have another form"
    if value < 0x80:
        return _SMALL[value]
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    written = bytearray()
    while value >= 0x80:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)
