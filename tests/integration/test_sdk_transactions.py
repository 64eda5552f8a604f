"""Transactions and delayed messages against a real broker, by each transport of the SDK."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

import trovemq
from trovemq import Client, Producer, ReceivedMessage, Subscription, TransactionResolution, TroveError, errors
from trovemq.testing import BrokerProcess
from trovemq_proto.channels import TRANSPORTS, GrpcTransport

pytestmark = [pytest.mark.slow, pytest.mark.asyncio]


@pytest.fixture(scope="module", params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> GrpcTransport:
    name: GrpcTransport = request.param
    return name


@pytest.fixture(scope="module")
def broker(transport: GrpcTransport) -> Iterator[BrokerProcess]:
    with BrokerProcess(transactionCheckInterval=200, transactionTimeOut=100, ready_timeout=240) as process:
        yield process


@pytest_asyncio.fixture
async def client(broker: BrokerProcess, transport: GrpcTransport) -> AsyncIterator[Client]:
    options = trovemq.ClientOptions(grpc_transport=transport)
    async with trovemq.connect(broker.address, options=options) as connected:
        yield connected


async def next_body(subscription: Subscription) -> bytes:
    async with asyncio.timeout(240):
        message = await anext(subscription)
    await message.ack()
    return message.body


async def fail_within(producer: Producer) -> None:
    async with producer.transaction() as transaction:
        await transaction.send(b"rolled back")
        raise ValueError("mine")


async def test_only_what_is_committed_is_seen(client: Client) -> None:
    await client.admin.create_topic("orders", queue_count=2, message_type="TRANSACTION")
    async with client.subscribe("orders", "g") as subscription, client.producer("orders") as producer:
        with pytest.raises(ValueError, match="mine"):
            await fail_within(producer)
        async with producer.transaction() as transaction:
            receipt = await transaction.send(b"committed", keys="k", tag="t", properties={"p": "v"})
            waiting = asyncio.ensure_future(next_body(subscription))
            await asyncio.wait([waiting], timeout=0.3)
            assert not waiting.done()
        assert await waiting == b"committed"
        answer = await client.query("orders", "k")
        assert [message.body for message in answer.messages] == [b"committed"]
        assert answer.messages[0].unique_key == receipt.message_id
        with pytest.raises(TroveError) as refused:
            await transaction.rollback()
        assert refused.value.spec is errors.REQUEST_ILLEGAL


async def test_the_checker_is_asked_for_what_a_process_left_open(client: Client) -> None:
    await client.admin.create_topic("left-open", queue_count=1, message_type="TRANSACTION")
    asked: list[tuple[bytes, str | None]] = []

    def checker(message: ReceivedMessage) -> TransactionResolution:
        asked.append((message.body, message.tags))
        return TransactionResolution.COMMIT if message.body == b"keep" else TransactionResolution.ROLLBACK

    async with client.subscribe("left-open", "g") as subscription:
        dying = client.producer("left-open")
        transaction = await dying.transaction().__aenter__()
        await transaction.send(b"drop")
        await transaction.send(b"keep", tag="t")
        await dying.abort()  # as a process that ends in the middle
        async with client.producer("left-open", checker=checker):
            assert await next_body(subscription) == b"keep"
            while len(asked) < 2:
                await asyncio.sleep(0.01)
    assert set(asked) == {(b"drop", None), (b"keep", "t")}


async def test_a_normal_topic_takes_no_transaction(client: Client) -> None:
    await client.admin.create_topic("normal", queue_count=1)
    async with client.producer("normal") as producer, producer.transaction() as transaction:
        with pytest.raises(TroveError) as refused:
            await transaction.send(b"x")
    assert refused.value.spec is errors.MESSAGE_TYPE_CONFLICT


async def test_delayed_messages_come_in_time_and_can_be_recalled(client: Client) -> None:
    await client.admin.create_topic("later", queue_count=2, message_type="DELAY")
    async with client.subscribe("later", "g") as subscription:
        wanted = time.time() + 3
        late = await client.send("later", b"late", deliver_after=3, keys="k")
        gone = await client.send("later", b"recalled", deliver_after=600)
        await client.send("later", b"soon", deliver_after=0.2)
        assert await client.recall("later", gone.recall_handle) == gone.message_id
        assert [await next_body(subscription), await next_body(subscription)] == [b"soon", b"late"]
        assert time.time() >= wanted - 0.001
        (found,) = (await client.get(late.message_id, topic="later")).messages
        assert found.body == b"late"
        with pytest.raises(TroveError) as refused:
            await client.recall("later", late.recall_handle)
        assert refused.value.spec is errors.RECALL_HANDLE_ILLEGAL
    with pytest.raises(TroveError) as refused:
        await client.send("later", b"x", deliver_after=10 * 366 * 86_400)
    assert refused.value.spec is errors.DELIVERY_TIME_ILLEGAL
