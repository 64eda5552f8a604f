"""`start` counts for the first contact of a group with a topic, over all brokers and all queues; queues that
come later are read from their beginning. A subscription that has begun waits for its topic and its group.

Real brokers and a nameserver in this process; the clients are the SDK's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import trovemq
from tests.world.cluster_here import ClusterHere, cluster_here, until_routed
from trovemq._common.backoff import Backoff
from trovemq.cli.tailing import Following, follow_queues
from trovemq.starts import Start
from trovemq_proto.records import Message
from trovemq_proto.v1 import admin_pb2

pytestmark = [pytest.mark.slow, pytest.mark.asyncio]

TIME_MAX_S = 240
MESSAGES = 80
GROUP, TOPIC = "billing", "orders"
STARTS: tuple[Start, ...] = ("latest", datetime.now(UTC) + timedelta(days=300))


def named(numbers: Iterable[int]) -> set[bytes]:
    return {b"%d" % number for number in numbers}


async def send(client: trovemq.Client, numbers: Iterable[int], topic: str = TOPIC) -> None:
    await asyncio.gather(*(client.send(topic, b"%d" % number) for number in numbers))


async def take(subscription: trovemq.Subscription, count: int) -> set[bytes]:
    """The bodies of the next messages, which are acknowledged."""
    found: set[bytes] = set()
    async with asyncio.timeout(TIME_MAX_S):
        while len(found) < count:
            message = await subscription.next()
            assert message is not None
            found.add(message.body)
            await message.ack()
    return found


async def worker(cluster: ClusterHere, start: Start | None, count: int) -> set[bytes]:
    """One run of a worker: a separate client that consumes `count` messages."""
    async with cluster.connect() as client, client.subscribe(TOPIC, GROUP, start=start) as messages:
        return await take(messages, count)


async def lag(client: trovemq.Client) -> int:
    return sum(queue.lag for queue in await client.admin.groups.lag(GROUP, TOPIC))


# --- queues that come while the worker is away -------------------------------------------------------
@pytest.mark.parametrize("start", STARTS)
async def test_queues_that_came_while_the_worker_was_away_were_skipped(tmp_path: Path, start: Start) -> None:
    async with cluster_here(tmp_path) as cluster:
        await cluster.start("a")
        async with cluster.connect() as client:
            await client.admin.create_topic(TOPIC, queue_count=4)
            await send(client, range(1_000, 1_004))  # before the first contact
            assert await worker(cluster, start, 0) == set()
            await client.admin.alter_topic(TOPIC, queue_count=8)
            await until_routed(client, TOPIC, "a", queue_count=8)
            await send(client, range(MESSAGES))
            assert await lag(client) == MESSAGES
            assert await worker(cluster, start, MESSAGES) == named(range(MESSAGES))
            assert await lag(client) == 0


@pytest.mark.parametrize("start", STARTS)
async def test_a_second_broker_that_came_while_the_worker_was_away_was_skipped(
    tmp_path: Path, start: Start
) -> None:
    async with cluster_here(tmp_path, new_group_start="end") as cluster:
        await cluster.start("a")
        async with cluster.connect() as client:
            await client.admin.create_topic(TOPIC, queue_count=4)
            await send(client, range(1_000, 1_004))
            assert await worker(cluster, start, 0) == set()
            await cluster.start("b")
            await client._pool.routes.wait_until(lambda: len(client._pool.routes.state.brokers) == 2, 60)
            await client.admin.create_topic(TOPIC, queue_count=4, broker="b")
            await until_routed(client, TOPIC, "a", "b", queue_count=4)
            await send(client, range(MESSAGES))
            assert await worker(cluster, start, MESSAGES) == named(range(MESSAGES))


async def test_a_first_contact_is_noted_in_every_queue_of_every_broker(tmp_path: Path) -> None:
    async with cluster_here(tmp_path) as cluster:
        for name in "ab":
            await cluster.start(name)
        async with cluster.connect() as client:
            await client._pool.routes.wait_until(lambda: len(client._pool.routes.state.brokers) == 2, 60)
            await client.admin.create_topic(TOPIC, queue_count=3)
            await until_routed(client, TOPIC, "a", "b", queue_count=3)
            await send(client, range(1_000, 1_006))
            members = await asyncio.gather(
                *(client.admin.groups.start(GROUP, TOPIC, "latest") for _ in range(5))
            )
            assert sum(map(len, members)) == 6  # the first of them sets each
            assert await lag(client) == 0
        for name in "ab":
            await cluster.stop(name)
            await cluster.start(name)
        async with cluster.connect() as client:
            await until_routed(client, TOPIC, "a", "b", queue_count=3)
            await send(client, range(MESSAGES))
            assert await worker(cluster, "latest", MESSAGES) == named(range(MESSAGES))


async def test_a_broker_that_cannot_be_asked_makes_no_group_skip(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The group has read on a; b got the topic while the worker was away, and a is lost when it starts."""
    async with cluster_here(tmp_path, new_group_start="end") as cluster:
        await cluster.start("a")
        async with cluster.connect() as client:
            await client.admin.create_topic(TOPIC, queue_count=1)
            await worker(cluster, "latest", 0)
            await cluster.start("b")
            await client._pool.routes.wait_until(lambda: len(client._pool.routes.state.brokers) == 2, 60)
            await client.admin.create_topic(TOPIC, queue_count=1, broker="b")
            await until_routed(client, TOPIC, "a", "b")
            await cluster.stop("a")
            await client._pool.routes.wait_until(lambda: len(client._pool.routes.state.brokers) == 1, 60)
            await send(client, range(MESSAGES))
            await client.admin.groups.start(GROUP, TOPIC, "latest")  # this client knows that a had the topic
            assert any("broker a cannot be asked" in record.message for record in caplog.records)
            assert await worker(cluster, "latest", MESSAGES) == named(range(MESSAGES))


# --- queues that come while it runs ------------------------------------------------------------------
@pytest.mark.parametrize("orderly", [False, True])
async def test_queues_and_brokers_that_come_later_are_read_from_their_beginning(
    tmp_path: Path, *, orderly: bool
) -> None:
    async with cluster_here(tmp_path, new_group_start="end") as cluster:
        await cluster.start("a")
        await cluster.start("b")
        async with cluster.connect() as client:
            await client._pool.routes.wait_until(lambda: len(client._pool.routes.state.brokers) == 2, 60)
            kind = "FIFO" if orderly else "NORMAL"
            await client.admin.create_topic(TOPIC, queue_count=1, message_type=kind, broker="a")
            await until_routed(client, TOPIC, "a")
            async with client.subscribe(TOPIC, GROUP, start="latest") as messages:
                async with cluster.connect() as other:  # sends before the subscriber has the route
                    await other.admin.create_topic(TOPIC, queue_count=1, message_type=kind, broker="b")
                    await other.admin.alter_topic(TOPIC, queue_count=2, broker="a")
                    await asyncio.gather(
                        *(
                            other.send(TOPIC, b"%d" % number, message_group=f"g{number}")
                            for number in range(MESSAGES)
                        )
                    )
                assert await take(messages, MESSAGES) == named(range(MESSAGES))


async def test_a_broadcast_reads_later_queues_from_their_beginning(tmp_path: Path) -> None:
    async with cluster_here(tmp_path) as cluster:
        await cluster.start("a")
        async with cluster.connect() as client:
            await client.admin.create_topic(TOPIC, queue_count=1)
            await until_routed(client, TOPIC, "a")
            async with client.subscribe(TOPIC, GROUP, broadcast=True) as messages:
                async with cluster.connect() as other:
                    await other.admin.alter_topic(TOPIC, queue_count=3)
                    await send(other, range(MESSAGES))
                assert await take(messages, MESSAGES) == named(range(MESSAGES))


class Printed:
    """Printing of the command line, into memory."""

    def __init__(self, count: int) -> None:
        self.bodies: set[bytes] = set()
        self._count = count

    @property
    def done(self) -> bool:
        return len(self.bodies) == self._count

    def one(self, message: Message) -> None:
        self.bodies.add(message.body)

    def flush(self) -> None:
        pass


async def test_tail_prints_later_queues_and_a_topic_that_was_made_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trovemq.cli.tailing.LOOK_S", 0.05)
    async with cluster_here(tmp_path) as cluster:
        await cluster.start("a")
        async with cluster.connect() as client:
            await client.admin.create_topic(TOPIC, queue_count=1)
            await until_routed(client, TOPIC, "a")
            await send(client, range(5))
            following, printed = Following(client, TOPIC, None), Printed(3 * MESSAGES)
            places = await following.places()
            tail: asyncio.Task[None] = asyncio.create_task(
                follow_queues(following, places, printed)  # type: ignore[arg-type]  # of its own
            )
            await client.admin.alter_topic(TOPIC, queue_count=3)
            await send(client, range(10, 10 + MESSAGES))
            await cluster.start("b")
            await client._pool.routes.wait_until(lambda: len(client._pool.routes.state.brokers) == 2, 60)
            await client.admin.create_topic(TOPIC, queue_count=3, broker="b")
            await until_routed(client, TOPIC, "a", "b", queue_count=3)
            await send(client, range(100, 100 + MESSAGES))
            async with asyncio.timeout(TIME_MAX_S):
                while len(printed.bodies) < 2 * MESSAGES:
                    await asyncio.sleep(0.01)
            await client.admin.delete_topic(TOPIC)
            await until_it_waits(caplog)
            await client.admin.create_topic(TOPIC, queue_count=2)
            await until_routed(client, TOPIC, "a", "b", queue_count=2)
            await send(client, range(200, 200 + MESSAGES))
            await asyncio.wait_for(tail, TIME_MAX_S)
            assert waits(caplog) == 1
    sent = (*range(10, 10 + MESSAGES), *range(100, 100 + MESSAGES), *range(200, 200 + MESSAGES))
    assert printed.bodies == named(sent)


async def test_tail_ended_where_a_deleted_topic_was_made_again_before_it_looked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection was broken, for example, while there was no topic. It prints the new one from its
    beginning, and the queues that the old one did not have."""
    monkeypatch.setattr("trovemq.cli.tailing.LOOK_S", 0.05)
    async with cluster_here(tmp_path) as cluster:
        await cluster.start("a")
        async with cluster.connect() as client:
            await client.admin.create_topic(TOPIC, queue_count=2)
            await until_routed(client, TOPIC, "a", queue_count=2)
            await send(client, range(5))
            following, printed = Following(client, TOPIC, None), Printed(MESSAGES)
            places = await following.places()
            await client.admin.delete_topic(TOPIC)
            await client.admin.create_topic(TOPIC, queue_count=4)
            await until_routed(client, TOPIC, "a", queue_count=4)
            await send(client, range(10, 10 + MESSAGES))
            async with asyncio.timeout(TIME_MAX_S):
                await follow_queues(following, places, printed)  # type: ignore[arg-type]  # of its own
    assert printed.bodies == named(range(10, 10 + MESSAGES))
    assert sum("is printed from there" in record.message for record in caplog.records) == 1


# --- topics and groups that are not there ----------------------------------------------------------------
def waits(caplog: pytest.LogCaptureFixture) -> int:
    return sum("waits for topic" in record.message for record in caplog.records)


async def until_it_waits(caplog: pytest.LogCaptureFixture) -> None:
    async with asyncio.timeout(TIME_MAX_S):
        while not waits(caplog):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("start", ["latest", None])
@pytest.mark.parametrize("broadcast", [False, True])
async def test_a_subscription_goes_on_in_a_topic_that_was_made_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, start: Start | None, *, broadcast: bool
) -> None:
    async with cluster_here(tmp_path) as cluster:
        broker = await cluster.start("a")
        async with cluster.connect() as client:
            await client.admin.create_topic(TOPIC, queue_count=2)
            await until_routed(client, TOPIC, "a", queue_count=2)
            async with client.subscribe(TOPIC, GROUP, broadcast=broadcast, start=start) as messages:
                await send(client, range(5))
                assert await take(messages, 5) == named(range(5))
                for numbers in (range(10, 20), range(30, 40)):
                    caplog.clear()
                    await client.admin.delete_topic(TOPIC)
                    await until_it_waits(caplog)
                    await broker.create_topic(TOPIC, queue_count=2)
                    await until_routed(client, TOPIC, "a", queue_count=2)
                    await send(client, numbers)
                    assert await take(messages, 10) == named(numbers)
                    assert waits(caplog) == 1


@pytest.mark.parametrize("broadcast", [False, True])
async def test_a_broken_connection_while_the_topic_was_gone_ended_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, broadcast: bool
) -> None:
    async with cluster_here(tmp_path) as cluster:
        broker = await cluster.start("a")
        async with trovemq.connect(broker.address) as client:
            await client.admin.create_topic(TOPIC, queue_count=1)
            async with client.subscribe(TOPIC, GROUP, broadcast=broadcast, start="latest") as messages:
                await send(client, range(5))
                assert await take(messages, 5) == named(range(5))
                await cluster.stop("a")
                broker = await cluster.start("a")  # the same address, and its own streams
                await broker.stubs.admin.DeleteTopic(admin_pb2.DeleteTopicRequest(topic=TOPIC))
                await until_it_waits(caplog)
                await broker.create_topic(TOPIC, queue_count=1)
                async with trovemq.connect(broker.address) as other:
                    await send(other, range(10, 20))
                assert await take(messages, 10) == named(range(10, 20))


async def until_noted(client: trovemq.Client) -> None:
    """Waits until the group has its start in each queue of the topic."""
    async with asyncio.timeout(TIME_MAX_S):
        while await client.admin.groups.reset(GROUP, TOPIC, to_max=True, preview=True, only_new=True):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("start", ["latest", "earliest", None])
async def test_a_subscription_goes_on_in_a_group_that_was_made_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, start: Start | None
) -> None:
    async with cluster_here(tmp_path, auto_create_group=False) as cluster:
        await cluster.start("a")
        async with cluster.connect() as client:
            await client.admin.create_topic(TOPIC, queue_count=1)
            await client.admin.groups.create(GROUP)
            await until_routed(client, TOPIC, "a")
            async with client.subscribe(TOPIC, GROUP, start=start) as messages:
                await send(client, range(5))
                assert await take(messages, 5) == named(range(5))
                await client.admin.groups.delete(GROUP)
                await until_it_waits(caplog)
                if start is not None:
                    await until_noted(client)
                await client.admin.groups.create(GROUP)
                await send(client, range(10, 20))
                found: set[bytes] = set()
                while not found >= named(range(10, 20)):
                    found |= await take(messages, 1)
                assert waits(caplog) == 1
                assert found == named(range(10, 20)) | (set() if start == "latest" else named(range(5)))


async def test_a_group_made_again_before_the_next_try_skipped_its_first_messages(tmp_path: Path) -> None:
    """`latest` counts from the moment when the old group was missed, however late the next try is."""
    no_next_try = Backoff(delay_ms=1e6, delay_max_ms=1e6, uniform=lambda: 1.0)
    async with cluster_here(tmp_path, auto_create_group=False) as cluster:
        await cluster.start("a")
        async with cluster.connect() as client, cluster.connect(backoff=no_next_try) as missing:
            await client.admin.create_topic(TOPIC, queue_count=1)
            await client.admin.groups.create(GROUP)
            await until_routed(missing, TOPIC, "a")
            async with missing.subscribe(TOPIC, GROUP, start="latest") as messages:
                await send(client, range(5))
                assert await take(messages, 5) == named(range(5))
                await client.admin.groups.delete(GROUP)
                await until_noted(client)
                await client.admin.groups.create(GROUP)
                await send(client, range(10, 20))
        assert await worker(cluster, "latest", 10) == named(range(10, 20))


async def test_a_worker_started_before_its_topic_exists_waits_for_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster_here(tmp_path) as cluster:
        await cluster.start("a")
        async with cluster.connect() as client, cluster.connect() as other:
            with pytest.raises(trovemq.TroveError, match="wait_for_topic") as refused:
                await client.subscribe(TOPIC, GROUP, start="latest").__aenter__()
            assert refused.value.symbol == "TOPIC_NOT_FOUND"
            group = client.subscribe(TOPIC, GROUP, start="latest", wait_for_topic=True)
            everyone = client.subscribe(TOPIC, GROUP, broadcast=True, wait_for_topic=True)
            async with group, everyone:
                assert waits(caplog) == 2
                await other.admin.create_topic(TOPIC, queue_count=1)
                await send(other, range(MESSAGES))
                assert await take(group, MESSAGES) == named(range(MESSAGES))
                assert await take(everyone, MESSAGES) == named(range(MESSAGES))


async def test_a_worker_that_waits_for_its_topic_ends_when_it_is_told_to(tmp_path: Path) -> None:
    async with cluster_here(tmp_path) as cluster:
        await cluster.start("a")
        async with cluster.connect() as client:
            handlers = trovemq.Handlers()

            @handlers.handle(TOPIC, GROUP, wait_for_topic=True)
            async def handle(_message: trovemq.ReceivedMessage) -> None:
                raise AssertionError

            async with asyncio.timeout(TIME_MAX_S), client.run(handlers, signals=()) as running:
                running.stop()
                await running.wait()
