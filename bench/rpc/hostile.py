"""The effect of hostile peers on the others (`floods.py` has their bytes).

| figure | meaning |
| --- | --- |
| processor for a KiB | of the server, and of the network in memory that carries it |
| the longest turn | of the loop, while 256 KiB come at once: the longest wait of another connection |
| p99 / busy | others' p99, over that beside a busy loop of the same processor time |
| p99 / ordinary | the same over that beside peers whose ordinary calls are as many bytes |

Server, peers and one honest channel share a thread and a network in memory, so that a figure is processor
time and nothing else. Before each honest call both peers write a chunk; one that got a GOAWAY, or has
nothing left, connects again first. So a flood is as strong before each call and can be compared with a busy
loop that takes the mean of its time before each call. The three alternate every few calls, so that noise of
the machine is in all of them.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from dataclasses import dataclass
from random import Random
from statistics import mean, median, quantiles
from typing import Any

import trovemq_rpc as rpc
from bench.report import Report
from bench.rpc.floods import CHUNK_SIZE, FLOODS, OPENING, ordinary
from trovemq_rpc.testing.loop import MemoryLoop
from trovemq_rpc.testing.pipe import Faults

ADDRESS = ("127.0.0.1", 50_051)
CONNECTIONS = 2
CALLS_WARM = 20
SLICE = 25
SLICES_BEFORE, SLICES = 16, 24  # to know how much a flood takes; of each of the three
READ_SIZE, READS = 256 << 10, 3
ITERATIONS_AFTER_READ = 60
P99_RATIO_MAX = 1.3

GOAWAY = b"\7\0" + bytes(4)  # type, flags and stream of its frame
OPTIONS: list[tuple[str, Any]] = [("grpc.max_receive_message_length", 140 << 20)]


class _Whole(Faults):
    """A network that cuts nothing: a chunk is one read, as it is on loopback."""

    def piece_size(self, random: Random) -> int:
        return self.piece_size_max


class _TimedLoop(MemoryLoop):
    """Measures its longest iteration."""

    iteration_longest_s = 0.0

    def _run_once(self) -> None:
        begun = time.thread_time()
        super()._run_once()  # type: ignore[misc]
        self.iteration_longest_s = max(self.iteration_longest_s, time.thread_time() - begun)


class _Peer(asyncio.Protocol):
    """A connection that writes its wire in chunks, until a GOAWAY comes or the wire is at its end."""

    transport: asyncio.Transport | None = None
    ended = False

    def __init__(self, wire: bytes) -> None:
        self._wire = memoryview(wire)
        self._at = 0
        self._first = OPENING

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self.ended = self.ended or GOAWAY in data

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended = True

    def write(self, size: int = CHUNK_SIZE) -> None:
        if self.transport is None or self.transport.is_closing():
            return
        if self._at >= len(self._wire):
            self.ended = True
            self.transport.close()
            return
        self.transport.write(self._first + self._wire[self._at : self._at + size])
        self._first = b""
        self._at += size


async def _echo(request: bytes, _context: Any) -> bytes:
    return request


class _Scene:
    """A server and an honest channel, beside peers that send `wire`, or beside a busy loop."""

    def __init__(self, wire: bytes = b"") -> None:
        self.burnt_s = 0.0
        self.times: list[float] = []
        self._wire = wire
        self._peers: list[_Peer] = []
        self.loop = _TimedLoop(0, _Whole(), end_s=1e9)
        self._runner = asyncio.Runner(loop_factory=lambda: self.loop)
        self._runner.run(self._open())

    async def _open(self) -> None:
        self._server = rpc.server(options=OPTIONS)
        handlers = {"Echo": rpc.unary_unary_rpc_method_handler(_echo)}
        self._server.add_registered_method_handlers("t.T", handlers)
        await self._server.start()
        self._listener = await self.loop.create_server(lambda: self._server.accept(None), *ADDRESS)
        self._channel = rpc.insecure_channel(f"{ADDRESS[0]}:{ADDRESS[1]}")
        self._call = self._channel.unary_unary("/t.T/Echo")
        await self._calls(CALLS_WARM)

    def close(self) -> None:
        self._runner.run(self._close())
        self._runner.close()

    async def _close(self) -> None:
        await self._channel.close()
        self._listener.close()
        await self._server.stop(None)

    def calls(self, count: int = SLICE) -> None:
        """Adds the processor seconds from each call to its answer."""
        self.times += self._runner.run(self._calls(count))

    async def _calls(self, count: int) -> list[float]:
        times = []
        for _ in range(count):
            if self._wire:
                await self._peers_write()
            elif self.burnt_s > 0:
                self.loop.call_soon(self._burn)
            begun = time.thread_time()
            await self._call(b"x" * 1_024)
            times.append(time.thread_time() - begun)
        return times

    async def _peers_write(self) -> None:
        self._peers = [peer for peer in self._peers if not peer.ended]
        while len(self._peers) < CONNECTIONS:
            self._peers.append(await self._connect())
        for peer in self._peers:
            peer.write()

    async def _connect(self) -> _Peer:
        _, peer = await self.loop.create_connection(lambda: _Peer(self._wire), *ADDRESS)
        assert isinstance(peer, _Peer)
        return peer

    def _burn(self) -> None:
        end = time.thread_time() + self.burnt_s
        while time.thread_time() < end:
            pass

    def longest_turn_s(self) -> float:
        """While a connection's bytes come in large reads."""
        return self._runner.run(self._read_whole())

    async def _read_whole(self) -> float:
        peer = await self._connect()
        self.loop.iteration_longest_s = 0.0
        for _ in range(READS):
            peer.write(READ_SIZE)
            for _ in range(ITERATIONS_AFTER_READ):
                await asyncio.sleep(0)
        return self.loop.iteration_longest_s


@dataclass(frozen=True, slots=True)
class Effect:
    """The table above."""

    kib_us: float
    turn_ms: float
    to_busy: float
    to_ordinary: float


def p99(times: list[float]) -> float:
    return quantiles(times, n=100)[98]


def effect(wire: bytes) -> Effect:
    flood, busy, calls = _Scene(wire), _Scene(), _Scene(ordinary())
    try:
        for _ in range(SLICES_BEFORE):
            flood.calls()
            busy.calls()
        busy.burnt_s = max(0.0, mean(flood.times) - mean(busy.times))
        for scene in (flood, busy, calls):
            scene.times.clear()
        for _ in range(SLICES):
            for scene in (flood, busy, calls):
                scene.calls()
        kib_us = busy.burnt_s * 1e6 / (CONNECTIONS * CHUNK_SIZE / 1024)
        others = p99(flood.times)
        return Effect(
            kib_us, _longest_turn_s(wire) * 1e3, others / p99(busy.times), others / p99(calls.times)
        )
    finally:
        for scene in (flood, busy, calls):
            scene.close()


def _longest_turn_s(wire: bytes) -> float:
    """The shortest of a few: the others had noise of the machine in them."""
    turns = []
    for _ in range(READS):
        scene = _Scene(wire)
        turns.append(scene.longest_turn_s())
        scene.close()
    return min(turns)


def measure_hostile(report: Report, *, rounds: int = 3) -> None:
    logging.getLogger("trovemq_rpc").setLevel(logging.ERROR)  # a line in 10 s would be part of some calls
    gc.freeze()  # as the daemon does after its start: else full collections are of this program's imports
    for name, make in {"no flood, ordinary calls": ordinary, **FLOODS}.items():
        wire = make()
        effects = [effect(wire) for _ in range(rounds)]
        what = f"hostile, {name}"
        report.add(f"{what}: processor for a KiB", median(e.kib_us for e in effects), "us")
        report.add(f"{what}: the longest turn of the loop", min(e.turn_ms for e in effects), "ms")
        ratio = median(e.to_busy for e in effects)
        report.add(f"{what}: others' p99 / beside a busy loop of as much", ratio, "x", at_most=P99_RATIO_MAX)
        ratio = median(e.to_ordinary for e in effects)
        report.add(f"{what}: others' p99 / beside ordinary calls of as many bytes", ratio, "x")


if __name__ == "__main__":
    from bench.report import print_table

    figures = Report("hostile")
    measure_hostile(figures)
    print_table([figures])
