"""Hostile peers of the core, as raw bytes: bounded memory and work, and the end with the right code.

Work is counted in frames and bytes, memory by the core's content; no clock is involved. The same peers
against a whole server are in test_hostile_peers.py.
"""

import tracemalloc
from collections.abc import Callable, Iterator
from itertools import count, repeat
from typing import Any

import pytest

from tests.unit.rpc.connection_pair import REQUEST
from trovemq_rpc.http2 import events as ev
from trovemq_rpc.http2 import frames
from trovemq_rpc.http2.connection import Connection
from trovemq_rpc.http2.constants import PREFACE, ErrorCode
from trovemq_rpc.http2.errors import ConnectionFault

BLOCK = Connection.encode(REQUEST)
FRAMES_MAX = 50_000  # a flood must be over by then
HELD_MAX = 1 << 20  # bytes that a connection may cost a server meanwhile


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    return frames.frame_header(len(payload), kind, flags, stream_id) + payload


def started() -> Connection:
    server = Connection(client_side=False)
    server.receive(PREFACE + frames.settings(()) + frames.SETTINGS_ACK)
    server.take_output()
    return server


def flood(
    server: Connection, parts: Iterator[bytes], parts_max: int = FRAMES_MAX
) -> tuple[ConnectionFault | None, int]:
    """Feed it; the peer reads nothing. Returns the fault, and after how many parts it came."""
    tracemalloc.start()
    try:
        for number, part in zip(range(parts_max), parts, strict=False):
            for kind, _, value, _ in server.receive(part):
                if kind == ev.FAULT:
                    return value, number
            held, _ = tracemalloc.get_traced_memory()
            assert held <= HELD_MAX, f"{held} bytes after {number} parts"
    finally:
        tracemalloc.stop()
    return None, parts_max


def rapid_resets() -> Iterator[bytes]:
    for stream_id in count(1, 2):
        yield frame(1, 5, stream_id, BLOCK) + frames.rst_stream(stream_id, ErrorCode.CANCEL)


def resets_by_faults() -> Iterator[bytes]:
    """The server itself is made to reset: a window update of 0 ends the stream."""
    for stream_id in count(1, 2):
        yield frame(1, 4, stream_id, BLOCK) + frame(8, 0, stream_id, bytes(4))


def malformed_requests() -> Iterator[bytes]:
    block = Connection.encode([(b":method", b"POST")])
    for stream_id in count(1, 2):
        yield frame(1, 5, stream_id, block)


def refused_streams() -> Iterator[bytes]:
    """More streams than allowed at once, none of which ends."""
    for stream_id in count(1, 2):
        yield frame(1, 4, stream_id, BLOCK)


def bomb(references: int) -> bytes:
    """A block of which each byte at its end is a field of 4 KiB."""
    return BLOCK + b"\x40\x01a" + b"\x7f\xd1\x1e" + b"v" * 4048 + b"\xbe" * references


def continuations(size: int) -> Iterator[bytes]:
    yield frame(1, 0, 1, BLOCK)
    yield from repeat(frame(9, 0, 1, b"\x00\x01a\x01b" * (size // 5)))


FLOODS: dict[str, Callable[[], Iterator[bytes]]] = {
    "rapid reset (CVE-2023-44487)": rapid_resets,
    "resets that the server is made to send": resets_by_faults,
    "malformed requests": malformed_requests,
    "more streams than allowed": refused_streams,
    "continuations (CVE-2024-27316)": lambda: continuations(1000),
    "empty continuations": lambda: continuations(0),
    "pings": lambda: repeat(frames.ping(bytes(8))),
    "answers to pings that were not sent": lambda: repeat(frames.ping(bytes(8), ack=True)),
    "settings": lambda: repeat(frames.settings([(4, 65_535)])),
    "acknowledged settings": lambda: repeat(frames.SETTINGS_ACK),
    "priorities": lambda: repeat(frame(2, 0, 1001, bytes(5))),
    "unknown frames": lambda: repeat(frame(0xBE, 0, 0)),
    "window updates": lambda: repeat(frame(1, 4, 1, BLOCK) + frames.window_update(1, 1)),
    "empty data": lambda: iter([frame(1, 4, 1, BLOCK), *repeat(frame(0, 0, 1), FRAMES_MAX)]),
    "padded empty data": lambda: iter([frame(1, 4, 1, BLOCK), *repeat(frame(0, 8, 1, b"\x00"), FRAMES_MAX)]),
    "data on a stream that was reset": lambda: iter(
        [frame(1, 4, 1, BLOCK) + frames.rst_stream(1, 8), *repeat(frame(0, 0, 1), FRAMES_MAX)]
    ),
    "header bombs": lambda: (frame(1, 5, stream_id, bomb(12_000)) for stream_id in count(1, 2)),
    "goaways": lambda: repeat(frames.goaway(0, 0, b"x" * 100)),
    "resets of a stream that is gone": lambda: iter(
        [frame(1, 5, 1, BLOCK), *repeat(frames.rst_stream(1, 8), FRAMES_MAX)]
    ),
}


@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_is_ended(name: str) -> None:
    fault, frames_until = flood(started(), FLOODS[name]())
    assert fault is not None, "the flood was endured"
    assert frames_until < FRAMES_MAX
    expected = {
        "window updates": {ErrorCode.PROTOCOL_ERROR, ErrorCode.ENHANCE_YOUR_CALM},
        "data on a stream that was reset": {ErrorCode.STREAM_CLOSED, ErrorCode.ENHANCE_YOUR_CALM},
    }.get(name, {ErrorCode.ENHANCE_YOUR_CALM})
    assert fault.code in expected, fault


def answer_all(server: Connection, data: bytes) -> list[Any]:
    events = server.receive(data)
    assert not [value for kind, _, value, _ in events if kind == ev.FAULT]
    return events


def test_a_list_somewhat_too_large_ends_only_its_stream() -> None:
    server = started()
    fault, _ = flood(server, (frame(1, 5, stream_id, bomb(60)) for stream_id in range(1, 41, 2)))
    assert fault is None
    assert len(server.streams) <= 20


def test_one_header_block_held_up_everybody_for_13_ms() -> None:
    """Each byte was a field, and all were read."""
    server = started()
    events = server.receive(frame(1, 5, 1, BLOCK + b"\x82" * 65_000))
    assert [fault.code for kind, _, fault, _ in events if kind == ev.FAULT] == [ErrorCode.ENHANCE_YOUR_CALM]


def test_churn_of_the_table_leaves_it_within_its_limit() -> None:
    server = started()
    blocks = (BLOCK + b"".join(b"\x40\x03%03d\x03abc" % (i * 40 + j) for j in range(40)) for i in range(24))
    fault, _ = flood(server, (frame(1, 5, 2 * i + 1, block) for i, block in enumerate(blocks)))
    assert fault is None
    assert server.decoder.table_size <= 4096


def test_windows_that_overflow_are_refused() -> None:
    fault, _ = flood(started(), iter([frames.window_update(0, 0x7FFFFFFF)]))
    assert fault is not None
    assert fault.code == ErrorCode.FLOW_CONTROL_ERROR
    server = started()
    events = answer_all(server, frame(1, 4, 1, BLOCK) + frames.window_update(1, 0x7FFFFFFF))
    assert [(kind, value) for kind, _, value, _ in events][1:] == [(ev.RESET, ErrorCode.FLOW_CONTROL_ERROR)]
    fault, _ = flood(started(), iter([frames.settings([(4, 0x80000000)])]))
    assert fault is not None
    assert fault.code == ErrorCode.FLOW_CONTROL_ERROR


def test_a_shrunk_window_below_zero_only_stops_the_stream() -> None:
    server = started()
    _, stream, _, _ = answer_all(server, frame(1, 5, 1, BLOCK))[0]
    server.send_headers(stream, Connection.encode([(b":status", b"200")]))
    server.send_data(stream, [b"x" * 60_000], 60_000)
    server.take_output()
    answer_all(server, frames.settings([(4, 100)]))
    assert stream.send_window == 100 - 60_000
    server.send_data(stream, [b"y"], 1, end=True)
    answer_all(server, frames.window_update(1, 59_900))
    assert b"y" not in b"".join(server.take_output())
    answer_all(server, frames.window_update(1, 1))
    assert b"".join(server.take_output()).endswith(b"\0\0\1\0\1\0\0\0\1y")


def test_a_peer_with_a_window_of_zero_does_not_hold_up_the_others() -> None:
    """Two streams answer; the peer lets one of them send nothing."""
    server = started()
    stopped, free = (answer_all(server, frame(1, 5, i, BLOCK))[0][1] for i in (1, 3))
    for stream in (stopped, free):
        server.send_headers(stream, Connection.encode([(b":status", b"200")]))
    server.send_data(stopped, [bytes(65_535)], 65_535)
    answer_all(server, frames.window_update(0, 100_000))
    server.send_data(stopped, [b"held back"], 9)
    server.take_output()
    server.send_data(free, [b"small"], 5)
    assert b"small" in b"".join(server.take_output())


def test_more_than_the_windows_allow_ends_the_connection() -> None:
    server = started()
    body = frame(0, 0, 1, bytes(16_384))
    fault, parts = flood(server, iter([frame(1, 4, 1, BLOCK), *repeat(body, 1000)]), 1001)
    assert fault is not None
    assert fault.code == ErrorCode.FLOW_CONTROL_ERROR
    assert parts * 16_384 <= server.limits.connection_window + 2 * 16_384


def test_a_frame_above_the_limit_is_refused_by_its_header() -> None:
    fault, _ = flood(started(), iter([frames.frame_header(server_limit() + 1, 0, 0, 1)]))
    assert fault is not None
    assert fault.code == ErrorCode.FRAME_SIZE_ERROR


def server_limit() -> int:
    return started().limits.frame_size_max


@pytest.mark.parametrize(
    "bytes_",
    [b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00", b"\0" * 64, PREFACE[:-1] + b"x"],
    ids=["HTTP/1.1", "TLS", "zeros", "almost the preface"],
)  # fmt: skip
def test_another_protocol_is_refused_at_its_first_bytes(bytes_: bytes) -> None:
    events = Connection(client_side=False).receive(bytes_)
    assert [(kind, value.code) for kind, _, value, _ in events] == [(ev.FAULT, ErrorCode.PROTOCOL_ERROR)]


@pytest.mark.parametrize("known", [False, True], ids=["new", "known"])
def test_a_pseudo_header_field_after_others_was_accepted_once_known(known: bool) -> None:
    server = started()
    authority = (b":authority", b"known" if known else b"new")
    if known:
        server.receive(frame(1, 5, 1, Connection.encode([*REQUEST[:3], authority])))
    for stream_id, misplaced in ((3, [(b"x", b"y"), authority]), (5, [(b"x", b"y"), REQUEST[2]])):
        block = Connection.encode([*REQUEST[:3], *misplaced])
        server.take_output()
        assert not server.receive(frame(1, 5, stream_id, block))
        assert server.take_output() == [frames.rst_stream(stream_id, ErrorCode.PROTOCOL_ERROR)]
    trailers = frame(1, 5, 7, Connection.encode([REQUEST[2]]))
    (_, reset) = server.receive(frame(1, 4, 7, BLOCK) + trailers)
    assert reset[:3:2] == (ev.RESET, ErrorCode.PROTOCOL_ERROR)
