"""The bytes of hostile peers, for each kind those of a connection, after its opening.

Each has enough of them for CHUNKS writes. `ordinary` has calls as any client makes them, for comparison.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from trovemq_rpc.http2 import frames
from trovemq_rpc.http2.connection import Connection
from trovemq_rpc.http2.constants import PREFACE, ErrorCode

CHUNK_SIZE = 4_096
CHUNKS = 220
WIRE_SIZE = CHUNKS * CHUNK_SIZE

OPENING = PREFACE + frames.settings(()) + frames.SETTINGS_ACK
HEAD = Connection.encode(
    [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/t.T/Echo"),
        (b":authority", b"a"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
    ]
)
BOMB = (
    HEAD + b"\x40\x01a" + b"\x7f\xe9\x06" + b"v" * 1_000 + b"\xbe" * 2_900
)  # fits a chunk, opening included
GIANT = b"\0" + (130 << 20).to_bytes(4, "big") + bytes(1_000)
STREAMS_MAX = 1_000


def _frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    return frames.frame_header(len(payload), kind, flags, stream_id) + payload


def _call(stream_id: int, body: bytes) -> bytes:
    return _frame(1, 4, stream_id, HEAD) + _frame(0, 1, stream_id, len(body).to_bytes(5, "big") + body)


def _each_stream(make: Callable[[int], bytes]) -> bytes:
    """New streams for all chunks."""
    wire = bytearray()
    for stream_id in count(1, 2):
        wire += make(stream_id)
        if len(wire) > WIRE_SIZE:
            return bytes(wire)
    raise AssertionError


def _repeated(part: bytes, before: bytes = b"") -> bytes:
    return before + part * (WIRE_SIZE // len(part) + 1)


def _churn(stream_id: int) -> bytes:
    fields = b"".join(b"\x40\3%03d\3abc" % ((stream_id + n) % 1000) for n in range(40))
    return _frame(1, 5, stream_id, HEAD + fields)


def ordinary() -> bytes:
    """Calls of a client that reads its answers and gives them windows."""
    return frames.window_update(0, 1 << 30) + _each_stream(lambda i: _call(i, b"x"))


FLOODS: dict[str, Callable[[], bytes]] = {
    "rapid reset": lambda: _each_stream(
        lambda i: _frame(1, 5, i, HEAD) + frames.rst_stream(i, ErrorCode.CANCEL)
    ),
    "continuations": lambda: _repeated(_frame(9, 0, 1, b"\0\1a\1b" * 200), _frame(1, 0, 1, HEAD)),
    "header bombs": lambda: _each_stream(lambda i: _frame(1, 5, i, BOMB)),
    "churn of the header table": lambda: _each_stream(_churn),
    "pings": lambda: _repeated(frames.ping(bytes(8))),
    "settings": lambda: _repeated(frames.settings([(4, 65_535)])),
    "windows of many streams": lambda: _repeated(
        frames.settings([(4, 65_535 - n % 2) for n in range(64)]),
        b"".join(_frame(1, 4, i, HEAD) for i in range(1, 2 * STREAMS_MAX, 2)),
    ),
    "resets of streams that are gone": lambda: _repeated(frames.rst_stream(1, 8), _frame(1, 5, 1, HEAD)),
    "priorities": lambda: _repeated(_frame(2, 0, 1001, bytes(5))),
    "empty data": lambda: _repeated(_frame(0, 0, 1), _frame(1, 4, 1, HEAD)),
    "windows of zero": lambda: frames.settings([(4, 0)]) + _each_stream(lambda i: _call(i, b"x")),
    "windows that overflow": lambda: _repeated(frames.window_update(0, 0x7FFFFFFF)),
    "streams with unread answers": lambda: _each_stream(lambda i: _call(i, bytes(1_000))),
    "giants that are announced": lambda: _each_stream(
        lambda i: _frame(1, 4, i, HEAD) + _frame(0, 0, i, GIANT)
    ),
    "garbage": lambda: _repeated(b"\xff" * 64),
}
