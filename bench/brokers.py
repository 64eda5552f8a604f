"""Several brokers on one machine beside one: rates, processor time of each broker, memory.

The clients are separate processes, as many for one broker as for several, and know the nameserver only. On a
machine of few processors they are the limit: then compare the processor time of a message, not the rates.

    make bench ARGS="brokers"                 1, 2, 4, … brokers, up to the processors (2 at least); with the
                                              official clients that this machine can run, too
    python -m bench.brokers SERVER TOPIC KIND N
                                              one client: N messages, batches or singles; prints the seconds
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import trovemq
from bench import measure
from bench.official import clients, several
from bench.processes import last_line
from bench.report import Report
from trovemq.testing import BrokerProcess, NameserverProcess

CLIENTS: Final = 2
MESSAGES: Final = {"batches": 400_000, "singles": 100_000}
SENDS_AT_ONCE: Final = 256  # of a client
CLIENT_S_MAX: Final = 600.0
SEGMENT_SIZE: Final = 64 << 20
ABOUT: Final = (
    f"Messages of {measure.BODY_SIZE:,} bytes with a key, sync flush, by {CLIENTS} client processes through "
    f"a nameserver: batches of {measure.BATCH:,}, and single sends, {SENDS_AT_ONCE} at once a client. "
    "Official clients get the address of the first broker.\n\n"
)


def counts() -> Iterator[int]:
    """Numbers of brokers."""
    count = 1
    while count <= max(2, os.cpu_count() or 1):
        yield count
        count *= 2


async def measure_brokers(report: Report, directory: Path, *, quick: bool) -> None:
    """Each number of brokers, with new stores."""
    commands = clients.installed(report)
    for count in counts():
        with ExitStack() as daemons:
            names = daemons.enter_context(NameserverProcess())
            brokers = [
                daemons.enter_context(
                    BrokerProcess(
                        name=f"broker-{number}",
                        store=directory / f"{count}-{number}",
                        nameservers=[names],
                        mappedFileSizeCommitLog=SEGMENT_SIZE,
                    )
                )
                for number in range(1, count + 1)
            ]
            for kind, messages in MESSAGES.items():
                await _measure_kind(report, names.address, brokers, kind, messages // (10 if quick else 1))
            await several.measure_clients(report, _some(count), brokers, commands, quick=quick)
            for broker in brokers:
                memory = measure.resident_bytes(broker.pid) / (1 << 20)
                report.add(f"{_some(count)}: resident memory of {broker.name}", memory, "MiB")


async def _measure_kind(
    report: Report, server: str, brokers: Sequence[BrokerProcess], kind: str, messages: int
) -> None:
    async with trovemq.connect(server) as client:
        await client.admin.create_topic(kind, queue_count=measure.QUEUES)
        before = [measure.scheduled_seconds(broker.pid) for broker in brokers]
        command = [sys.executable, "-m", "bench.brokers", server, kind, kind, str(messages // CLIENTS)]
        lines = await asyncio.gather(*(last_line(*command, timeout_s=CLIENT_S_MAX) for _ in range(CLIENTS)))
        spent = [measure.scheduled_seconds(one.pid) - was for one, was in zip(brokers, before, strict=True)]
        stored: Counter[str] = Counter()
        for place in await client.queue_offsets(kind):
            stored[place.broker] += place.max_offset - place.min_offset
    total = stored.total()
    assert total == messages // CLIENTS * CLIENTS, (total, messages)
    case = f"{_some(len(brokers))}, {kind}"
    report.add(f"{case}: rate", total / max(map(float, lines)), "msg/s")
    for broker, seconds in zip(brokers, spent, strict=True):
        cost = seconds / max(1, stored[broker.name]) * 1e6
        report.add(f"{case}: CPU of {broker.name} for its message", cost, "us")
    report.add(f"{case}: CPU of all brokers for a message", sum(spent) / total * 1e6, "us")


def _some(count: int) -> str:
    return f"{count} broker" if count == 1 else f"{count} brokers"


async def send(server: str, topic: str, kind: str, messages: int) -> float:
    """Sends as one client. The seconds until all are acknowledged."""
    body = os.urandom(measure.BODY_SIZE)
    async with trovemq.connect(server) as client, client.producer(topic) as producer:

        async def batch(number: int) -> None:
            size = min(measure.BATCH, messages - number * measure.BATCH)
            keys = [f"k{number}-{index}" for index in range(size)]
            await producer.send_batch([body] * size, keys=keys)

        async def single(number: int) -> None:
            await producer.send(body, keys=[f"k{number}"])

        loop = asyncio.get_running_loop()
        began = loop.time()
        if kind == "batches":
            await measure.each(-(-messages // measure.BATCH), batch, measure.BATCHES_IN_FLIGHT)
        else:
            await measure.each(messages, single, SENDS_AT_ONCE)
        return loop.time() - began


if __name__ == "__main__":
    print(asyncio.run(send(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))))
