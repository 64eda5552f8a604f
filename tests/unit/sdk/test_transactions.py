"""Transactions and delayed messages, on the wire of a scripted broker."""

from __future__ import annotations

import asyncio
import logging
from base64 import urlsafe_b64encode
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.support.fake_messaging import message_of
from tests.unit.sdk.conftest import Connect
from tests.unit.sdk.fake_server import FakeServer
from trovemq import Producer, ReceivedMessage, Transaction, TransactionResolution, TroveError, errors
from trovemq._rocketmq.messages import milliseconds
from trovemq._rocketmq.messaging import MessagingService
from trovemq_proto.records import PROPERTY_SHARDING_KEY
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2

pytestmark = pytest.mark.asyncio

UNAVAILABLE = v2.Status(code=v2.Code.PROXY_TIMEOUT, message="later")


def ends(server: FakeServer) -> list[tuple[str, int, int]]:
    return [
        (request.transaction_id, request.resolution, request.source)
        for request in server.messaging.requests("EndTransaction")
    ]


def check_command(body: bytes, transaction_id: str) -> service_pb2.RecoverOrphanedTransactionCommand:
    return service_pb2.RecoverOrphanedTransactionCommand(
        message=message_of(body), transaction_id=transaction_id
    )


# --- transactions ---------------------------------------------------------------------------------------
async def test_a_block_that_ends_commits_in_order(broker: FakeServer, connect: Connect) -> None:
    client = await connect(broker)
    async with client.producer("orders") as producer:
        async with producer.transaction(check_after_ms=1_500) as transaction:
            first = await transaction.send(b"a", keys=["k"], tag="t", properties={"p": "v"})
            second = await transaction.send(b"b")
            assert ends(broker) == []
        assert (first.broker, first.queue_offset, first.offset_msg_id) == ("b1", -1, "")
        assert ends(broker) == [
            (first.transaction_id, v2.COMMIT, v2.SOURCE_CLIENT),
            (second.transaction_id, v2.COMMIT, v2.SOURCE_CLIENT),
        ]
        (talk,) = broker.messaging.talks
        assert talk.settings is not None
        assert talk.settings.client_type == v2.PRODUCER
        assert [topic.name for topic in talk.settings.publishing.topics] == ["orders"]
    system = broker.messaging.requests("SendMessage")[0].messages[0].system_properties
    assert (system.message_type, system.tag, list(system.keys)) == (v2.TRANSACTION, "t", ["k"])
    assert system.orphaned_transaction_recovery_duration.nanos == 500_000_000
    assert broker.messaging.terminated == [talk.client_id]


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
    ((_, resolution, source),) = ends(broker)
    assert (resolution, source) == (v2.ROLLBACK, v2.SOURCE_CLIENT)


async def test_a_commit_is_tried_again(broker: FakeServer, connect: Connect) -> None:
    answers = [v2.Status(code=v2.Code.INVALID_TRANSACTION_ID), UNAVAILABLE]  # the first try had arrived
    broker.messaging.hooks["EndTransaction"] = lambda request: answers.pop()
    client = await connect(broker)
    async with client.producer("orders") as producer, producer.transaction() as transaction:
        await transaction.send(b"a")
    assert len(ends(broker)) == 2


async def test_a_transaction_that_is_not_open_any_more_is_reported(
    broker: FakeServer, connect: Connect
) -> None:
    refusal = v2.Status(code=v2.Code.INVALID_TRANSACTION_ID)
    broker.messaging.hooks["EndTransaction"] = lambda request: refusal
    client = await connect(broker)
    async with client.producer("orders") as producer:
        transaction = await producer.transaction().__aenter__()
        await transaction.send(b"a")
        with pytest.raises(TroveError) as refused:
            await transaction.commit()
    assert refused.value.spec is errors.TRANSACTION_ILLEGAL


async def test_a_commit_that_did_not_arrive_is_the_answer_to_the_check(
    broker: FakeServer, connect: Connect
) -> None:
    broker.messaging.hooks["EndTransaction"] = lambda request: (
        UNAVAILABLE if request.source == v2.SOURCE_CLIENT else None
    )
    client = await connect(broker)
    async with client.producer("orders") as producer:
        transaction = await producer.transaction().__aenter__()
        receipt = await transaction.send(b"a")
        client._pool.options = replace(client._pool.options, delivery_timeout_ms=20)  # for the end alone
        with pytest.raises(TroveError) as failure:
            await transaction.commit()
        assert failure.value.fields["in_doubt"] == "true"
        (talk,) = broker.messaging.talks
        command = check_command(b"a", receipt.transaction_id)
        await talk.tell(recover_orphaned_transaction_command=command)
        answer = (receipt.transaction_id, v2.COMMIT, v2.SOURCE_SERVER_CHECK)
        await broker.messaging.until(lambda: answer in ends(broker))


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
        (talk,) = broker.messaging.talks
        with caplog.at_level(logging.CRITICAL, "trovemq"):
            for body, transaction_id in (
                (b"open", still_open),
                (b"broken", "t0"),
                (b"UNKNOWN", "t1"),
                (b"ROLLBACK", "t2"),
                (b"COMMIT", "t3"),
            ):
                command = check_command(body, transaction_id)
                await talk.tell(recover_orphaned_transaction_command=command)
            await broker.messaging.until(lambda: len(ends(broker)) == 2)
        assert sorted(ends(broker)) == [
            ("t2", v2.ROLLBACK, v2.SOURCE_SERVER_CHECK),
            ("t3", v2.COMMIT, v2.SOURCE_SERVER_CHECK),
        ]
        assert asked == [b"broken", b"UNKNOWN", b"ROLLBACK", b"COMMIT"]
        await transaction.rollback()


async def test_a_plain_function_may_check(broker: FakeServer, connect: Connect) -> None:
    client = await connect(broker)
    async with client.producer("orders", checker=lambda message: TransactionResolution.COMMIT):
        (talk,) = broker.messaging.talks
        await talk.tell(recover_orphaned_transaction_command=check_command(b"a", "t"))
        await broker.messaging.until(lambda: bool(ends(broker)))
    assert ends(broker) == [("t", v2.COMMIT, v2.SOURCE_SERVER_CHECK)]


# --- delayed messages -----------------------------------------------------------------------------------
def delivery_ms(server: FakeServer) -> int:
    (request,) = server.messaging.requests("SendMessage")
    time = request.messages[0].system_properties.delivery_timestamp
    return int(time.seconds * 1000 + time.nanos // 1_000_000)


async def test_deliver_at_is_kept_to_the_millisecond(broker: FakeServer, connect: Connect) -> None:
    client = await connect(broker)
    time = datetime(2030, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
    receipt = await client.send("orders", b"a", deliver_at=time, unique_key="my-key")
    assert delivery_ms(broker) == round(time.timestamp() * 1000)
    assert (receipt.recall_handle, receipt.unique_key) == ("handle-my-key", "my-key")
    assert (receipt.queue_id, receipt.physical_offset, receipt.transaction_id) == (-1, -1, "")


@pytest.mark.parametrize("after", [90, 90.0, timedelta(seconds=90)])
async def test_a_delay_counted_by_the_clients_clock(
    broker: FakeServer, connect: Connect, after: float | timedelta
) -> None:
    """A client whose clock was five minutes slow had its message delivered at once."""
    client = await connect(broker)
    await client.send("orders", b"a", deliver_after=after)
    assert broker.now_ms + 89_000 <= delivery_ms(broker) <= broker.now_ms + 90_000


async def test_a_message_came_early_by_the_way_of_the_brokers_answer(
    broker: FakeServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of the answer's way counted as time that had passed before the broker's clock was read."""
    reach = MessagingService.reach

    async def slowly(service: MessagingService) -> int:
        now_ms = await reach(service)
        await asyncio.sleep(0.2)
        return now_ms

    monkeypatch.setattr(MessagingService, "reach", slowly)
    client = await connect(broker)
    await client.send("orders", b"a", deliver_after=90)
    assert delivery_ms(broker) > broker.now_ms + 90_000 - 200


async def test_a_delay_before_now_is_due_at_once(broker: FakeServer, connect: Connect) -> None:
    client = await connect(broker)
    await client.send("orders", b"a", deliver_after=-5)
    assert delivery_ms(broker) <= broker.now_ms


async def test_a_delayed_message_that_was_sent_again_waited_anew(
    broker: FakeServer, connect: Connect
) -> None:
    """The clock of this broker stands still, so a delivery time shows how much of the delay is left."""
    answers = [v2.Status(code=v2.Code.TOO_MANY_REQUESTS)] * 3
    broker.messaging.hooks["SendMessage"] = lambda request: answers.pop() if answers else None
    client = await connect(broker)
    await client.send("orders", b"a", deliver_after=90)
    times = [
        milliseconds(request.messages[0].system_properties.delivery_timestamp)
        for request in broker.messaging.requests("SendMessage")
    ]
    assert len(times) == 4
    assert times == sorted(times, reverse=True)
    assert times[-1] < times[0] <= broker.now_ms + 90_000


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
    assert (broker.frames, broker.messaging.requests("SendMessage")) == ([], [])


async def test_a_refusal_is_raised_and_one_that_passes_is_tried_again(
    broker: FakeServer, connect: Connect
) -> None:
    answers = [
        v2.Status(code=v2.Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, message="NORMAL"),
        v2.Status(code=v2.Code.TOO_MANY_REQUESTS),
    ]
    broker.messaging.hooks["SendMessage"] = lambda request: answers.pop()
    client = await connect(broker)
    with pytest.raises(TroveError) as refused:
        await client.send("orders", b"a", deliver_after=5)
    assert refused.value.spec is errors.MESSAGE_TYPE_CONFLICT
    keys = {r.messages[0].system_properties.message_id for r in broker.messaging.requests("SendMessage")}
    assert (len(broker.messaging.requests("SendMessage")), len(keys)) == (2, 1)


@pytest.mark.parametrize("retry_in_doubt", [False, True])
async def test_what_may_have_been_stored_is_sent_again_only_where_that_is_wanted(
    broker: FakeServer, connect: Connect, retry_in_doubt: bool
) -> None:
    answers = [UNAVAILABLE]
    broker.messaging.hooks["SendMessage"] = lambda request: answers.pop() if answers else None
    client = await connect(broker)
    async with client.producer("orders", retry_in_doubt=retry_in_doubt) as producer:
        if retry_in_doubt:
            assert (await producer.send(b"a", deliver_after=5)).recall_handle
        else:
            with pytest.raises(TroveError) as failure:
                await producer.send(b"a", deliver_after=5)
            assert failure.value.fields["in_doubt"] == "true"


async def test_a_delayed_message_in_doubt_stays_at_its_broker_and_keeps_its_id(
    broker: FakeServer, other: FakeServer, nameserver: FakeServer, connect: Connect
) -> None:
    answers = [UNAVAILABLE] * 3
    for server in (broker, other):
        server.messaging.hooks["SendMessage"] = lambda request: answers.pop() if answers else None
    client = await connect(nameserver)
    async with client.producer("orders", idempotent=True) as producer:
        receipt = await producer.send(b"a", deliver_after=5, unique_key="order-1")
    requests = {
        server.name: [request.messages[0] for request in server.messaging.requests("SendMessage")]
        for server in (broker, other)
    }
    (sent,) = filter(None, requests.values())
    assert len(requests[receipt.broker]) == len(sent) == 4
    assert {message.system_properties.message_id for message in sent} == {"order-1"}
    assert not any(dict(message.user_properties) for message in sent), "it has no number"


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
    assert broker.messaging.requests("RecallMessage") == []
    (request,) = other.messaging.requests("RecallMessage")
    assert (request.topic.name, request.recall_handle) == ("orders", handle)


async def test_recall_with_a_handle_of_any_form_asks_everyone(
    nameserver: FakeServer, broker: FakeServer, other: FakeServer, connect: Connect
) -> None:
    refusal = v2.Status(code=v2.Code.BAD_REQUEST, message="no such handle")
    broker.messaging.hooks["RecallMessage"] = lambda request: refusal
    client = await connect(nameserver)
    assert await client.recall("orders", "%%%") == "recalled"
    other.messaging.hooks["RecallMessage"] = lambda request: refusal
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
