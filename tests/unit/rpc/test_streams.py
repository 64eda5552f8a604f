"""The state table of streams (RFC 9113 section 5.1), by two connections joined in memory."""

from __future__ import annotations

import pytest

from trovemq_rpc.http2 import events as ev
from trovemq_rpc.http2 import frames
from trovemq_rpc.http2.connection import Connection
from trovemq_rpc.http2.constants import DATA, END_STREAM, HEADERS, PREFACE, ErrorCode
from trovemq_rpc.http2.streams import (
    AFTER_RECEIVED_END,
    AFTER_SENT_END,
    CLOSED,
    HALF_CLOSED_LOCAL,
    HALF_CLOSED_REMOTE,
    ILLEGAL,
    MAY_RECEIVE,
    MAY_SEND,
    OPEN,
)

REQUEST = Connection.encode(
    [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/a/B"), (b":authority", b"x")]
)
DATA_FRAME = frames.frame_header(3, DATA, 0, 1) + b"abc"


def headers(stream_id: int = 1, end: bool = False) -> bytes:
    return frames.header_block(stream_id, REQUEST, end, 16_384)


def server() -> Connection:
    connection = Connection(client_side=False)
    connection.receive(PREFACE + frames.settings(()))
    connection.take_output()
    return connection


def reset_sent(connection: Connection) -> list[int]:
    """Codes of the RST_STREAM frames among the output."""
    output = b"".join(connection.take_output())
    codes, at = [], 0
    while at < len(output):
        high, low, kind, _flags, _stream = frames.FRAME_HEADER.unpack_from(output, at)
        end = at + 9 + (high << 16 | low)
        if kind == 3:
            codes.append(int.from_bytes(output[at + 9 : end], "big"))
        at = end
    return codes


def test_the_tables_agree_with_each_other() -> None:
    for state in (OPEN, HALF_CLOSED_LOCAL, HALF_CLOSED_REMOTE, CLOSED):
        assert (AFTER_SENT_END[state] != ILLEGAL) == MAY_SEND[state]
        assert (AFTER_RECEIVED_END[state] != ILLEGAL) == MAY_RECEIVE[state]
    assert AFTER_SENT_END[OPEN] == HALF_CLOSED_LOCAL
    assert AFTER_RECEIVED_END[AFTER_SENT_END[OPEN]] == CLOSED
    assert AFTER_SENT_END[AFTER_RECEIVED_END[OPEN]] == CLOSED


def test_frames_of_idle_streams_end_the_connection() -> None:
    for frame in (DATA_FRAME, frames.rst_stream(1, 8), frames.window_update(1, 5)):
        (event,) = server().receive(frame)
        assert event[0] == ev.FAULT
        assert event[2].code == ErrorCode.PROTOCOL_ERROR


def test_data_after_the_end_resets_the_stream() -> None:
    connection = server()
    connection.receive(headers(end=True))
    (event,) = connection.receive(DATA_FRAME)
    assert event[0] == ev.RESET
    assert reset_sent(connection) == [ErrorCode.STREAM_CLOSED]


def test_late_frames_of_a_stream_that_we_reset_are_ignored() -> None:
    connection = server()
    (event,) = connection.receive(headers())
    connection.reset(event[1], ErrorCode.CANCEL)
    connection.take_output()
    late = DATA_FRAME + headers(end=True) + frames.rst_stream(1, 8) + frames.window_update(1, 5)
    assert connection.receive(late) == []
    assert connection.take_output() == []


def test_data_on_a_stream_that_its_sender_reset_is_answered_by_a_reset() -> None:
    connection = server()
    connection.receive(headers() + frames.rst_stream(1, 8))
    connection.receive(DATA_FRAME)
    assert reset_sent(connection) == [ErrorCode.STREAM_CLOSED]


def test_frames_behind_the_end_of_both_sides_end_the_connection() -> None:
    connection = server()
    (event,) = connection.receive(headers(end=True))
    connection.send_headers(event[1], Connection.encode([(b":status", b"200")]), True)
    (event,) = connection.receive(DATA_FRAME)
    assert event[2].code == ErrorCode.STREAM_CLOSED


def test_an_answer_before_the_requests_end_resets_without_an_error() -> None:
    connection = server()
    (event,) = connection.receive(headers())
    connection.send_headers(event[1], Connection.encode([(b":status", b"200")]), True)
    assert reset_sent(connection) == [ErrorCode.NO_ERROR]
    assert connection.receive(DATA_FRAME) == []
    assert not connection.streams


def test_trailers_wait_for_the_data_before_them() -> None:
    connection = server()
    connection.receive(frames.settings([(4, 5)]) + headers(end=True))
    connection.take_output()
    (stream,) = connection.streams.values()
    connection.send_headers(stream, Connection.encode([(b":status", b"200")]))
    connection.send_data(stream, [b"0123456789"], 10)
    connection.send_headers(stream, Connection.encode([(b"grpc-status", b"0")]), True)
    first = b"".join(connection.take_output())
    assert first.endswith(b"01234")
    connection.receive(frames.window_update(1, 5))
    second = b"".join(connection.take_output())
    assert second.startswith(frames.frame_header(5, DATA, 0, 1) + b"56789")
    assert second[14 + 3] == HEADERS
    assert second[14 + 4] & END_STREAM
    assert not connection.streams


def test_what_is_sent_on_a_stream_that_was_reset_goes_nowhere() -> None:
    connection = server()
    (event, _) = connection.receive(headers() + frames.rst_stream(1, 8))
    stream = event[1]
    connection.send_headers(stream, REQUEST)
    connection.send_data(stream, [b"x"], 1)
    connection.send_answer(stream, REQUEST, (b"", b"x"), REQUEST)
    assert connection.take_output() == []


@pytest.mark.parametrize(
    ("flood", "count"),
    [
        (frames.ping(b"12345678"), 300),
        (frames.settings(()), 200),
        (frames.frame_header(5, 2, 0, 99) + bytes(5), 3_000),
        (frames.frame_header(0, 0x20, 0, 0), 3_000),
        (frames.window_update(0, 1), 30_000),
    ],
)
def test_a_flood_of_control_frames_ends_the_connection(flood: bytes, count: int) -> None:
    events = server().receive(flood * count)
    assert events[-1][0] == ev.FAULT
    assert events[-1][2].code == ErrorCode.ENHANCE_YOUR_CALM


@pytest.mark.parametrize(("updates", "is_flood"), [(2, False), (3, True)])
def test_a_client_with_10_000_calls_a_second_was_sent_away(updates: int, is_flood: bool) -> None:
    """For two WINDOW_UPDATE frames a call, as gRPC's C core sends them."""
    connection = server()
    faults = []
    for stream_id in range(1, 60_001, 2):
        (_, stream, *_), *_ = connection.receive(headers(stream_id, end=True))
        connection.send_answer(stream, REQUEST, (bytes(5), b"x"), REQUEST)
        connection.take_output()
        events = connection.receive(
            frames.window_update(0, 6) + frames.window_update(stream_id, 5) * (updates - 1)
        )
        faults = [fault.code for kind, _, fault, _ in events if kind == ev.FAULT]
        if faults:
            break
    assert faults == [ErrorCode.ENHANCE_YOUR_CALM] * is_flood


def test_rapid_reset_ends_the_connection() -> None:
    """CVE-2023-44487."""
    connection = server()
    flood = b"".join(headers(2 * n + 1) + frames.rst_stream(2 * n + 1, 8) for n in range(11_000))
    events = connection.receive(flood)
    assert events[-1][0] == ev.FAULT
    assert events[-1][2].code == ErrorCode.ENHANCE_YOUR_CALM


def test_a_header_block_without_an_end_ends_the_connection() -> None:
    """CVE-2024-27316."""
    begin = frames.frame_header(1, HEADERS, 0, 1) + b"\x82"
    for part in (b"", b"\x82" * 16_000):
        flood = frames.frame_header(len(part), 9, 0, 1) + part
        events = server().receive(begin + flood * 100)
        assert events[-1][2].code == ErrorCode.ENHANCE_YOUR_CALM


def test_a_header_list_above_the_limit_leaves_the_connection_usable() -> None:
    connection = server()
    field = (b"x-long", b"y" * 30_000)
    block = REQUEST + Connection.encode([field] * 2)
    assert len(block) < 64 << 10
    large = frames.header_block(1, block + Connection.encode([(b"a", b"b")] * 200), True, 16_384)
    (event,) = connection.receive(large)
    assert event[0] == ev.TOO_LARGE
    (event,) = connection.receive(headers(3, end=True))
    assert event[0] == ev.HEADERS
