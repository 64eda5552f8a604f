"""A nameserver with 100 brokers, which one process simulates: real registration streams to a real nameserver.

    register  100 brokers, eight at a time, with 1,000, 10,000 and 20,000 topics each: processor time, memory,
              and how long GetRoute takes meanwhile
    idle      heartbeats alone, each 3 s
    change    one topic altered: bytes and processor time at broker, nameserver and watchers
    load      GetRoute of a topic of all brokers, at a fixed rate: its times from when each call was due

Each number of topics has a separate nameserver. With --quick 1,000 topics alone.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

import grpc

from bench import measure
from bench.report import Report
from trovemq.testing import NameserverProcess
from trovemq_broker.cluster.announced import Announced
from trovemq_broker.cluster.registration import Registrations, RegistrationSettings, RegistrationState
from trovemq_broker.cluster.view import BrokerDescription, LocalBroker
from trovemq_daemon.addresses import parse_address
from trovemq_proto.reply_parts import PART_SIZE, PartJoiner
from trovemq_proto.v1 import route_pb2

BROKERS: Final = 100
TOPICS: Final = (1_000, 10_000, 20_000)
SDK_TOPICS_MAX: Final = 10_000
"""With more, the figures are those of the watcher's memory, which has every route."""
AT_ONCE: Final = 8
CHANGES: Final = 200
CHANGES_KEPT: Final = 4_096
IDLE_S: Final = 9.0
LOAD_RATES: Final = (100, 500)  # calls a second
LOAD_S: Final = 5.0
REGISTERED_S_MAX: Final = 120.0
WATCH: Final = "/trovemq.v1.RouteService/WatchRoutes"
ASKING: Final = """
import asyncio, json, sys, time
import grpc
from tests.support.stubs import ROUTES, stub_of
from trovemq_proto.v1 import route_pb2
async def ask(address):
    times = []
    over = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    async with grpc.aio.insecure_channel(address) as channel:
        stub, request = stub_of(ROUTES, channel), route_pb2.GetRouteRequest(topic="system.of-topic-000500")
        await stub.GetRoute(request)
        print("connected", flush=True)
        while not over.done():
            started = time.perf_counter()
            await stub.GetRoute(request)
            times.append(time.perf_counter() - started)
            await asyncio.sleep(0.005)
    print(json.dumps(times))
asyncio.run(ask(sys.argv[1]))
"""
LOADING: Final = """
import asyncio, json, sys
import trovemq_rpc
from tests.support.stubs import ROUTES, stub_of
from trovemq_proto.v1 import route_pb2
async def ask(address, rate, seconds):
    loop, times = asyncio.get_running_loop(), []
    async with trovemq_rpc.insecure_channel(address) as channel:
        stub, request = stub_of(ROUTES, channel), route_pb2.GetRouteRequest(topic="system.of-topic-000500")
        async def one(due):
            await stub.GetRoute(request)
            times.append(loop.time() - due)
        await one(loop.time())
        times.clear()
        print("connected", flush=True)
        started, calls = loop.time(), []
        for number in range(int(rate * seconds)):
            due = started + number / rate
            await asyncio.sleep(max(0, due - loop.time()))
            calls.append(asyncio.create_task(one(due)))
        await asyncio.gather(*calls)
    print(json.dumps(times))
asyncio.run(ask(sys.argv[1], float(sys.argv[2]), float(sys.argv[3])))
"""
WATCHING: Final = """
import sys
from trovemq import sync
with sync.connect(sys.argv[1]):
    print("connected", flush=True)
    sys.stdin.read()
print()
"""
ABOUT: Final = "100 simulated brokers; processor times are those of the nameserver's process.\n\n"


@dataclass(frozen=True, slots=True)
class Topic:
    name: str
    queue_count: int = 8
    message_type: str = "NORMAL"


class SimulatedTopics:
    """One broker's topics: all brokers share those that did not change."""

    def __init__(self, topics: Mapping[str, Topic]) -> None:
        self._shared = topics
        self._own: dict[str, Topic] = {}
        self._changed: deque[str] = deque(maxlen=CHANGES_KEPT)
        self._listeners: list[Callable[[], None]] = []
        self.change_count = 0

    @property
    def data_version(self) -> int:
        return self.change_count

    def names(self, include_system: bool = False) -> list[str]:
        return list(self._shared)

    def require(self, name: str) -> Topic:
        return self._own.get(name) or self._shared[name]

    def find(self, name: str) -> Topic | None:
        return self._own.get(name) or self._shared.get(name)

    def changed_since(self, change_count: int) -> list[str] | None:
        count = self.change_count - change_count
        if count > len(self._changed):
            return None
        return list(islice(self._changed, len(self._changed) - count, None))

    def add_change_listener(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    def alter(self, name: str) -> None:
        self._own[name] = Topic(name, self.require(name).queue_count + 1)
        self._changed.append(name)
        self.change_count += 1
        for listener in self._listeners:
            listener()


class Brokers:
    """The simulated brokers, registered at one nameserver."""

    def __init__(self, nameserver: NameserverProcess, topics: int) -> None:
        shared = {name: Topic(name) for name in (f"system.of-topic-{number:06}" for number in range(topics))}
        self.tables = [SimulatedTopics(shared) for _ in range(BROKERS)]
        self.views = [LocalBroker(_description(number), table) for number, table in enumerate(self.tables)]
        self._registrations = [
            Registrations([parse_address(nameserver.address)], view, RegistrationSettings(), lambda: 0.5)
            for view in self.views
        ]

    async def register(self) -> None:
        """AT_ONCE at a time: one process has no time to make the heartbeats of all at once."""

        async def start(number: int) -> None:
            registrations = self._registrations[number]
            registrations.start()
            while registrations.registrations[0].state is not RegistrationState.REGISTERED:
                await asyncio.sleep(0.01)

        async with asyncio.timeout(REGISTERED_S_MAX):
            await measure.each(BROKERS, start, AT_ONCE)

    async def stop(self) -> None:
        await asyncio.gather(*(one.stop() for one in self._registrations))


def _description(number: int) -> BrokerDescription:
    return BrokerDescription(
        cluster="DefaultCluster", name=f"broker-{number:03}", address=f"10.0.0.1:{8_081 + number}",
        store_host_ipv6=False, append_property_crc=True, body_size_max=4 << 20, batch_size_max=4 << 20,
        flush_mode="sync", version="0.1.0",
    )  # fmt: skip


async def measure_nameserver(report: Report, directory: Path, *, quick: bool) -> None:
    """Each number of topics at a separate nameserver."""
    for topics in TOPICS[:1] if quick else TOPICS:
        with NameserverProcess() as nameserver:
            brokers = Brokers(nameserver, topics)
            try:
                await _register(report, nameserver, brokers, topics)
                await _load(report, nameserver, topics)
                await _change(report, nameserver, brokers, topics)
            finally:
                await brokers.stop()


async def _register(report: Report, nameserver: NameserverProcess, brokers: Brokers, topics: int) -> None:
    name, pid = f"{BROKERS} x {topics:,}", nameserver.pid
    memory, spent, started = measure.resident_bytes(pid), measure.scheduled_seconds(pid), time.perf_counter()
    async with _script(ASKING, nameserver) as asking:
        await brokers.register()
        seconds = time.perf_counter() - started
        spent = measure.scheduled_seconds(pid) - spent
        times = json.loads(await _ended(asking))
    grown = measure.resident_bytes(pid) - memory
    report.add(f"register {name}: seconds, with the brokers' own work", seconds, "s")
    report.add(f"register {name}: CPU a topic", spent / (BROKERS * topics) * 1e6, "us", at_most=10)
    report.add_latency(f"register {name}: GetRoute meanwhile", times, p99_max_ms=50)
    report.add(f"register {name}: GetRoute meanwhile: longest", max(times) * 1e3, "ms")
    report.add(f"register {name}: memory", measure.resident_bytes(pid) / (1 << 20), "MiB", at_most=400)
    report.add(f"register {name}: memory that a route takes", grown / (BROKERS * topics), "bytes")
    await asyncio.sleep(1)
    spent = measure.scheduled_seconds(pid)
    await asyncio.sleep(IDLE_S)
    share = (measure.scheduled_seconds(pid) - spent) / IDLE_S * 100
    report.add(f"idle {name}: of a processor", share, "%", at_most=5)


async def _load(report: Report, nameserver: NameserverProcess, topics: int) -> None:
    """While the registered brokers send their heartbeats."""
    for rate in LOAD_RATES:
        spent = measure.scheduled_seconds(nameserver.pid)
        async with _script(LOADING, nameserver, str(rate), str(LOAD_S)) as asking:
            times = json.loads(await _ended(asking))
        spent = measure.scheduled_seconds(nameserver.pid) - spent
        name = f"load {BROKERS} x {topics:,}: GetRoute, {rate:,} a second"
        report.add_latency(name, times, p99_max_ms=20)
        report.add(f"{name}: CPU, with the heartbeats", spent / len(times) * 1e6, "us")


async def _change(report: Report, nameserver: NameserverProcess, brokers: Brokers, topics: int) -> None:
    """One topic after the other, each at another broker, with two watchers: raw bytes, and an SDK client."""
    name = f"change 1 of {topics:,}"
    await _announce(report, name, brokers)
    async with AsyncExitStack() as stack:
        channel = await stack.enter_async_context(_channel(nameserver))
        watching = channel.unary_stream(
            WATCH, request_serializer=route_pb2.WatchRoutesRequest.SerializeToString
        )(route_pb2.WatchRoutesRequest(changes=True, removed_brokers=True, parts=True))
        joiner, first, largest = PartJoiner(), None, 0
        while first is None:
            message = await watching.read()
            largest = max(largest, len(message))
            first = joiner.add(message)
        sdk = None
        if topics <= SDK_TOPICS_MAX:
            sdk = await stack.enter_async_context(_script(WATCHING, nameserver))
        await asyncio.sleep(1)
        pids = [nameserver.pid, *([sdk.pid] if sdk is not None else [])]
        spent, started = [measure.scheduled_seconds(pid) for pid in pids], time.perf_counter()
        sizes = await _alter(brokers, watching)
        seconds = time.perf_counter() - started
        spent = [measure.scheduled_seconds(pid) - before for pid, before in zip(pids, spent, strict=True)]
        asking = await stack.enter_async_context(_script(ASKING, nameserver))
        await _alter(brokers, watching)
        times = json.loads(await _ended(asking))
    idle = report.value(f"idle {BROKERS} x {topics:,}: of a processor") / 100 * seconds
    report.add(f"{name}: nameserver CPU", (spent[0] - idle) / CHANGES * 1e6, "us", at_most=1_500)
    report.add(f"{name}: until a watcher has it", seconds / CHANGES * 1e3, "ms")
    report.add(f"{name}: bytes to a watcher", sum(sizes) / CHANGES, "bytes", at_most=512)
    report.add(f"{name}: bytes of the first reply to a watcher", len(first), "bytes")
    report.add(f"{name}: bytes of its largest message", largest, "bytes", at_most=PART_SIZE + 16)
    if sdk is not None:
        report.add(f"{name}: SDK watcher CPU", spent[1] / CHANGES * 1e6, "us")
    report.add_latency(f"{name}: GetRoute meanwhile", times, p99_max_ms=20)


async def _alter(brokers: Brokers, watching: Any) -> list[int]:
    """Alters topics until CHANGES replies came. Returns their sizes."""
    sizes = []
    for number in range(CHANGES):
        brokers.tables[number % BROKERS].alter(f"system.of-topic-{number:06}")
        sizes.append(len(await watching.read()))
    return sizes


async def _announce(report: Report, name: str, brokers: Brokers) -> None:
    """The broker's work for a heartbeat: with a change, and with all topics as it was before."""
    table = SimulatedTopics({topic: Topic(topic) for topic in brokers.tables[0].names()})
    announced = Announced(LocalBroker(_description(0), table))
    started = time.thread_time()
    heartbeat, _ = announced.next()
    size = len(heartbeat.SerializeToString())
    all_s = time.thread_time() - started
    announced.answered(route_pb2.HeartbeatReply(changes=True))
    started, changed_size = time.thread_time(), 0
    for number in range(CHANGES):
        table.alter(f"system.of-topic-{number:06}")
        heartbeat, _ = announced.next()
        changed_size += len(heartbeat.SerializeToString())
    changed_s = time.thread_time() - started
    report.add(f"{name}: bytes of the heartbeat", changed_size / CHANGES, "bytes", at_most=256)
    report.add(f"{name}: bytes of a heartbeat with all topics", size, "bytes")
    report.add(f"{name}: broker CPU to make the heartbeat", changed_s / CHANGES * 1e6, "us", at_most=200)
    report.add(f"{name}: broker CPU to make one with all topics", all_s * 1e6, "us")


@asynccontextmanager
async def _channel(nameserver: NameserverProcess) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(nameserver.address) as channel:
        yield channel


@asynccontextmanager
async def _script(text: str, nameserver: NameserverProcess, *arguments: str) -> AsyncIterator[Process]:
    """A script that has connected; it ends with its standard input, or on its own."""
    command = (sys.executable, "-c", text, nameserver.address, *arguments)
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, limit=1 << 24)
    assert process.stdout is not None
    try:
        assert (await process.stdout.readline()).strip() == b"connected"
        yield process
    finally:
        if process.returncode is None:
            await _ended(process)


async def _ended(process: Process) -> str:
    """Ends the script. Returns its output."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    printed = (await process.stdout.read()).decode()
    await process.wait()
    return printed
