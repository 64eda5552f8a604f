"""A group is reset, or its topic deleted, while a member has prefetched messages; by each transport."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

import trovemq
from trovemq import Client, GroupSettings, ReceivedMessage, Subscription, TroveError, sync
from trovemq.testing import BrokerProcess
from trovemq_proto.channels import TRANSPORTS

pytestmark = pytest.mark.slow

SECONDS_MAX = 20
COUNT = 100


@pytest.fixture(scope="module", params=TRANSPORTS)
def broker(request: pytest.FixtureRequest) -> Iterator[BrokerProcess]:
    with BrokerProcess(grpc_transport=request.param) as process:
        yield process


@pytest_asyncio.fixture
async def client(broker: BrokerProcess) -> AsyncIterator[Client]:
    async with trovemq.connect(broker.address) as connected:
        yield connected


async def fill(client: Client, topic: str, message_group: str | None = None) -> None:
    async with client.producer(topic) as producer:
        for number in range(COUNT):
            await producer.send(b"%d" % number, message_group=message_group)


async def prefetched(messages: Subscription, count: int) -> None:
    """Waits until `count` are."""
    async with asyncio.timeout(SECONDS_MAX):
        while messages.prefetched != count:
            await asyncio.sleep(0.01)


async def following(messages: Subscription, last: bytes) -> list[ReceivedMessage]:
    """Consumes the messages up to one with this body."""
    found: list[ReceivedMessage] = []
    async with asyncio.timeout(SECONDS_MAX):
        while not found or found[-1].body != last:
            async with (await anext(messages)).process() as message:
                found.append(message)
    return found


@pytest.mark.asyncio
@pytest.mark.parametrize("orderly", [False, True])
async def test_after_a_reset_to_the_end_a_worker_ran_99_more_messages(client: Client, orderly: bool) -> None:
    topic = group = "orderly-end" if orderly else "end"
    await client.admin.create_topic(topic, queue_count=1 if orderly else 4)
    await client.admin.groups.create(group, GroupSettings(orderly=orderly))
    message_group = "a" if orderly else None
    await fill(client, topic, message_group)
    async with client.subscribe(topic, group, prefetch=COUNT) as messages:
        started = await anext(messages)
        await prefetched(messages, COUNT - 1)
        reset = await client.admin.groups.reset(group, topic, to_max=True)
        assert sum(each.in_flight for each in reset) == COUNT
        await prefetched(messages, 0)
        async with started.process():
            pass
        await client.send(topic, b"new", message_group=message_group)
        (found,) = await following(messages, b"new")
        assert found.attempt == 1


@pytest.mark.asyncio
async def test_after_a_reset_to_the_past_each_message_comes_once(client: Client) -> None:
    await client.admin.create_topic("past", queue_count=4)
    await client.admin.groups.create("past")
    await fill(client, "past")
    async with client.subscribe("past", "past", prefetch=64) as messages:
        started = await anext(messages)
        await prefetched(messages, 63)
        await client.admin.groups.reset("past", "past", to_min=True)
        found: list[ReceivedMessage] = []
        async with asyncio.timeout(SECONDS_MAX):
            while len({message.body for message in found}) < COUNT:
                async with (await anext(messages)).process() as message:
                    found.append(message)
        with pytest.raises(TroveError, match="RECEIPT_HANDLE_ILLEGAL"):
            await started.ack()  # it was delivered again, and only that counts
        assert messages.prefetched == 0
    assert Counter(message.body for message in found) == Counter(b"%d" % number for number in range(COUNT))
    assert {message.attempt for message in found} == {1}
    async with client.subscribe("past", "past") as messages:
        await client.send("past", b"new")
        assert [message.body for message in await following(messages, b"new")] == [b"new"]


@pytest.mark.asyncio
async def test_a_reset_of_one_queue_loses_no_message_of_the_others(client: Client) -> None:
    await client.admin.create_topic("one-queue", queue_count=4)
    await client.admin.groups.create("one-queue")
    await fill(client, "one-queue")
    async with client.subscribe("one-queue", "one-queue", prefetch=COUNT) as messages:
        started = await anext(messages)
        await prefetched(messages, COUNT - 1)
        (reset,) = await client.admin.groups.reset("one-queue", "one-queue", queue_id=1, to_max=True)
        async with started.process():
            pass
        others = COUNT - reset.in_flight - (started.queue_id != 1)
        await prefetched(messages, others)
        found: list[ReceivedMessage] = []
        async with asyncio.timeout(SECONDS_MAX):
            while len(found) < others:
                async with (await anext(messages)).process() as message:
                    found.append(message)
        assert len({message.body for message in found}) == others
        assert 1 not in {message.queue_id for message in found}
        assert {message.attempt for message in found} == {1}


@pytest.mark.asyncio
async def test_a_worker_ran_messages_of_a_deleted_topic(client: Client) -> None:
    await client.admin.create_topic("deleted", queue_count=4)
    await client.admin.groups.create("deleted")
    await fill(client, "deleted")
    async with client.subscribe("deleted", "deleted", prefetch=64) as messages:
        started = await anext(messages)
        await prefetched(messages, 63)
        await client.admin.delete_topic("deleted")
        await prefetched(messages, 0)
        await client.admin.create_topic("deleted", queue_count=4)
        async with started.process():
            pass
        await client.send("deleted", b"new")
        (found,) = await following(messages, b"new")
        assert found.attempt == 1


def test_a_thread_after_a_reset_gets_none_of_the_prefetched_messages(broker: BrokerProcess) -> None:
    with sync.connect(broker.address) as client:
        client.admin.create_topic("threads", queue_count=4)
        client.admin.groups.create("threads")
        with client.producer("threads") as producer:
            producer.send_batch([b"%d" % number for number in range(COUNT)], queue_id=0)
        with client.subscribe("threads", "threads", prefetch=COUNT) as messages:
            with next(messages).process() as message:
                assert message.body == b"0"
                client.admin.groups.reset("threads", "threads", to_max=True)
                end = time.monotonic() + SECONDS_MAX
                while messages.prefetched and time.monotonic() < end:
                    time.sleep(0.01)
            client.send("threads", b"new")
            with next(messages).process() as message:
                assert (message.body, message.attempt) == (b"new", 1)
