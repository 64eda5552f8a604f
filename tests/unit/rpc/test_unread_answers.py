"""Answers that their clients do not read: the budget counts them, and they do not lie there for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import trovemq_rpc as rpc
from tests.unit.rpc.memory_rpc import TARGET, run, serving
from tests.unit.rpc.test_hostile_peers import LARGE, OPENING, hostile, others_are_served, request
from trovemq_rpc.http2 import frames
from trovemq_rpc.http2.connection import Connection
from trovemq_rpc.testing.loop import MemoryLoop

MIB = 1 << 20
STREAMS = 20
SMALL_WINDOWS = frames.settings([(4, 1)])  # a byte of each stream


def unread(loop: MemoryLoop) -> Any:
    """A peer whose requests are answered and that takes a byte of each answer."""
    return b"".join([OPENING, SMALL_WINDOWS, *(request(2 * n + 1, LARGE) for n in range(STREAMS))])


def test_answers_that_were_not_read_had_no_budget() -> None:
    async def program(loop: MemoryLoop) -> None:
        budget = rpc.BytesBudget(64 * MIB)
        async with serving(loop, [("trovemq.budget", budget)]) as server:
            transport, _ = await hostile(loop)
            transport.write(unread(loop))
            await asyncio.sleep(1)
            assert server.metrics.calls_active == 0  # answered, as far as the handlers know
            assert budget.output_held == budget.held == STREAMS * (len(LARGE) - 1)
            transport.write(b"".join(frames.window_update(2 * n + 1, len(LARGE)) for n in range(STREAMS)))
            transport.write(frames.window_update(0, STREAMS * len(LARGE)))
            await asyncio.sleep(1)
            assert (budget.output_held, budget.held) == (0, 0)

    run(program)


@pytest.mark.parametrize("end", ["the stream's reset", "the connection's end"])
def test_an_unread_answer_leaves_the_budget_with(end: str) -> None:
    async def program(loop: MemoryLoop) -> None:
        budget = rpc.BytesBudget(64 * MIB)
        async with serving(loop, [("trovemq.budget", budget)]):
            transport, _ = await hostile(loop)
            transport.write(unread(loop))
            await asyncio.sleep(1)
            assert budget.held > 0
            if end == "the connection's end":
                transport.abort()
            else:
                transport.write(b"".join(frames.rst_stream(2 * n + 1, 8) for n in range(STREAMS)))
            await asyncio.sleep(1)
            assert (budget.output_held, budget.held) == (0, 0)

    run(program)


def test_an_answer_that_nobody_reads_was_kept_for_ever() -> None:
    async def program(loop: MemoryLoop) -> None:
        budget = rpc.BytesBudget(64 * MIB)
        options = [("trovemq.budget", budget), ("trovemq.unread_timeout_ms", 4_000)]
        async with serving(loop, options) as server:
            transport, _ = await hostile(loop)
            transport.write(unread(loop))
            await asyncio.sleep(3)
            assert server.metrics.calls_unread == 0
            await asyncio.sleep(4)
            assert server.metrics.calls_unread == STREAMS
            assert budget.held == 0
            await others_are_served(loop)

    run(program)


def test_an_answer_that_is_read_slowly_is_waited_for() -> None:
    async def program(loop: MemoryLoop) -> None:
        async with serving(loop, [("trovemq.unread_timeout_ms", 4_000)]) as server:
            transport, peer = await hostile(loop)
            transport.write(OPENING + SMALL_WINDOWS + request(1, LARGE))
            for _ in range(16):
                await asyncio.sleep(3)
                transport.write(frames.window_update(1, 1_000))
            await asyncio.sleep(1)
            assert server.metrics.calls_unread == 0
            assert len(peer.came) > len(LARGE)

    run(program)


def test_a_handler_that_writes_to_nobody_is_ended() -> None:
    ended = asyncio.Event()

    async def pour(_request: bytes, _context: Any) -> AsyncIterator[bytes]:
        try:
            while True:
                yield bytes(100_000)
        finally:
            ended.set()

    async def program(loop: MemoryLoop) -> None:
        async with serving(loop, [("trovemq.unread_timeout_ms", 4_000)]) as server:
            server.add_registered_method_handlers("a.A", {"Pour": rpc.unary_stream_rpc_method_handler(pour)})
            async with rpc.insecure_channel(TARGET) as channel:
                call = channel.unary_stream("/a.A/Pour")(b"")
                await call.read()
                async with asyncio.timeout(60):
                    await ended.wait()
                assert server.metrics.calls_unread == 1

    run(program)


def test_small_answers_of_one_turn_were_counted_at_its_end() -> None:
    """In that iteration, each call that asked for space for a large answer got it, two hundred times."""
    steps: list[int] = []

    class Noting(rpc.BytesBudget):
        def set_output(self, holder: Any, size: int) -> None:
            steps.append(size - holder.output_held)
            super().set_output(holder, size)

    async def program(loop: MemoryLoop) -> None:
        budget = Noting(64 * MIB)
        async with serving(loop, [("trovemq.budget", budget)]):
            transport, _ = await hostile(loop)
            transport.write(unread(loop))
            await asyncio.sleep(1)
            assert budget.output_held == STREAMS * (len(LARGE) - 1)
            assert max(steps) <= (64 << 10) + len(LARGE)

    run(program)


REFUSED = Connection.encode(
    [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/no/Method"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
    ]
)
PING_BESIDE_A_WINDOW = frames.window_update(0, 1) + frames.ping(bytes(8))


def refused_calls(first: int) -> bytes:
    head = frames.frame_header(len(REFUSED), 1, 5, 0)[:5]
    numbers = range(first * 2 + 1, (first + 15_000) * 2, 2)
    return b"".join(head + number.to_bytes(4, "big") + REFUSED for number in numbers)


def pings(_first: int) -> bytes:
    return PING_BESIDE_A_WINDOW * 15_000


@pytest.mark.slow
@pytest.mark.parametrize("flood", [refused_calls, pings])
def test_a_peer_that_reads_nothing_took_memory_without_end(flood: Callable[[int], bytes]) -> None:
    """No window limits headers and answers to PING: 12 MB a second, which also took everybody's budget."""

    async def program(loop: MemoryLoop) -> None:
        budget = rpc.BytesBudget(64 * MIB)
        async with serving(loop, [("trovemq.budget", budget)]) as server:
            transport, peer = await hostile(loop)
            transport.write(OPENING)
            await asyncio.sleep(1)
            transport.pause_reading()
            for second in range(12):
                transport.write(flood(second * 15_000))
                await asyncio.sleep(1)
                assert budget.held < 4 * MIB
            assert peer.lost
            assert server.metrics.calls_unread == 1
            assert budget.held == 0
            await others_are_served(loop)

    run(program)


def test_a_client_that_reads_late_gets_the_answers_to_1000_calls() -> None:
    async def program(loop: MemoryLoop) -> None:
        async with serving(loop) as server:
            transport, peer = await hostile(loop)
            transport.write(OPENING + frames.window_update(0, 64 * MIB))
            await asyncio.sleep(1)
            transport.pause_reading()
            transport.write(b"".join(request(2 * n + 1, LARGE) for n in range(1_000)))
            await asyncio.sleep(5)
            transport.resume_reading()
            await asyncio.sleep(5)
            assert len(peer.came) > 1_000 * len(LARGE)
            assert server.metrics.calls_unread == 0

    run(program)
