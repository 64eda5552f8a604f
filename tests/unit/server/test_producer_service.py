"""ProducerService: delayed and half messages over the native protocol, and RocketMQ's handlers beside it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from tests.support.engine import NOW_MS, read_queue
from tests.support.memory_broker import BROKER, TestBroker, message
from tests.support.rpc_context import RpcContext
from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.server.core.clients import BROKEN_MS, EXPIRY_MS
from trovemq_broker.server.native import half_checks
from trovemq_broker.server.native.half_checks import CHECKS_WAITING_MAX, CheckStream
from trovemq_broker.server.native.producer_service import ProducerService
from trovemq_broker.server.wire.client_commands import StoredMessage
from trovemq_broker.server.wire.producer_messages import TOPICS_MAX
from trovemq_broker.timers.recall_handle import decode_recall_handle
from trovemq_broker.transactions.transactions import TransactionCheck
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, QueueId
from trovemq_proto.records import decode_stored
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2
from trovemq_proto.v1 import common_pb2, producer_pb2

pytestmark = pytest.mark.asyncio

LATER_MS = EpochMs(NOW_MS + 60_000)


class Bench:
    """The service on a store in memory; also RocketMQ's handlers on the same parts."""

    def __init__(self, **options: Any) -> None:
        self.parts = TestBroker(**options)
        self.service = ProducerService(self.parts)

    async def send_delayed(self, deliver_ms: int = LATER_MS, **fields: Any) -> producer_pb2.SendDelayedReply:
        names = ("message_group", "priority", "deliver_after_ms")
        own = {name: fields.pop(name) for name in names if name in fields}
        topic = fields.pop("topic", "later")
        sent = {"body": b"x", "unique_key": "K1", **fields}
        request = producer_pb2.SendDelayedRequest(
            topic=topic, message=sent, deliver_timestamp=deliver_ms, **own
        )
        reply: producer_pb2.SendDelayedReply = await self.service.send_delayed(request, rpc())
        return reply

    async def prepare(
        self, key: str = "T1", client_id: str = "p", *, check_after_ms: int = 0, **fields: Any
    ) -> producer_pb2.PrepareHalfReply:
        topic = fields.pop("topic", "deals")
        sent = {"body": b"half", "unique_key": key, **fields}
        request = producer_pb2.PrepareHalfRequest(topic=topic, message=sent, check_after_ms=check_after_ms)
        reply: producer_pb2.PrepareHalfReply = await self.service.prepare_half(request, rpc(client_id))
        self.parts.store.dispatch()
        self.parts.transactions.catch_up()
        return reply

    async def end(self, key: str = "T1", *, commit: bool = True, topic: str = "deals") -> None:
        request = producer_pb2.EndHalfRequest(topic=topic, transaction_id=key, commit=commit)
        await self.service.end_half(request, rpc())

    async def recall(self, handle: str, topic: str = "later") -> str:
        reply = await self.service.recall(
            producer_pb2.RecallRequest(topic=topic, recall_handle=handle), rpc()
        )
        return str(reply.unique_key)

    def stored(self, topic: str) -> list[Any]:
        self.parts.store.dispatch()
        return [one for queue in range(4) for one in read_queue(self.parts.store, topic, QueueId(queue))]

    def due(self, after_ms: int = 60_000) -> list[TransactionCheck]:
        """Open transactions whose producers are to be asked at that time."""
        self.parts.now_ms = EpochMs(self.parts.now_ms + after_ms)
        return self.parts.transactions.due_checks(self.parts.now_ms)

    def check(self, transaction: TransactionCheck) -> str | None:
        half = transaction.message
        message = StoredMessage(half.record, transaction.topic, half.queue_id, half.queue_offset)
        return self.parts.commands.recover_orphaned_transaction(
            transaction.client_id, transaction.topic, message, transaction.transaction_id
        )

    @asynccontextmanager
    async def connected(self, client_id: str, *topics: str) -> AsyncIterator[RpcContext]:
        """A producer's open stream, after the answer to its start."""
        context = rpc(client_id, x_mq_language="PYTHON", x_mq_client_version="1.2")
        task = asyncio.create_task(self.service.check_halves(None, context))
        context.requests.put_nowait(producer_pb2.CheckHalvesFrame(start={"topics": topics}))
        await until(lambda: bool(context.written))
        assert producer_pb2.CheckHalvesReply.FromString(context.written.pop()).connected
        try:
            yield context
        finally:
            context.requests.put_nowait(grpc.aio.EOF)
            await task


def rpc(client_id: str = "p", **metadata: Any) -> Any:
    return RpcContext(client_id, **metadata)


async def until(condition: Any) -> None:
    async with asyncio.timeout(240):
        while not condition():
            await asyncio.sleep(0)


async def refusal(call: Any) -> str:
    with pytest.raises(TroveError) as refused:
        await call
    return refused.value.symbol


# --- delayed messages -----------------------------------------------------------------------------------
async def test_a_delayed_message_is_delivered_at_its_time() -> None:
    bench = Bench()
    reply = await bench.send_delayed(
        keys=["a", "b"], tag="t", properties={"p": "v"}, message_group="g", flag=7
    )
    assert reply.durability == common_pb2.MEMORY
    handle = decode_recall_handle(reply.recall_handle)
    assert (handle.topic, handle.broker, handle.deliver_ms, handle.message_id) == (
        "later",
        BROKER,
        LATER_MS,
        "K1",
    )
    bench.parts.store.dispatch()
    bench.parts.timers.catch_up()
    assert bench.stored("later") == []
    bench.parts.timers.deliver_due(LATER_MS)
    (found,) = bench.stored("later")
    assert (found.body, found.message_id, found.keys, found.tags, found.flag) == (
        b"x",
        "K1",
        ("a", "b"),
        "t",
        7,
    )
    assert (found.properties["p"], found.properties["__SHARDINGKEY"]) == ("v", "g")


@pytest.mark.parametrize("fields", [{}, {"keys": ["k", "l"], "tag": "t", "properties": {"p": "v"}}])
async def test_both_protocols_store_the_same_delayed_message(fields: dict[str, Any]) -> None:
    records = []
    for native in (True, False):
        bench = Bench()
        if native:
            await bench.send_delayed(born_timestamp=NOW_MS, **fields)
        else:
            sent = message(b"x", "later", message_id="K1", deliver_ms=LATER_MS, **fields)
            sent.system_properties.born_timestamp.FromMilliseconds(NOW_MS)
            await bench.parts.send(sent)
        bench.parts.store.dispatch()
        (record,) = read_queue(bench.parts.store, "rmq_sys_wheel_timer", QueueId(0))
        records.append(bytes(record.record))
    assert records[0] == records[1]


async def test_a_message_whose_time_has_passed_is_put_on_a_queue() -> None:
    bench = Bench()
    reply = await bench.send_delayed(NOW_MS)
    assert reply.recall_handle == ""
    (found,) = bench.stored("later")
    assert found.properties["TIMER_DELIVER_MS"] == str(NOW_MS)


async def test_a_delay_began_when_a_full_broker_had_space(monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts from the moment when the broker gets the request, whatever its clock and its load do then."""
    bench = Bench()

    async def wait(_service: ProducerService) -> None:
        bench.parts.now_ms = EpochMs(NOW_MS + 5_000)

    monkeypatch.setattr(ProducerService, "_wait_for_capacity", wait)
    reply = await bench.send_delayed(0, deliver_after_ms=60_000)
    assert decode_recall_handle(reply.recall_handle).deliver_ms == LATER_MS


async def test_a_delay_of_nothing_puts_a_message_on_a_queue() -> None:
    bench = Bench()
    assert (await bench.send_delayed(0, deliver_after_ms=0)).recall_handle == ""
    assert len(bench.stored("later")) == 1


async def test_each_protocol_recalls_the_messages_of_the_other() -> None:
    bench = Bench()
    native = (await bench.send_delayed()).recall_handle
    other = (await bench.parts.send(message(topic="later", deliver_ms=LATER_MS))).entries[0].recall_handle
    bench.parts.store.dispatch()
    request = service_pb2.RecallMessageRequest(topic=v2.Resource(name="later"), recall_handle=native)
    assert (await bench.parts.ender.recall(request, RpcContext())).message_id == "K1"
    assert await bench.recall(other) == "01AA"
    assert await bench.recall(other) == "01AA", "to repeat it changes nothing"
    bench.parts.timers.deliver_due(LATER_MS)
    assert bench.stored("later") == []


@pytest.mark.parametrize(
    ("fields", "symbol"),
    [
        ({"body": b""}, "BODY_EMPTY"),
        ({"body": b"x" * (1 << 19)}, "MESSAGE_SIZE_EXCEEDED"),
        ({"unique_key": ""}, "UNIQUE_KEY_ILLEGAL"),
        ({"tag": "a|b"}, "TAG_ILLEGAL"),
        ({"keys": [" "]}, "KEY_ILLEGAL"),
        ({"properties": {"TAGS": "x"}}, "PROPERTY_ILLEGAL"),
        ({"properties": {f"p{n}": "v" for n in range(129)}}, "PROPERTIES_SIZE_EXCEEDED"),
        ({"flag": 0}, ""),
        ({"message_group": "x" * 64}, "MESSAGE_GROUP_ILLEGAL"),
        ({"priority": 10}, "PROPERTY_ILLEGAL"),
        ({"priority": 1, "message_group": "g"}, "REQUEST_ILLEGAL"),
        ({"deliver_ms": NOW_MS + 366 * 86_400_000}, "DELIVERY_TIME_ILLEGAL"),
        ({"deliver_ms": 0, "deliver_after_ms": 366 * 86_400_000}, "DELIVERY_TIME_ILLEGAL"),
        ({"deliver_ms": 0, "deliver_after_ms": (1 << 63) - 1}, "DELIVERY_TIME_ILLEGAL"),
        ({"deliver_ms": 0, "deliver_after_ms": -1}, "DELIVERY_TIME_ILLEGAL"),
        ({"deliver_after_ms": 1}, "REQUEST_ILLEGAL"),
        ({"topic": "orders"}, "MESSAGE_TYPE_CONFLICT"),
        ({"topic": "missing"}, "TOPIC_NOT_FOUND"),
        ({"topic": "a b"}, "TOPIC_ILLEGAL"),
    ],
)
async def test_a_delayed_message_that_is_refused_is_counted(fields: dict[str, Any], symbol: str) -> None:
    bench = Bench()
    if not symbol:
        assert (await bench.send_delayed(**fields)).recall_handle
        return
    assert await refusal(bench.send_delayed(**fields)) == symbol
    assert bench.parts.traffic.refusals == {symbol: 1}
    assert bench.stored("rmq_sys_wheel_timer") == []


@pytest.mark.parametrize(
    ("handle", "topic", "symbol"),
    [
        ("?", "later", "RECALL_HANDLE_ILLEGAL"),
        ("", "later", "RECALL_HANDLE_ILLEGAL"),
        ("", "orders", "MESSAGE_TYPE_CONFLICT"),
        ("", "missing", "TOPIC_NOT_FOUND"),
        ("", "a b", "TOPIC_ILLEGAL"),
    ],
)
async def test_a_recall_that_is_refused(handle: str, topic: str, symbol: str) -> None:
    assert await refusal(Bench().recall(handle, topic)) == symbol


# --- half messages --------------------------------------------------------------------------------------
@pytest.mark.parametrize("commit", [True, False])
async def test_a_half_message_is_seen_only_after_its_commit(commit: bool) -> None:
    bench = Bench()
    reply = await bench.prepare(keys=["k"], tag="t")
    assert (reply.transaction_id, reply.durability) == ("T1", common_pb2.MEMORY)
    assert bench.stored("deals") == []
    await bench.end(commit=commit)
    assert [found.body for found in bench.stored("deals")] == [b"half"] * commit
    assert await refusal(bench.end(commit=commit)) == "TRANSACTION_ILLEGAL"


async def test_both_protocols_store_the_same_half_message() -> None:
    records = []
    for native in (True, False):
        bench = Bench()
        if native:
            await bench.prepare(check_after_ms=1_500, born_timestamp=NOW_MS, tag="t")
        else:
            sent = message(b"half", "deals", message_id="T1", message_type=v2.TRANSACTION, tag="t")
            sent.system_properties.born_timestamp.FromMilliseconds(NOW_MS)
            sent.system_properties.orphaned_transaction_recovery_duration.FromMilliseconds(1_500)
            await bench.parts.send(sent)
        bench.parts.store.dispatch()
        (record,) = read_queue(bench.parts.store, "RMQ_SYS_TRANS_HALF_TOPIC", QueueId(0))
        records.append(bytes(record.record))
    assert records[0] == records[1]


@pytest.mark.parametrize(
    ("fields", "symbol"),
    [
        ({"body": b""}, "BODY_EMPTY"),
        ({"key": ""}, "UNIQUE_KEY_ILLEGAL"),
        ({"check_after_ms": -1}, "REQUEST_ILLEGAL"),
        ({"check_after_ms": 3_600_001}, "REQUEST_ILLEGAL"),
        ({"client_id": ""}, "CLIENT_ID_MISSING"),
        ({"topic": "orders"}, "MESSAGE_TYPE_CONFLICT"),
    ],
)
async def test_a_half_message_that_is_refused_is_counted(fields: dict[str, Any], symbol: str) -> None:
    bench = Bench()
    assert await refusal(bench.prepare(**fields)) == symbol
    assert bench.parts.traffic.refusals == {symbol: 1}


@pytest.mark.parametrize(("key", "topic"), [(" ", "deals"), ("T2", "deals"), ("T1", "orders")])
async def test_an_end_of_no_open_transaction_is_refused(key: str, topic: str) -> None:
    bench = Bench()
    await bench.prepare()
    assert await refusal(bench.end(key, topic=topic)) == "TRANSACTION_ILLEGAL"


# --- checks ---------------------------------------------------------------------------------------------
async def test_a_producer_is_asked_about_its_open_transaction() -> None:
    bench = Bench()
    async with bench.connected("p", "deals") as context:
        await bench.prepare(tag="t")
        (transaction,) = bench.due()
        assert bench.check(transaction) == "p"
        await until(lambda: bool(context.written))
        check = producer_pb2.CheckHalvesReply.FromString(context.written[0]).check
        assert (check.topic, check.transaction_id) == ("deals", "T1")
        asked = decode_stored(check.record)
        assert (asked.body, asked.tags) == (b"half", "t")
    (client,) = bench.parts.registry
    assert (client.description.language, client.description.version) == ("PYTHON", "1.2")


async def test_a_half_message_was_shown_to_a_stream_without_its_topic() -> None:
    """A stream is admitted for the topics of its start. With the id of a producer, and without topics, any
    user got the half messages of that producer."""
    bench = Bench()
    await bench.prepare(client_id="p")
    (transaction,) = bench.due()
    async with bench.connected("p", "later") as context, bench.connected("other", "deals") as other:
        assert bench.check(transaction) == "other"
        await until(lambda: bool(other.written))
        assert context.written == []


async def test_a_producer_that_has_left_returned_on_the_same_stream() -> None:
    """Only the topics of the first start are checked again when rights change."""
    bench = Bench()

    async def again() -> None:
        async with bench.connected("p", "deals") as context:
            context.requests.put_nowait(producer_pb2.CheckHalvesFrame(leave=True))
            context.requests.put_nowait(producer_pb2.CheckHalvesFrame(start={"topics": ["later"]}))

    assert await refusal(again()) == "REQUEST_ILLEGAL"
    assert len(bench.parts.registry) == 0


async def test_another_producer_is_asked_about_a_transaction_of_a_dead_one() -> None:
    """Also one of RocketMQ's protocol, and the other way round: both are in one registry."""
    bench = Bench()
    await bench.prepare(client_id="dead")
    (transaction,) = bench.due()
    assert bench.check(transaction) is None
    async with bench.connected("other", "deals") as context:
        assert bench.parts.commands.has_producer("dead", "deals")
        assert bench.check(transaction) == "other"
        await until(lambda: bool(context.written))


async def test_a_producer_that_left_is_not_asked() -> None:
    bench = Bench()
    async with bench.connected("p", "deals") as context:
        await bench.prepare()
        context.requests.put_nowait(producer_pb2.CheckHalvesFrame(leave=True))
        await until(lambda: not len(bench.parts.registry))
        (transaction,) = bench.due()
        assert bench.check(transaction) is None


async def test_a_producer_whose_stream_broke_may_return() -> None:
    bench = Bench()
    async with bench.connected("p", "deals"):
        pass
    assert [client.stream_broke for client in bench.parts.registry] == [True]
    async with bench.connected("p", "deals"):
        bench.parts.now_ms += BROKEN_MS + 1
        assert bench.parts.registry.expire(bench.parts.now_ms) == []


async def test_empty_frames_keep_a_producer() -> None:
    bench = Bench()
    async with bench.connected("p", "deals") as context:
        for _ in range(3):
            bench.parts.now_ms += EXPIRY_MS - 1
            context.requests.put_nowait(producer_pb2.CheckHalvesFrame())
            await until(context.requests.empty)
            await asyncio.sleep(0)
            assert bench.parts.registry.expire(bench.parts.now_ms) == []


async def test_the_stream_of_a_producer_that_is_silent_ends() -> None:
    bench = Bench()

    async def silent() -> None:
        async with bench.connected("p", "deals"):
            bench.parts.now_ms += EXPIRY_MS + 1
            assert bench.parts.registry.expire(bench.parts.now_ms) == ["p"]

    assert await refusal(silent()) == "CLIENT_UNKNOWN"


async def test_a_producer_that_reads_no_checks_is_not_asked_for_ever() -> None:
    bench = Bench()
    async with bench.connected("p", "deals") as context:
        await bench.prepare()
        (transaction,) = bench.due()
        context.may_write.clear()
        asked = [bench.check(transaction) for _ in range(CHECKS_WAITING_MAX + 10)]
        assert asked.count("p") == CHECKS_WAITING_MAX
        context.may_write.set()
        await until(lambda: len(context.written) == CHECKS_WAITING_MAX)


@pytest.mark.parametrize(
    ("frame", "symbol"),
    [
        ({}, "REQUEST_ILLEGAL"),
        ({"start": {"topics": ["a b"]}}, "TOPIC_ILLEGAL"),
        ({"start": {"topics": [f"t{n}" for n in range(TOPICS_MAX + 1)]}}, "REQUEST_ILLEGAL"),
    ],
)
async def test_a_stream_with_an_illegal_start_is_refused(frame: dict[str, Any], symbol: str) -> None:
    bench, context = Bench(), rpc()
    context.requests.put_nowait(producer_pb2.CheckHalvesFrame(**frame))
    assert await refusal(bench.service.check_halves(None, context)) == symbol
    assert not len(bench.parts.registry)


async def test_a_stream_without_a_start_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    stream = CheckStream(bench.parts.registry, "p", rpc(), bench.parts.clock_ms, start_wait_s=0)
    assert await refusal(stream.serve()) == "REQUEST_TIMEOUT"
    assert half_checks.START_WAIT_S == 30


async def test_streams_end_when_the_broker_stops() -> None:
    bench = Bench(consumers=ConsumerSettings())

    async def stopped() -> None:
        async with bench.connected("p", "deals"):
            await bench.service.streams.end_all(10)

    assert await refusal(stopped()) == "SERVICE_NOT_AVAILABLE"
    assert await refusal(bench.service.check_halves(None, rpc())) == "SERVICE_NOT_AVAILABLE"
