"""Topics of `order = priority` with the SDK and the command line against real brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

import trovemq
from trovemq import Client, TroveError
from trovemq.testing import BrokerProcess

pytestmark = [pytest.mark.slow, pytest.mark.asyncio]


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess(ready_timeout=240) as process:
        yield process


@pytest_asyncio.fixture
async def client(broker: BrokerProcess) -> AsyncIterator[Client]:
    async with trovemq.connect(broker.address) as connected:
        yield connected


async def bodies(client: Client, topic: str, count: int, group: str) -> list[tuple[bytes, int | None]]:
    """In the order of delivery, each acknowledged before the next is asked for."""
    found = []
    async with asyncio.timeout(240), client.subscribe(topic, group, prefetch=1) as messages:
        async for message in messages:
            found.append((message.body, message.priority))
            await message.ack()
            if len(found) == count:
                return found
    raise AssertionError("the subscription ended")


async def test_every_way_of_sending_and_the_order_of_receiving(client: Client) -> None:
    await client.admin.create_topic("urgent", queue_count=1, options={"order": "priority"})
    await client.send("urgent", b"plain")
    await client.send("urgent", b"low", priority=0)
    async with client.producer("urgent") as producer:
        await producer.send(b"nine", priority=9)
        await producer.send_nowait(b"five", priority=5)
        producer.send_oneway(b"three", priority=3)
        await producer.flush()
        await producer.send_batch([b"b%d" % n for n in range(4)], priority=[8, None, 2, 8], queue_id=0)
        await producer.send_batch([b"all", b"of"], priority=7, properties={"p": "v"}, queue_id=0)
        await producer.send_batch([b"many-%d" % n for n in range(64)], priority=1, queue_id=0)
    pulled = [m async for m in client.pull("urgent", queue_id=0)]
    assert [m.body for m in pulled][:3] == [b"plain", b"low", b"nine"], "pulling stays in the log's order"
    found = await bodies(client, "urgent", 75, "readers")
    assert found[:11] == [
        (b"nine", 9),
        (b"b0", 8),
        (b"b3", 8),
        (b"all", 7),
        (b"of", 7),
        (b"five", 5),
        (b"plain", None),
        (b"b1", None),
        (b"three", 3),
        (b"b2", 2),
        (b"many-0", 1),
    ]
    assert found[-1] == (b"low", 0)


async def test_what_is_refused(client: Client) -> None:
    await client.admin.create_topic("strict", queue_count=1, options={"order": "priority"})
    async with client.producer("strict") as producer:
        for priority in (-1, 10, True, "9"):
            with pytest.raises(TroveError, match="PROPERTY_ILLEGAL"):
                await producer.send(b"x", priority=priority)  # type: ignore[arg-type]
            with pytest.raises(TroveError, match="PROPERTY_ILLEGAL"):
                await producer.send_batch([b"x", b"y"], priority=[1, priority], queue_id=0)  # type: ignore[list-item]
        with pytest.raises(TroveError, match="not both"):
            await producer.send(b"x", priority=1, message_group="g")
        with pytest.raises(TroveError, match="PROPERTY_ILLEGAL"):
            await producer.send(b"x", properties={"_SYS_MSG_PRIORITY_": "7"})
    with pytest.raises(TroveError, match="TOPIC_OPTION_ILLEGAL"):
        await client.admin.create_topic("steps", message_type="FIFO", options={"order": "priority"})
    offsets = await client.queue_offsets("strict")
    assert [one.max_offset for one in offsets] == [0]


async def test_a_restart_continues_in_the_order_and_repeats_nothing(tmp_path: Path) -> None:
    with BrokerProcess(store=tmp_path, ready_timeout=240) as process:
        async with trovemq.connect(process.address) as client:
            await client.admin.create_topic("urgent", queue_count=1, options={"order": "priority"})
            async with client.producer("urgent") as producer:
                await producer.send_batch(
                    [b"%d" % n for n in range(300)], priority=[n % 3 for n in range(300)], queue_id=0
                )
            first = await bodies(client, "urgent", 50, "readers")
    with BrokerProcess(store=tmp_path, ready_timeout=240) as process:
        async with trovemq.connect(process.address) as client:
            rest = await bodies(client, "urgent", 250, "readers")
    assert sorted(int(body) for body, _ in first + rest) == list(range(300))
    assert [body for body, _ in first] == [b"%d" % n for n in range(2, 152, 3)]


async def test_messages_of_an_atomic_transaction_have_priorities_of_their_own(client: Client) -> None:
    await client.admin.create_topic("together", queue_count=1, options={"order": "priority"})
    await client.send("together", b"before")
    async with client.transaction() as tx:
        await tx.send("together", b"low", priority=1)
        await tx.send("together", b"high", priority=9)
        await tx.send_batch("together", [b"a", b"b"], priority=[None, 8])
    assert await bodies(client, "together", 5, "readers") == [
        (b"high", 9),
        (b"b", 8),
        (b"before", None),
        (b"a", None),
        (b"low", 1),
    ]
