"""Transactions and delayed messages, on the wire of a scripted broker."""

from __future__ import annotations

import asyncio
import logging
from base64 import urlsafe_b64encode
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.unit.sdk.conftest import Connect
from tests.unit.sdk.fake_server import FakeServer
from trovemq import Producer, ReceivedMessage, Transaction, TransactionResolution, TroveError, errors
from trovemq._produce import half_checks
from trovemq._wire.producers import ProducerCalls
from trovemq_proto.records import PROPERTY_SHARDING_KEY
from trovemq_proto.v1 import producer_pb2

pytestmark = pytest.mark.asyncio


def later() -> TroveError:
    """The broker did not answer."""
    return TroveError(errors.REQUEST_TIMEOUT, "later")


# --- transactions ---------------------------------------------------------------------------------------
async def test_a_block_that_ends_commits_in_order(broker: FakeServer, connect: Connect) -> None:
    client = await connect(broker)
    async with client.producer("orders") as producer:
        async with producer.transaction(check_after_ms=1_500) as transaction:
            first = await transaction.send(b"a", keys=["k"], tag="t", properties={"p": "v"})
            second = await transaction.send(b"b")
            assert broker.deferred.ends() == []
        assert (first.broker, first.queue_offset, first.offset_msg_id) == ("b1", -1, "")
        assert broker.deferred.ends() == [(first.transaction_id, True), (second.transaction_id, True)]
        (asked,) = broker.deferred.asked
        assert asked.topics == ["orders"]
    half = broker.deferred.requests("PrepareHalf")[0]
    assert (half.topic, half.message.tag, list(half.message.keys)) == ("orders", "t", ["k"])
    assert (half.check_after_ms, first.durability) == (1_500, "memory")
    assert broker.deferred.left == [asked.client_id]


async def fail_within(transaction: Transaction) -> None:
    async with transaction:
        await transaction.send(b"a")
        raise ValueError("mine")


async def test_an_exception_rolls_back(broker: FakeServer, connect: Connect) -> None:
    client = await connect(broker)
    async with client.producer("orders") as producer:
        transaction = producer.transaction()
        with pytest.raises(ValueError, match="mine"):
            await fail_within(transaction)
        with pytest.raises(TroveError):
            await transaction.send(b"too late")
    assert [commit for _, commit in broker.deferred.ends()] == [False]


async def test_a_commit_is_tried_again(broker: FakeServer, connect: Connect) -> None:
    answers = [TroveError(errors.TRANSACTION_ILLEGAL), later()]  # the first try had arrived
    broker.deferred.hooks["EndHalf"] = lambda request: answers.pop()
    client = await connect(broker)
    async with client.producer("orders") as producer, producer.transaction() as transaction:
        await transaction.send(b"a")
    assert len(broker.deferred.ends()) == 2


async def test_a_transaction_that_is_not_open_any_more_is_reported(
    broker: FakeServer, connect: Connect
) -> None:
    broker.deferred.hooks["EndHalf"] = lambda request: TroveError(errors.TRANSACTION_ILLEGAL)
    client = await connect(broker)
    async with client.producer("orders") as producer:
        transaction = await producer.transaction().__aenter__()
        await transaction.send(b"a")
        with pytest.raises(TroveError) as refused:
            await transaction.commit()
    assert refused.value.spec is errors.TRANSACTION_ILLEGAL


@pytest.mark.parametrize("error", [later(), TroveError(errors.STORE_FAILED, "the disk is broken")])
async def test_a_commit_that_did_not_arrive_is_the_answer_to_the_check(
    broker: FakeServer, connect: Connect, error: TroveError
) -> None:
    broker.deferred.hooks["EndHalf"] = lambda request: error
    client = await connect(broker)
    async with client.producer("orders") as producer:
        transaction = await producer.transaction().__aenter__()
        receipt = await transaction.send(b"a")
        client._pool.options = replace(client._pool.options, delivery_timeout_ms=20)  # for the end alone
        with pytest.raises(TroveError) as failure:
            await transaction.commit()
        assert failure.value.fields["in_doubt"] == "true"
        tried = len(broker.deferred.ends())
        broker.deferred.hooks.clear()
        (asked,) = broker.deferred.asked
        await asked.ask(b"a", receipt.transaction_id)
        await broker.deferred.until(lambda: len(broker.deferred.ends()) > tried)
        assert broker.deferred.ends()[-1] == (receipt.transaction_id, True)


async def test_the_checker_answers_for_what_this_process_does_not_know(
    broker: FakeServer, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[bytes] = []

    async def checker(message: ReceivedMessage) -> TransactionResolution:
        asked.append(message.body)
        if message.body == b"broken":
            raise ValueError("no answer")
        return TransactionResolution(message.body.decode())

    client = await connect(broker)
    async with client.producer("orders", checker=checker) as producer:
        transaction = await producer.transaction().__aenter__()
        still_open = (await transaction.send(b"open")).transaction_id
        (stream,) = broker.deferred.asked
        with caplog.at_level(logging.CRITICAL, "trovemq"):
            for body, transaction_id in (
                (b"open", still_open),
                (b"broken", "t0"),
                (b"UNKNOWN", "t1"),
                (b"ROLLBACK", "t2"),
                (b"COMMIT", "t3"),
            ):
                await stream.ask(body, transaction_id)
            await broker.deferred.until(lambda: len(broker.deferred.ends()) == 2)
        assert sorted(broker.deferred.ends()) == [("t2", False), ("t3", True)]
        assert asked == [b"broken", b"UNKNOWN", b"ROLLBACK", b"COMMIT"]
        await transaction.rollback()


async def test_a_plain_function_may_check(broker: FakeServer, connect: Connect) -> None:
    client = await connect(broker)
    async with client.producer("orders", checker=lambda message: TransactionResolution.COMMIT):
        (asked,) = broker.deferred.asked
        await asked.ask(b"a", "t")
        await broker.deferred.until(lambda: bool(broker.deferred.ends()))
    assert broker.deferred.ends() == [("t", True)]


async def test_a_checker_gets_the_half_message_as_it_was_sent(broker: FakeServer, connect: Connect) -> None:
    found: list[ReceivedMessage] = []

    def checker(message: ReceivedMessage) -> TransactionResolution:
        found.append(message)
        return TransactionResolution.COMMIT

    client = await connect(broker)
    async with client.producer("orders", checker=checker):
        (asked,) = broker.deferred.asked
        await asked.ask(b"a", "t")
        await broker.deferred.until(lambda: bool(broker.deferred.ends()))
    (message,) = found
    assert (message.topic, message.body, message.message_id, message.broker) == ("orders", b"a", "t", "b1")
    assert (message.queue_id, message.queue_offset, message.properties) == (3, 7, {"p": "v"})


async def test_a_damaged_half_message_is_left_open(
    broker: FakeServer, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    client = await connect(broker)
    async with client.producer("orders", checker=lambda message: TransactionResolution.COMMIT):
        (asked,) = broker.deferred.asked
        damaged = producer_pb2.HalfCheck(topic="orders", transaction_id="t0", record=b"not a record")
        with caplog.at_level(logging.CRITICAL, "trovemq"):
            await asked.write(producer_pb2.CheckHalvesReply(check=damaged))
            await asked.ask(b"a", "t1")
            await broker.deferred.until(lambda: bool(broker.deferred.ends()))
    assert broker.deferred.ends() == [("t1", True)]


async def test_a_producer_is_asked_again_after_its_broker_was_restarted(
    broker: FakeServer, connect: Connect
) -> None:
    client = await connect(broker)
    async with client.producer("orders", checker=lambda message: TransactionResolution.COMMIT):
        await broker.stop()
        await broker.start()
        await broker.deferred.until(lambda: len(broker.deferred.asked) == 2)
        first, second = broker.deferred.asked
        assert first.client_id == second.client_id
        await second.ask(b"a", "t")
        await broker.deferred.until(lambda: bool(broker.deferred.ends()))


async def test_a_new_broker_of_the_topic_can_ask(
    nameserver: FakeServer, broker: FakeServer, other: FakeServer, connect: Connect
) -> None:
    nameserver.set_routes(broker.route({"orders": 4}))
    client = await connect(nameserver)
    async with client.producer("orders", checker=lambda message: TransactionResolution.COMMIT):
        nameserver.set_routes(broker.route({"orders": 4}), other.route({"orders": 4}))
        await other.deferred.until(lambda: len(other.deferred.asked) == 1)
    assert (len(broker.deferred.left), len(other.deferred.left)) == (1, 1)


async def test_a_producer_sends_signs_of_life(
    broker: FakeServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(half_checks, "HEARTBEAT_SECONDS", 0.001)
    client = await connect(broker)
    async with client.producer("orders", checker=lambda message: TransactionResolution.COMMIT):
        (asked,) = broker.deferred.asked
        await broker.deferred.until(lambda: asked.beats > 2)


async def test_a_broker_that_refuses_a_producer_is_reported_and_asked_again(
    broker: FakeServer, connect: Connect
) -> None:
    broker.deferred.start_error = TroveError(errors.ACCESS_DENIED, "not for you")
    client = await connect(broker)
    producer = client.producer("orders", checker=lambda message: TransactionResolution.COMMIT)
    for _ in range(2):
        with pytest.raises(TroveError) as refused:
            await producer.__aenter__()
        assert refused.value.spec is errors.ACCESS_DENIED
    broker.deferred.start_error = None
    async with producer:
        assert len(broker.deferred.asked) == 1


# --- delayed messages -----------------------------------------------------------------------------------
def delivery_ms(server: FakeServer) -> int:
    (request,) = server.deferred.requests("SendDelayed")
    return int(request.deliver_timestamp)


def delay_ms(server: FakeServer) -> int:
    (request,) = server.deferred.requests("SendDelayed")
    assert request.HasField("deliver_after_ms")
    return int(request.deliver_after_ms)


async def test_deliver_at_is_kept_to_the_millisecond(broker: FakeServer, connect: Connect) -> None:
    client = await connect(broker)
    time = datetime(2030, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
    receipt = await client.send("orders", b"a", deliver_at=time, message_id="my-key")
    assert delivery_ms(broker) == round(time.timestamp() * 1000)
    assert (receipt.recall_handle, receipt.message_id) == ("handle-my-key", "my-key")
    assert (receipt.queue_id, receipt.physical_offset, receipt.transaction_id) == (-1, -1, "")


@pytest.mark.parametrize("after", [90, 90.0, timedelta(seconds=90)])
async def test_a_delay_counted_by_the_clients_clock(
    broker: FakeServer, connect: Connect, after: float | timedelta
) -> None:
    """A client whose clock was five minutes slow had its message delivered at once. Later the SDK made a time
    of the delay and of the broker's answer before: it is sent as a duration."""
    client = await connect(broker)
    await client.send("orders", b"a", deliver_after=after)
    assert 89_000 <= delay_ms(broker) <= 90_000
    (request,) = broker.deferred.requests("SendDelayed")
    assert request.deliver_timestamp == 0


async def test_a_delay_began_when_the_broker_was_reached(
    broker: FakeServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    reach, loop = ProducerCalls.reach, asyncio.get_running_loop()
    now = loop.time

    async def slowly(calls: ProducerCalls) -> None:
        await reach(calls)
        # more than is asked for below: a difference of two floats may be a little less
        monkeypatch.setattr(loop, "time", lambda: now() + 0.25)

    monkeypatch.setattr(ProducerCalls, "reach", slowly)
    client = await connect(broker)
    await client.send("orders", b"a", deliver_after=90)
    assert delay_ms(broker) <= 90_000 - 200


async def test_a_delay_before_now_is_due_at_once(broker: FakeServer, connect: Connect) -> None:
    client = await connect(broker)
    await client.send("orders", b"a", deliver_after=-5)
    assert delay_ms(broker) == 0


async def test_a_delayed_message_that_was_sent_again_waited_anew(
    broker: FakeServer, connect: Connect
) -> None:
    answers = [TroveError(errors.LIMIT_EXCEEDED)] * 3
    broker.deferred.hooks["SendDelayed"] = lambda request: answers.pop() if answers else None
    client = await connect(broker)
    await client.send("orders", b"a", deliver_after=90)
    delays = [request.deliver_after_ms for request in broker.deferred.requests("SendDelayed")]
    assert len(delays) == 4
    assert delays == sorted(delays, reverse=True)
    assert delays[-1] < delays[0] <= 90_000


@pytest.mark.parametrize(
    ("arguments", "spec"),
    [
        ({"deliver_after": 1, "deliver_at": datetime.now(UTC)}, errors.DELIVERY_TIME_ILLEGAL),
        ({"deliver_after": float("nan")}, errors.DELIVERY_TIME_ILLEGAL),
        ({"deliver_after": 1e300}, errors.DELIVERY_TIME_ILLEGAL),
        ({"deliver_after": 1, "queue_id": 0}, errors.REQUEST_ILLEGAL),
        ({"deliver_after": 1, "tag": " "}, errors.TAG_ILLEGAL),
        ({"deliver_after": 1, "broker": "nobody"}, errors.BROKER_NOT_FOUND),
        ({"message_group": " "}, errors.MESSAGE_GROUP_ILLEGAL),
        ({"message_group": "x" * 64}, errors.MESSAGE_GROUP_ILLEGAL),
        ({"message_group": "a\x01"}, errors.MESSAGE_GROUP_ILLEGAL),
    ],
)
async def test_what_no_broker_need_be_asked(
    broker: FakeServer, connect: Connect, arguments: dict[str, Any], spec: errors.ErrorSpec
) -> None:
    client = await connect(broker)
    with pytest.raises(TroveError) as refused:
        await client.send("orders", b"a", **arguments)
    assert refused.value.spec is spec
    assert (broker.frames, broker.deferred.calls) == ([], {})


async def test_a_refusal_is_raised_and_one_that_passes_is_tried_again(
    broker: FakeServer, connect: Connect
) -> None:
    answers = [
        TroveError(errors.MESSAGE_TYPE_CONFLICT, "NORMAL"),
        TroveError(errors.LIMIT_EXCEEDED),
    ]
    broker.deferred.hooks["SendDelayed"] = lambda request: answers.pop()
    client = await connect(broker)
    with pytest.raises(TroveError) as refused:
        await client.send("orders", b"a", deliver_after=5)
    assert refused.value.spec is errors.MESSAGE_TYPE_CONFLICT
    keys = [request.message.unique_key for request in broker.deferred.requests("SendDelayed")]
    assert (len(keys), len(set(keys))) == (2, 1)


@pytest.mark.parametrize("retry_in_doubt", [False, True])
async def test_what_may_have_been_stored_is_sent_again_only_where_that_is_wanted(
    broker: FakeServer, connect: Connect, retry_in_doubt: bool
) -> None:
    answers = [later()]
    broker.deferred.hooks["SendDelayed"] = lambda request: answers.pop() if answers else None
    client = await connect(broker)
    async with client.producer("orders", retry_in_doubt=retry_in_doubt) as producer:
        if retry_in_doubt:
            assert (await producer.send(b"a", deliver_after=5)).recall_handle
        else:
            with pytest.raises(TroveError) as failure:
                await producer.send(b"a", deliver_after=5)
            assert failure.value.fields["in_doubt"] == "true"


@pytest.mark.parametrize("message_id", [None, "order-1"])
async def test_a_delayed_message_in_doubt_stays_at_its_broker_and_keeps_its_id(
    broker: FakeServer, other: FakeServer, nameserver: FakeServer, connect: Connect, message_id: str | None
) -> None:
    answers = [later()] * 3
    for server in (broker, other):
        server.deferred.hooks["SendDelayed"] = lambda request: answers.pop() if answers else None
    client = await connect(nameserver)
    async with client.producer("orders", idempotent=True) as producer:
        receipt = await producer.send(b"a", deliver_after=5, message_id=message_id)
    requests = {
        server.name: [request.message for request in server.deferred.requests("SendDelayed")]
        for server in (broker, other)
    }
    (sent,) = filter(None, requests.values())
    assert len(requests[receipt.broker]) == len(sent) == 4
    assert {message.unique_key for message in sent} == {message_id or receipt.message_id}
    assert not any(dict(message.properties) for message in sent), "it has no number"


async def test_a_send_waits_for_a_broker_that_is_away(broker: FakeServer, connect: Connect) -> None:
    client = await connect(broker, send_attempts_max=10_000)
    await broker.stop()
    sending = asyncio.create_task(client.send("orders", b"a", deliver_after=5))
    await asyncio.wait([sending], timeout=0)
    await broker.start()
    assert (await sending).broker == "b1"


async def test_giving_up_a_producer_gives_up_its_delayed_sends(broker: FakeServer, connect: Connect) -> None:
    client = await connect(broker)
    producer: Producer = client.producer("orders")
    await broker.stop()
    sending = asyncio.create_task(producer.send(b"a", deliver_after=5))
    await asyncio.wait([sending], timeout=0.01)
    await producer.abort()
    with pytest.raises(TroveError) as failure:
        await sending
    assert failure.value.spec is errors.CLIENT_CLOSED


async def test_recall_asks_the_broker_that_the_handle_names(
    nameserver: FakeServer, broker: FakeServer, other: FakeServer, connect: Connect
) -> None:
    client = await connect(nameserver)
    handle = urlsafe_b64encode(b"v1 orders b2 1700000000000 id").decode()
    assert await client.recall("orders", handle) == "recalled"
    assert broker.deferred.requests("Recall") == []
    (request,) = other.deferred.requests("Recall")
    assert (request.topic, request.recall_handle) == ("orders", handle)


async def test_recall_with_a_handle_of_any_form_asks_everyone(
    nameserver: FakeServer, broker: FakeServer, other: FakeServer, connect: Connect
) -> None:
    refusal = TroveError(errors.RECALL_HANDLE_ILLEGAL, "no such handle")
    broker.deferred.hooks["Recall"] = lambda request: refusal
    client = await connect(nameserver)
    assert await client.recall("orders", "%%%") == "recalled"
    other.deferred.hooks["Recall"] = lambda request: refusal
    with pytest.raises(TroveError) as refused:
        await client.recall("orders", "%%%")
    assert refused.value.spec is errors.RECALL_HANDLE_ILLEGAL


# --- message groups -------------------------------------------------------------------------------------
async def test_a_message_group_keeps_its_queue_and_is_stored(broker: FakeServer, connect: Connect) -> None:
    client = await connect(broker)
    async with client.producer("orders") as producer:
        for i in range(8):
            await producer.send(b"%d" % i, message_group="m")
        producer.send_oneway(b"8", message_group="m")
        await producer.send(b"9", message_group="m")
    messages = broker.messages()
    assert [message.body for message in messages] == [b"%d" % i for i in range(10)]
    assert {message.properties[PROPERTY_SHARDING_KEY] for message in messages} == {"m"}
    assert len({frame.queue_id for frame in broker.frames}) == 1
