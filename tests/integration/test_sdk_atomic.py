"""Atomic transactions by the client against a real broker: all of one, or nothing; never half of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

import trovemq
from trovemq import AtomicTransaction, Client, ReceivedMessage, Subscription, TroveError, errors
from trovemq._wire import transactions as wire
from trovemq._wire.connection import Connection
from trovemq.testing import BrokerProcess
from trovemq_proto.records import encode_record, parse_properties
from trovemq_proto.v1 import transaction_pb2

pytestmark = [pytest.mark.slow, pytest.mark.asyncio]


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess(atomic_open_max=4, atomic_timeout_max_ms=4_000, ready_timeout=240) as process:
        yield process


@pytest_asyncio.fixture
async def client(broker: BrokerProcess) -> AsyncIterator[Client]:
    async with trovemq.connect(broker.address) as connected:
        yield connected


async def counts(client: Client, *topics: str) -> list[int]:
    found = []
    for topic in topics:
        (described,) = await client.admin.describe_topic(topic)
        found.append(sum(queue.max_offset - queue.min_offset for queue in described.queues))
    return found


async def counter(client: Client, name: str) -> int:
    (statistics,) = await client.admin.statistics()
    return statistics.counters[name]


async def receive(subscription: Subscription) -> ReceivedMessage:
    async with asyncio.timeout(240):
        return await anext(subscription)


async def test_messages_of_several_topics_are_stored_together(client: Client) -> None:
    await client.admin.create_topic("orders", queue_count=4)
    await client.admin.create_topic("stock", queue_count=2)
    async with client.transaction() as tx:
        first = await tx.send("orders", b"order 1", keys="k1", tag="t", properties={"p": "v"}, queue_id=3)
        assert await tx.send_batch("stock", [b"-1", b"-2"], queue_id=1) == range(1, 3)
        await tx.send("orders", b"order 2", ordering_key="customer")
        assert await counts(client, "orders", "stock") == [0, 0]
    assert tx.receipt is not None
    assert tx.receipt.transaction_id == tx.transaction_id
    receipts = tx.receipt.messages
    assert [receipt.topic for receipt in receipts] == ["orders", "stock", "stock", "orders"]
    assert (receipts[first].queue_id, receipts[first].queue_offset) == (3, 0)
    assert [receipt.queue_offset for receipt in receipts[1:3]] == [0, 1]
    assert receipts[0].durability == "disk"
    for receipt, body in zip(receipts, (b"order 1", b"-1", b"-2", b"order 2"), strict=True):
        (found,) = (await client.get(receipt.offset_msg_id)).messages
        assert (found.body, found.topic, found.queue_offset) == (body, receipt.topic, receipt.queue_offset)
        stored = parse_properties(found.property_block)
        assert stored["TROVEMQ_TX_ID"] == tx.transaction_id
        assert "TROVEMQ_TX_ID" not in found.properties
        assert found.unique_key == receipt.message_id
    answer = await client.query("orders", "k1")
    assert [(message.body, message.tags) for message in answer.messages] == [(b"order 1", "t")]


async def test_an_exception_in_the_block_stores_nothing(client: Client) -> None:
    await client.admin.create_topic("nothing", queue_count=1)
    tx = client.transaction()
    with pytest.raises(ValueError, match="mine"):  # noqa: PT012
        async with tx:
            await tx.send("nothing", b"x")
            raise ValueError("mine")
    with pytest.raises(TroveError) as refused:
        await tx.send("nothing", b"y")
    assert refused.value.spec is errors.REQUEST_ILLEGAL
    with pytest.raises(TroveError):
        await tx.commit()

    async def cancelled() -> None:
        async with client.transaction() as other:
            await other.send("nothing", b"x")
            await asyncio.Event().wait()

    task = asyncio.create_task(cancelled())
    await asyncio.wait([task], timeout=0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await counts(client, "nothing") == [0]


async def test_acknowledgements_are_part_of_it(client: Client) -> None:
    await client.admin.create_topic("in", queue_count=1)
    await client.admin.create_topic("out", queue_count=1)
    await client.send("in", b"one")
    await client.send("in", b"two")
    async with client.subscribe("in", "worker") as messages:
        message = await receive(messages)
        assert message.body == b"one"
        with pytest.raises(ValueError, match="again"):  # noqa: PT012
            async with client.transaction() as tx:
                tx.ack(message)
                await tx.send("out", b"of one")
                raise ValueError("again")
        second = await receive(messages)
        third = await receive(messages) if second.body == b"two" else second
        both = [second, third] if third is not second else [second, await receive(messages)]
        assert sorted((m.body, m.attempt) for m in both) == [(b"one", 2), (b"two", 1)]
        async with client.transaction() as tx:
            for taken in both:
                async with taken.process():
                    tx.ack(taken)
            await tx.send("out", b"of both")
        assert tx.receipt is not None
        assert tx.receipt.acknowledged_count == 2
    assert await counts(client, "out") == [1]
    (lag,) = await client.admin.groups.lag("worker", "in")
    assert (lag.committed, lag.in_flight, lag.lag) == (2, 0, 0)


async def test_an_acknowledgement_that_does_not_hold_refuses_all_of_it(client: Client) -> None:
    await client.admin.create_topic("in2", queue_count=1)
    await client.send("in2", b"one")
    async with client.subscribe("in2", "g2") as messages:
        message = await receive(messages)
        handle, message.receipt_handle = message.receipt_handle, message.receipt_handle[:-1] + "0"
        if handle == message.receipt_handle:
            message.receipt_handle = handle[:-1] + "1"
        tx = client.transaction()
        tx.ack(message)
        await tx.send("in2", b"two")
        with pytest.raises(TroveError) as refused:
            await tx.commit()
        assert refused.value.spec is errors.RECEIPT_HANDLE_ILLEGAL
        assert "g2" in refused.value.message
        assert await counts(client, "in2") == [1]


def frames_of(transaction_id: str, *frames: bytes, timeout_ms: int = 0) -> Iterator[bytes]:
    yield wire.begin_frame(transaction_id, timeout_ms)
    yield from frames


def one_record(topic: str, body: bytes, *, count: int = 1) -> bytes:
    """A frame with a record, or with `count` equal ones."""
    record = encode_record(topic, body, queue_id=0, properties={}, append_property_crc=True)
    return wire.messages_frame(topic, 0, record * count)


async def test_a_second_commit_gets_the_answer_of_the_first(client: Client, broker: BrokerProcess) -> None:
    await client.admin.create_topic("twice", queue_count=1)
    connection = Connection(broker.address, trovemq.ClientOptions())
    try:
        parts = (one_record("twice", b"a"), one_record("twice", b"b"))
        first = await wire.transact(connection, frames_of("tx-1", *parts, wire.commit_frame()), 10_000)
        again = await wire.transact(connection, frames_of("tx-1", *parts, wire.commit_frame()), 10_000)
        found = await wire.get_transaction(connection, "tx-1")
        assert first.queue_offsets == (0, 1)
        assert not first.repeated
        assert again == found
        assert again.repeated
        assert (again.queue_offsets, again.physical_offsets) == (first.queue_offsets, first.physical_offsets)
        assert (again.store_timestamp, again.store_host) == (first.store_timestamp, first.store_host)
        rollback = transaction_pb2.TransactionFrame(rollback=transaction_pb2.RollbackTransaction())
        with pytest.raises(TroveError) as refused:
            await wire.transact(connection, frames_of("tx-1", rollback.SerializeToString()), 10_000)
        assert refused.value.spec is errors.TRANSACTION_ILLEGAL
        with pytest.raises(TroveError) as unknown:
            await wire.get_transaction(connection, "tx-2")
        assert unknown.value.spec is errors.TRANSACTION_NOT_FOUND
    finally:
        await connection.close()
    assert await counts(client, "twice") == [2]


async def test_what_is_not_right_is_refused_and_stores_nothing(client: Client, broker: BrokerProcess) -> None:
    await client.admin.create_topic("bad", queue_count=1)
    connection = Connection(broker.address, trovemq.ClientOptions())
    commit, message = wire.commit_frame(), one_record("bad", b"x")

    async def refused(frames: Iterator[bytes]) -> errors.ErrorSpec:
        """grpc may report a call that was refused while it still wrote as broken off: it is asked again."""
        frames_kept = list(frames)
        for _ in range(5):
            with pytest.raises(TroveError) as caught:
                await wire.transact(connection, iter(frames_kept), 10_000)
            if caught.value.spec is not errors.BROKER_UNREACHABLE:
                break
        return caught.value.spec

    try:
        assert await refused(iter([commit])) is errors.REQUEST_ILLEGAL
        assert await refused(frames_of("t", message, commit, timeout_ms=4_001)) is errors.REQUEST_ILLEGAL
        assert await refused(frames_of("t", message, wire.begin_frame("u", 0))) is errors.REQUEST_ILLEGAL
        assert await refused(frames_of("t", message)) is errors.REQUEST_ILLEGAL  # the stream just ends
        assert await refused(frames_of("not an id", commit)) is errors.TRANSACTION_ILLEGAL
        assert await refused(frames_of("t" * 65, commit)) is errors.TRANSACTION_ILLEGAL
        assert await refused(frames_of("t", commit)) is errors.REQUEST_ILLEGAL  # nothing in it
        assert await refused(frames_of("t", one_record("none", b"x"), commit)) is errors.TOPIC_NOT_FOUND
        damaged = wire.messages_frame("bad", 0, b"no record")
        assert await refused(frames_of("t", damaged, commit)) is errors.BATCH_ILLEGAL
        many = [one_record("bad", b"x", count=241)] * 17  # 4,097
        assert await refused(frames_of("t", *many, commit)) is errors.TRANSACTION_SIZE_EXCEEDED
        handles = wire.acknowledgements_frame("g", "bad", ["h"] * 4_097)
        assert await refused(frames_of("t", message, handles)) is errors.TRANSACTION_SIZE_EXCEEDED
        foreign = wire.acknowledgements_frame("g", "bad", ["h"])
        assert await refused(frames_of("t", message, foreign, commit)) is errors.RECEIPT_HANDLE_ILLEGAL
    finally:
        await connection.close()
    assert await counts(client, "bad") == [0]
    assert await counter(client, "atomic_open") == 0
    assert await counter(client, "atomic_bytes") == 0


async def open_stream(
    connection: Connection, transaction_id: str, timeout_ms: int, ended: asyncio.Event, topic: str = "open"
) -> None:
    """A transaction that is begun and not ended before `ended`."""
    multi_call = connection._channel.stream_unary("/trovemq.v1.TransactionService/Transact")
    call = multi_call()
    await call.write(wire.begin_frame(transaction_id, timeout_ms))
    await call.write(one_record(topic, b"x"))
    await ended.wait()
    call.cancel()


async def test_what_is_never_ended_is_given_up_and_too_many_are_refused(
    client: Client, broker: BrokerProcess
) -> None:
    await client.admin.create_topic("open", queue_count=1)
    connection = Connection(broker.address, trovemq.ClientOptions())
    before = await counter(client, "atomic_timed_out")
    ended = asyncio.Event()
    tasks = [asyncio.create_task(open_stream(connection, f"o{i}", 4_000, ended)) for i in range(4)]
    try:
        async with asyncio.timeout(3.8):
            while await counter(client, "atomic_open") < 4 or not await counter(client, "atomic_bytes"):
                pass
        refusal = errors.BROKER_UNREACHABLE
        while refusal is errors.BROKER_UNREACHABLE:  # gRPC's core may lose the status of a call refused early
            with pytest.raises(TroveError) as refused:
                await wire.transact(connection, frames_of("o5", wire.commit_frame()), 10_000)
            refusal = refused.value.spec
        assert refusal is errors.LIMIT_EXCEEDED
        async with asyncio.timeout(240):
            while await counter(client, "atomic_timed_out") < before + 4:
                await asyncio.sleep(0.01)
        assert await counter(client, "atomic_open") == 0
        assert await counter(client, "atomic_bytes") == 0
    finally:
        ended.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        await connection.close()
    assert await counts(client, "open") == [0]


async def test_a_stream_that_breaks_off_is_a_rollback(client: Client, broker: BrokerProcess) -> None:
    await client.admin.create_topic("broken", queue_count=1)
    connection = Connection(broker.address, trovemq.ClientOptions())
    ended = asyncio.Event()
    before = await counter(client, "atomic_rolled_back")
    task = asyncio.create_task(open_stream(connection, "b1", 0, ended, "broken"))
    async with asyncio.timeout(240):
        while not await counter(client, "atomic_bytes"):
            pass
        ended.set()
        await task
        while await counter(client, "atomic_rolled_back") == before:
            await asyncio.sleep(0.01)
    assert await counter(client, "atomic_open") == 0
    await connection.close()


async def test_one_transaction_has_one_broker(client: Client) -> None:
    tx: AtomicTransaction = client.transaction(broker="somewhere")
    await client.admin.create_topic("one", queue_count=1)
    await tx.send("one", b"x")
    with pytest.raises(TroveError) as refused:
        await tx.commit()
    assert refused.value.spec is errors.BROKER_NOT_FOUND
    with pytest.raises(TroveError) as two:
        await client.transaction(broker="a").send("one", b"x", broker="b")
    assert two.value.spec is errors.TRANSACTION_BROKERS
    assert two.value.fields["brokers"] == "a, b"
