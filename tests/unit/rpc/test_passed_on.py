"""Messages that reach their receiver in one step (StreamIntake.pass_on), and the same ones by the general
way: same bytes on the wire at the same time, same messages, counters and budgets.
"""

from __future__ import annotations

import asyncio
from typing import Any
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

import trovemq_rpc as rpc
from tests.unit.rpc.memory_rpc import ADDRESS, TARGET, run
from trovemq_rpc.stream_intake import StreamIntake
from trovemq_rpc.testing.loop import MemoryLoop
from trovemq_rpc.testing.pipe import Faults
from trovemq_rpc.testing.transport import MemoryTransport

WAYS = ("take", "take", "take", "answer", "answer", "leave", "raise", "end", "drop")
SIZES = (0, 1, 100, 100, 1_000, 3_000, 5_000, 40_000, 70_000)
STEP = st.tuples(st.sampled_from(WAYS), st.sampled_from(SIZES), st.sampled_from([0.0, 0.001, 0.1, 0.1]))


class _Noted:
    """The events of a run, in order."""

    def __init__(self, loop: MemoryLoop, budgets: list[rpc.BytesBudget]) -> None:
        self.loop = loop
        self.budgets = budgets
        self.all: list[Any] = []

    def add(self, *what: Any) -> None:
        self.all.append((self.loop.time(), *what, *(budget.held for budget in self.budgets)))


def _receiver(noted: _Noted, call: Any, name: str, answers: Any) -> Any:
    """A receiver that obeys the first word of each message."""

    def take(message: Any) -> bool:
        way = bytes(message[:6]).split()[0]
        noted.add(name, type(message).__name__, bytes(message), call.message_compressed, *_counts(call))
        if way == b"raise":
            raise ValueError(name)
        if way == b"answer":
            answers(bytes(message))
        elif way == b"end" and name == "server":
            call.fail(rpc.StatusCode.ABORTED, "ended by the receiver")
        elif way == b"drop":
            call.set_receiver(None)
        return way != b"leave"

    return take


def _counts(call: Any) -> tuple[Any, ...]:
    """The counts of a call and its connection."""
    endpoint, share = call.endpoint, call.endpoint.share
    connection = endpoint.connection
    return (
        *(call.received, call.progress, call.charged, call.unread, call.window),
        *(endpoint.held, endpoint.withheld, endpoint.to_acknowledge, share and share.left),
        *(connection.receive_window, connection.unacknowledged, call.stream.receive_window),
    )


def _identity(data: Any) -> Any:
    return data


def _viewed(data: Any) -> Any:
    return data


_viewed.takes_view = True  # type: ignore[attr-defined]
DESERIALIZERS = (None, _identity, _viewed)


def _run(
    steps: list[Any],
    seed: int,
    options: list[Any],
    total: int,
    held: int,
    faults: Faults,
    deserialize: Any,
    gzip: bool,
) -> Any:
    async def program(loop: MemoryLoop) -> Any:
        budgets = [rpc.BytesBudget(total, total * 9 // 10), rpc.BytesBudget(total)]
        noted = _Noted(loop, budgets)

        async def talk(_requests: Any, context: Any) -> None:
            context.set_receiver(_receiver(noted, context, "server", context.try_send))
            while (request := await context.read()) is not rpc.EOF:
                noted.add("read", bytes(request))
                await context.write(bytes(request))

        server = rpc.server(options=[*options, ("trovemq.budget", budgets[0])])
        handlers = {
            "Talk": rpc.stream_stream_rpc_method_handler(talk, request_deserializer=deserialize),
            "Hold": rpc.stream_stream_rpc_method_handler(_hold),
        }
        server.add_registered_method_handlers("t.T", handlers)
        await server.start()
        await loop.create_server(lambda: server.accept(None), *ADDRESS)
        channel = rpc.insecure_channel(TARGET, options=[*options, ("trovemq.budget", budgets[1])])
        other = channel.stream_stream("/t.T/Hold")()
        if seed % 2:  # other connections fill the server's budget, or this connection its share of it
            budgets[0].held += held * total // 100
        else:
            for _ in range(held * total // 1_000 // 100):
                await other.write(bytes(1_000))
        await asyncio.sleep(0.2)
        compression = rpc.Compression.Gzip if gzip else None
        call = channel.stream_stream("/t.T/Talk", response_deserializer=deserialize)(compression=compression)
        call.set_receiver(_receiver(noted, call, "client", lambda _message: None))
        reading = asyncio.create_task(_read(call, noted))
        try:
            for way, size, pause in steps:
                await call.write(way.encode() + b" " + bytes(size), compress=size % 2 == 0)
                if pause:
                    await asyncio.sleep(pause)
            await call.done_writing()
        except (rpc.AioRpcError, asyncio.InvalidStateError, asyncio.CancelledError):
            pass  # the receiver ended the call
        await reading
        other.cancel()
        await asyncio.sleep(1)
        noted.add(await call.code(), vars(server.metrics), vars(channel.metrics))
        await channel.close()
        await server.stop(None)
        return noted.all, [budget.held for budget in budgets]

    return run(program, seed, faults)


async def _hold(_requests: Any, _context: Any) -> None:
    await asyncio.sleep(10_000)


async def _read(call: Any, noted: _Noted) -> None:
    try:
        while (answer := await call.read()) is not rpc.EOF:
            noted.add("answer", bytes(answer))
    except (rpc.AioRpcError, ValueError) as error:
        noted.add("failed", type(error).__name__)
        call.cancel()


def _recorded(*given: Any, general: bool) -> tuple[Any, list[Any], int]:
    """The notes of a run, all that it wrote, and how many messages went in one step."""
    written: list[Any] = []
    write, pass_on = MemoryTransport.writelines, StreamIntake.pass_on
    passed = 0

    def record(transport: MemoryTransport, pieces: Any) -> None:
        pieces = [bytes(piece) for piece in pieces]
        written.append(b"".join(pieces))
        write(transport, pieces)

    def count(call: StreamIntake, data: memoryview) -> bool:
        nonlocal passed
        done = not general and pass_on(call, data)
        passed += done
        return done

    with (
        mock.patch.object(MemoryTransport, "writelines", record),
        mock.patch.object(StreamIntake, "pass_on", count),
    ):
        return _run(*given), written, passed


@given(
    steps=st.lists(STEP, min_size=3, max_size=25),
    seed=st.integers(0, 1_000),
    total=st.sampled_from([10_000, 50_000, 1 << 20]),
    held=st.sampled_from([0, 0, 90, 98]),
    options=st.sampled_from([[], [("grpc.max_receive_message_length", 4_000)]]),
    faults=st.sampled_from([Faults(), Faults(piece_size_max=1 << 14, delay_s_max=0.01)]),
    deserialize=st.sampled_from(DESERIALIZERS),
    gzip=st.booleans(),
)
def test_one_step_does_the_same_as_the_general_way(
    steps: list[Any],
    seed: int,
    options: list[Any],
    total: int,
    held: int,
    faults: Faults,
    deserialize: Any,
    gzip: bool,
) -> None:
    given_ = steps, seed, options, total, held, faults, deserialize, gzip
    noted, written, _ = _recorded(*given_, general=False)
    assert (noted, written, 0) == _recorded(*given_, general=True)


def test_messages_one_at_a_time_go_in_one_step() -> None:
    steps = [("answer", 100, 0.1)] * 10
    _, _, passed = _recorded(
        steps, 1, [], 1 << 20, 0, Faults(piece_size_max=1 << 20), _viewed, False, general=False
    )
    assert passed >= 12, "of 10 requests and 10 answers; some are cut by the network"
