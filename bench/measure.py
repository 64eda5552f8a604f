"""The figures of one broker: throughput, latency, look-ups, memory. Every function takes a running broker."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import trovemq
from trovemq.testing import BrokerProcess
from trovemq_proto.tls import TlsOptions

TOPIC = "bench"
QUEUES = 8
BODY_SIZE = 1024
BATCH = 1000
BATCHES_IN_FLIGHT = 16
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Throughput:
    """Messages a second over the whole run, and the processor time of the broker's process for one."""

    messages: int
    seconds: float
    broker_cpu_us: float
    stored_bytes: int

    @property
    def per_second(self) -> float:
        return self.messages / self.seconds

    @property
    def bytes_per_second(self) -> float:
        return self.stored_bytes / self.seconds


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


def scheduled_seconds(pid: int) -> float:
    """Processor time of a process's threads so far, exact: ticks count too much for threads that timers
    wake."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def run_on(pid: int, processors: set[int]) -> None:
    """Places all threads of a process: two processes that are compared are not to differ by their places."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), processors)


def resident_bytes(pid: int) -> int:
    """Resident set size of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def each(count: int, do: Callable[[int], Awaitable[object]], at_once: int) -> None:
    """Calls `do` with every number below `count`, a bounded number at once."""
    numbers = iter(range(count))

    async def work() -> None:
        for number in numbers:
            await do(number)

    await asyncio.gather(*(work() for _ in range(at_once)))


def allow_open_files(count: int) -> bool:
    """For this process and those that it starts. False: the system allows fewer."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY in (soft, hard) or hard >= count:
        if soft != resource.RLIM_INFINITY:
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), hard))
        return True
    return False


async def produce(
    broker: BrokerProcess,
    messages: int,
    topic: str = TOPIC,
    options: Mapping[str, str] | None = None,
    *,
    to: str = "",
    tls: TlsOptions | None = None,
) -> Throughput:
    """One producer, batches of 1,000 messages of 1,024 bytes with a unique key and one key, pipelined,
    to a new topic with these options. `to`: another of the broker's addresses."""
    generator = random.Random(1)
    bodies = [generator.randbytes(BODY_SIZE) for _ in range(BATCH)]
    keys = [[f"k{start + i}" for i in range(BATCH)] for start in range(0, messages, BATCH)]
    async with trovemq.connect(to or broker.address, tls=tls) as client:
        await client.admin.create_topic(topic, queue_count=QUEUES, options=options)
        async with client.producer(topic) as producer:
            await producer.send_batch(bodies[:1], queue_id=0)  # opens the stream
            cpu, started = cpu_seconds(broker.pid), time.perf_counter()
            pending: set[asyncio.Task[object]] = set()
            last = None
            for number, batch_keys in enumerate(keys):
                if len(pending) >= BATCHES_IN_FLIGHT:
                    done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        task.result()
                send = producer.send_batch(bodies, keys=batch_keys, queue_id=number % QUEUES)
                last = asyncio.create_task(send)
                pending.add(last)
                await asyncio.sleep(0)
            await asyncio.gather(*pending)
            seconds = time.perf_counter() - started
            spent = cpu_seconds(broker.pid) - cpu
            assert last is not None
            receipt = last.result()[-1]
    return Throughput(messages, seconds, spent / messages * 1e6, receipt.physical_offset)


async def consume(broker: BrokerProcess) -> Throughput:
    """Every message of every queue from the start, as batches; each batch's records are counted."""
    async with trovemq.connect(broker.address) as client:
        cpu, started = cpu_seconds(broker.pid), time.perf_counter()
        messages = size = 0
        for queue_id in range(QUEUES):
            async for batch in client.pull_batches(TOPIC, queue_id=queue_id):
                messages += len(batch.records)
                size += batch.nbytes
        seconds = time.perf_counter() - started
        spent = cpu_seconds(broker.pid) - cpu
    return Throughput(messages, seconds, spent / messages * 1e6, size)


async def consume_messages(broker: BrokerProcess, limit: int = 100_000) -> float:
    """Messages a second when each one becomes a Message object."""
    async with trovemq.connect(broker.address) as client:
        started, count = time.perf_counter(), 0
        async for _ in client.pull(TOPIC, queue_id=0, offset=0):
            count += 1
            if count == limit:
                break
        return count / (time.perf_counter() - started)


async def send_latencies(client: trovemq.Client, count: int) -> list[float]:
    """Seconds of `count` acknowledged sends of 1,024 bytes, one at a time, through the SDK."""
    body = bytes(BODY_SIZE)
    times = []
    for _ in range(count):
        started = time.perf_counter()
        await client.send(TOPIC, body, keys=["single"])
        times.append(time.perf_counter() - started)
    return times


async def query_latencies(broker: BrokerProcess, keys: Sequence[str]) -> list[float]:
    """Seconds of one key query each, of keys that exist."""
    async with trovemq.connect(broker.address) as client:
        await client.query(TOPIC, keys[0])
        times = []
        for key in keys:
            started = time.perf_counter()
            answer = await client.query(TOPIC, key)
            times.append(time.perf_counter() - started)
            assert answer.messages, key
        return times
