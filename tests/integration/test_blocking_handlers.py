"""Handlers that hold up the event loop, beside a real broker that takes silent clients for dead after two
seconds, in place of 15."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator

import pytest

import trovemq
from trovemq import ReceivedMessage
from trovemq.testing import BrokerProcess

pytestmark = [pytest.mark.slow, pytest.mark.asyncio]


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess(
        ready_timeout=240, grpc_keepalive_time_ms=1_000, grpc_keepalive_timeout_ms=1_000
    ) as running:
        yield running


def work(address: str, topic: str, seconds: float, count: int, runs: list[bytes]) -> None:
    """A worker in a thread and a separate loop, until all messages were run."""

    async def handle(message: ReceivedMessage) -> None:
        runs.append(message.body)
        time.sleep(seconds)

    async def consume() -> None:
        async with trovemq.connect(address) as client:
            working = asyncio.create_task(client.consume(topic, "workers", handle, start="earliest"))
            while not await is_consumed(client, topic, count):
                await asyncio.sleep(0.05)
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)

    asyncio.run(consume())


async def is_consumed(client: trovemq.Client, topic: str, count: int) -> bool:
    try:
        (queue,) = await client.admin.groups.lag("workers", topic)
    except trovemq.TroveError:  # no member came yet
        return False
    return queue.committed == queue.max_offset == count


@pytest.mark.parametrize(
    ("seconds", "count", "workers"),
    [(0.05, 40, 1), (5, 2, 1), (5, 1, 2)],
    ids=["many short ones", "a member taken for dead", "two members taken for dead"],
)
async def test_blocked_loops_ran_messages_again_and_again(
    broker: BrokerProcess, seconds: float, count: int, workers: int
) -> None:
    topic = f"blocked-{workers}-{count}"
    async with trovemq.connect(broker.address) as client:
        await client.admin.create_topic(topic, queue_count=1)
        await client.send(topic, b"first")
        for number in range(count - 1):
            await client.send(topic, b"%d" % number)
        runs: list[bytes] = []
        arguments = (broker.address, topic, seconds, count, runs)
        async with asyncio.timeout(240):
            await asyncio.gather(*(asyncio.to_thread(work, *arguments) for _ in range(workers)))
        assert len(Counter(runs)) == count
        assert max(Counter(runs).values()) <= workers
        assert [letter async for letter in client.admin.groups.dead_letters("workers")] == []
