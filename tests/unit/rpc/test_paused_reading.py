"""Hostile peers and ends of all kinds while a receiver waits, and while reading pauses."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Callable, Iterable
from typing import Any

import pytest

import trovemq_rpc as rpc
from tests.unit.rpc.memory_rpc import ADDRESS, TARGET, run
from tests.unit.rpc.test_hostile_peers import OPENING, Raw
from trovemq_rpc.endpoint import LINGER_S
from trovemq_rpc.http2 import frames
from trovemq_rpc.http2.connection import Connection
from trovemq_rpc.http2.constants import ErrorCode
from trovemq_rpc.testing.loop import MemoryLoop
from trovemq_rpc.testing.transport import MemoryTransport

FIELDS = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/t.T/Talk"), (b":authority", b"a")]
CALL = Connection.encode([*FIELDS, (b"content-type", b"application/grpc"), (b"te", b"trailers")])
OPEN_CALL = frames.frame_header(len(CALL), 1, 4, 1) + CALL
PAUSE_S = 10.0


class Talk:
    """Its receiver takes messages until one says "pause": then the coroutine works for PAUSE_S."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.read: list[bytes] = []
        self.end = ""
        self.context: Any = None

    def take(self, message: bytes) -> bool:
        if message == b"pause":
            return False
        if message == b"raise":
            raise ValueError(message)
        if message == b"fail":
            self.context.fail(rpc.StatusCode.ABORTED, "enough")
        if message == b"leave":
            self.context.set_receiver(None)
        self.taken.append(message)
        return True

    async def __call__(self, _requests: Any, context: Any) -> None:
        self.context = context
        context.set_receiver(self.take)
        try:
            while (message := await context.read()) is not rpc.EOF:
                self.read.append(bytes(message))
                await asyncio.sleep(PAUSE_S if message == b"pause" else 0)
            self.end = "half-closed"
        except BaseException as error:
            self.end = type(error).__name__
            raise


class Scene:
    """A server with that handler."""

    def __init__(self, loop: MemoryLoop, deserializer: Callable[[bytes], Any] | None = None) -> None:
        self.loop = loop
        self.talk = Talk()
        self.budget = rpc.BytesBudget()
        self.server = rpc.server(options=[("trovemq.budget", self.budget)])
        handlers = {
            "Talk": rpc.stream_stream_rpc_method_handler(self.talk, request_deserializer=deserializer),
            "Echo": rpc.unary_unary_rpc_method_handler(_echo),
        }
        self.server.add_generic_rpc_handlers((rpc.method_handlers_generic_handler("t.T", handlers),))

    async def start(self) -> None:
        await self.server.start()
        await self.loop.create_server(lambda: self.server.accept(None), *ADDRESS)

    async def raw(self) -> tuple[Any, Raw]:
        transport, peer = await self.loop.create_connection(Raw, *ADDRESS)
        transport.write(OPENING + OPEN_CALL)
        await asyncio.sleep(0.1)
        return transport, peer

    async def is_at_rest(self) -> None:
        """No reply is held for the client, and others are served."""
        await asyncio.sleep(2 * PAUSE_S)
        assert (self.server.metrics.calls_active, self.budget.held) == (0, 0)
        async with rpc.insecure_channel(TARGET) as channel:
            assert bytes(await channel.unary_unary("/t.T/Echo")(b"x", timeout=1)) == b"x"


async def _echo(request: bytes, _context: Any) -> bytes:
    return request


def message(body: bytes) -> bytes:
    return b"\0" + len(body).to_bytes(4) + body


def data(*bodies: bytes, ended: bool = False) -> bytes:
    """One DATA frame."""
    payload = b"".join(map(message, bodies))
    return frames.frame_header(len(payload), 0, int(ended), 1) + payload


def test_messages_of_no_bytes_held_twenty_times_what_was_counted() -> None:
    async def program(loop: MemoryLoop) -> None:
        scene = Scene(loop)
        await scene.start()
        transport, _ = await scene.raw()
        transport.write(data(b"pause"))
        await asyncio.sleep(0.1)
        tracemalloc.start()
        try:
            for _ in range(3):
                transport.write(data(*[b""] * 3_200))
                await asyncio.sleep(0.1)
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        # tracemalloc does not see objects from Python's free lists, so more is held than it says.
        assert held <= scene.budget.held <= 3 * held
        transport.abort()
        await scene.is_at_rest()

    run(program)


def test_a_half_close_took_unread_messages_out_of_the_budget() -> None:
    async def program(loop: MemoryLoop) -> None:
        scene = Scene(loop)
        await scene.start()
        transport, _ = await scene.raw()
        transport.write(data(b"pause", bytes(50_000)))
        transport.write(data(ended=True))
        await asyncio.sleep(0.1)
        assert scene.budget.held >= 50_000
        await scene.is_at_rest()
        assert (scene.talk.read, scene.talk.end) == ([b"pause", bytes(50_000)], "half-closed")

    run(program)


ENDS: dict[str, tuple[bytes, str]] = {
    "reset": (frames.rst_stream(1, ErrorCode.CANCEL), "CancelledError"),
    "half-close": (data(ended=True), "half-closed"),
    "goaway": (frames.goaway(0, ErrorCode.NO_ERROR, b"bye") + data(ended=True), "half-closed"),
    "fault": (frames.frame_header(3, 6, 0, 0) + b"abc", "CancelledError"),
    "cut": (data(b"never whole")[:12], "CancelledError"),
}


@pytest.mark.parametrize("paused", [True, False], ids=["paused", "receiver waits"])
@pytest.mark.parametrize("name", ENDS)
def test_a_stream_that_ends_leaves_nothing_behind(name: str, paused: bool) -> None:
    last, end = ENDS[name]

    async def program(loop: MemoryLoop) -> None:
        scene = Scene(loop)
        await scene.start()
        transport, _ = await scene.raw()
        transport.write(data(b"pause"))
        if not paused:
            await asyncio.sleep(PAUSE_S + 1)
        transport.write(data(b"1", b"2") + last)
        if name == "cut":
            await asyncio.sleep(1)
            transport.abort()
        await scene.is_at_rest()
        assert scene.talk.end == end
        came = scene.talk.taken + scene.talk.read[1:]
        assert came == ([b"1", b"2"] if end == "half-closed" or not paused else [])

    run(program)


@pytest.mark.parametrize("name", ["try_send", "try_send_now"])
def test_a_reply_after_a_fault_was_written_to_a_side_that_had_ended(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The peer breaks the protocol and does not read the GOAWAY: until the connection is closed its call
    seems open. asyncio's and uvloop's transports raise for any such write."""
    writelines, late = MemoryTransport.writelines, list[bytes]()

    def strict(transport: MemoryTransport, pieces: Iterable[Any]) -> None:
        if transport._pipe.ended:
            late.extend(map(bytes, pieces))
            raise RuntimeError("Cannot call write() after write_eof()")
        writelines(transport, pieces)

    async def program(loop: MemoryLoop) -> None:
        scene = Scene(loop)
        await scene.start()
        transport, _ = await scene.raw()
        context = scene.talk.context
        assert getattr(context, name)(b"before")
        await asyncio.sleep(0.1)
        transport.pause_reading()
        transport.write(ENDS["fault"][0])
        await asyncio.sleep(0.1)
        (endpoint,) = scene.server.endpoints
        assert endpoint._lingers is not None
        monkeypatch.setattr(MemoryTransport, "writelines", strict)
        assert context.can_send
        for wait_s in (0.1, LINGER_S, 0.1):  # the last one after the endpoint has closed the transport
            getattr(context, name)(b"late")
            await asyncio.sleep(wait_s)
        assert late == []
        monkeypatch.undo()
        transport.resume_reading()
        await scene.is_at_rest()
        assert scene.talk.end == "CancelledError"

    run(program)


def test_messages_behind_a_reset_in_the_same_read_are_dropped() -> None:
    async def program(loop: MemoryLoop) -> None:
        scene = Scene(loop)
        await scene.start()
        transport, peer = await scene.raw()
        reset = frames.rst_stream(1, ErrorCode.CANCEL)
        transport.write(data(b"1") + reset + data(b"2"))
        await asyncio.sleep(0.1)
        assert not peer.lost
        assert scene.talk.taken in ([], [b"1"])
        await scene.is_at_rest()
        assert b"2" not in scene.talk.taken

    run(program)


def test_more_than_the_window_while_reading_pauses_ends_the_peer() -> None:
    async def program(loop: MemoryLoop) -> None:
        scene = Scene(loop)
        await scene.start()
        transport, peer = await scene.raw()
        transport.write(data(b"pause"))
        for _ in range(8):
            transport.write(data(bytes(16_000)))
            await asyncio.sleep(0.1)
        stream_reset = frames.rst_stream(1, ErrorCode.FLOW_CONTROL_ERROR)
        assert peer.lost or stream_reset in peer.came
        await scene.is_at_rest()

    run(program)


@pytest.mark.parametrize(
    ("bodies", "taken"),
    [
        ([b"1", b"fail", b"2"], [b"1", b"fail"]),
        ([b"1", b"raise", b"2"], [b"1"]),
        ([b"1", b"leave", b"2"], [b"1", b"leave"]),
    ],
    ids=["ends the call", "raises", "goes away"],
)
def test_a_receiver_gets_nothing_behind_its_own_end(bodies: list[bytes], taken: list[bytes]) -> None:
    async def program(loop: MemoryLoop) -> None:
        scene = Scene(loop)
        await scene.start()
        transport, _ = await scene.raw()
        transport.write(data(*bodies, ended=True))
        await scene.is_at_rest()
        assert scene.talk.taken == taken
        assert scene.talk.read == ([b"2"] if b"leave" in bodies else [])

    run(program)


def test_requests_that_cannot_be_read_fail_the_call_alone() -> None:
    """Its deserializer raises while the receiver waits."""

    async def program(loop: MemoryLoop) -> None:
        scene = Scene(loop, bytes.decode)
        await scene.start()
        async with rpc.insecure_channel(TARGET) as channel:
            call = channel.stream_stream("/t.T/Talk")()
            await call.write(b"\xff")
            with pytest.raises(rpc.AioRpcError, match="UnicodeDecodeError"):
                await call.read()
        assert scene.talk.end == "UnicodeDecodeError"
        await scene.is_at_rest()

    run(program)


@pytest.mark.parametrize("end", ["cancels", "raises", "reset", "lost"])
def test_a_client_whose_receiver_ends_holds_nothing(end: str) -> None:
    async def talk(_requests: Any, context: Any) -> None:
        await context.read()
        for _ in range(50):
            await context.write(bytes(10_000))
        if end == "reset":
            await context.abort(rpc.StatusCode.ABORTED, "enough")
        await asyncio.sleep(1_000)

    async def program(loop: MemoryLoop) -> None:
        server, budget = rpc.server(), rpc.BytesBudget()
        handlers = {"Talk": rpc.stream_stream_rpc_method_handler(talk)}
        server.add_generic_rpc_handlers((rpc.method_handlers_generic_handler("t.T", handlers),))
        await server.start()
        await loop.create_server(lambda: server.accept(None), *ADDRESS)
        taken: list[int] = []
        async with rpc.insecure_channel(TARGET, options=[("trovemq.budget", budget)]) as channel:
            call = channel.stream_stream("/t.T/Talk")()

            def take(body: bytes) -> bool:
                taken.append(len(body))
                if len(taken) == 3 and end == "cancels":
                    call.cancel()
                if len(taken) == 3 and end == "raises":
                    raise ValueError
                return len(taken) < 5

            call.set_receiver(take)
            reading = asyncio.create_task(call.read())
            await call.write(b"begin")
            await asyncio.sleep(1)
            if end == "lost":
                await server.stop(0)
            outcome = (await asyncio.gather(reading, return_exceptions=True))[0]
            if end == "cancels":
                assert (type(outcome), len(taken)) == (asyncio.CancelledError, 3)
            elif end == "raises":
                assert (type(outcome), len(taken)) == (ValueError, 3)
            else:
                assert (outcome, len(taken)) == (bytes(10_000), 5)
            call.cancel()
            await asyncio.sleep(1)
            assert budget.held == 0
        await server.stop(None)

    run(program)
