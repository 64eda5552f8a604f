"""The Consume stream: credit, receipts, settlements, and the fate of messages when it ends."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from tests.support.consuming import GROUP, ConsumeClient, Got, acknowledgement, returned
from tests.support.engine import flush
from tests.support.fake_loop import fake_time, turns
from tests.support.memory_broker import ROOMY, TestBroker, message
from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.server.core.clients import ClientDescription
from trovemq_broker.server.native import batch_delivery
from trovemq_broker.server.wire.consumers import ClientType
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.receipts import handle_of
from trovemq_proto.v1 import consumer_pb2
from trovemq_store.engine.queues import queue_ids, queue_range
from trovemq_store.topics.subscription_groups import SubscriptionGroup

pytestmark = fake_time


def parts_with(**settings: Any) -> TestBroker:
    return TestBroker(consumers=ConsumerSettings(new_group_start="begin", **settings))


async def filled(count: int, parts: TestBroker | None = None, *, size: int = 0, **fields: Any) -> TestBroker:
    parts = parts or parts_with()
    for number in range(count):
        body = b"%d" % number + bytes(size)
        await parts.send(message(body, message_id=f"M{number}", **fields))
    await turns()
    return parts


def numbers(got: list[Got]) -> list[int]:
    return sorted(int(one.body.rstrip(b"\0")) for one in got)


# --- batches and credit ---------------------------------------------------------------------------------
async def test_messages_come_with_their_receipts_and_are_acknowledged_by_them() -> None:
    parts = await filled(6)
    client = ConsumeClient(parts)
    await client.open(100)
    got = client.messages()
    assert numbers(got) == list(range(6))
    assert {one.attempt for one in got} == {1}
    by_receipt: dict[str, list[Got]] = {}
    for one in got:
        by_receipt.setdefault(one.receipt, []).append(one)
    made = [acknowledgement(*some, number=n) for n, some in enumerate(by_receipt.values(), 7)]
    results = await client.settle(*made)
    assert [(one.settlement_id, one.HasField("error"), len(one.refused)) for one in results] == [
        (number, False, 0) for number in range(7, 7 + len(made))
    ]
    assert parts.delivery.in_flight_count == 0
    assert parts.traffic.messages_out["orders"] == 6
    await client.end()
    assert await parts.messages() == []


async def test_a_stream_gets_no_more_messages_than_its_credit() -> None:
    parts = await filled(10)
    client = ConsumeClient(parts)
    await client.open(3)
    assert len(client.messages()) == 3
    await client.say(credit_messages=4)
    assert len(client.messages()) == 4
    await client.say(credit_bytes=1)
    assert client.messages() == []
    await client.end()


async def test_bytes_of_credit_are_exceeded_by_one_message_at_most() -> None:
    parts = await filled(8, size=1_000)
    client = ConsumeClient(parts)
    await client.open(100, 2_500)
    first = client.messages()
    assert 2 <= len(first) <= 3
    await client.say(credit_bytes=1_100)
    assert 0 <= len(client.messages()) <= 2
    await client.end()


async def test_new_messages_are_sent_to_who_waits_and_a_filter_counts() -> None:
    parts = parts_with()
    client = ConsumeClient(parts)
    await client.open(10, filter="a")
    assert client.messages() == []
    await parts.send(message(b"1", message_id="M1", tag="a"), message(b"2", message_id="M2", tag="b"))
    await turns()
    assert numbers(client.messages()) == [1]
    known = parts.registry.subscription(GROUP, "orders")
    assert known is not None
    assert known.expression == "a"
    await client.end()


async def test_a_client_that_does_not_read_costs_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_delivery, "BATCH_MESSAGES_MAX", 2)
    parts = await filled(10)
    client = ConsumeClient(parts)
    await client.open()
    client.context.may_write.clear()
    await client.say(credit_messages=10)
    assert parts.delivery.in_flight_count == 2
    client.context.may_write.set()
    await turns(40)
    assert len(client.messages()) == 10
    await client.end()


async def test_batches_that_nobody_confirms_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_delivery, "BATCH_MESSAGES_MAX", 1)
    monkeypatch.setattr(batch_delivery, "UNCONFIRMED_MAX", 3)
    parts = await filled(10)
    client = ConsumeClient(parts)
    await client.open(10)
    assert len(client.batches()) == 3
    await client.say(received_batch=2)
    assert len(client.batches()) == 2
    await client.end()


# --- the end of a stream ----------------------------------------------------------------------------------
@pytest.mark.parametrize("broken", [False, True])
async def test_an_unconfirmed_batch_comes_back_and_counts_as_an_attempt(broken: bool) -> None:
    """Else a message that ends each program at once would never be a dead letter."""
    parts = await filled(4)
    client = ConsumeClient(parts)
    await client.open(4)
    got = client.messages()
    await (client.break_off() if broken else client.end())
    assert await parts.messages() == [], "the client may have got it, and settle it"
    (first, *rest) = got
    other = ConsumeClient(parts, client_id="client-2")
    await other.open(10)
    (result,) = await other.settle(acknowledgement(first))
    assert not result.refused, "until then its receipts are good"
    parts.now_ms += 1_000
    parts.waits.wake((GROUP, "orders"))
    await turns()
    again = other.messages()
    assert numbers(again) == numbers(rest)
    assert {one.attempt for one in again} == {2}
    await other.end()


async def test_a_batch_that_was_confirmed_stays_the_clients() -> None:
    parts = await filled(4)
    client = ConsumeClient(parts)
    await client.open(4)
    got = client.messages()
    await client.say(received_batch=client.replies[-1].batch)
    await client.break_off()
    parts.now_ms += 2_000
    assert await parts.messages() == []
    await parts.acknowledge(*(handle_of(one.receipt, one.offset) for one in got))
    assert parts.delivery.in_flight_count == 0


async def test_only_the_leases_of_confirmed_batches_are_renewed() -> None:
    """After a kill of the broker a batch that its client never got was the client's as long as it lived."""
    parts = await filled(1)
    parts.registry.settle("client-1", ClientDescription(client_type=ClientType.PUSH_CONSUMER), parts.now_ms)
    client = ConsumeClient(parts)
    await client.open(1, invisible_ms=0)
    (first,) = client.messages()
    await client.say(received_batch=1, credit_messages=1)
    await filled(1, parts)
    (second,) = client.messages()
    for _ in range(12):  # as long as it would take without the stream's end
        parts.now_ms += 5_000
        parts.delivery.renew(parts.now_ms, lambda _client: True)
    (again,) = await parts.messages()
    assert (again.system_properties.delivery_attempt, again.body) == (2, second.body)
    (result,) = await client.settle(acknowledgement(first))
    assert not result.refused
    (result,) = await client.settle(acknowledgement(first))
    assert not result.refused, "once more is fine"
    await client.end()


async def test_an_old_stream_ended_the_leases_of_its_topics_namesake() -> None:
    """The numbers of leases are the same in a recreated topic, and its member lost its messages at once."""
    parts = await filled(4)
    old, new = ConsumeClient(parts), ConsumeClient(parts, client_id="client-2")
    await old.open(4)
    assert len(old.messages()) == 4
    parts.delivery.forget_topic("orders", parts.now_ms)  # and it is recreated, with as many messages
    for queue_id in queue_ids(parts.store, "orders"):
        parts.store.offsets.commit(GROUP, "orders", queue_id, queue_range(parts.store, "orders", queue_id)[0])
    parts.now_ms += 5
    await new.open(4)
    got = new.messages()
    assert len(got) == 4
    await new.say(received_batch=1)
    await old.break_off()
    parts.now_ms += 2_000
    assert await parts.messages() == [], "they are leased for 30 s"
    for one in got:
        (result,) = await new.settle(acknowledgement(one))
        assert not result.refused
    await new.end()


async def test_a_stream_that_is_cancelled_while_it_writes_gives_its_batch_back() -> None:
    parts = await filled(4)
    client = ConsumeClient(parts)
    await client.open()
    client.context.may_write.clear()
    await client.say(credit_messages=4)
    assert parts.delivery.in_flight_count == 4
    await client.break_off()
    parts.now_ms += 1_000
    again = await parts.messages()
    assert [one.system_properties.delivery_attempt for one in again] == [1] * 4


async def test_after_a_stop_no_batch_comes_and_settlements_are_taken() -> None:
    parts = await filled(2)
    client = ConsumeClient(parts)
    await client.open()
    client.context.may_write.clear()
    await client.say(credit_messages=10)
    await client.say(stop=True)
    client.context.may_write.set()
    await turns(40)
    got = client.messages()
    assert len(got) == 2
    assert [one.stopped for one in client.replies] == [False] * (len(client.replies) - 1) + [True]
    await filled(1, parts)
    assert client.messages() == []
    for one in got:
        (result,) = await client.settle(returned(one, suspend=True))
        assert not result.refused
    assert client.messages() == []
    await client.end()
    parts.now_ms += 1_000
    found = await parts.messages()
    assert [one.system_properties.delivery_attempt for one in found] == [1] * 3


async def test_a_stopping_broker_ends_its_streams() -> None:
    client = ConsumeClient(await filled(0))
    await client.open(4)
    await client.service.streams.end_all(1.0)
    with pytest.raises(TroveError, match="SERVICE_NOT_AVAILABLE"):
        await client.serving


async def test_the_stream_of_a_client_that_has_ended_ends() -> None:
    parts = await filled(0)
    parts.registry.settle("client-1", ClientDescription(client_type=ClientType.PUSH_CONSUMER), parts.now_ms)
    client = ConsumeClient(parts)
    await client.open(4, invisible_ms=0)
    parts.registry.terminate("client-1", parts.now_ms)
    await parts.send(message(b"1"))
    await turns()
    with pytest.raises(TroveError, match="CLIENT_UNKNOWN"):
        await client.serving
    assert parts.delivery.in_flight_count == 0


async def test_a_topic_that_is_deleted_ends_the_stream() -> None:
    parts = await filled(0)
    client = ConsumeClient(parts)
    await client.open(4)
    parts.store.topics.delete("orders")
    parts.waits.wake_topic("orders")
    await turns()
    with pytest.raises(TroveError, match="TOPIC_NOT_FOUND"):
        await client.serving


# --- settlements ------------------------------------------------------------------------------------------
async def test_refused_messages_are_named_and_the_others_are_settled() -> None:
    parts = await filled(4)
    client = ConsumeClient(parts)
    await client.open(4)
    got = client.messages()
    one = got[0]
    beyond = one._replace(offset=one.offset + 1_000)
    (result,) = await client.settle(acknowledgement(one, beyond))
    assert [(each.offset, each.error.symbol) for each in result.refused] == [
        (beyond.offset, "RECEIPT_HANDLE_ILLEGAL")
    ]
    assert parts.delivery.in_flight_count == 3
    (foreign,) = await client.settle(acknowledgement(one._replace(receipt="0.0.1.2.0.00000000")))
    assert foreign.error.symbol == "RECEIPT_HANDLE_ILLEGAL"
    await client.end()


async def test_returned_messages_come_again_after_their_time() -> None:
    parts = await filled(2)
    client = ConsumeClient(parts)
    await client.open(2)
    first, second = client.messages()
    await client.say(credit_messages=10)
    results = await client.settle(returned(first, suspend=True), returned(second, invisible_ms=5_000))
    assert all(not result.refused and not result.HasField("error") for result in results)
    again = client.messages()
    assert [(one.body, one.attempt) for one in again] == [(first.body, 1)]
    parts.now_ms += 5_000
    parts.waits.wake((GROUP, "orders"))
    await turns()
    assert [(one.body, one.attempt) for one in client.messages()] == [(second.body, 2)]
    await client.end()


async def test_a_last_attempt_returned_at_once_is_a_dead_letter_when_answered() -> None:
    parts = parts_with()
    parts.groups.create(SubscriptionGroup(GROUP, retry_max=0))
    await filled(2, parts)
    client = ConsumeClient(parts)
    await client.open(2)
    for one in client.messages():
        (result,) = await client.settle(returned(one))
        assert not result.refused
    assert parts.delivery.dead_letter_count == 2
    assert parts.delivery.in_flight_count == 0
    await client.end()


@pytest.mark.parametrize("by_handle", [False, True])
async def test_a_last_attempt_returned_with_a_delay_is_a_dead_letter_at_once(by_handle: bool) -> None:
    parts = parts_with()
    parts.groups.create(SubscriptionGroup(GROUP, retry_max=0))
    await filled(1, parts)
    client = ConsumeClient(parts)
    await client.open(1)
    (one,) = client.messages()
    change = returned(one, invisible_ms=60_000)
    if by_handle:
        change.handle = handle_of(change.receipt, change.ranges[0])
        change.receipt = ""
        del change.ranges[:]
    change.reason.error, change.reason.text = "shop.DeclinedError", "no card"
    (result,) = await client.settle(change)
    assert not result.refused
    assert not result.HasField("error")
    assert parts.delivery.dead_letters_by_reason["exception"] == 1
    assert parts.delivery.in_flight_count == 0
    await client.end()


async def test_a_dead_letter_is_answered_when_it_is_on_disk() -> None:
    parts = TestBroker(replace(ROOMY, flush_mode="sync"), consumers=ConsumerSettings(new_group_start="begin"))
    parts.groups.create(SubscriptionGroup(GROUP, retry_max=0))

    def synced() -> None:
        flush(parts.store)
        parts.group_commit._resolve_up_to(parts.store.flushed_offset)

    sending = asyncio.ensure_future(parts.send(message(b"0")))
    await turns(10)
    synced()
    await sending
    client = ConsumeClient(parts)
    await client.open(1)
    (one,) = client.messages()
    assert await client.settle(returned(one)) == []
    synced()
    await turns(10)
    (reply,) = client.context.written
    assert len(consumer_pb2.ConsumeReply.FromString(reply).results) == 1
    await client.end()


async def test_an_orderly_group_gets_the_next_after_the_settlement() -> None:
    parts = parts_with()
    parts.groups.create(SubscriptionGroup(GROUP, orderly=True))
    await filled(3, parts, topic="steps", message_group="a")
    client = ConsumeClient(parts, topic="steps")
    await client.open(1)
    (one,) = client.messages()
    await client.say(credit_messages=5)
    assert client.messages() == []
    await client.settle(returned(one))
    again, *rest = client.messages()
    assert (again.body, again.attempt) == (b"0", 2)
    assert numbers(rest) == [1, 2]
    await client.end()


async def test_returned_messages_of_a_message_group_waited_for_20_seconds() -> None:
    """Of a message group: a member returns those that its program has not begun, and another one waits."""
    parts = parts_with()
    parts.groups.create(SubscriptionGroup(GROUP, orderly=True))
    await filled(3, parts, topic="steps", message_group="a")
    client, other = ConsumeClient(parts, "steps"), ConsumeClient(parts, "steps", client_id="client-2")
    await client.open(3)
    first, *rest = client.messages()
    await other.open(5)
    await client.settle(returned(*rest, suspend=True))
    assert other.messages() == [], "the first one is in flight"
    await client.settle(acknowledgement(first))
    assert [(one.body, one.attempt) for one in other.messages()] == [(b"1", 1), (b"2", 1)]
    await client.end()
    await other.end()


# --- bad input --------------------------------------------------------------------------------------------
START = consumer_pb2.ConsumeStart(invisible_ms=30_000)


@pytest.mark.parametrize(
    ("frames", "spec"),
    [
        ([{}], errors.REQUEST_ILLEGAL),
        ([{"start": START}, {"topic": "steps"}], errors.REQUEST_ILLEGAL),
        ([{"start": START}, {"group": "other"}], errors.REQUEST_ILLEGAL),
        ([{"start": START, "credit_bytes": -1}], errors.REQUEST_ILLEGAL),
        ([{"start": START, "topic": "nothing"}], errors.TOPIC_NOT_FOUND),
        ([{"start": START, "topic": "rmq_sys_trovemq_delivery"}], errors.TOPIC_ILLEGAL),
        ([{"start": START, "group": "a b"}], errors.GROUP_ILLEGAL),
        ([{"start": consumer_pb2.ConsumeStart(invisible_ms=1)}], errors.INVISIBLE_DURATION_ILLEGAL),
        ([{"start": consumer_pb2.ConsumeStart(invisible_ms=-1)}], errors.INVISIBLE_DURATION_ILLEGAL),
        ([{"start": consumer_pb2.ConsumeStart(filter_type="sql", filter="(")}], errors.FILTER_ILLEGAL),
        ([{"start": consumer_pb2.ConsumeStart(filter_type="x", filter="y")}], errors.FILTER_ILLEGAL),
        (
            [{"start": START, "settlements": [{"receipt": "r", "ranges": [0, 1 << 40]}]}],
            errors.LIMIT_EXCEEDED,
        ),
        ([{"start": START, "settlements": [{}] * 4_097}], errors.LIMIT_EXCEEDED),
    ],
)
async def test_frames_that_end_the_stream(frames: list[dict[str, Any]], spec: errors.ErrorSpec) -> None:
    client = ConsumeClient(await filled(0))
    for frame in frames:
        await client.say(**frame)
    with pytest.raises(TroveError) as caught:
        await asyncio.wait_for(client.serving, 1)
    assert caught.value.spec is spec


@pytest.mark.parametrize(
    ("settlement", "symbol"),
    [
        ({"receipt": "r", "ranges": [0]}, "REQUEST_ILLEGAL"),
        ({"receipt": "r", "ranges": [-1, 1]}, "REQUEST_ILLEGAL"),
        ({"receipt": "r", "ranges": [0, -1]}, "REQUEST_ILLEGAL"),
        ({"receipt": "r", "ranges": [0, 1], "kind": 9}, "REQUEST_ILLEGAL"),
        ({"receipt": "r", "ranges": [0, 1]}, "RECEIPT_HANDLE_ILLEGAL"),
        ({"receipt": "", "ranges": [0, 1], "kind": 1}, "RECEIPT_HANDLE_ILLEGAL"),
        (
            {"receipt": "r", "ranges": [0, 1], "kind": 1, "invisible_ms": 1 << 50},
            "INVISIBLE_DURATION_ILLEGAL",
        ),
        ({"receipt": "r", "ranges": [0, 1], "kind": 1, "invisible_ms": -1}, "INVISIBLE_DURATION_ILLEGAL"),
    ],
)
async def test_settlements_that_are_refused_alone(settlement: dict[str, Any], symbol: str) -> None:
    client = ConsumeClient(await filled(1))
    await client.open(1)
    (got,) = client.messages()
    results = await client.settle(consumer_pb2.Settlement(**settlement), acknowledgement(got, number=2))
    assert [one.error.symbol for one in results] == [symbol, ""]
    await client.end()


async def test_a_stream_needs_a_client_id() -> None:
    client = ConsumeClient(await filled(0), client_id="")
    with pytest.raises(TroveError, match="CLIENT_ID_MISSING"):
        await client.serving


# --- a client's next stream -----------------------------------------------------------------------------
async def test_a_dead_stream_got_messages_beside_its_clients_next_one() -> None:
    """As long as the broker did not notice that the connection was dead."""
    parts = await filled(2)
    service = parts.consumers
    dead = ConsumeClient(parts)
    await dead.open(100)
    assert len(dead.messages()) == 2
    dead.context.may_write.clear()
    following = ConsumeClient(parts)
    await following.open(100)
    with pytest.raises(TroveError, match="CLIENT_UNKNOWN"):
        await dead.serving
    for number in range(2, 6):
        await parts.send(message(b"%d" % number, message_id=f"M{number}"))
    await turns(40)
    assert numbers(following.messages()) == [2, 3, 4, 5]
    parts.now_ms += 1_000
    parts.waits.wake((GROUP, "orders"))
    await turns(40)
    again = following.messages()
    assert (numbers(again), {one.attempt for one in again}) == ([0, 1], {2}), "nobody confirmed them"
    assert len(service.streams) == len(service.members) == 1
    await following.end()
    assert len(service.members) == 0


async def test_other_streams_are_not_ended_by_a_new_one() -> None:
    parts = await filled(0)
    service = parts.consumers
    other_client = ConsumeClient(parts, client_id="client-2")
    other_topic = ConsumeClient(parts, "steps")
    other_group = ConsumeClient(parts)
    await other_client.open(1)
    await other_topic.open(1)
    await other_group.say(group="h", start=consumer_pb2.ConsumeStart())
    streams = [ConsumeClient(parts) for _ in range(3)]
    for stream in streams:
        await stream.open(1)
    assert [stream.serving.done() for stream in streams] == [True, True, False]
    for stream in (other_client, other_topic, other_group):
        assert not stream.serving.done()
        await stream.break_off()
    await asyncio.gather(*(stream.serving for stream in streams[:2]), return_exceptions=True)
    assert len(service.members) == 1
    await streams[2].end()
