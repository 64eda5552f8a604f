"""Members that join a group while another one works through its messages get a share of them at once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

import trovemq
from trovemq import Client, ReceivedMessage
from trovemq.testing import BrokerProcess

pytestmark = [pytest.mark.slow, pytest.mark.asyncio]

COUNT = 60


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess(ready_timeout=240) as process:
        yield process


@pytest_asyncio.fixture
async def client(broker: BrokerProcess) -> AsyncIterator[Client]:
    async with trovemq.connect(broker.address) as connected:
        yield connected


class Workers:
    """Members of one group, each a handler with a gate: it works on a message until the gate lets it go."""

    def __init__(self, client: Client, topic: str) -> None:
        self.client, self.topic, self.group = client, topic, f"workers-{topic}"
        self.got: list[tuple[str, ReceivedMessage]] = []
        self.done: list[tuple[str, ReceivedMessage]] = []
        self.changed = asyncio.Condition()
        self.gates: dict[str, asyncio.Semaphore] = {}
        self.tasks: list[asyncio.Task[None]] = []

    def add(self, name: str, **options: object) -> None:
        gate = self.gates[name] = asyncio.Semaphore(0)

        async def handler(message: ReceivedMessage) -> None:
            await self.note(self.got, name, message)
            await gate.acquire()
            await self.note(self.done, name, message)

        arguments: dict[str, object] = {"concurrency": 1, "start": "earliest", **options}
        consuming = self.client.consume(self.topic, self.group, handler, **arguments)  # type: ignore[arg-type]
        self.tasks.append(asyncio.create_task(consuming))

    async def note(self, into: list[tuple[str, ReceivedMessage]], name: str, one: ReceivedMessage) -> None:
        async with self.changed:
            into.append((name, one))
            self.changed.notify_all()

    async def until(self, name: str, count: int) -> None:
        """That worker has begun `count` messages."""
        async with asyncio.timeout(60), self.changed:
            await self.changed.wait_for(lambda: sum(who == name for who, _ in self.got) >= count)

    async def finish(self) -> None:
        """Lets all workers go, and checks that each message was consumed once, untried before."""
        for gate in self.gates.values():
            for _ in range(COUNT):
                gate.release()
        async with asyncio.timeout(60), self.changed:
            await self.changed.wait_for(lambda: len(self.done) >= COUNT)
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        assert Counter(one.body for _, one in self.done) == Counter(b"%d" % i for i in range(COUNT))
        assert {one.attempt for _, one in self.got} == {1}
        assert len(self.got) == COUNT


async def filled(client: Client, topic: str, lanes: int = 0) -> None:
    message_type = "FIFO" if lanes else "NORMAL"
    await client.admin.create_topic(topic, queue_count=1, message_type=message_type)
    async with client.producer(topic) as producer:
        for i in range(COUNT):
            await producer.send(b"%d" % i, message_group=f"lane-{i % lanes}" if lanes else None)


async def until_in_flight(client: Client, workers: Workers, count: int) -> None:
    """The workers have `count` messages."""
    async with asyncio.timeout(60):
        while True:
            lag = await client.admin.groups.lag(workers.group, workers.topic)
            if sum(one.in_flight for one in lag) >= count:
                return
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("prefetch", [None, 256])
async def test_a_worker_that_joined_got_none_of_60_messages(client: Client, prefetch: int | None) -> None:
    topic = f"hoarded-{prefetch}"
    await filled(client, topic)
    workers = Workers(client, topic)
    workers.add("first", prefetch=prefetch)
    await workers.until("first", 1)
    if prefetch is not None:
        await until_in_flight(client, workers, COUNT)
    workers.add("second", prefetch=prefetch)
    for _ in range(25):
        workers.gates["second"].release()
    await workers.until("second", 26)
    await workers.finish()


@pytest.mark.parametrize("prefetch", [None, 256])
async def test_a_worker_that_joins_an_orderly_group_gets_message_groups(
    client: Client, prefetch: int | None
) -> None:
    topic = f"in-turn-{prefetch}"
    await filled(client, topic, lanes=6)
    workers = Workers(client, topic)
    workers.add("first", prefetch=prefetch)
    await workers.until("first", 1)
    if prefetch is not None:
        await until_in_flight(client, workers, COUNT)
    workers.add("second", prefetch=prefetch)
    for _ in range(10):
        workers.gates["second"].release()
    await workers.until("second", 11)
    await workers.finish()
    for lane in range(6):
        begun = [int(one.body) for _, one in workers.got if one.message_group == f"lane-{lane}"]
        assert begun == list(range(lane, COUNT, 6))


async def test_members_that_join_all_at_once_share_what_the_first_one_had(client: Client) -> None:
    await filled(client, "rush")
    workers = Workers(client, "rush")
    workers.add("first", prefetch=256)
    await workers.until("first", 1)
    await until_in_flight(client, workers, COUNT)
    names = [f"later-{number}" for number in range(8)]
    for name in names:
        workers.add(name)
    for name in names:
        await workers.until(name, 1)
    await workers.finish()
