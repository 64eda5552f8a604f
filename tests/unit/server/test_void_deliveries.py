"""The notice of a Consume stream that a reset or a deletion has made deliveries void."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.consuming import GROUP, ConsumeClient, Got, acknowledgement, returned
from tests.support.fake_loop import fake_time, run, turns
from tests.support.memory_broker import TestBroker, message
from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.server.native import batch_delivery
from trovemq_broker.server.native.consume_stream import ConsumeStream
from trovemq_proto.positions import QueueId
from trovemq_proto.v1 import consumer_pb2
from trovemq_store.engine.queues import queue_ids, queue_range
from trovemq_store.topics.subscription_groups import SubscriptionGroup

QUEUES = 4


async def filled(count: int, **fields: Any) -> TestBroker:
    parts = TestBroker(consumers=ConsumerSettings(new_group_start="begin"))
    await send(parts, range(count), **fields)
    return parts


async def send(parts: TestBroker, numbers: range, **fields: Any) -> None:
    for number in numbers:
        await parts.send(message(b"%d" % number, message_id=f"M{number}", **fields))
    await turns()


def reset(parts: TestBroker, *queues: int, end: bool, topic: str = "orders", group: str = GROUP) -> int:
    """Sets the group to the ends or the beginnings of these queues, or of all. Returns how many messages in
    flight it forgot."""
    chosen = [QueueId(each) for each in queues] or queue_ids(parts.store, topic)
    offsets = {each: int(queue_range(parts.store, topic, each)[end]) for each in chosen}
    forgotten = parts.delivery.reset(group, topic, offsets, parts.now_ms)
    parts.waits.wake((group, topic))
    return sum(forgotten.values())


def notices(client: ConsumeClient) -> list[int]:
    """The batches that replies so far have named as the last void one."""
    client.batches()
    return [reply.void_batch for reply in client.replies if reply.void_batch]


def numbers(got: list[Got]) -> list[int]:
    return sorted(int(one.body) for one in got)


async def refusals(client: ConsumeClient, got: list[Got]) -> list[bool]:
    """Whether the return of each message is refused."""
    found = []
    for one in got:
        (result,) = await client.settle(returned(one, suspend=True, invisible_ms=60_000))
        found.append(bool(result.refused))
    return found


@fake_time
@pytest.mark.parametrize("end", [True, False])
async def test_after_a_reset_a_member_kept_all_that_it_had_prefetched(end: bool) -> None:
    parts = await filled(8)
    client = ConsumeClient(parts)
    await client.open(100)
    assert len(client.messages()) == 8
    sent = client.replies[-1].batch
    assert reset(parts, end=end) == 8
    await turns(40)
    await send(parts, range(8, 10))
    later = [reply for reply in client.batches() if reply]
    assert notices(client) == [sent]
    assert all(reply.batch > sent for reply in client.replies[1:] if reply.batch)
    again = [one for batch in later for one in batch]
    assert numbers(again) == list(range(8 * end, 10))
    assert {one.attempt for one in again} == {1}
    await client.end()


@fake_time
async def test_a_batch_on_its_way_is_void_and_the_next_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many resets follow each other before the client reads."""
    monkeypatch.setattr(batch_delivery, "BATCH_MESSAGES_MAX", 2)
    parts = await filled(2)
    client = ConsumeClient(parts)
    await client.open()
    client.context.may_write.clear()
    await client.say(credit_messages=100)
    assert parts.delivery.in_flight_count == 2
    reset(parts, end=False)
    reset(parts, end=False)
    await turns(40)
    assert client.context.written == []
    client.context.may_write.set()
    await turns(40)
    stale, good = client.batches()
    assert notices(client) == [1]
    assert await refusals(client, stale) == [True, True]
    assert await refusals(client, good) == [False, False]
    await client.end()


@fake_time
async def test_resets_while_a_notice_waits_are_one_notice() -> None:
    parts = await filled(3)
    client = ConsumeClient(parts)
    await client.open(3)
    assert len(client.messages()) == 3
    reset(parts, end=False)  # there is no credit, and nothing but the notice to write
    client.context.may_write.clear()
    for _ in range(5):
        other = ConsumeClient(parts, client_id="client-2")
        await other.open(100)
        assert len(other.messages()) == 3
        reset(parts, end=False)
        await other.break_off()
    client.context.may_write.set()
    await turns(40)
    assert notices(client) == [1], "nothing was sent since"
    await client.say(credit_messages=3)
    assert await refusals(client, client.messages()) == [False] * 3
    await client.end()


@fake_time
async def test_notices_that_wait_to_be_written_are_one() -> None:
    parts = await filled(1)
    client = ConsumeClient(parts)
    await client.open(1)
    (stream,) = client.service.streams._streams
    assert isinstance(stream, ConsumeStream)
    assert stream._begun is not None
    for batch in (2, 3, 4):
        stream._begun.delivery._batch = batch
        stream.note_void()
        assert stream._waiting == 1
    await turns(40)
    assert notices(client) == [4]
    await client.end()


@fake_time
async def test_a_client_that_does_not_read_costs_one_notice() -> None:
    parts = await filled(3)
    client = ConsumeClient(parts)
    await client.open(3)
    assert len(client.messages()) == 3
    client.context.may_write.clear()
    for _ in range(5):
        reset(parts, end=False)
        await client.say(credit_messages=3)
    assert parts.delivery.in_flight_count == 0, "its frames are not read"
    client.context.may_write.set()
    await turns(80)
    assert notices(client) == [1]
    await client.end()


@fake_time
async def test_of_a_reset_of_one_queue_the_others_messages_are_returned() -> None:
    """Their leases count, so the return must be taken, and counts as no attempt."""
    parts = await filled(8)
    client = ConsumeClient(parts)
    await client.open(8)
    got = client.messages()
    forgotten = reset(parts, 1, end=True)
    assert forgotten == len([one for one in got if one.queue_id == 1])
    await turns(40)
    assert notices(client) == [client.replies[0].batch]
    for one in got:
        (result,) = await client.settle(returned(one, suspend=True))
        assert bool(result.refused) == (one.queue_id == 1)
    await client.say(credit_messages=8)
    again = client.messages()
    assert {one.offset for one in again if one.queue_id == 1} == set()
    assert (len(again), {one.attempt for one in again}) == (8 - forgotten, {1})
    await client.end()


@fake_time
async def test_each_member_of_the_group_hears_of_its_own_last_batch() -> None:
    parts = await filled(4)
    one, two = ConsumeClient(parts), ConsumeClient(parts, client_id="client-2")
    await one.open(2)
    await one.say(credit_messages=1)
    await two.open(1)
    other_topic, other_group = (
        ConsumeClient(parts, "steps", "client-3"),
        ConsumeClient(parts, client_id="4"),
    )
    await send(parts, range(4, 6), topic="steps", message_group="a")
    await other_topic.open(9)
    await other_group.say(group="h", start=consumer_pb2.ConsumeStart(), credit_messages=9, credit_bytes=9_999)
    assert len(other_topic.messages()) == 2
    assert len(other_group.messages()) == 4
    reset(parts, end=True)
    await turns(40)
    assert (notices(one), notices(two)) == ([max(reply.batch for reply in one.replies)], [1])
    assert notices(one) != [1]
    assert notices(other_topic) == notices(other_group) == []
    for client in (one, two, other_topic):
        await client.end()
    await other_group.break_off()


@fake_time
async def test_a_reset_that_forgets_nothing_is_no_notice() -> None:
    parts = await filled(2)
    client = ConsumeClient(parts)
    await client.open(9)
    for one in client.messages():
        await client.settle(acknowledgement(one))
    assert reset(parts, end=False) == 0
    await turns(40)
    assert notices(client) == []
    await client.end()


@fake_time
@pytest.mark.parametrize("deleted", ["topic", "group"])
async def test_a_deletion_left_prefetched_messages_with_a_member(deleted: str) -> None:
    """Its stream does not find out while it has no credit."""
    parts = await filled(3)
    client = ConsumeClient(parts)
    await client.open(3)
    got = client.messages()
    if deleted == "topic":
        parts.delivery.forget_topic("orders", parts.now_ms)
    else:
        parts.delivery.forget_group(GROUP, parts.now_ms)
    await turns(40)
    assert notices(client) == [1]
    (result,) = await client.settle(returned(got[0], suspend=True))
    assert result.error.symbol == "RECEIPT_HANDLE_ILLEGAL"
    await client.end()


@fake_time
async def test_an_unconfirmed_batch_is_not_revived_after_a_reset() -> None:
    parts = await filled(4)
    client = ConsumeClient(parts)
    await client.open(4)
    assert len(client.messages()) == 4
    reset(parts, end=True)
    await client.break_off()
    parts.now_ms += 60_000
    assert await parts.messages() == []


@fake_time
async def test_an_ordered_group_continues_after_a_reset() -> None:
    parts = await filled(4, topic="steps", message_group="a")
    parts.groups.create(SubscriptionGroup(GROUP, orderly=True))
    client = ConsumeClient(parts, "steps")
    await client.open(9)
    assert numbers(client.messages()) == list(range(4))
    reset(parts, end=True, topic="steps")
    await turns(40)
    assert notices(client) == [1]
    await send(parts, range(4, 6), topic="steps", message_group="a")
    (got,) = client.messages()
    assert (got.body, got.attempt) == (b"4", 1)
    await client.settle(acknowledgement(got))
    assert numbers(client.messages()) == [5]
    await client.end()


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(1, 4)),
        st.tuples(st.just("credit"), st.integers(1, 4)),
        st.tuples(st.just("reset"), st.booleans()),
        st.tuples(st.just("reading"), st.booleans()),
        st.tuples(st.just("confirm"), st.none()),
    ),
    max_size=14,
)


@given(STEPS)
@settings(max_examples=60)
def test_exactly_the_batches_before_the_last_reset_are_void(steps: list[tuple[str, Any]]) -> None:
    async def scene() -> None:
        parts = await filled(4)
        client = ConsumeClient(parts)
        await client.open(4)
        sent, last = 4, 0
        for step, value in steps:
            if step == "send":
                await send(parts, range(sent, sent + value))
                sent += value
            elif step == "credit":
                await client.say(credit_messages=value)
            elif step == "reset":
                reset(parts, end=value)
            elif step == "confirm":
                client.batches()
                await client.say(received_batch=max((one.batch for one in client.replies), default=0))
            elif value:
                client.context.may_write.set()
            else:
                client.context.may_write.clear()
            await turns(10)
        client.context.may_write.set()
        await turns(60)
        client.batches()
        for reply in client.replies:
            assert reply.void_batch == 0 or reply.void_batch > last, "each names more than the one before it"
            last = reply.void_batch or last
        batches = [reply for reply in client.replies if reply.batch]
        for reply in batches:
            for run_ in reply.runs:
                for offset in range(run_.first_offset, run_.first_offset + run_.count):
                    one = Got(b"", QueueId(run_.queue_id), offset, run_.attempt, run_.receipt)
                    assert await refusals(client, [one]) == [reply.batch <= last]
        await client.end()

    run(scene())
