"""The cost of spans: single sends, 200 at once, without tracing and with 1 % sampled, by turns.

    python -m bench.tracing

Prints processor time a send, of the client and of the broker, and the ratio of their sums to a client without
tracing, which is there twice to show the noise. Bodies are of 1,000 to 1,063 bytes: records of exactly one
size are encoded together, and a property in one of a hundred ends that.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

import trovemq
from trovemq import ClientOptions
from trovemq.otel import Tracing
from trovemq.testing import BrokerProcess

ROUNDS = 40
SENDS = 2_000
AT_ONCE = 200
BODIES = [bytes(1_000 + size) for size in range(64)]


class NoExporter(SpanExporter):
    """Takes spans and drops them."""

    def export(self, spans: Sequence[object]) -> SpanExportResult:
        return SpanExportResult.SUCCESS


def processor_s(process_id: int) -> float:
    """Of all threads that a process has now."""
    times = Path(f"/proc/{process_id}/task").glob("*/schedstat")
    return sum(int(path.read_text().split()[0]) for path in times) / 1e9


async def one_round(client: trovemq.Client, process_id: int, numbers: count[int]) -> tuple[float, float]:
    """Microseconds a send, of the client and of the broker."""

    async def worker() -> None:
        for _ in range(SENDS // AT_ONCE):
            await client.send("bench", BODIES[next(numbers) % len(BODIES)])

    own, brokers = time.process_time(), processor_s(process_id)
    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
    spent = time.process_time() - own, processor_s(process_id) - brokers
    return spent[0] / SENDS * 1e6, spent[1] / SENDS * 1e6


async def measure(address: str, process_id: int) -> None:
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(NoExporter()))
    kinds = {"off": None, "off, again": None, "on, 1 % sampled": Tracing(provider, root_ratio=0.01)}
    clients = {
        name: await trovemq.connect(address, options=ClientOptions(tracing=tracing))
        for name, tracing in kinds.items()
    }
    await clients["off"].admin.create_topic("bench", queue_count=4)
    results: dict[str, list[tuple[float, float]]] = {name: [] for name in kinds}
    numbers, order = count(), list(kinds)
    for number in range(ROUNDS + 1):
        random.shuffle(order)
        for name in order:
            result = await one_round(clients[name], process_id, numbers)
            if number:  # the first one warms up
                results[name].append(result)
    base = statistics.median(sum(one) for one in results["off"])
    for name, rows in results.items():
        own, brokers = (statistics.median(row[i] for row in rows) for i in (0, 1))
        ratio = base / statistics.median(sum(row) for row in rows)
        print(f"{name:16} client {own:5.1f} us  broker {brokers:5.1f} us  {ratio:.3f} x")
    for client in clients.values():
        await client.close()


def main() -> None:
    with BrokerProcess() as broker:
        assert broker.process is not None
        asyncio.run(measure(broker.address, broker.process.pid))


if __name__ == "__main__":
    main()
