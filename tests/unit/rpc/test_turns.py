"""A connection gets a share of a turn of the loop, whatever there is of its input, and leaves no cycles."""

import asyncio
import gc
from typing import Any

import pytest

import trovemq_rpc as rpc
from tests.unit.rpc.memory_rpc import ADDRESS, TARGET, run, serving
from tests.unit.rpc.test_hostile_bytes import BLOCK, frame
from trovemq_rpc.http2 import frames
from trovemq_rpc.http2.connection import Connection
from trovemq_rpc.http2.constants import PREFACE, ErrorCode
from trovemq_rpc.rest import RESTS_SIZE_MAX
from trovemq_rpc.server.head import read_head
from trovemq_rpc.testing.loop import MemoryLoop

OPENING = PREFACE + frames.settings(()) + frames.SETTINGS_ACK
ECHO = Connection.encode(
    [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/t.T/Echo"),
        (b":authority", b"a"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
    ]
)
STREAMS = 5_000
RESETS = b"".join(
    frame(1, 5, stream_id, BLOCK) + frames.rst_stream(stream_id, ErrorCode.CANCEL)
    for stream_id in range(1, 2 * STREAMS, 2)
)


class _Peer(asyncio.Protocol):
    """Writes raw bytes and keeps what comes."""

    def __init__(self) -> None:
        self.received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self.received += data


async def _written(loop: MemoryLoop, wire: bytes) -> _Peer:
    """A peer whose server begins to read `wire` now, all at once."""
    peer = _Peer()
    await loop.create_connection(lambda: peer, *ADDRESS)
    peer.transport.write(OPENING)
    await asyncio.sleep(1)
    peer.transport.write(wire)
    return peer


def _opened(server: Any) -> int:
    return max(int(endpoint.connection.streams_opened) for endpoint in server.endpoints)


def test_a_flood_read_at_once_held_up_everybody_else() -> None:
    async def program(loop: MemoryLoop) -> None:
        async with serving(loop) as server, rpc.insecure_channel(TARGET) as channel:
            echo = channel.unary_unary("/t.T/Echo")
            await echo(b"")
            await _written(loop, RESETS)
            assert await echo(b"x") == b"x"
            assert _opened(server) < STREAMS / 5
            await asyncio.sleep(1)
            assert _opened(server) == STREAMS

    run(program)


def test_what_a_turn_leaves_of_a_read_is_handled_in_order_and_whole() -> None:
    calls = b"".join(
        frame(1, 4, stream_id, ECHO) + frame(0, 1, stream_id, b"\0\0\0\0\1x")
        for stream_id in range(1, 1_800, 2)
    )
    half = len(calls) // 2 + 3  # within a frame

    async def program(loop: MemoryLoop) -> None:
        async with serving(loop) as server:
            peer = await _written(loop, calls[:half])
            peer.transport.write(calls[half:])
            await asyncio.sleep(5)
            assert server.metrics.calls_ended == {"OK": 900}
            assert loop_rests(server) == 0

    run(program)


def loop_rests(server: Any) -> int:
    return int(server.parts.rests_size)


def test_a_lost_connection_leaves_nothing_for_the_next_turn() -> None:
    async def program(loop: MemoryLoop) -> None:
        async with serving(loop) as server:
            peer = await _written(loop, RESETS)
            for _ in range(1_000):
                if loop_rests(server):
                    break
                await asyncio.sleep(0)
            assert 0 < loop_rests(server) <= RESTS_SIZE_MAX
            peer.transport.abort()
            await asyncio.sleep(1)
            assert loop_rests(server) == 0
            assert not server.endpoints

    run(program)


@pytest.mark.parametrize("end", [b"", frame(6, 0, 0, bytes(8)) * 1_000, b"\xff" * 64])
def test_requests_and_a_fault_leave_nothing_to_the_garbage_collector(end: bytes) -> None:
    def once() -> None:
        server = Connection(client_side=False)
        for _, _, head, _ in server.receive(OPENING + frame(1, 5, 1, BLOCK) + end):
            if hasattr(head, "cache"):
                head.cache = read_head(head, None)

    once()
    gc.collect()
    gc.disable()
    try:
        once()
        assert gc.collect() == 0
    finally:
        gc.enable()
