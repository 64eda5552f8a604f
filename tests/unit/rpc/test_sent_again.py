"""Which calls a channel sends again, and to which address. The tests write their servers frame by frame."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import trovemq_rpc as rpc
from tests.unit.rpc.memory_rpc import ADDRESS, TARGET, run, serving
from trovemq_rpc.http2 import events as ev
from trovemq_rpc.http2.connection import Connection
from trovemq_rpc.http2.constants import ErrorCode
from trovemq_rpc.testing.loop import MemoryLoop

HEAD = Connection.encode([(b":status", b"200"), (b"content-type", b"application/grpc")])
OK = Connection.encode([(b"grpc-status", b"0")])
ANSWER = b"\0\0\0\0\6answer"

Script = Callable[["Scripted", Any], None]


class Scripted(asyncio.Protocol):
    """A server that runs the script for each request; `count` is the number of requests so far."""

    def __init__(self, script: Script, requests: list[int]) -> None:
        self.script = script
        self.requests = requests
        self.connection = Connection(client_side=False)

    @property
    def count(self) -> int:
        return len(self.requests)

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._write()

    def data_received(self, data: bytes) -> None:
        for kind, stream, _, _ in self.connection.receive(data):
            if kind == ev.HEADERS:
                self.requests.append(stream.id)
                self.script(self, stream)
        self._write()

    def _write(self) -> None:
        self.transport.writelines(self.connection.take_output())

    def answer(self, stream: Any) -> None:
        self.connection.send_answer(stream, HEAD, (ANSWER[:5], ANSWER[5:]), OK)


def call_of(script: Script, calls: int = 1) -> tuple[list[Any], list[int], Any]:
    """The ends of the calls, the requests that the server saw, and the channel's counters and options."""
    requests: list[int] = []
    ends: list[Any] = []
    counters: list[Any] = []

    async def program(loop: MemoryLoop) -> None:
        await loop.create_server(lambda: Scripted(script, requests), *ADDRESS)
        async with rpc.insecure_channel(TARGET) as channel:
            echo = channel.unary_unary("/t.T/Echo")
            pending = [echo(b"x", timeout=60, wait_for_ready=True) for _ in range(calls)]
            for call in pending:
                try:
                    ends.append(await call)
                except rpc.AioRpcError as error:
                    ends.append((error.code(), call.unprocessed))
            counters.append((channel.metrics, channel.options))

    run(program)
    return ends, requests, counters[0]


def refuse_first(server: Scripted, stream: Any) -> None:
    if server.count == 1:
        server.connection.reset(stream, ErrorCode.REFUSED_STREAM)
    else:
        server.answer(stream)


def test_a_refused_stream_is_sent_again() -> None:
    ends, requests, (metrics, _) = call_of(refuse_first)
    assert ends == [b"answer"]
    assert requests == [1, 3]
    assert metrics.transparent_retries == 1


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ErrorCode.CANCEL, rpc.StatusCode.CANCELLED),
        (ErrorCode.INTERNAL_ERROR, rpc.StatusCode.INTERNAL),
        (ErrorCode.ENHANCE_YOUR_CALM, rpc.StatusCode.RESOURCE_EXHAUSTED),
        (ErrorCode.INADEQUATE_SECURITY, rpc.StatusCode.PERMISSION_DENIED),
    ],
)
def test_another_reset_ends_the_call(code: ErrorCode, status: rpc.StatusCode) -> None:
    ends, requests, (metrics, _) = call_of(lambda server, stream: server.connection.reset(stream, code))
    assert ends == [(status, False)]
    assert (requests, metrics.transparent_retries) == ([1], 0)


def test_a_stream_that_was_answered_and_refused_is_not_sent_again() -> None:
    def script(server: Scripted, stream: Any) -> None:
        server.connection.send_headers(stream, HEAD)
        server.connection.reset(stream, ErrorCode.REFUSED_STREAM)

    ends, requests, _ = call_of(script)
    assert ends == [(rpc.StatusCode.UNAVAILABLE, False)]
    assert requests == [1]


def test_a_server_that_refuses_everything_is_asked_five_times() -> None:
    def script(server: Scripted, stream: Any) -> None:
        server.connection.reset(stream, ErrorCode.REFUSED_STREAM)

    ends, requests, _ = call_of(script)
    assert ends == [(rpc.StatusCode.UNAVAILABLE, True)]
    assert len(requests) == 5


def test_calls_above_the_last_id_of_a_goaway_are_sent_again() -> None:
    """Calls up to it are not, even if the connection ends without their answers."""

    def script(server: Scripted, stream: Any) -> None:
        if server.count == 3:
            server.connection.goaway(last=1)
            server.transport.writelines(server.connection.take_output())
            server.transport.close()
        elif server.count > 3:
            server.answer(stream)

    ends, requests, (metrics, _) = call_of(script, calls=3)
    assert ends == [(rpc.StatusCode.UNAVAILABLE, False), b"answer", b"answer"]
    assert requests == [1, 3, 5, 1, 3]
    assert metrics.transparent_retries == 2


def test_no_server_looked_at_a_written_stream_above_the_last_id() -> None:
    """Its messages are gone: the caller has to send it again, and may."""

    def script(server: Scripted, stream: Any) -> None:
        server.connection.goaway(last=0)

    async def program(loop: MemoryLoop) -> None:
        await loop.create_server(lambda: Scripted(script, []), *ADDRESS)
        async with rpc.insecure_channel(TARGET) as channel:
            call = channel.stream_stream("/t.T/Echo")()
            await call.write(b"x")
            with pytest.raises(rpc.AioRpcError, match="UNAVAILABLE"):
                await call.read()
            assert call.unprocessed

    run(program)


def test_no_server_looked_at_a_call_that_found_no_connection() -> None:
    async def program(_loop: MemoryLoop) -> None:
        async with rpc.insecure_channel(TARGET) as channel:
            call = channel.unary_unary("/t.T/Echo")(b"x", timeout=60)
            with pytest.raises(rpc.AioRpcError, match="UNAVAILABLE"):
                await call
            assert call.unprocessed

    run(program)


def test_a_channel_that_pings_too_often_slows_down() -> None:
    def script(server: Scripted, stream: Any) -> None:
        if server.count == 1:
            server.connection.goaway(ErrorCode.ENHANCE_YOUR_CALM, b"too_many_pings")
        server.answer(stream)

    options = [("grpc.keepalive_time_ms", 20_000)]

    async def program(loop: MemoryLoop) -> None:
        await loop.create_server(lambda: Scripted(script, []), *ADDRESS)
        async with rpc.insecure_channel(TARGET, options=options) as channel:
            assert await channel.unary_unary("/t.T/Echo")(b"x") == b"answer"
            assert channel.options.keepalive_time_s == 40
            assert channel.metrics.goaways_received == {"ENHANCE_YOUR_CALM": 1}

    run(program)


def test_an_address_that_does_not_answer_is_overtaken_by_the_next() -> None:
    async def program(loop: MemoryLoop) -> None:
        loop.names["two.test"] = ("2001:db8::1", "127.0.0.1")
        connect = loop.create_connection
        asked: list[tuple[str, float]] = []

        async def one_is_silent(factory: Any, host: str, port: int) -> Any:
            asked.append((host, loop.time()))
            if host == "2001:db8::1":
                await asyncio.sleep(1_000)
            return await connect(factory, host, port)

        loop.create_connection = one_is_silent  # type: ignore[method-assign, assignment]
        async with serving(loop), rpc.insecure_channel("dns:two.test:50051") as channel:
            assert await channel.unary_unary("/t.T/Echo")(b"x") == b"x"
        assert asked == [("2001:db8::1", 0.0), ("127.0.0.1", 0.25)]
        assert loop.time() < 2

    run(program)
