"""The official clients with one broker and with several: the cost of a message for each, and their sum.

A client is given the address of the first broker. The route that it gets there names the queues of all.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import trovemq
from bench import measure
from bench.official import clients
from bench.official.replies import GROUP_PREFIX
from bench.processes import ProcessError
from bench.report import Report
from trovemq.testing import BrokerProcess

SECONDS: Final = 4.0
TURNS: Final = 3
WORKS: Final[tuple[clients.Work, ...]] = ("send", "receive")
COUNTERS: Final = {"send": "messages_in", "receive": "messages_out"}
STORED: Final = 200_000  # messages, before the clients begin
BODY: Final = b"x" * measure.BODY_SIZE
SETTLED_S: Final = 1.0
"""Until the routes of the first broker have the others' new topic."""


async def measure_clients(
    report: Report,
    case: str,
    brokers: Sequence[BrokerProcess],
    commands: Mapping[str, list[str]],
    *,
    quick: bool,
) -> None:
    """Rows of each client that is installed; of others `commands` has none, and the report a note. `case`
    says how many brokers there are."""
    for language, command in commands.items():
        topic = f"official-{language}"
        for broker in brokers:
            await _fill(broker, topic, STORED // len(brokers) // (10 if quick else 1))
        await asyncio.sleep(SETTLED_S)
        for work in WORKS:
            name = f"{case}, official {language} client, {work}s"
            try:
                await _measure(report, name, brokers, command, work, topic, quick=quick)
            except ProcessError as error:
                report.notes.append(f"{name}: {error}")


async def _fill(broker: BrokerProcess, topic: str, messages: int) -> None:
    """Creates the topic, with messages that are received later: a quick consumer finds enough."""
    async with trovemq.connect(broker.address) as client:
        await client.admin.create_topic(topic, queue_count=measure.QUEUES)
        async with client.producer(topic) as producer:
            for number in range(messages // measure.BATCH):
                bodies = [BODY] * measure.BATCH
                await producer.send_batch(bodies, tags="tag", queue_id=number % measure.QUEUES)


async def _measure(
    report: Report,
    name: str,
    brokers: Sequence[BrokerProcess],
    command: list[str],
    work: clients.Work,
    topic: str,
    *,
    quick: bool,
) -> None:
    before = await _handled(brokers, work)
    spent = [measure.scheduled_seconds(broker.pid) for broker in brokers]
    group, turns = f"{GROUP_PREFIX}{topic}", 1 if quick else TURNS
    (answer,) = await clients.run(command, work, topic, group, SECONDS, turns, brokers[0].address)
    seconds = [measure.scheduled_seconds(one.pid) - was for one, was in zip(brokers, spent, strict=True)]
    handled = await _handled(brokers, work) - before
    if answer.failures:
        report.notes.append(f"{name}: {answer.failures} calls failed")
    report.add(f"{name}: rate", answer.rate, "msg/s")
    for broker, took in zip(brokers, seconds, strict=True):
        if not handled[broker.name]:
            report.notes.append(f"{name}: {broker.name} had no message")
        cost = took / max(1, handled[broker.name]) * 1e6
        report.add(f"{name}: CPU of {broker.name} for its message", cost, "us")
    total = max(1, handled.total())
    report.add(f"{name}: CPU of all brokers for a message", sum(seconds) / total * 1e6, "us")


async def _handled(brokers: Sequence[BrokerProcess], work: clients.Work) -> Counter[str]:
    """The messages that each broker has stored, or delivered, since its start."""
    found: Counter[str] = Counter()
    for broker in brokers:
        async with trovemq.connect(broker.address) as client:
            (one,) = await client.admin.statistics()
        found[broker.name] = one.counters[COUNTERS[work]]
    return found
