"""Unary calls and streams: each round measures every transport and kind of handler once.

So a machine that others use slows all of them alike. A figure is the median of its rounds, a ratio the
median of the rounds' ratios.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from statistics import median, quantiles
from typing import Any, Literal, cast

from bench.report import Report, median_ratio
from bench.rpc import peer_grpclib, peer_pygrpc
from bench.rpc.processes import Certificate, Kind, Server, channel_to, serving
from bench.rpc.sealing import sealing_us
from bench.rpc.server import SERVICE

BODY = b"x" * 1024
WARM = 300
ALONE_EACH_ROUND = 600
IN_FLIGHT = 64
CALLS_EACH_ROUND = 80
GRPC_AIO_FEWER = 4
"""The others get a quarter of the calls in flight: each takes ten times as long."""
STREAM_MESSAGES_EACH_ROUND = 200
STREAM_MESSAGE_SIZE = 1 << 20

ONE_US_MAX, OVER_BARE_MAX = 70, 3

BARE = "bare TCP echo"
OURS = "ours (callback)"
OURS_TLS = "ours, TLS (callback)"
THEIRS = "grpc.aio"

PEERS: dict[Kind, Any] = {"pygrpc": peer_pygrpc, "grpclib": peer_grpclib}

Call = Callable[[bytes], Awaitable[Any]]
Way = Literal["to", "from"]
WAYS: tuple[Way, ...] = ("to", "from")
Placement = Literal["both ends on one processor", "each end on its processor"]
PLACEMENTS: tuple[Placement, ...] = ("both ends on one processor", "each end on its processor")


@dataclass(slots=True)
class Unary:
    """A way to have 1 KiB echoed, and the results of its rounds: seconds, calls a second, microseconds a
    call."""

    call: Call
    cpu: Call | None = None  # of the server; the bare echo has none
    server: Server | None = None
    placed: dict[Placement, list[float]] = field(default_factory=lambda: {one: [] for one in PLACEMENTS})
    medians: list[float] = field(default_factory=list)
    p99s: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    client_cpu_us: list[float] = field(default_factory=list)
    server_cpu_us: list[float] = field(default_factory=list)

    async def one_at_a_time(self, count: int) -> None:
        times = await self._times(count)
        self.medians.append(median(times) * 1e6)
        self.p99s.append(quantiles(times, n=100)[98] * 1e6)

    async def one_at_a_time_placed(self, placement: Placement, count: int) -> None:
        assert self.server is not None
        with _placed(placement, self.server.pid):
            self.placed[placement].append(median(await self._times(count)) * 1e6)

    async def _times(self, count: int) -> list[float]:
        times = []
        for _ in range(count):
            begun = time.perf_counter()
            await self.call(BODY)
            times.append(time.perf_counter() - begun)
        return times

    async def in_flight(self, each: int) -> None:
        assert self.cpu is not None

        async def calls() -> None:
            for _ in range(each):
                await self.call(BODY)

        server_before = float(await self.cpu(b""))
        client_before, begun = time.process_time(), time.perf_counter()
        await asyncio.gather(*(calls() for _ in range(IN_FLIGHT)))
        seconds, client = time.perf_counter() - begun, time.process_time() - client_before
        server = float(await self.cpu(b"")) - server_before
        count = IN_FLIGHT * each
        self.rates.append(count / seconds)
        self.client_cpu_us.append(client / count * 1e6)
        self.server_cpu_us.append(server / count * 1e6)


@dataclass(slots=True)
class Streams:
    """Streams of 1 MiB messages on a channel; the results of the rounds: messages a second, microseconds
    each."""

    channel: Any
    rates: dict[Way, list[float]] = field(default_factory=lambda: {"to": [], "from": []})
    cpu_us: dict[Way, list[float]] = field(default_factory=lambda: {"to": [], "from": []})

    async def to_server(self, count: int) -> None:
        sink = self.channel.stream_unary(f"/{SERVICE}/Sink")
        sunk = await sink(iter([bytes(STREAM_MESSAGE_SIZE)] * count))
        assert int(bytes(sunk)) == count * STREAM_MESSAGE_SIZE

    async def from_server(self, count: int) -> None:
        source, received = self.channel.unary_stream(f"/{SERVICE}/Source"), 0
        async for message in source(b"%d,%d" % (count, STREAM_MESSAGE_SIZE)):
            received += len(message)
        assert received == count * STREAM_MESSAGE_SIZE

    async def measure(self, way: Way, count: int) -> None:
        before, begun = await self._cpu_s(), time.perf_counter()
        await (self.to_server(count) if way == "to" else self.from_server(count))
        self.rates[way].append(count / (time.perf_counter() - begun))
        self.cpu_us[way].append((await self._cpu_s() - before) / count * 1e6)

    async def _cpu_s(self) -> float:
        """Processor time of both ends."""
        return float(await self.channel.unary_unary(f"/{SERVICE}/Cpu")(b"")) + time.process_time()


class BareEcho(asyncio.Protocol):
    """A client of the echo without any protocol: one request at a time."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._waiter: asyncio.Future[None] | None = None
        self._missing = 0

    def call(self, body: bytes) -> asyncio.Future[None]:
        self._waiter = asyncio.get_running_loop().create_future()
        self._missing = len(body)
        self._transport.write(body)
        return self._waiter

    def data_received(self, data: bytes) -> None:
        self._missing -= len(data)
        if not self._missing and self._waiter is not None:
            self._waiter.set_result(None)


async def measure_calls(report: Report, certificate: Certificate, rounds: int) -> None:
    async with AsyncExitStack() as opened:
        servers = [
            opened.enter_context(serving("native")),
            opened.enter_context(serving("grpcio")),
            opened.enter_context(serving("native", certificate)),
            opened.enter_context(serving("grpcio", certificate)),
        ]
        channels = [await opened.enter_async_context(channel_to(server)) for server in servers]
        unaries = {BARE: await _bare_echo(opened)}
        for server, channel in zip(servers, channels, strict=True):
            unaries |= _unaries(server, channel)
        unaries |= await _peers(opened, report)
        streams = {"ours": Streams(channels[0]), THEIRS: Streams(channels[1])}
        await _run_rounds(unaries, streams, rounds)
    _add_calls(report, unaries)
    _add_tls(report, unaries, sealing_us(certificate, BODY))
    _add_streams(report, streams)


async def _bare_echo(opened: AsyncExitStack) -> Unary:
    server = opened.enter_context(serving("tcp"))
    loop = asyncio.get_running_loop()
    transport, client = await loop.create_connection(BareEcho, "127.0.0.1", server.port)
    opened.callback(transport.close)
    return Unary(client.call, server=server)


async def _peers(opened: AsyncExitStack, report: Report) -> dict[str, Unary]:
    """The echo of each peer that is installed."""
    found = {}
    for kind, peer in PEERS.items():
        if find_spec(peer.MODULE) is None:
            report.notes.append(f"{peer.DISTRIBUTION}: not installed (uv pip install {peer.DISTRIBUTION})")
            continue
        server = opened.enter_context(serving(kind))
        methods = await opened.enter_async_context(peer.methods_of(server.port))
        found[peer.NAME] = Unary(methods["Echo"], methods["Cpu"])
    return found


def _unaries(server: Server, channel: Any) -> dict[str, Unary]:
    """By name, each echo method that the server has."""
    secure = ", TLS" if server.certificate else ""
    names = {"Echo": THEIRS + secure}
    if server.kind == "native":
        names = {"EchoCallback": f"ours{secure} (callback)", "Echo": f"ours{secure}"}
    cpu = channel.unary_unary(f"/{SERVICE}/Cpu")
    return {
        name: Unary(channel.unary_unary(f"/{SERVICE}/{method}"), cpu, server)
        for method, name in names.items()
    }


async def _run_rounds(unaries: dict[str, Unary], streams: dict[str, Streams], rounds: int) -> None:
    for unary in unaries.values():
        for _ in range(WARM):
            await unary.call(BODY)
    for _ in range(rounds):
        for unary in unaries.values():
            await unary.one_at_a_time(ALONE_EACH_ROUND)
        for placement in PLACEMENTS if len(os.sched_getaffinity(0)) > 1 else ():
            for name in (BARE, OURS):
                await unaries[name].one_at_a_time_placed(placement, ALONE_EACH_ROUND)
    for _ in range(rounds):
        for name, unary in unaries.items():
            if unary.cpu is not None:
                fewer = 1 if name.startswith("ours") else GRPC_AIO_FEWER
                await unary.in_flight(CALLS_EACH_ROUND // fewer)
    for _ in range(rounds):
        for way in WAYS:
            for stream in streams.values():
                await stream.measure(way, STREAM_MESSAGES_EACH_ROUND)


@contextmanager
def _placed(placement: Placement, server_pid: int) -> Iterator[None]:
    """This process and the server on chosen processors. On one, a call wakes no sleeping processor."""
    both = os.sched_getaffinity(0)
    one, other, *_ = sorted(both)
    os.sched_setaffinity(0, {one})
    os.sched_setaffinity(server_pid, {one if placement == PLACEMENTS[0] else other})
    try:
        yield
    finally:
        os.sched_setaffinity(0, both)
        os.sched_setaffinity(server_pid, both)


def _add_calls(report: Report, unaries: dict[str, Unary]) -> None:
    for name, unary in unaries.items():
        ours = name == OURS
        goal: dict[str, float] = {"at_most": ONE_US_MAX} if ours else {}
        report.add(f"{name}: 1 KiB, one at a time, median", median(unary.medians), "us", **goal)
        report.add(f"{name}: 1 KiB, one at a time, p99", median(unary.p99s), "us")
        if unary.cpu is not None:
            goal = {"at_least": 60_000} if ours else {}
            report.add(f"{name}: 1 KiB, {IN_FLIGHT} in flight", median(unary.rates), "/s", **goal)
            report.add(f"{name}: client's processor a call", median(unary.client_cpu_us), "us")
            report.add(f"{name}: server's processor a call", median(unary.server_cpu_us), "us")
    for placement in PLACEMENTS:
        ours_placed, bare_placed = unaries[OURS].placed[placement], unaries[BARE].placed[placement]
        if ours_placed:
            title = f"one at a time, {placement}"
            report.add(f"{BARE}: 1 KiB, {title}, median", median(bare_placed), "us")
            report.add(f"{OURS}: 1 KiB, {title}, median", median(ours_placed), "us", at_most=ONE_US_MAX)
            placed = median_ratio(ours_placed, bare_placed)
            report.add(f"ours over bare TCP, {title}", placed, "x", at_most=OVER_BARE_MAX)
    over_bare = median_ratio(unaries[OURS].medians, unaries[BARE].medians)
    report.add("ours over bare TCP, one at a time", over_bare, "x", at_most=OVER_BARE_MAX)
    both = median_ratio(unaries[OURS].server_cpu_us, unaries[THEIRS].server_cpu_us)
    report.add("server's processor, ours over grpc.aio's, each under its own channel", both, "x")


def _add_tls(report: Report, unaries: dict[str, Unary], sealing: float) -> None:
    """The goal is 1.6 times a plain call, or the cost of the memory buffers alone (13 us where the goal was
    set).
    """
    plain, secure = unaries[OURS].medians, unaries[OURS_TLS].medians
    report.add("TLS over plain, one at a time", median_ratio(secure, plain), "x", at_most=1.6)
    cost = median(tls - without for tls, without in zip(secure, plain, strict=True))
    report.add("the cost of TLS, one at a time", cost, "us")
    report.add("the same between two memory buffers, without a network", sealing, "us")


def _add_streams(report: Report, streams: dict[str, Streams]) -> None:
    ours, theirs = streams["ours"], streams[THEIRS]
    for way in WAYS:
        title = f"1 MiB messages {way} the server"
        for name, stream in streams.items():
            rate = median(stream.rates[way]) * STREAM_MESSAGE_SIZE / 1e6
            report.add(f"{name}: {title}", rate, "MB/s")
            report.add(f"{name}: {title}, processor of both ends", median(stream.cpu_us[way]), "us")
        rates = median_ratio(ours.rates[way], theirs.rates[way])
        report.add(f"stream {way} the server, ours over grpc.aio's", rates, "x", at_least=1.5)
        cpu = median_ratio(ours.cpu_us[way], theirs.cpu_us[way])
        report.add(f"stream {way} the server, processor of both ends, ours over grpc.aio's", cpu, "x")
