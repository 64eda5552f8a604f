"""Requests above a GOAWAY, answers that end too early, connections that lost a race, responses above the
limit. The network is in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import pytest

import trovemq_rpc as rpc
from tests.unit.rpc.memory_rpc import ADDRESS, TARGET, run
from tests.unit.rpc.test_sent_again import ANSWER, HEAD, OK, Scripted
from tests.unit.rpc.test_streams import headers, server
from tests.unit.rpc.test_window_bytes import data
from trovemq_rpc.channel.subchannel import RACE_DELAY_S
from trovemq_rpc.http2 import events as ev
from trovemq_rpc.http2 import frames
from trovemq_rpc.http2.connection import Connection
from trovemq_rpc.http2.constants import END_HEADERS, END_STREAM, HEADERS
from trovemq_rpc.testing.loop import MemoryLoop


def test_a_request_above_the_last_id_of_our_goaway_was_served() -> None:
    """Its client sends it again elsewhere. Its header fields still count in the table of all streams."""
    connection = server()
    connection.receive(headers(1))
    connection.goaway()
    added = b"\x40\x03key\x05value"  # a field that is added to the table (RFC 7541 section 6.2.1)
    above = frames.header_block(3, added, False, 16_384)
    assert connection.receive(above + data(3, b"request") + headers(5)) == []
    assert list(connection.streams) == [1]
    trailers = b"\xbe"  # the first field of the table (section 6.1)
    ((kind, stream, fields, ended),) = connection.receive(
        frames.frame_header(len(trailers), HEADERS, END_HEADERS | END_STREAM, 1) + trailers
    )
    assert (kind, stream.id, list(fields), ended) == (ev.TRAILERS, 1, [(b"key", b"value")], True)


@pytest.mark.parametrize("kind", ["unary_unary", "unary_stream"])
@pytest.mark.parametrize("cut", [ANSWER[:3], ANSWER[:7], ANSWER + ANSWER[:3], ANSWER + ANSWER[:7]])
def test_an_answer_that_was_cut_counted_as_whole(kind: str, cut: bytes) -> None:
    def script(server: Scripted, stream: Any) -> None:
        server.connection.send_headers(stream, HEAD)
        server.connection.send_data(stream, (cut,), len(cut))
        server.connection.send_headers(stream, OK, True)

    async def program(loop: MemoryLoop) -> None:
        await loop.create_server(lambda: Scripted(script, []), *ADDRESS)
        async with rpc.insecure_channel(TARGET) as channel:
            call = getattr(channel, kind)("/t.T/Echo")(b"x", timeout=60)
            assert await call.code() == rpc.StatusCode.INTERNAL
            assert await call.details() == "the response ends inside of a message"

    run(program)


class Late(asyncio.Protocol):
    """A server whose SETTINGS come `after_s` after the start of the loop."""

    def __init__(self, after_s: float, open_connections: list[Late]) -> None:
        self.after_s = after_s
        self.open_connections = open_connections

    def connection_made(self, transport: Any) -> None:
        self.open_connections.append(self)
        output = Connection(client_side=False).take_output()
        asyncio.get_running_loop().call_at(self.after_s, transport.writelines, output)

    def connection_lost(self, exc: Exception | None) -> None:
        self.open_connections.remove(self)


@pytest.mark.parametrize("first_s", [10.0, 2 * RACE_DELAY_S], ids=["late", "together"])
def test_the_loser_of_two_connections_stayed_open(first_s: float) -> None:
    loop = MemoryLoop(names={"two.test": ["10.0.0.1", "10.0.0.2"]})
    made: list[Late] = []

    async def program() -> None:
        for address, after_s in (("10.0.0.1", first_s), ("10.0.0.2", 2 * RACE_DELAY_S)):
            await loop.create_server(partial(Late, after_s, made), address, ADDRESS[1])
        async with rpc.insecure_channel(f"two.test:{ADDRESS[1]}") as channel:
            connecting = asyncio.create_task(channel.channel_ready())
            await asyncio.sleep(1.5 * RACE_DELAY_S)
            assert len(made) == 2, "both attempts run"
            await connecting
            await asyncio.sleep(0.1)
            assert len(made) == 1
            assert len(channel.endpoints) == channel.metrics.connections == 1

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(program())


LIMIT: Final = 100


def reply(call: rpc.ServerCall, message: bytes) -> None:
    call.reply(message)


def reply_all(call: rpc.ServerCall, message: bytes) -> None:
    call.reply_all([b"", message])


def try_send(call: rpc.ServerCall, message: bytes) -> None:
    call.try_send_now(message)
    call.finish(rpc.StatusCode.OK)


@pytest.mark.parametrize("size", [LIMIT, LIMIT + 1])
@pytest.mark.parametrize("answer", [reply, reply_all, try_send])
def test_a_callback_sent_a_response_above_the_limit(answer: Callable[..., None], size: int) -> None:
    def on_calls(calls: list[rpc.ServerCall]) -> None:
        for call in calls:
            answer(call, bytes(size))

    async def program(loop: MemoryLoop) -> None:
        served = rpc.server(options=[("grpc.max_send_message_length", LIMIT)])
        served.add_callback_handlers("t.T", {"Call": rpc.CallbackUnary(on_calls)})
        await served.start()
        await loop.create_server(lambda: served.accept(None), *ADDRESS)
        async with rpc.insecure_channel(TARGET) as channel:
            call = channel.unary_stream("/t.T/Call")(b"", timeout=60)
            came = []
            while (message := await _read(call)) is not rpc.EOF:
                came.append(len(message))
            if size > LIMIT:
                assert await call.code() == rpc.StatusCode.RESOURCE_EXHAUSTED
                assert f"a response of {size} bytes; at most {LIMIT}" in await call.details()
                assert size not in came
            else:
                assert await call.code() == rpc.StatusCode.OK
                assert came[-1] == size
        await served.stop(None)

    run(program)


async def _read(call: Any) -> Any:
    """The next response; EOF after the last one, and after a failure."""
    try:
        return await call.read()
    except rpc.AioRpcError:
        return rpc.EOF
