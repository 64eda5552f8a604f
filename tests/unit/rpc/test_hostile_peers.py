"""Hostile peers of a whole server, as raw bytes over the network in memory; the clock is the loop's."""

import asyncio
import tracemalloc
from datetime import UTC, datetime
from typing import Any

import pytest

import trovemq_rpc as rpc
from tests.unit.rpc.memory_rpc import ADDRESS, TARGET, run, serving
from trovemq_daemon.tls import development_identity
from trovemq_rpc.http2 import frames
from trovemq_rpc.http2.connection import Connection
from trovemq_rpc.http2.constants import PREFACE
from trovemq_rpc.testing.loop import MemoryLoop

OPENING = PREFACE + frames.settings(()) + frames.SETTINGS_ACK
CALL = Connection.encode(
    [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/t.T/Echo"),
        (b":authority", b"a"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
    ]
)
SMALL = b"\0\0\0\0\1x"
LARGE = b"\0\0\0\x3e\x80" + bytes(16_000)


class Raw(asyncio.Protocol):
    """A peer that writes a test's bytes."""

    def __init__(self) -> None:
        self.came = bytearray()
        self.lost = False

    def data_received(self, data: bytes) -> None:
        self.came += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True


async def hostile(loop: MemoryLoop) -> tuple[Any, Raw]:
    return await loop.create_connection(Raw, *ADDRESS)


async def others_are_served(loop: MemoryLoop) -> None:
    async with rpc.insecure_channel(TARGET) as channel:
        began = loop.time()
        assert bytes(await channel.unary_unary("/t.T/Echo")(b"x", timeout=1)) == b"x"
        assert loop.time() - began < 1


def request(stream_id: int, body: bytes) -> bytes:
    head = frames.frame_header(len(CALL), 1, 4, stream_id) + CALL
    return head + frames.frame_header(len(body), 0, 1, stream_id) + body


@pytest.mark.slow
def test_a_peer_that_opens_streams_and_reads_nothing_costs_bounded_memory() -> None:
    async def program(loop: MemoryLoop) -> None:
        async with serving(loop):
            transport, _ = await hostile(loop)
            transport.pause_reading()
            transport.write(
                OPENING + frames.window_update(0, 0x7FFF0000) + frames.settings([(4, 0x7FFFFFFF)])
            )
            await asyncio.sleep(1)
            tracemalloc.start()
            try:
                for number in range(3_000):  # 48 MiB of answers
                    transport.write(request(2 * number + 1, LARGE))
                    await asyncio.sleep(0.01)
                held, _ = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert held < 24 << 20, held
            await others_are_served(loop)

    run(program)


@pytest.mark.parametrize(
    "first", [b"", PREFACE[:5], OPENING + b"\0\0\x40\1"], ids=["silent", "preface", "frame"]
)
def test_a_byte_a_second_holds_up_nobody(first: bytes) -> None:
    async def program(loop: MemoryLoop) -> None:
        async with serving(loop):
            transport, _ = await hostile(loop)
            for byte in first:
                transport.write(bytes([byte]))
                await asyncio.sleep(1)
            await others_are_served(loop)

    run(program)


@pytest.mark.parametrize("first", [b"", PREFACE[:5], b"\x16\x03\x01"], ids=["silent", "preface", "TLS hello"])
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
def test_a_connection_that_never_begins_is_closed(first: bytes, tls: bool) -> None:
    identity = development_identity((), datetime.now(UTC))
    credentials = rpc.ssl_server_credentials(((identity.key, identity.certificate),)) if tls else None

    async def program(loop: MemoryLoop) -> None:
        async with serving(loop, credentials=credentials):
            transport, peer = await hostile(loop)
            transport.write(first)
            await asyncio.sleep(5.1)
            assert peer.lost

    run(program)


def test_a_peer_that_is_lost_in_the_middle_of_calls_leaves_nothing_behind() -> None:
    async def program(loop: MemoryLoop) -> None:
        async with serving(loop) as server:
            for _ in range(50):
                transport, _ = await hostile(loop)
                transport.write(OPENING + b"".join(request(2 * n + 1, SMALL) for n in range(20)))
                await asyncio.sleep(0.001)
                transport.abort()
            await asyncio.sleep(10)
            assert server.metrics.calls_active == 0
            assert not server.endpoints
            await others_are_served(loop)

    run(program)


def test_announced_giants_of_a_lost_connection_kept_their_space() -> None:
    """With 900 of them waiting for space, the end of the connection was a RecursionError."""
    giant = b"\0" + (100 << 20).to_bytes(4, "big") + bytes(1_000)
    options = [("grpc.max_receive_message_length", 140 << 20)]

    async def program(loop: MemoryLoop) -> None:
        async with serving(loop, options) as server:
            transport, _ = await hostile(loop)
            transport.write(OPENING)
            for number in range(900):
                head = frames.frame_header(len(CALL), 1, 4, 2 * number + 1) + CALL
                transport.write(head + frames.frame_header(len(giant), 0, 0, 2 * number + 1) + giant)
            await asyncio.sleep(1)
            budget = server.endpoint_options.budget
            assert budget.refused > 800
            transport.abort()
            await asyncio.sleep(1)
            assert (budget.held, budget.large_held, budget.admissions) == (0, 0, 0)
            await others_are_served(loop)

    run(program)


def test_giants_that_were_cancelled_kept_their_places_in_the_queue() -> None:
    """Each kept its call, for as long as one giant before them made its slow progress."""
    giant = b"\0" + (100 << 20).to_bytes(4, "big") + bytes(1_000)
    options = [("grpc.max_receive_message_length", 140 << 20)]

    def opened(stream_id: int) -> bytes:
        head = frames.frame_header(len(CALL), 1, 4, stream_id) + CALL
        return head + frames.frame_header(len(giant), 0, 0, stream_id) + giant

    async def program(loop: MemoryLoop) -> None:
        async with serving(loop, options) as server:
            budget = server.endpoint_options.budget
            for _ in range(3):  # more than the budget has space for
                transport, _ = await hostile(loop)
                transport.write(OPENING + opened(1))
            transport, _ = await hostile(loop)
            transport.write(OPENING)
            for first in range(1, 1_001, 200):
                ids = range(first, first + 200, 2)
                transport.write(b"".join(map(opened, ids)))
                await asyncio.sleep(0.1)
                transport.write(b"".join(frames.rst_stream(stream_id, 8) for stream_id in ids))
                await asyncio.sleep(0.1)
            assert budget.refused > 500
            assert budget.admissions_waiting <= 2
            await others_are_served(loop)

    run(program)


def test_messages_that_are_only_announced_cost_no_memory() -> None:
    """Their whole length was allocated at once: 300 streams of 4 MiB each held more than 1 GiB."""
    announced = b"\0" + (4 << 20).to_bytes(4, "big")

    async def program(loop: MemoryLoop) -> None:
        async with serving(loop):
            transport, _ = await hostile(loop)
            tracemalloc.start()
            try:
                transport.write(OPENING)
                for number in range(300):
                    head = frames.frame_header(len(CALL), 1, 4, 2 * number + 1) + CALL
                    transport.write(head + frames.frame_header(5, 0, 0, 2 * number + 1) + announced)
                await asyncio.sleep(1)
                held, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert peak < 8 << 20, (held, peak)
            await others_are_served(loop)

    run(program)
