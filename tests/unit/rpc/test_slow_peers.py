"""Slow peers: those that stop are ended within 5 s, those that continue are served. The clock is virtual."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

import trovemq_rpc as rpc
from tests.unit.rpc.memory_rpc import TARGET, Options, run, serving
from tests.unit.rpc.test_hostile_peers import (
    CALL,
    LARGE,
    OPENING,
    SMALL,
    Raw,
    hostile,
    others_are_served,
    request,
)
from trovemq_daemon.tls import development_identity
from trovemq_rpc.http2 import frames
from trovemq_rpc.http2.constants import ErrorCode
from trovemq_rpc.testing.loop import MemoryLoop
from trovemq_rpc.tls import Tls

GIANTS = [("grpc.max_receive_message_length", 140 << 20)]
END_S = 5.0 + 0.05  # as often as a test looks
HEAD = frames.frame_header(len(CALL), 1, 4, 1) + CALL
GIANT = b"\0" + (130 << 20).to_bytes(4, "big")
RESET = frames.rst_stream(1, ErrorCode.ENHANCE_YOUR_CALM)


def data(body: bytes, end: bool = False) -> bytes:
    return frames.frame_header(len(body), 0, int(end), 1) + body


def goaway(peer: Raw) -> bool:
    return b"a frame that does not end" in peer.came


async def seconds_until(loop: MemoryLoop, condition: Callable[[], bool]) -> float:
    began = loop.time()
    while not condition():
        await asyncio.sleep(0.05)
    return loop.time() - began


async def byte_a_second(transport: Any, body: bytes) -> None:
    for byte in body:
        transport.write(bytes([byte]))
        await asyncio.sleep(1)


@pytest.mark.parametrize("drip", [False, True], ids=["nothing", "a byte a second"])
def test_a_message_of_which_nothing_follows_is_reset_within_5_seconds(drip: bool) -> None:
    async def program(loop: MemoryLoop) -> None:
        async with serving(loop, GIANTS) as server:
            transport, peer = await hostile(loop)
            transport.write(OPENING + HEAD + data(GIANT + bytes(1_000)))
            wait = seconds_until(loop, lambda: RESET in peer.came or goaway(peer))
            dripping = asyncio.ensure_future(byte_a_second(transport, data(b"x") * 3 if drip else b""))
            assert await wait <= END_S
            dripping.cancel()
            await asyncio.sleep(2)
            assert server.metrics.calls_stalled == 1
            assert server.endpoint_options.budget.held == 0
            await others_are_served(loop)

    run(program)


def test_a_frame_of_which_a_byte_comes_a_second_ends_the_connection() -> None:
    async def program(loop: MemoryLoop) -> None:
        async with serving(loop):
            transport, peer = await hostile(loop)
            transport.write(OPENING + HEAD)
            dripping = asyncio.ensure_future(byte_a_second(transport, data(bytes(1_000))))
            assert await seconds_until(loop, lambda: goaway(peer)) <= END_S
            dripping.cancel()
            await others_are_served(loop)

    run(program)


@pytest.mark.parametrize("frame_size", [100, 16_000], ids=["small frames", "one frame"])
def test_a_message_that_comes_slowly_is_waited_for(frame_size: int) -> None:
    body = b"\0\0\0\x3e\x7b" + bytes(15_995)

    async def program(loop: MemoryLoop) -> None:
        async with serving(loop) as server:
            transport, peer = await hostile(loop)
            wire = b"".join(data(body[at : at + frame_size]) for at in range(0, len(body), frame_size))
            transport.write(OPENING + HEAD)
            for at in range(0, len(wire), 250):
                transport.write(wire[at : at + 250])
                await asyncio.sleep(1)
            transport.write(data(b"", end=True))
            await asyncio.sleep(1)
            assert server.metrics.calls_ended == {"OK": 1}
            assert not peer.lost

    run(program)


def test_a_message_that_waits_for_its_reader_is_not_taken_for_stalled() -> None:
    """The handler reads nothing for a minute; the window is full, with a message half sent."""
    asked = asyncio.Event()
    sizes: list[int] = []

    async def late(requests: Any, _context: Any) -> bytes:
        await asked.wait()
        sizes.extend([len(request) async for request in requests])
        return b"read"

    async def program(loop: MemoryLoop) -> None:
        async with serving(loop) as server, rpc.insecure_channel(TARGET) as channel:
            handlers = {"Late": rpc.stream_unary_rpc_method_handler(late)}
            server.add_generic_rpc_handlers((rpc.method_handlers_generic_handler("t.Late", handlers),))
            call = channel.stream_unary("/t.Late/Late")(iter([bytes(20_000)] * 10))
            await asyncio.sleep(60)
            asked.set()
            assert bytes(await call) == b"read"
            assert sizes == [20_000] * 10

    run(program)


def test_a_pause_of_our_own_loop_is_not_the_peers() -> None:
    async def program(loop: MemoryLoop) -> None:
        async with serving(loop) as server:
            transport, _ = await hostile(loop)
            transport.write(OPENING + HEAD + data(SMALL[:-1]))
            await asyncio.sleep(0.5)
            loop.now_s += 30
            await asyncio.sleep(2)
            transport.write(data(SMALL[-1:], end=True))
            await asyncio.sleep(1)
            assert server.metrics.calls_ended == {"OK": 1}

    run(program)


# --- TLS ------------------------------------------------------------------------------------------------
class SealedPeer(Raw):
    """A TLS client whose handshake takes its steps when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        self.tls = Tls(context, False)

    def step(self) -> bytes:
        self.tls.feed(memoryview(bytes(self.came)))
        self.came.clear()
        self.tls.handshake()
        return self.tls.take_output()


def secured(program: Callable[[MemoryLoop], Awaitable[None]], options: Options = ()) -> None:
    identity = development_identity((), datetime.now(UTC))
    credentials = rpc.ssl_server_credentials(((identity.key, identity.certificate),))

    async def whole(loop: MemoryLoop) -> None:
        async with serving(loop, options, credentials=credentials):
            await program(loop)

    run(whole)


@pytest.mark.parametrize("steps", [0, 1], ids=["half a hello", "a whole hello"])
def test_a_handshake_that_never_ends_is_closed_within_5_seconds(steps: int) -> None:
    async def program(loop: MemoryLoop) -> None:
        transport, peer = await loop.create_connection(SealedPeer, "127.0.0.1", 50_051)
        hello = peer.step()
        transport.write(hello if steps else hello[:40])
        dripping = asyncio.ensure_future(byte_a_second(transport, hello[40:] if not steps else b""))
        assert await seconds_until(loop, lambda: peer.lost) <= END_S
        dripping.cancel()

    secured(program)


def test_a_handshake_whose_steps_are_slow_is_waited_for() -> None:
    async def program(loop: MemoryLoop) -> None:
        transport, peer = await loop.create_connection(SealedPeer, "127.0.0.1", 50_051)
        for _ in range(2):
            await asyncio.sleep(3.5)
            transport.write(peer.step())
        await asyncio.sleep(3.5)
        transport.write(peer.tls.seal((OPENING, request(1, SMALL))))
        await asyncio.sleep(1)
        assert not peer.lost
        assert peer.came

    secured(program)


def test_a_tls_client_that_read_nothing_stopped_all_ticks() -> None:
    """The server's bytes waited for it, so the connection was not lost yet; the next PING could not be
    sealed, and its error ended the ticks of all connections."""
    reported: list[Any] = []
    unread = [OPENING, frames.window_update(0, 0x7FFF0000), frames.settings([(4, 0x7FFFFFFF)])]
    unread += (request(2 * number + 1, LARGE) for number in range(200))

    async def program(loop: MemoryLoop) -> None:
        loop.set_exception_handler(lambda _, context: reported.append(context))
        transport, peer = await loop.create_connection(SealedPeer, "127.0.0.1", 50_051)
        for _ in range(2):
            await asyncio.sleep(1)
            transport.write(peer.step())
        await asyncio.sleep(1)
        transport.pause_reading()
        transport.write(peer.tls.seal(unread))
        await asyncio.sleep(1)
        transport.write(peer.tls.seal([frames.frame_header(8, 6, 0, 1), bytes(8)]))  # a PING on a stream
        await asyncio.sleep(20)
        assert reported == []
        assert peer.lost

    secured(program, [("grpc.keepalive_time_ms", 10_000), ("grpc.keepalive_timeout_ms", 5_000)])
