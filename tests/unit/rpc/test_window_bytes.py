"""Bytes of the peer's DATA that no handler reads: their part of the windows, and the limits of streams."""

from __future__ import annotations

import pytest

from tests.unit.rpc.test_streams import headers, reset_sent, server
from trovemq_rpc.http2 import events as ev
from trovemq_rpc.http2 import frames
from trovemq_rpc.http2.connection import Connection
from trovemq_rpc.http2.constants import DATA, PADDED, PREFACE, ErrorCode
from trovemq_rpc.http2.limits import Limits


def data(stream_id: int, content: bytes, padding: int = 0) -> bytes:
    payload = bytes([padding]) + content + bytes(padding) if padding else content
    return frames.frame_header(len(payload), DATA, PADDED if padding else 0, stream_id) + payload


def test_a_peer_that_ignored_the_window_of_its_stream_was_not_ended() -> None:
    """The connection's window is larger: it alone does not bound one call."""
    connection = server()
    connection.receive(headers())
    window = connection.limits.stream_window
    assert window * 2 < connection.receive_window
    found = [event for size in (window, 1) for event in connection.receive(data(1, bytes(size)))]
    assert [kind for kind, *_ in found] == [ev.DATA, ev.FAULT]
    assert found[-1][2].code == ErrorCode.FLOW_CONTROL_ERROR


@pytest.mark.parametrize("what", ["padding", "a stream that was reset"])
def test_the_window_of_a_connection_shrank_by_bytes_that_nobody_gets(what: str) -> None:
    connection = server()
    events = connection.receive(headers())
    if what == "padding":
        given = 1  # the layer above gives this byte back
        connection.receive(data(1, b"x", padding=199))
    else:
        given = 0
        connection.reset(events[0][1], ErrorCode.CANCEL)
        connection.receive(data(1, bytes(200)))
    unread = connection.limits.connection_window - connection.receive_window - connection.unacknowledged
    assert unread == given, "all other bytes are acknowledged"


def test_a_client_had_one_stream_more_than_it_may() -> None:
    connection = Connection(False, Limits(concurrent_streams_max=2))
    connection.receive(PREFACE + frames.settings(()))
    connection.take_output()
    connection.receive(headers(1))
    connection.lingering = 1  # the handler of a call that its client has reset still runs
    assert reset_sent(connection) == []
    connection.receive(headers(3))
    assert reset_sent(connection) == [ErrorCode.REFUSED_STREAM]


def test_a_stream_whose_data_waits_took_the_turns_of_the_others() -> None:
    client = Connection(client_side=True)
    client.receive(frames.settings(()))
    client.transport_writable(False)
    streams = [client.open_stream(b"\x80") for _ in range(2)]
    for stream in streams:
        client.send_data(stream, (bytes(40_000),), 40_000)
    client.take_output()
    client.transport_writable(True)
    order = []
    output, at = b"".join(bytes(piece) for piece in client.take_output()), 0
    while at < len(output):
        high, low, kind, _, stream_id = frames.FRAME_HEADER.unpack_from(output, at)
        at += 9 + (high << 16 | low)
        order += [stream_id] if kind == DATA else []
    assert order[:4] == [1, 3, 1, 3]
