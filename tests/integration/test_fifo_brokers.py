"""The order of FIFO topics while real brokers come and go, and where topics lie."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

import trovemq
from tests.integration.test_grow_and_shrink import named, run, until
from trovemq import Client, TroveError, errors
from trovemq.testing import BrokerProcess, NameserverProcess

pytestmark = pytest.mark.slow

GROUPS = [f"g{number}" for number in range(12)]


@pytest.fixture
def cluster() -> Iterator[tuple[str, BrokerProcess]]:
    """A nameserver's address, and the second of its two brokers."""
    with ExitStack() as processes:
        nameserver = processes.enter_context(NameserverProcess())
        _, second = (
            processes.enter_context(BrokerProcess(name=name, nameservers=[nameserver]))
            for name in ("b1", "b2")
        )
        yield nameserver.address, second


async def send_all(client: Client, bodies: range) -> dict[str, set[str]]:
    """Each body to each group, in order. The brokers of each group."""
    producer = client.producer("steps")
    sent = [
        (group, producer.send_nowait(b"%s %d" % (group.encode(), body), message_group=group))
        for body in bodies
        for group in GROUPS
    ]
    brokers: dict[str, set[str]] = defaultdict(set)
    for group, receipt in sent:
        brokers[group].add((await receipt).broker)
    await producer.close()
    return brokers


def test_messages_of_a_group_went_to_another_broker_when_theirs_died(
    cluster: tuple[str, BrokerProcess],
) -> None:
    server, second = cluster

    async def scene() -> None:
        async with trovemq.connect(server) as client:
            await until(client, lambda state: named(state) == {"b1", "b2"})
            await client.admin.create_topic("steps", queue_count=2, message_type="FIFO")
            await client.admin.groups.create("workers", trovemq.GroupSettings(orderly=True))
            before = await send_all(client, range(5))
            assert {name for names in before.values() for name in names} == {"b1", "b2"}
            second.kill()
            await until(client, lambda state: named(state) == {"b1"})
            waiting = asyncio.ensure_future(send_all(client, range(5, 10)))
            for group in GROUPS:
                if before[group] == {"b1"}:
                    await client.send("steps", b"live", message_group=group)
            assert not waiting.done()
            await asyncio.to_thread(second.start)
            assert await waiting == before
            received: dict[str, list[int]] = defaultdict(list)
            async with client.subscribe("steps", group="workers", start="earliest") as messages:
                while sum(map(len, received.values())) < 10 * len(GROUPS):
                    message = await asyncio.wait_for(anext(messages), 60)
                    await message.ack()
                    if message.body != b"live":
                        group, body = message.body.decode().split()
                        received[group].append(int(body))
            assert received == {group: list(range(10)) for group in GROUPS}

    asyncio.run(scene())


def test_senders_wait_while_a_topic_is_closed(cluster: tuple[str, BrokerProcess]) -> None:
    server, _ = cluster

    async def scene() -> None:
        async with trovemq.connect(server) as client:
            await until(client, lambda state: named(state) == {"b1", "b2"})
            await client.admin.create_topic("steps", queue_count=2, message_type="FIFO")
            await client.admin.create_topic("orders", queue_count=2)
            for topic in ("steps", "orders"):
                await client.admin.alter_topic(topic, options={"writes": "closed"})
            described = await client.admin.describe_topic("steps")
            assert [one.options for one in described] == [{"writes": "closed"}] * 2
            waiting = asyncio.ensure_future(client.send("steps", b"x", message_group="g"))
            with pytest.raises(TroveError) as refused:
                await client.send("orders", b"x")
            assert refused.value.spec is errors.TOPIC_CLOSED
            assert not waiting.done()
            await client.admin.alter_topic("steps", options={"writes": "open"})
            await waiting
            with pytest.raises(TroveError, match="config_owner"):
                await client.admin.spread_topic("steps", ["b1"])

    asyncio.run(scene())


def test_a_balance_names_the_topic_that_is_to_be_moved(
    cluster: tuple[str, BrokerProcess], capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    server, _ = cluster

    async def scene() -> None:
        async with trovemq.connect(server) as client:
            await until(client, lambda state: named(state) == {"b1", "b2"})
            for topic in ("orders", "bills"):
                await client.admin.create_topic(topic, queue_count=2, broker="b1")
                await client.producer(topic).send_batch([b"x" * 100] * 500)

    asyncio.run(scene())
    code, rows, note = run(
        capsysbinary, "--server", server, "cluster", "balance", "--dry-run", "--watch", "0s"
    )
    assert code == 0
    assert {(row["topic"], row["broker"]) for row in rows if row["kind"] == "topic"} == {
        ("orders", "b1"),
        ("bills", "b1"),
    }
    assert all(row["bytes"] > 50_000 for row in rows if row["kind"] == "topic"), json.dumps(rows)
    loads = {row["broker"]: (row["load"], row["loadAfter"]) for row in rows if row["kind"] == "broker"}
    assert {name: before for name, (before, _) in loads.items()} == {"b1": 100.0, "b2": 0.0}
    assert all(after == pytest.approx(50, abs=1) for _, after in loads.values())
    (move,) = [row for row in rows if row["kind"] == "move"]
    assert move["command"] == f"trovemq topic spread {move['topic']} --brokers b2"
    assert note["imbalance"] == 100.0
    assert note["imbalanceAfter"] < 2
