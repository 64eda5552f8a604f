"""Calls that wait for a connection, or for space on one: each is sent when there is space, or ends."""

import asyncio
from typing import Any, ClassVar

import pytest

import trovemq_rpc as rpc
from tests.unit.rpc.memory_rpc import ADDRESS, TARGET, run, serving
from trovemq_rpc.http2 import frames
from trovemq_rpc.testing.loop import MemoryLoop

ONE_STREAM = [("grpc.max_concurrent_streams", 1)]
LONG_S = 500  # of the loop's clock


def waiting_behind_another(program: Any) -> None:
    """Runs the program beside a call of 10 s that takes the only stream that the server grants."""

    async def whole(loop: MemoryLoop) -> None:
        async with serving(loop, ONE_STREAM), rpc.insecure_channel(TARGET) as channel:
            await channel.unary_unary("/t.T/Echo")(b"")  # the server's settings are known
            first = channel.unary_unary("/t.T/Wait")(b"10")
            async with asyncio.timeout(LONG_S):
                await program(loop, channel)
            await first

    run(whole)


def test_wait_for_connection_ends_when_a_stream_becomes_free() -> None:
    async def program(loop: MemoryLoop, channel: Any) -> None:
        call = channel.unary_unary("/t.T/Echo")(b"x")
        await call.wait_for_connection()
        assert 10 <= loop.time() < 11
        assert await call == b"x"

    waiting_behind_another(program)


def test_wait_for_connection_ends_at_the_deadline_without_a_stream() -> None:
    async def program(loop: MemoryLoop, channel: Any) -> None:
        call = channel.unary_unary("/t.T/Echo")(b"x", timeout=3)
        with pytest.raises(rpc.AioRpcError) as failed:
            await call.wait_for_connection()
        assert failed.value.code() == rpc.StatusCode.DEADLINE_EXCEEDED
        assert 3 <= loop.time() < 4

    waiting_behind_another(program)


def test_wait_for_connection_ends_when_the_call_is_cancelled() -> None:
    async def program(loop: MemoryLoop, channel: Any) -> None:
        call = channel.unary_unary("/t.T/Echo")(b"x")
        loop.call_later(2, call.cancel)
        with pytest.raises(asyncio.CancelledError):
            await call.wait_for_connection()
        assert 2 <= loop.time() < 3

    waiting_behind_another(program)


class _DrainsAtOnce(asyncio.Protocol):
    """A server whose settings and GOAWAY come in one piece."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.write(frames.settings(()) + frames.goaway(0, 0, b"draining"))  # type: ignore[attr-defined]


def test_a_call_waited_for_ever_behind_a_server_that_drained_at_once() -> None:
    async def program(loop: MemoryLoop) -> None:
        loop.now_s = 1
        draining = await loop.create_server(_DrainsAtOnce, *ADDRESS)
        async with rpc.insecure_channel(TARGET) as channel:
            call = channel.unary_unary("/t.T/Echo")(b"x", wait_for_ready=True)
            await asyncio.sleep(0.05)
            assert loop.connections, "it has connected"
            draining.close()
            async with serving(loop), asyncio.timeout(LONG_S):
                assert await call == b"x"

    run(program)


class _ClosesAtOnce(asyncio.Protocol):
    """A server that closes each connection behind its settings."""

    times: ClassVar[list[float]] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.times.append(asyncio.get_running_loop().time())
        transport.write(frames.settings(()))  # type: ignore[attr-defined]
        transport.close()


def test_calls_waited_behind_a_server_that_closes_each_connection() -> None:
    async def program(loop: MemoryLoop) -> None:
        loop.now_s = 1
        _ClosesAtOnce.times = []
        await loop.create_server(_ClosesAtOnce, *ADDRESS)
        async with rpc.insecure_channel(TARGET) as channel:
            echo = channel.unary_unary("/t.T/Echo")
            patient = echo(b"x", timeout=30, wait_for_ready=True)
            with pytest.raises(rpc.AioRpcError) as failed:
                await echo(b"x", timeout=30)
            assert failed.value.code() == rpc.StatusCode.UNAVAILABLE
            assert loop.time() < 2
            with pytest.raises(rpc.AioRpcError) as failed:
                await patient
            assert failed.value.code() == rpc.StatusCode.DEADLINE_EXCEEDED
            # 1 s, 1.6 s, 2.6 s, ... with a fifth of jitter: not one attempt each 0.1 s
            assert 4 <= len(_ClosesAtOnce.times) <= 8

    run(program)


def test_a_call_fails_where_its_two_addresses_fail_at_different_times() -> None:
    async def program(loop: MemoryLoop) -> None:
        options = [("grpc.lb_policy_name", "round_robin")]
        loop.names["two.test"] = ("10.0.0.1", "10.0.0.2")

        async def silent(_factory: Any, host: str, _port: int) -> Any:
            await asyncio.sleep(15 if host == "10.0.0.1" else 1e4)  # the other: 20 s
            raise OSError("nobody answers")

        loop.create_connection = silent  # type: ignore[method-assign, assignment]
        async with rpc.insecure_channel("dns:two.test:1", options=options) as channel:
            call = channel.unary_unary("/t.T/Echo")(b"x")
            with pytest.raises(rpc.AioRpcError) as failed:
                await call
            assert loop.time() < 21
            assert failed.value.code() == rpc.StatusCode.UNAVAILABLE

    run(program)
