"""Jobs that take a few messages and leave: each message is consumed once, and all of them arrive.

A job subscribes, processes the messages, and leaves at once: its last acknowledgements and the end of its
receive are on their way together. Acknowledged messages are never redelivered; the next job gets the others.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

import pytest

import trovemq
from tests.support.trials import Trials
from trovemq import Client
from trovemq.testing import BrokerProcess

pytestmark = pytest.mark.slow

JOBS: Final = 1_000
DEFAULT_JOBS: Final = 60
MESSAGES_A_JOB: Final = 4
LEAVES: Final = 100
DEFAULT_LEAVES: Final = 10
MESSAGES_A_LEAVE: Final = 120
WAIT_S: Final = 240
"""Far less than a lease lasts (60 s), and more than a client that is gone keeps its messages."""
WHAT: Final = "short jobs"


def test_acknowledgements_of_a_short_job_were_lost_when_it_ended(trials: Trials) -> None:
    async def run(client: Client) -> None:
        await client.admin.create_topic("orders", queue_count=1)
        for number in trials.numbers(JOBS, default=DEFAULT_JOBS):
            with trials.one(number):
                await short_job(client, number)
            trials.count("leaving", WHAT)

    with BrokerProcess() as broker:
        asyncio.run(connected(broker.address, run))


async def short_job(client: Client, number: int) -> None:
    """Sends messages, processes them, leaves; nothing of an earlier job may be among them."""
    sent = [b"%d-%d" % (number, index) for index in range(MESSAGES_A_JOB)]
    for body in sent:
        await client.send("orders", body)
    received = []
    async with client.subscribe("orders", group="jobs") as subscription, asyncio.timeout(WAIT_S):
        async for message in subscription:
            async with message.process():
                received.append(message.body)
            if len(received) == len(sent):
                break
    assert sorted(received) == sorted(sent)
    assert subscription.refused == 0


def test_messages_did_not_arrive_after_others_left(trials: Trials) -> None:
    """A receive that reached the broker after its client's termination took messages for an unknown
    client: they were invisible until the broker looked whether to renew them."""

    async def run(client: Client) -> None:
        await client.admin.create_topic("orders", queue_count=4)
        leaves = list(trials.numbers(LEAVES, default=DEFAULT_LEAVES))
        sending = asyncio.create_task(send(client, len(leaves) * MESSAGES_A_LEAVE))
        seen: Counter[bytes] = Counter()
        for number in leaves:
            with trials.one(number) as source:
                await take(client, seen, source.randrange(1, MESSAGES_A_LEAVE))
            trials.count("leaving", "members that leave")
        await sending
        await take(client, seen, len(leaves) * MESSAGES_A_LEAVE - len(seen))
        assert set(seen) == {b"%d" % index for index in range(len(leaves) * MESSAGES_A_LEAVE)}
        assert max(seen.values()) == 1

    with BrokerProcess() as broker:
        asyncio.run(connected(broker.address, run))


async def send(client: Client, count: int) -> None:
    async with client.producer("orders") as producer:
        for index in range(count):
            await producer.send(b"%d" % index)


async def take(client: Client, seen: Counter[bytes], count: int) -> None:
    """Processes `count` messages, and leaves."""
    async with client.subscribe("orders", group="leaving") as subscription:
        for _ in range(count):
            async with asyncio.timeout(WAIT_S):
                message = await anext(subscription)
            async with message.process():
                seen[message.body] += 1
    assert subscription.refused == 0


async def connected(address: str, run: Callable[[Client], Awaitable[None]]) -> None:
    async with trovemq.connect(address) as client:
        await run(client)
