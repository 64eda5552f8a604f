"""Many topics of 8 queues: the cost of making them, of having them, and of a start with them.

    made      64 calls at a time over one connection, while two clients watch all routes
    idle      processor and memory some seconds after the last call
    scrape    /metrics and a listing, and how long another request waits beside them
    start     after a clean stop and a kill, until the broker is ready; then with a message in each queue
    maps      mappings and open files of the broker at the end: a process has 65,530 maps

10,000 topics; with --quick 1,000, and the goals are those of 10,000 all the same.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import trovemq
from bench import measure
from bench.report import Report
from trovemq.testing import BrokerProcess

TOPICS: Final = 10_000
QUEUES: Final = 8
IN_FLIGHT: Final = 64
WATCHERS: Final = 2
IDLE_S: Final = 5.0
SENT_AT_ONCE: Final = 256
LARGE_READS: Final = """
import sys, threading, urllib.request
from trovemq import sync
http, server = sys.argv[1:]
def scrape():
    with urllib.request.urlopen(f"http://{http}/metrics", timeout=60) as reply:
        reply.read()
with sync.connect(server) as client:
    print("connected", flush=True)
    scrapes = [threading.Thread(target=scrape) for _ in range(3)]
    for one in scrapes:
        one.start()
    client.admin.list_topics()
    for one in scrapes:
        one.join()
"""
ABOUT: Final = "Topics of 8 queues; the store is written with sync flush.\n\n"


async def measure_topics(report: Report, directory: Path, *, quick: bool) -> None:
    """Makes, idles, scrapes, sends to every queue, and starts again and again."""
    count, store = TOPICS // (10 if quick else 1), directory / "topics"
    broker = BrokerProcess(store=store, flushDiskType="SYNC_FLUSH", ready_timeout=120.0)
    try:
        broker.start()
        await _make(report, broker, count)
        await _idle(report, broker)
        await _ask(report, broker)
        await _start(report, broker, "empty queues")
        await _fill(broker, count)
        await _start(report, broker, "a message in each queue")
        await _idle(report, broker, "after a start with messages")
        report.add("maps of the process", _lines(broker, "maps"), "maps", at_most=2_000)
        report.add("open files of the process", _entries(broker, "fd"), "files", at_most=1_000)
    finally:
        broker.kill()
        broker.close()


async def _make(report: Report, broker: BrokerProcess, count: int) -> None:
    async with trovemq.connect(broker.address) as client, asyncio.TaskGroup() as group:
        watching = [group.create_task(_watch(broker)) for _ in range(WATCHERS)]
        spent, started = measure.scheduled_seconds(broker.pid), time.perf_counter()

        async def make(number: int) -> None:
            await client.admin.create_topic(f"topic-{number:06}", QUEUES)

        await measure.each(count, make, IN_FLIGHT)
        seconds = time.perf_counter() - started
        spent = measure.scheduled_seconds(broker.pid) - spent
        for task in watching:
            task.cancel()
    report.add("topics: made a second, durable, 64 in flight", count / seconds, "/s", at_least=1_000)
    report.add("topics: broker CPU for each", spent / count * 1e6, "us", at_most=1_000)


async def _watch(broker: BrokerProcess) -> None:
    """The routes of all topics, as a nameserver's clients may watch them."""
    import grpc

    from tests.support.stubs import ROUTES, stub_of
    from trovemq_proto.v1 import route_pb2

    async with grpc.aio.insecure_channel(broker.address) as channel:
        async for _ in stub_of(ROUTES, channel).WatchRoutes(route_pb2.WatchRoutesRequest()):
            pass


async def _idle(report: Report, broker: BrokerProcess, when: str = "made just now") -> None:
    await asyncio.sleep(1)
    spent = measure.scheduled_seconds(broker.pid)
    await asyncio.sleep(IDLE_S)
    share = (measure.scheduled_seconds(broker.pid) - spent) / IDLE_S * 100
    report.add(f"idle, {when}: of a processor", share, "%", at_most=2)
    memory = measure.resident_bytes(broker.pid) / (1 << 20)
    report.add(f"idle, {when}: resident memory", memory, "MiB", at_most=400)


async def _ask(report: Report, broker: BrokerProcess) -> None:
    """How long small requests wait while scrapes and a listing run, which another process asks for: reading
    their answers would hold up the one that measures."""
    waits: list[float] = []
    command = (sys.executable, "-c", LARGE_READS, broker.http_address, broker.address)
    async with trovemq.connect(broker.address) as client:
        reading = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        assert reading.stdout is not None
        await reading.stdout.readline()
        over = asyncio.create_task(reading.wait())
        while not over.done():
            started = time.perf_counter()
            await client.admin.describe_topic("topic-000000")
            waits.append(time.perf_counter() - started)
        assert over.result() == 0
    report.add("beside scrapes and a listing: longest wait", max(waits) * 1e3, "ms", at_most=50)


async def _fill(broker: BrokerProcess, count: int) -> None:
    """One message for each queue."""
    async with trovemq.connect(broker.address) as client:

        async def send(number: int) -> None:
            topic, queue_id = f"topic-{number // QUEUES:06}", number % QUEUES
            await client.send(topic, b"x", queue_id=queue_id)

        await measure.each(count * QUEUES, send, SENT_AT_ONCE)


async def _start(report: Report, broker: BrokerProcess, what: str) -> None:
    await asyncio.sleep(2)  # the marks are on disk
    for how, end in (("clean stop", broker.stop), ("kill", broker.kill)):
        await asyncio.to_thread(end)
        started = time.perf_counter()
        await asyncio.to_thread(broker.start)
        seconds = time.perf_counter() - started
        report.add(f"start after a {how}, {what}", seconds, "s", at_most=5)
        spent = measure.scheduled_seconds(broker.pid)
        report.add(f"start after a {how}, {what}: broker CPU", spent, "s", at_most=5)


def _lines(broker: BrokerProcess, name: str) -> int:
    return len(Path(f"/proc/{broker.pid}/{name}").read_text().splitlines())


def _entries(broker: BrokerProcess, name: str) -> int:
    return len(list(Path(f"/proc/{broker.pid}/{name}").iterdir()))
