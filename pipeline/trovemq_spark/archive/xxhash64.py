"""XXH64 (seed 0) of a short text: the hash of Parquet's bloom filters. For single keys, not for columns."""

from __future__ import annotations

from typing import Final

_MASK: Final = (1 << 64) - 1
_P1: Final = 0x9E3779B185EBCA87
_P2: Final = 0xC2B2AE3D27D4EB4F
_P3: Final = 0x165667B19E3779F9
_P4: Final = 0x85EBCA77C2B2AE63
_P5: Final = 0x27D4EB2F165667C5


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & _MASK


def _mixed(lane: int, value: int) -> int:
    return _rotated((lane + value * _P2) & _MASK, 31) * _P1 & _MASK


def _lanes(data: bytes) -> int:
    """The hash of the whole blocks of 32 bytes, before the rest is added."""
    lanes = [(_P1 + _P2) & _MASK, _P2, 0, -_P1 & _MASK]
    for at in range(0, len(data) - 31, 32):
        for i in range(4):
            lanes[i] = _mixed(lanes[i], int.from_bytes(data[at + 8 * i : at + 8 * i + 8], "little"))
    result = sum(_rotated(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True)) & _MASK
    for lane in lanes:
        result = ((result ^ _mixed(0, lane)) * _P1 + _P4) & _MASK
    return result


def xxhash64(data: bytes) -> int:
    """The hash, 0 to 2**64-1."""
    result = _lanes(data) if len(data) >= 32 else _P5
    result = (result + len(data)) & _MASK
    at = len(data) & ~31
    while at + 8 <= len(data):
        result ^= _mixed(0, int.from_bytes(data[at : at + 8], "little"))
        result = (_rotated(result, 27) * _P1 + _P4) & _MASK
        at += 8
    if at + 4 <= len(data):
        result ^= int.from_bytes(data[at : at + 4], "little") * _P1 & _MASK
        result = (_rotated(result, 23) * _P2 + _P3) & _MASK
        at += 4
    for byte in data[at:]:
        result = _rotated(result ^ byte * _P5 & _MASK, 11) * _P1 & _MASK
    result = (result ^ result >> 33) * _P2 & _MASK
    result = (result ^ result >> 29) * _P3 & _MASK
    return result ^ result >> 32
