"""The effect of a hostile peer on the others: their p99, over that beside a busy loop of the same processor
time.

Server, hostile connections and one honest channel share a thread and a network in memory, so that a figure
is processor time and nothing else. Before each honest call every hostile connection writes its next chunk;
a peer that got a GOAWAY connects again first. So a flood is as strong before each call, and can be compared
with a busy loop that takes the mean of its time before each call. Where the hostile peers' work came in
lumps, the others would wait longer.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Awaitable, Callable
from itertools import count, islice
from random import Random
from statistics import mean, median, quantiles
from typing import Any

import trovemq_rpc as rpc
from bench.report import Report
from trovemq_rpc.http2 import frames
from trovemq_rpc.http2.connection import Connection
from trovemq_rpc.http2.constants import PREFACE, ErrorCode
from trovemq_rpc.testing.loop import MemoryLoop
from trovemq_rpc.testing.pipe import Faults

ADDRESS = ("127.0.0.1", 50_051)
CALLS = 200
CALLS_WARM = 20
ROUNDS = 3
CONNECTIONS = 2
CHUNK_SIZE = 4_096
WIRE_SIZE = (CALLS + CALLS_WARM) * CHUNK_SIZE
P99_RATIO_MAX = 1.3

GOAWAY = b"\7\0" + bytes(4)  # type, flags and stream of its frame
OPENING = PREFACE + frames.settings(()) + frames.SETTINGS_ACK
HEAD = Connection.encode(
    [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/t.T/Echo"),
        (b":authority", b"a"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
    ]
)
BOMB = HEAD + b"\x40\x01a" + b"\x7f\xe9\x06" + b"v" * 1_000 + b"\xbe" * 2_980  # a chunk of a flood has one
GIANT = b"\0" + (130 << 20).to_bytes(4, "big") + bytes(1_000)
OPTIONS: list[tuple[str, Any]] = [("grpc.max_receive_message_length", 140 << 20)]


def _frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    return frames.frame_header(len(payload), kind, flags, stream_id) + payload


def _each_stream(make: Callable[[int], bytes]) -> bytes:
    """New streams for all chunks that a connection may write."""
    wire = bytearray()
    for stream_id in count(1, 2):
        wire += make(stream_id)
        if len(wire) > WIRE_SIZE:
            return bytes(wire)
    raise AssertionError


def _repeated(part: bytes, before: bytes = b"") -> bytes:
    return before + part * (WIRE_SIZE // len(part) + 1)


WIRES: dict[str, Callable[[], bytes]] = {
    "rapid reset": lambda: _each_stream(
        lambda i: _frame(1, 5, i, HEAD) + frames.rst_stream(i, ErrorCode.CANCEL)
    ),
    "continuations": lambda: _repeated(_frame(9, 0, 1, b"\0\1a\1b" * 200), _frame(1, 0, 1, HEAD)),
    "header bombs": lambda: _each_stream(lambda i: _frame(1, 5, i, BOMB)),
    "churn of the header table": lambda: _each_stream(
        lambda i: _frame(1, 5, i, HEAD + b"".join(b"\x40\3%03d\3abc" % ((i + n) % 1000) for n in range(40)))
    ),
    "pings": lambda: _repeated(frames.ping(bytes(8))),
    "settings": lambda: _repeated(frames.settings([(4, 65_535)])),
    "resets of streams that are gone": lambda: _repeated(frames.rst_stream(1, 8), _frame(1, 5, 1, HEAD)),
    "priorities": lambda: _repeated(_frame(2, 0, 1001, bytes(5))),
    "empty data": lambda: _repeated(_frame(0, 0, 1), _frame(1, 4, 1, HEAD)),
    "windows of zero": lambda: (
        frames.settings([(4, 0)])
        + _each_stream(lambda i: _frame(1, 4, i, HEAD) + _frame(0, 1, i, b"\0\0\0\0\1x"))
    ),
    "windows that overflow": lambda: _repeated(frames.window_update(0, 0x7FFFFFFF)),
    "streams whose answers nobody reads": lambda: _each_stream(
        lambda i: _frame(1, 4, i, HEAD) + _frame(0, 1, i, b"\0\0\0\3\xe8" + bytes(1_000))
    ),
    "giants that are announced": lambda: _each_stream(
        lambda i: _frame(1, 4, i, HEAD) + _frame(0, 0, i, GIANT)
    ),
    "garbage": lambda: _repeated(b"\xff" * 64),
}


class _Whole(Faults):
    """A network that cuts nothing: a chunk is one read, as it is on loopback."""

    def piece_size(self, random: Random) -> int:
        return self.piece_size_max


class _Hostile(asyncio.Protocol):
    """A connection that writes its wire in chunks, until a GOAWAY comes."""

    transport: asyncio.Transport | None = None
    ended = False

    def __init__(self, wire: bytes) -> None:
        self._chunks = iter([wire[at : at + CHUNK_SIZE] for at in range(0, len(wire), CHUNK_SIZE)])
        self._first = OPENING

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self.ended = self.ended or GOAWAY in data

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended = True

    def write(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(self._first + next(self._chunks))
            self._first = b""


async def _echo(request: bytes, _context: Any) -> bytes:
    return request


def _run(program: Callable[[MemoryLoop, Any], Awaitable[list[float]]]) -> list[float]:
    loop = MemoryLoop(0, _Whole(), end_s=1e9)

    async def whole() -> list[float]:
        server = rpc.server(options=OPTIONS)
        handlers = {"Echo": rpc.unary_unary_rpc_method_handler(_echo)}
        server.add_registered_method_handlers("t.T", handlers)
        await server.start()
        listener = await loop.create_server(lambda: server.accept(None), *ADDRESS)
        async with rpc.insecure_channel(f"{ADDRESS[0]}:{ADDRESS[1]}") as channel:
            times = await program(loop, channel.unary_unary("/t.T/Echo"))
        listener.close()
        await server.stop(None)
        return times

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(whole())


async def _calls(echo: Any, before: Callable[[], Awaitable[None]]) -> list[float]:
    """Processor seconds from each call to its answer."""
    times = []
    for _ in range(CALLS_WARM + CALLS):
        await before()
        begun = time.thread_time()
        await echo(b"x" * 1_024)
        times.append(time.thread_time() - begun)
    return list(islice(times, CALLS_WARM, None))


def beside_hostile(wire: bytes) -> list[float]:
    async def program(loop: MemoryLoop, echo: Any) -> list[float]:
        peers: list[_Hostile] = []

        async def before() -> None:
            peers[:] = [peer for peer in peers if not peer.ended]
            while len(peers) < CONNECTIONS:
                _, peer = await loop.create_connection(lambda: _Hostile(wire), *ADDRESS)
                peers.append(peer)
            for peer in peers:
                peer.write()

        return await _calls(echo, before)

    return _run(program)


def beside_busy(burnt_s: float) -> list[float]:
    def burn() -> None:
        end = time.thread_time() + burnt_s
        while time.thread_time() < end:
            pass

    async def program(loop: MemoryLoop, echo: Any) -> list[float]:
        async def before() -> None:
            if burnt_s > 0:
                loop.call_soon(burn)

        return await _calls(echo, before)

    return _run(program)


def p99(times: list[float]) -> float:
    return quantiles(times, n=100)[98]


def measure_hostile(report: Report, *, rounds: int = ROUNDS) -> None:
    logging.getLogger("trovemq_rpc").setLevel(logging.ERROR)  # a line in 10 s would be part of some calls
    gc.freeze()  # as the daemon does after its start: else full collections are of this program's imports
    for name, make in WIRES.items():
        wire = make()
        ratios, added = [], []
        for _ in range(rounds):
            quiet = mean(beside_busy(0))
            hostile = beside_hostile(wire)
            burnt_s = max(0.0, mean(hostile) - quiet)
            ratios.append(p99(hostile) / p99(beside_busy(burnt_s)))
            added.append(burnt_s * 1e6)
        report.add(f"hostile, {name}: processor that they cost an honest call", median(added), "us")
        title = f"hostile, {name}: others' p99 / beside a busy loop of as much"
        report.add(title, median(ratios), "x", at_most=P99_RATIO_MAX)


if __name__ == "__main__":
    from bench.report import print_table

    figures = Report("hostile")
    measure_hostile(figures)
    print_table([figures])
