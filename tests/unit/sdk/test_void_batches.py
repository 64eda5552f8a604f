"""Messages of a group that was reset while they waited in the client."""

from __future__ import annotations

import asyncio
import gc
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.fake_loop import fake_time, turns
from tests.unit.sdk.records_made import record_at
from tests.unit.sdk.test_group_stream import RECEIPT, FakeBroker, FakeStream, Scene, offsets_of
from trovemq._consume import group_stream
from trovemq._consume.group_subscription import GroupSubscription, MessageFilter
from trovemq._consume.grouped import GroupConsumer
from trovemq._consume.inbox import Inbox
from trovemq.options import ClientOptions
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.v1 import common_pb2, consumer_pb2

pytestmark = fake_time


SIZE = len(record_at(0))
VOID = common_pb2.Error(symbol="RECEIPT_HANDLE_ILLEGAL", message="is not valid any more")


def batch(first: int, size: int, number: int) -> bytes:
    one = consumer_pb2.ConsumeRun(first_offset=first, count=size, attempt=1, receipt=RECEIPT)
    records = b"".join(record_at(first + index) for index in range(size))
    return consumer_pb2.ConsumeReply(batch=number, runs=[one], records=records).SerializeToString()


def void(number: int) -> consumer_pb2.ConsumeReply:
    return consumer_pb2.ConsumeReply(void_batch=number)


def returned(stream: FakeStream) -> list[int]:
    """The offsets that were returned without an attempt."""
    return sorted(
        offset
        for each in stream.settlements()
        if each.kind == consumer_pb2.RETURN
        for offset in offsets_of(each)
        if each.suspend and not each.invisible_ms
    )


async def refuse_all(stream: FakeStream) -> None:
    """The broker refuses the settlements so far."""
    for frame in list(stream.frames):
        results = [
            consumer_pb2.SettlementResult(
                settlement_id=each.settlement_id,
                refused=[
                    consumer_pb2.RefusedOffset(offset=offset, error=VOID) for offset in offsets_of(each)
                ],
            )
            for each in frame.settlements
        ]
        if results:
            await stream.reply(consumer_pb2.ConsumeReply(results=results))
    stream.frames.clear()


def credit(stream: FakeStream) -> tuple[int, int]:
    return (
        sum(frame.credit_messages for frame in stream.frames),
        sum(frame.credit_bytes for frame in stream.frames),
    )


async def test_after_a_reset_the_program_got_all_that_was_prefetched() -> None:
    here = Scene(prefetch=8, bytes_max=8 * SIZE)
    await turns(10)
    await here.now.batch(0, 8)
    started = here.take()
    await here.now.reply(void(1))
    assert (here.inbox.take(), here.inbox.count, here.inbox.size) == (None, 0, 0)
    assert returned(here.now) == list(range(1, 8))
    assert credit(here.now) == (16, 16 * SIZE), "the space is free again"
    await refuse_all(here.now)
    assert here.reported == [], "nobody waits for these"
    await here.now.batch(8, 1, number=2)
    assert here.take().queue_offset == 8
    here.stream.settle(started, None)
    await turns(10)
    await refuse_all(here.now)
    assert here.reported == [(0, True, "RECEIPT_HANDLE_ILLEGAL")]
    await here.over()


async def test_a_batch_that_is_not_confirmed_is_void_as_well() -> None:
    here = Scene(prefetch=8, bytes_max=8 * SIZE)
    await turns(10)
    here.now._replies.put_nowait(batch(0, 8, 1))
    await here.now.reply(void(1))
    assert here.inbox.take() is None
    assert returned(here.now) == list(range(8))
    assert here.now.frames[-1].received_batch == 1
    assert credit(here.now) == (16, 16 * SIZE)
    await here.over()


@pytest.mark.parametrize("confirmed", [True, False])
async def test_a_batch_after_the_reset_may_overtake_the_notice(confirmed: bool) -> None:
    here = Scene()
    await turns(10)
    for first, number in ((0, 1), (4, 2), (8, 3)):
        here.now._replies.put_nowait(batch(first, 4, number))
    if confirmed:
        await turns(10)
    await here.now.reply(void(2))
    assert [here.take().queue_offset for _ in range(4)] == [8, 9, 10, 11]
    assert here.inbox.take() is None
    assert returned(here.now) == list(range(8))
    await here.over()


async def test_a_late_notice_leaves_the_newest_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_stream, "POLLS_KEPT_MAX", 2)
    here = Scene()
    await turns(10)
    for number in range(1, 5):
        await here.now.batch(number, 1, number)
    await here.now.reply(void(1))
    assert [here.take().queue_offset for _ in range(2)] == [3, 4]
    assert here.inbox.take() is None
    await here.over()


async def test_the_next_streams_batches_have_numbers_of_their_own() -> None:
    here = Scene()
    await turns(10)
    await here.now.batch(0, 1, 7)
    await here.now.reply(TroveError(errors.BROKER_UNREACHABLE, "gone"))
    await asyncio.sleep(1)
    await here.now.settled_each()
    await here.now.batch(1, 1, 1)
    await here.now.batch(2, 1, 2)
    await here.now.reply(void(1))
    assert here.take().queue_offset == 2
    await here.over()


class Member:
    """A GroupConsumer with one or more brokers."""

    def __init__(self) -> None:
        self._of_name: dict[object, FakeBroker] = {}
        self.live, self.having = {"broker-a", "broker-b"}, {"broker-a", "broker-b"}
        routes = SimpleNamespace(
            is_fifo=lambda _topic: False,
            find=lambda broker: broker if broker in self.live else None,
            has_topic=lambda _topic, broker: broker in self.having,
        )
        pool: Any = SimpleNamespace(
            options=ClientOptions(),
            routes=routes,
            closed=False,
            check_loop=lambda: None,
            connection=self._of_name.__getitem__,
        )
        self.inbox = Inbox(100, 1 << 20)
        subscription = GroupSubscription(topic="orders", group="g", filter=MessageFilter("tag", "*"))
        self.consumer = GroupConsumer(pool, subscription, self.inbox)
        self._receiving: list[asyncio.Future[None]] = []

    async def receive(self, broker: str, *, orderly: bool = False) -> FakeStream:
        made: Any = FakeBroker(broker, orderly=orderly)
        self._of_name[broker] = self._of_name[made] = made
        self._receiving.append(asyncio.ensure_future(self.consumer._receive(made)))
        await turns(10)
        stream: FakeStream = made.stream
        return stream

    def taken(self) -> list[tuple[str, int]]:
        found = []
        while (message := self.inbox.take()) is not None:
            found.append((message.broker, message.queue_offset))
        return found

    async def sessions_end(self) -> None:
        for task in self._receiving:
            task.cancel()
        ended = await asyncio.gather(*self._receiving, return_exceptions=True)
        assert all(isinstance(each, asyncio.CancelledError) for each in ended), ended

    async def over(self) -> None:
        await self.sessions_end()
        for stream in self.consumer._streams.values():
            await stream.close(until=asyncio.get_running_loop().time())


async def test_a_reset_at_one_broker_leaves_the_messages_of_others(caplog: pytest.LogCaptureFixture) -> None:
    member = Member()
    one, two = await member.receive("broker-a"), await member.receive("broker-b")
    await one.batch(0, 3)
    await two.batch(10, 2)
    await one.reply(void(1))
    assert member.taken() == [("broker-b", 10), ("broker-b", 11)]
    await refuse_all(one)
    assert member.consumer.refused == 0
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    await member.over()


async def test_an_ordered_group_after_a_reset_runs_one_message_at_a_time() -> None:
    member = Member()
    stream = await member.receive("broker-a", orderly=True)
    await stream.batch(0, 4)
    started = member.inbox.take()
    assert started is not None
    await stream.reply(void(1))
    assert returned(stream) == [1, 2, 3]
    await refuse_all(stream)
    await stream.batch(9, 2, number=2)
    assert member.taken() == [], "the program has the first of the lane"
    async with started.process():
        pass
    await turns(10)
    await stream.settled_each()
    assert member.taken() == [("broker-a", 9)]
    await member.over()


async def test_messages_of_a_deleted_topic_waited_for_the_program() -> None:
    member = Member()
    stream, other = await member.receive("broker-a"), await member.receive("broker-b")
    await stream.batch(0, 3)
    await other.batch(10, 1)
    await stream.reply(TroveError(errors.TOPIC_NOT_FOUND, "deleted"))
    assert member.taken() == [("broker-b", 10)]
    assert stream.settlements() == [], "it has nothing to return to"
    await member.over()


async def test_messages_of_brokers_that_left_the_routes_are_for_others() -> None:
    """Their streams end, and the brokers, if they live, give the messages to other members."""
    member = Member()
    brokers = ("broker-a", "broker-b")
    for broker in brokers:
        await (await member.receive(broker)).batch(0, 2)
    member.having.clear()
    member.live.remove("broker-b")
    await member.sessions_end()
    assert member.taken() == []
    await member.over()


async def test_a_message_in_hand_went_to_others_as_routes_lost_its_broker() -> None:
    """The nameserver has lost the broker, which lives: a stream that has ended renews no lease."""
    member = Member()
    stream = await member.receive("broker-a", orderly=True)
    await stream.batch(0, 3)
    started = member.inbox.take()
    assert started is not None
    await member.sessions_end()
    await turns(10)
    assert returned(stream) == [1, 2], "messages that the program did not get are for others"
    await stream.settled_each()
    ended = [stream.cancelled]
    async with started.process():
        pass
    await turns(10)
    await stream.settled_each()
    await turns(10)
    ended.append(stream.cancelled)
    assert ended == [False, True], "its stream renews the lease until it is settled"
    await member.over()


async def test_a_message_acknowledged_by_a_transaction_kept_its_stream_open() -> None:
    member = Member()
    stream = await member.receive("broker-a", orderly=True)
    await stream.batch(0, 1)
    started = member.inbox.take()
    assert started is not None
    await member.sessions_end()
    await turns(10)
    ended = [stream.cancelled]
    started.settlement.acknowledged_elsewhere(started)
    await turns(10)
    ended.append(stream.cancelled)
    assert ended == [False, True]
    await member.over()


async def test_a_stream_to_a_broker_that_is_gone_ends_with_a_message_in_hand() -> None:
    here = Scene()
    here.inbox.ordered = True
    (message,) = await here.opened(1)
    here.running.cancel()
    await turns(10)
    assert not here.now.cancelled
    for streams in (1, 2):  # one that was answered is opened again
        assert len(here.streams) == streams
        await here.now.reply(TroveError(errors.BROKER_UNREACHABLE, "gone"))
        await asyncio.sleep(60)
    assert len(here.streams) == 2
    assert here.inbox.has_lane(message.broker), "the program has it still"
    await here.over()


@pytest.mark.parametrize("lives", [True, False])
async def test_an_acknowledgement_never_ended_after_its_broker_left_the_routes(lives: bool) -> None:
    here = Scene()
    (message,) = await here.opened(1)
    here.running.cancel()
    await turns(10)
    assert here.now.cancelled
    ended = here.stream.settle_with_result(message, None)
    await turns(10)
    for _ in range(20):
        if lives:
            await here.now.settled_each()
        elif not ended.done():
            await here.now.reply(TroveError(errors.BROKER_UNREACHABLE, "gone"))
            await asyncio.sleep(10)
    assert ended.done()
    assert (ended.exception() is None) == lives
    await turns(10)
    assert here.now.cancelled, "it is not kept"
    assert here.stream._task is not None
    assert here.stream._task.done()
    await here.over()


async def test_a_kept_stream_had_no_credit_as_its_broker_came_back() -> None:
    """It got some ten seconds later, with the next sign of life."""
    here = Scene(prefetch=8)
    here.inbox.ordered = True
    (message,) = await here.opened(1)
    here.running.cancel()
    await turns(10)
    assert message.queue_offset == 0
    await here.now.batch(1, 7, number=2)
    await here.now.settled_each()
    here.now.frames.clear()
    here.running = asyncio.ensure_future(here.stream.run())
    await turns(10)
    assert len(here.streams) == 1
    assert credit(here.now)[0] > 0
    await here.over()


async def test_a_refused_return_was_logged_as_an_exception_that_nobody_saw(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The handler failed after a reset: asyncio logged a traceback beside the warning."""
    member = Member()
    stream = await member.receive("broker-a")
    await stream.batch(0, 1)
    started = member.inbox.take()
    assert started is not None
    await stream.reply(void(1))
    started.return_after(ValueError("the handler failed"))
    await turns(10)
    await refuse_all(stream)
    gc.collect()
    assert [record.name for record in caplog.records if record.levelno >= logging.ERROR] == []
    assert member.consumer.refused == 1
    await member.over()
