"""The cost of spans: single sends, 200 at once, with bodies of varied sizes and of one size.

| client and broker |                                                                                  |
|-------------------|----------------------------------------------------------------------------------|
| without hooks     | of the same modules without the statements about spans (`without_hooks`), in both |
| off               | no tracing                                                                       |
| off, again        | the same, to show the noise                                                      |
| on, 1 % sampled   | `Tracing(root_ratio=0.01)`; the exporter drops the spans; the broker has none    |

Each client has a separate broker; each round measures every client, in a random order. A figure is the
processor time of client and broker for a send; a ratio is the median over the rounds of that of "without
hooks" to that of "off", or of that of "off" to those of the others. Varied bodies have 1,000 to 1,063 bytes.
Records of exactly one size are measured by the first of them; a property in one of a hundred ends that for
those in its frame, which are then read like varied ones.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple
from unittest.mock import patch

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

import trovemq
from bench import measure
from bench.report import Report, median_ratio
from bench.without_hooks import OF_PRODUCER, load
from trovemq import ClientOptions, producer
from trovemq.otel import Tracing
from trovemq.testing import BrokerProcess

ROUNDS: Final = 40
SENDS: Final = 2_000
AT_ONCE: Final = 200
BODIES: Final = {
    "varied": [bytes(1_000 + size) for size in range(64)],
    "of one size": [bytes(1_000)],
}
WITHOUT, OFF, AGAIN, ON = "without hooks", "off", "off, again", "on, 1 % sampled"
COMPARED: Final[dict[str, tuple[str, float | None]]] = {
    OFF: (WITHOUT, 0.99),
    AGAIN: (OFF, None),
    ON: (OFF, 0.95),
}
ABOUT: Final = (
    "Processor time of a send, client and broker together, 200 at once. `without hooks`: the same code\n"
    "without the statements about spans. Ratios are medians over rounds, each of which measures all.\n\n"
)


class NoExporter(SpanExporter):
    """Takes spans and drops them."""

    def export(self, spans: Sequence[object]) -> SpanExportResult:
        return SpanExportResult.SUCCESS


class BrokerWithoutHooks(BrokerProcess):
    """Of modules without the statements about spans."""

    def command(self) -> list[str]:
        command = super().command()
        command[command.index("trovemq_broker")] = "bench.without_hooks"
        command.remove("-P")  # `bench` is in the working directory
        return command


class Kind(NamedTuple):
    client: trovemq.Client
    process_id: int

    async def cost_us(self, body_of: Callable[[], bytes]) -> float:
        """Of a send, here and in the broker."""

        async def worker() -> None:
            for _ in range(SENDS // AT_ONCE):
                await self.client.send("bench", body_of())

        before = time.process_time() + measure.scheduled_seconds(self.process_id)
        await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
        spent = time.process_time() + measure.scheduled_seconds(self.process_id) - before
        return spent / SENDS * 1e6


async def measure_tracing(report: Report, directory: Path, *, quick: bool) -> None:
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(NoExporter()))
    tracings = {WITHOUT: None, OFF: None, AGAIN: None, ON: Tracing(provider, root_ratio=0.01)}
    producer_without = load(*OF_PRODUCER).Producer
    async with AsyncExitStack() as stack:
        kinds = {}
        for name, tracing in tracings.items():
            made = BrokerWithoutHooks if name == WITHOUT else BrokerProcess
            broker = stack.enter_context(made(store=directory / name.replace(" ", "-")))
            options = ClientOptions(tracing=tracing)
            client = await stack.enter_async_context(trovemq.connect(broker.address, options=options))
            await client.admin.create_topic("bench", queue_count=4)
            chosen = producer_without if name == WITHOUT else producer.Producer
            with patch.object(producer, "Producer", chosen):
                await client.send("bench", b"its producer is made now")
            kinds[name] = Kind(client, broker.pid)
        for what in BODIES:
            await _measure(report, kinds, what, ROUNDS // (4 if quick else 1))
    provider.shutdown()


async def _measure(report: Report, kinds: dict[str, Kind], what: str, rounds: int) -> None:
    bodies, numbers = BODIES[what], count()
    costs: dict[str, list[float]] = {name: [] for name in kinds}
    order = list(kinds)

    def body() -> bytes:
        return bodies[next(numbers) % len(bodies)]

    for _ in range(rounds + 1):
        random.shuffle(order)
        for name in order:
            costs[name].append(await kinds[name].cost_us(body))
    for name, values in costs.items():
        report.add(f"bodies {what}, {name}", median(values[1:]), "us")
    for name, (base, goal) in COMPARED.items():
        ratio = median_ratio(costs[base][1:], costs[name][1:])
        goals = {} if goal is None else {"at_least": goal}
        report.add(f"bodies {what}, {base} / {name}", ratio, "x", **goals)
