"""Frames as bytes (RFC 9113 section 4.1).

| offset | size   | field                              |
|--------|--------|------------------------------------|
| 0      | 3      | length of the payload              |
| 3      | 1      | type                               |
| 4      | 1      | flags                              |
| 5      | 4      | reserved bit, 31 bits of stream id |
| 9      | length | payload                            |

control.py and header_blocks.py have the payloads. DATA (section 6.1) is bytes of messages, padded as HEADERS
are.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from trovemq_rpc.http2.constants import (
    ACK,
    CONTINUATION,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
)

FRAME_HEADER: Final = struct.Struct(">BHBBI")  # the length's 24 bits as 8 and 16
U32: Final = struct.Struct(">I")
SETTING: Final = struct.Struct(">HI")
TWO_U32: Final = struct.Struct(">II")

_pack_header = FRAME_HEADER.pack
_pack_with_u32 = struct.Struct(">BHBBII").pack


def frame_header(length: int, frame_type: int, flags: int, stream_id: int) -> bytes:
    return _pack_header(length >> 16, length & 0xFFFF, frame_type, flags, stream_id)


def settings(values: Iterable[tuple[int, int]]) -> bytes:
    """Section 6.5: pairs of a 16 bit identifier and a 32 bit value."""
    payload = b"".join(SETTING.pack(identifier, value) for identifier, value in values)
    return frame_header(len(payload), SETTINGS, 0, 0) + payload


SETTINGS_ACK: Final = frame_header(0, SETTINGS, ACK, 0)


def ping(payload: bytes, ack: bool = False) -> bytes:
    """Section 6.7: eight opaque bytes."""
    return frame_header(8, PING, ACK if ack else 0, 0) + payload


def goaway(last_stream_id: int, code: int, debug: bytes = b"") -> bytes:
    """Section 6.8: the last stream id, the error code, text for people."""
    return frame_header(8 + len(debug), GOAWAY, 0, 0) + TWO_U32.pack(last_stream_id, code) + debug


def window_update(stream_id: int, increment: int) -> bytes:
    """Section 6.9: 31 bits, never 0."""
    return _pack_with_u32(0, 4, WINDOW_UPDATE, 0, stream_id, increment)


def rst_stream(stream_id: int, code: int) -> bytes:
    """Section 6.4: the error code."""
    return _pack_with_u32(0, 4, RST_STREAM, 0, stream_id, code)


def header_block(stream_id: int, block: bytes, end_stream: bool, frame_size_max: int) -> bytes:
    """HEADERS, and CONTINUATION frames for the bytes beyond the peer's frame size (sections 6.2 and 6.10)."""
    flags = END_STREAM if end_stream else 0
    size = len(block)
    if size <= frame_size_max:
        return _pack_header(size >> 16, size & 0xFFFF, HEADERS, flags | END_HEADERS, stream_id) + block
    pieces = [frame_header(frame_size_max, HEADERS, flags, stream_id), block[:frame_size_max]]
    for start in range(frame_size_max, size, frame_size_max):
        part = block[start : start + frame_size_max]
        last = END_HEADERS if start + frame_size_max >= size else 0
        pieces += (frame_header(len(part), CONTINUATION, last, stream_id), part)
    return b"".join(pieces)
