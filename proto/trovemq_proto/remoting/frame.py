"""Frames of the remoting protocol.

| bytes | field |
| --- | --- |
| 4 | total: length of all that follows, 4 + header + body |
| 1 | serialisation of the header: 0 JSON, 1 RocketMQ's binary form |
| 3 | h: length of the header |
| h | header (headers.py) |
| total - 4 - h | body; none where the rest is 0 |

Numbers are big-endian. A frame has FRAME_SIZE_MAX bytes at most, its total included, so its first byte is 0.
Facts: org.apache.rocketmq.remoting.netty.NettyDecoder and RemotingCommand, 5.4.0.

Invariants
- A splitter holds the bytes of one incomplete frame at most; a length that breaks a limit is refused before
  any byte of the frame is kept.
- A frame's header and body are views of the bytes that were fed, or of the splitter's own: they are valid
  until the next feed().
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from trovemq_proto.remoting.errors import FrameError
from trovemq_proto.remoting.headers import BINARY, Header, decode_header, encode_header

FRAME_SIZE_MAX: Final = 16_777_216
HEADER_SIZE_MAX: Final = 512 << 10
"""RocketMQ has no separate limit. The largest text of properties, 32,767 bytes, has 6 bytes a character in
JSON where all are separators; the subscription of a pull is the only other long field."""
PREFIX_SIZE: Final = 8
_PREFIX: Final = Struct(">II")


class Frame(NamedTuple):
    """`form`: of the header (headers.py). The views are valid until the next feed()."""

    form: int
    header_bytes: memoryview
    body: memoryview

    @property
    def size(self) -> int:
        return PREFIX_SIZE + len(self.header_bytes) + len(self.body)

    def header(self) -> Header:
        """FrameError."""
        return decode_header(self.form, self.header_bytes)


class FrameSplitter:
    """Cuts the bytes of one connection into frames."""

    def __init__(self, frame_size_max: int = FRAME_SIZE_MAX) -> None:
        self._frame_size_max: Final = min(frame_size_max, FRAME_SIZE_MAX)
        self._after = memoryview(b"")
        """The bytes after the frame that was given last."""
        self._kept = bytearray()
        self._missing = 0
        """Bytes of the incomplete frame, where its length is known; else 0."""

    @property
    def kept_size(self) -> int:
        """Bytes of an incomplete frame."""
        return len(self._kept)

    def feed(self, data: memoryview) -> Iterator[Frame]:
        """The whole frames, to be taken one by one before the next feed(). FrameError: the rest of the bytes
        cannot be split."""
        if self._kept:
            if self._missing > len(data):
                self._kept += data
                self._missing -= len(data)
                return
            if self._missing:
                self._kept += data[: self._missing]
                data = data[self._missing :]
                kept, self._kept, self._missing = self._kept, bytearray(), 0
                yield from self._frames(memoryview(kept), data)
            else:
                data = memoryview(bytes(self._kept) + data)
                self._kept = bytearray()
        yield from self._frames(data, memoryview(b""))

    def take_rest(self) -> bytes:
        """The bytes after the frame that feed() gave last: to be fed again. That feed() is not continued."""
        rest, self._after = bytes(self._after), memoryview(b"")
        return rest

    def _frames(self, data: memoryview, after_data: memoryview) -> Iterator[Frame]:
        """`after_data`: follows, if `data` is one whole frame."""
        at, end = 0, len(data)
        while end - at >= PREFIX_SIZE:
            total, word = _PREFIX.unpack_from(data, at)
            header_size = word & 0xFFFFFF
            self._check(total, word >> 24, header_size)
            after = at + 4 + total
            if after > end:
                self._missing = after - end
                break
            begin = at + PREFIX_SIZE
            body_at = begin + header_size
            self._after = data[after:] if after < end else after_data
            yield Frame(word >> 24, data[begin:body_at], data[body_at:after])
            at = after
        if at < end:
            self._kept += data[at:]

    def _check(self, total: int, form: int, header_size: int) -> None:
        if total + 4 > self._frame_size_max:
            raise FrameError(f"a frame of {total + 4} bytes; the limit is {self._frame_size_max}")
        if form > BINARY:
            raise FrameError(f"serialisation {form} is unknown")
        if header_size > total - 4 or header_size > HEADER_SIZE_MAX:
            raise FrameError(f"a header of {header_size} bytes in a frame of {total + 4}")


def encode_frame(header: Header, body: bytes = b"", form: int = 0) -> bytes:
    """ValueError: it is larger than a frame may be."""
    encoded = encode_header(form, header)
    return b"".join((frame_prefix(form, len(encoded), len(body)), encoded, body))


def frame_prefix(form: int, header_size: int, body_size: int) -> bytes:
    """The first 8 bytes. ValueError: the frame is larger than it may be."""
    total = 4 + header_size + body_size
    if total + 4 > FRAME_SIZE_MAX or header_size > 0xFFFFFF:
        raise ValueError(f"a frame of {total + 4} bytes; the limit is {FRAME_SIZE_MAX}")
    return _PREFIX.pack(total, form << 24 | header_size)
