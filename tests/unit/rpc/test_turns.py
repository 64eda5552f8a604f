"""A connection gets a share of an iteration of the loop, for any amount of input, and leaves no cycles."""

import asyncio
import gc
import socket
import time
import weakref
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import accumulate
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import trovemq_rpc as rpc
from tests.support.event_loop import EventLoop
from tests.unit.rpc.memory_rpc import ADDRESS, TARGET, run, serving
from tests.unit.rpc.test_hostile_bytes import BLOCK, frame
from tests.unit.rpc.test_slow_peers import SealedPeer
from trovemq_daemon.tls import development_identity
from trovemq_rpc.endpoint import WRITE_HIGH
from trovemq_rpc.http2 import frames
from trovemq_rpc.http2.connection import Connection
from trovemq_rpc.http2.constants import PREFACE, ErrorCode
from trovemq_rpc.http2.receiving import FRAME_WORK
from trovemq_rpc.loop_parts import TICKS_MAX, LoopParts
from trovemq_rpc.rest import MESSAGES_MAX, RENEWED_BELOW, RESTS_SIZE_MAX, WORK_MAX, Share
from trovemq_rpc.server.head import read_head
from trovemq_rpc.testing.loop import MemoryLoop
from trovemq_rpc.testing.pipe import Faults

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
REQUESTS_MAX = WORK_MAX // FRAME_WORK  # a request's header block alone, if it is cached
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


async def _opened_in_a_turn(server: Any) -> int:
    """The most requests that the longest turn begins, until all STREAMS have begun."""
    before, most = _opened(server), 0
    for _ in range(10_000):
        await asyncio.sleep(0)
        most = max(most, _opened(server) - before)
        before = _opened(server)
        if before == STREAMS:
            break
    assert before == STREAMS
    return most


class _Whole(Faults):
    """What was written together is read together."""

    def piece_size(self, random: Random) -> int:
        return self.piece_size_max


def test_with_many_rests_the_next_flood_was_handled_in_one_turn() -> None:
    async def program(loop: MemoryLoop) -> None:
        async with serving(loop) as server:
            server.parts.rests_size += RESTS_SIZE_MAX
            await _written(loop, RESETS)
            assert await _opened_in_a_turn(server) <= REQUESTS_MAX
            await asyncio.sleep(1)
            assert loop_rests(server) == RESTS_SIZE_MAX

    run(program, faults=_Whole())


@pytest.mark.parametrize("rests", [0, RESTS_SIZE_MAX], ids=["no others", "many rests"])
def test_each_record_of_tls_had_a_turns_work_of_its_own(rests: int) -> None:
    identity = development_identity((), datetime.now(UTC))
    credentials = rpc.ssl_server_credentials(((identity.key, identity.certificate),))
    step = len(RESETS) // 100

    async def program(loop: MemoryLoop) -> None:
        async with serving(loop, credentials=credentials) as server:
            transport, peer = await loop.create_connection(SealedPeer, *ADDRESS)
            for _ in range(2):
                transport.write(peer.step())
                await asyncio.sleep(1)
            transport.write(peer.tls.seal((OPENING,)))
            await asyncio.sleep(1)
            server.parts.rests_size += rests
            records = [peer.tls.seal((RESETS[at : at + step],)) for at in range(0, len(RESETS), step)]
            transport.write(b"".join(records))
            turn = asyncio.ensure_future(_opened_in_a_turn(server))
            for _ in range(10):
                await asyncio.sleep(0)
            if not rests:
                assert loop_rests(server) > len(RESETS) // 2, "records that wait are counted"
            assert await turn <= REQUESTS_MAX
            await asyncio.sleep(1)
            assert loop_rests(server) == rests

    run(program, faults=_Whole())


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


@pytest.mark.parametrize(
    "end",
    [
        b"",
        frame(6, 0, 0, bytes(8)) * 1_000,
        b"\xff" * 64,
        frame(1, 5, 3, b"\x82" * 60_000),
        frame(1, 5, 3, b"\xff"),
    ],
    ids=["none", "flood", "garbage", "header bomb", "half a field"],
)
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


def _frames_in_a_turn(opening: bytes, part: Callable[[int], bytes]) -> int:
    """How many frames of a flood a connection reads before the others have their turn."""
    server = Connection(client_side=False)
    server.receive(OPENING + opening)
    parts = [part(number) for number in range(90)]
    used = server.parse(memoryview(b"".join(parts)), WORK_MAX)
    assert not server.failed
    return [*accumulate(map(len, parts))].index(used) + 1


def test_windows_of_all_streams_by_settings_took_a_turn_200_ms() -> None:
    streams = b"".join(frame(1, 4, stream_id, ECHO) for stream_id in range(1, 2_000, 2))
    read = _frames_in_a_turn(streams, lambda number: frames.settings([(4, 60_000 + number)]))
    assert read < 40


def test_each_window_of_one_settings_frame_was_given_to_all_streams() -> None:
    given: list[int] = []

    class Counting(Connection):
        def _initial_window(self, value: int) -> None:
            given.append(value)
            super()._initial_window(value)

    server = Counting(client_side=False)
    server.receive(OPENING + frame(1, 4, 1, ECHO))
    server.receive(frames.settings([(4, 60_000 + number) for number in range(64)]))
    assert given == [60_063]
    assert server.streams[1].send_window == 60_063


def test_new_header_fields_are_work_of_a_turn() -> None:
    def churn(number: int) -> bytes:
        fields = b"".join(b"\x40\x03%03d\x03abc" % (number * 10 + i) for i in range(40))
        return frame(1, 5, 2 * number + 1, ECHO + fields)

    assert _frames_in_a_turn(b"", churn) < 30
    assert _frames_in_a_turn(b"", lambda number: frame(1, 5, 2 * number + 1, ECHO)) == 90


def test_windows_opened_at_once_release_a_share_of_answers_a_turn() -> None:
    """They all left in one step of the loop: 120 MiB took 0.1 s."""
    count, message = 64, bytes(60_000)
    call = b"\0" + len(message).to_bytes(4, "big") + message
    opening = OPENING + frames.settings([(4, 0)]) + frames.window_update(0, 0x7FFF0000)

    async def program(loop: MemoryLoop) -> None:
        async with serving(loop) as server:
            peer = _Peer()
            await loop.create_connection(lambda: peer, *ADDRESS)
            peer.transport.write(opening)
            for stream_id in range(1, 2 * count, 2):
                peer.transport.write(frame(1, 4, stream_id, ECHO) + frame(0, 1, stream_id, call))
            await asyncio.sleep(1)
            (endpoint,) = server.endpoints
            assert endpoint.connection.held_back == count * len(call)
            peer.transport.pause_reading()
            before = len(peer.received)
            peer.transport.write(frames.settings([(4, 1 << 30)]))
            await asyncio.sleep(1)
            assert endpoint.transport.get_write_buffer_size() < 2 * WRITE_HIGH
            peer.transport.resume_reading()
            await asyncio.sleep(1)
            assert endpoint.connection.held_back == 0
            assert len(peer.received) - before > count * len(call)
            assert server.metrics.calls_ended == {"OK": count}

    run(program)


def test_a_connection_that_was_sent_away_was_kept_for_a_second() -> None:
    """With all that belongs to it: a peer that connects again at once left thousands of them."""

    async def program(loop: MemoryLoop) -> None:
        async with serving(loop) as server:
            peer = await _written(loop, b"")
            (endpoint,) = server.endpoints
            connection = weakref.ref(endpoint.connection)
            del endpoint
            peer.transport.write(b"\xff" * 64)
            await asyncio.sleep(0.1)
            assert not server.endpoints
            assert connection() is None

    run(program)


def test_a_second_of_many_connections_is_several_turns() -> None:
    """Each looks at its peer once a second, and perhaps sends a PING: 10,000 at once are 10 ms and more."""
    ticked: list[object] = []

    class Ticked:
        def tick(self, now: float) -> None:
            ticked.append(self)

    async def program(loop: MemoryLoop) -> None:
        parts = LoopParts(loop)
        all_of_them = [Ticked() for _ in range(2 * TICKS_MAX + 1)]
        for one in all_of_them:
            parts.add(one)
        await asyncio.sleep(1)
        while not ticked:
            await asyncio.sleep(0)
        assert len(ticked) == TICKS_MAX
        lost = next(one for one in all_of_them if one not in ticked)
        parts.discard(lost)
        await asyncio.sleep(0.1)
        assert len(ticked) == len(set(ticked)) == 2 * TICKS_MAX
        await asyncio.sleep(1)
        assert len(ticked) == 4 * TICKS_MAX
        for one in all_of_them:
            parts.discard(one)

    run(program)


def test_a_tick_that_failed_was_the_last_one_of_all_connections() -> None:
    ticked: list[object] = []
    reported: list[Any] = []

    class Ticked:
        def tick(self, now: float) -> None:
            ticked.append(self)
            raise ConnectionError

    async def program(loop: MemoryLoop) -> None:
        loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))
        parts = LoopParts(loop)
        two = Ticked(), Ticked()
        for one in two:
            parts.add(one)
        await asyncio.sleep(3.5)
        assert len(ticked) == len(reported) == 6
        assert set(ticked) == set(two)
        for one in two:
            parts.discard(one)

    run(program)


@pytest.mark.parametrize("reads", ["receiver", "coroutine"])
def test_the_messages_of_one_frame_held_up_everybody_for_a_second(reads: str) -> None:
    """A frame of 64 KiB has 13,000 messages of no bytes, and a read of 512 KiB has eight such frames."""
    count, streams = 2_000, (1, 3, 5)
    seen: dict[bytes, list[int]] = {}
    ended: list[bytes] = []

    def take(message: bytes) -> bool:
        seen.setdefault(message[:1], []).append(int(message[1:]))
        return True

    async def handler(requests: Any, context: Any) -> None:
        if reads == "receiver":
            context.set_receiver(take)
        async for message in requests:
            take(bytes(message))
        ended.append(b"")

    def messages(stream_id: int) -> bytes:
        bodies = [b"%d%d" % (stream_id, number) for number in range(count)]
        return b"".join(b"\0" + len(body).to_bytes(4, "big") + body for body in bodies)

    async def program(loop: MemoryLoop) -> None:
        budget = rpc.BytesBudget()
        async with serving(loop, [("trovemq.budget", budget)]) as server:
            handlers = {"Echo": rpc.stream_stream_rpc_method_handler(handler)}
            server.add_registered_method_handlers("a.A", handlers)
            call = ECHO.replace(b"/t.T/Echo", b"/a.A/Echo")
            calls = b"".join(frame(1, 4, stream_id, call) for stream_id in streams)
            await _written(loop, calls + b"".join(frame(0, 1, each, messages(each)) for each in streams))
            steps = [0]
            while len(ended) < len(streams):
                before = sum(map(len, seen.values()))
                await asyncio.sleep(0)
                steps.append(sum(map(len, seen.values())) - before)
            assert max(steps) <= MESSAGES_MAX
            assert seen == {b"%d" % each: list(range(count)) for each in streams}
            await asyncio.sleep(1)
            assert budget.held == 0

    run(program)


def test_messages_that_wait_for_a_turn_leave_the_budget_with_their_call() -> None:
    async def program(loop: MemoryLoop) -> None:
        budget = rpc.BytesBudget()
        async with serving(loop, [("trovemq.budget", budget)]) as server:
            call = ECHO.replace(b"/Echo", b"/Chat")
            peer = await _written(loop, frame(1, 4, 1, call) + frame(0, 0, 1, bytes(60_000)))
            while not (kept := sum(call.kept_size for each in server.endpoints for call in each.calls)):
                await asyncio.sleep(0)
            assert budget.held >= kept
            peer.transport.write(frames.rst_stream(1, ErrorCode.CANCEL))
            await asyncio.sleep(1)
            assert budget.held == 0
            assert server.metrics.calls_ended == {"CANCELLED": 1}

    run(program)


@given(turns=st.lists(st.lists(st.integers(1, MESSAGES_MAX), max_size=4), max_size=40))
def test_a_share_is_renewed_for_the_next_turn_unless_little_was_taken(turns: list[list[int]]) -> None:
    soon: list[Callable[[], None]] = []

    class Parts:
        class loop:  # noqa: N801 - an attribute
            call_soon = soon.append

    share: Any = Share(Parts)  # type: ignore[arg-type]
    taken = callbacks = 0
    for turn in turns:
        assert RENEWED_BELOW <= share.left <= MESSAGES_MAX
        for count in turn:
            if count <= share.left:
                share.take(count)
                taken += count
        callbacks += len(soon)
        while soon:
            soon.pop()()
    assert callbacks <= taken / (MESSAGES_MAX - RENEWED_BELOW)


@pytest.mark.parametrize("new_loop", [asyncio.SelectorEventLoop, EventLoop])
def test_a_client_that_stood_still_took_its_server_for_dead(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """Its keepalive looked before it read the answer that had arrived meanwhile."""
    seen: list[str] = []

    class Ticked:
        def tick(self, now: float) -> None:
            seen.append("look")

    async def program() -> None:
        loop = asyncio.get_running_loop()
        parts = LoopParts(loop)
        parts.add(Ticked())
        assert parts._timer is not None
        parts._timer.cancel()
        ours, theirs = socket.socketpair()
        with ours, theirs:
            loop.add_reader(ours, lambda: seen.append("read" if ours.recv(16) else "end"))
            await asyncio.sleep(0)
            loop.call_later(0.001, lambda: theirs.send(b"an answer"))  # the end of a call that blocks
            parts._timer = loop.call_later(0.002, parts._tick)
            end = time.monotonic() + 0.005
            while time.monotonic() < end:  # both timers are due in one iteration
                pass
            while "look" not in seen:
                await asyncio.sleep(0)
            loop.remove_reader(ours)
        assert seen == ["read", "look"]
        parts._timer.cancel()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(program())
