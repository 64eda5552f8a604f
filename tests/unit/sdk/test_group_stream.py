"""The client's side of a Consume stream: credit, settlements together, and the effect of a break."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import count
from operator import itemgetter
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.fake_loop import fake_time, run, turns
from tests.unit.sdk.records_made import record_at
from trovemq._consume import settlements
from trovemq._consume.group_stream import GroupStream
from trovemq._consume.group_subscription import GroupSubscription, MessageFilter
from trovemq._consume.grouped import GroupConsumer
from trovemq._consume.inbox import Inbox
from trovemq._consume.settling_together import RELEASE
from trovemq._consume.stream_owner import StreamSettings
from trovemq._consume.streamed import StreamedBatch, StreamedMessage
from trovemq._wire.consumer import Change, consume_answer
from trovemq.models.group import GroupSettings
from trovemq.options import ClientOptions
from trovemq.received import ReceivedMessage
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.v1 import common_pb2, consumer_pb2, group_pb2

RECEIPT = "0.0.1.18bcfe5dd30.1.4a1bf138"
LOST = TroveError(errors.BROKER_UNREACHABLE, "gone")


class FakeStream:
    """One stream of the fake broker, which answers by `reply`."""

    writable = False

    def __init__(self) -> None:
        self.frames: list[consumer_pb2.ConsumeFrame] = []
        self._replies: asyncio.Queue[bytes | TroveError] = asyncio.Queue()
        self.cancelled = False

    async def send(self, frame: bytes) -> None:
        self.frames.append(consumer_pb2.ConsumeFrame.FromString(frame))

    async def read(self) -> Any:
        reply = await self._replies.get()
        if isinstance(reply, TroveError):
            raise reply
        return consume_answer(reply)

    def cancel(self) -> None:
        self.cancelled = True

    async def end(self) -> None:
        await self.reply(LOST)

    async def reply(self, reply: consumer_pb2.ConsumeReply | TroveError) -> None:
        await self._replies.put(reply if isinstance(reply, TroveError) else reply.SerializeToString())
        await turns(10)

    async def batch(self, first: int, size: int, number: int = 1) -> None:
        run = consumer_pb2.ConsumeRun(first_offset=first, count=size, attempt=1, receipt=RECEIPT)
        records = b"".join(record_at(first + index) for index in range(size))
        await self.reply(consumer_pb2.ConsumeReply(batch=number, runs=[run], records=records))

    def settlements(self) -> list[consumer_pb2.Settlement]:
        """The settlements of all frames."""
        return [one for frame in self.frames for one in frame.settlements]

    async def settled(self, **fields: Any) -> None:
        """The results of the last frame that had settlements."""
        last = next(frame for frame in reversed(self.frames) if frame.settlements)
        results = [
            consumer_pb2.SettlementResult(settlement_id=one.settlement_id, **fields)
            for one in last.settlements
        ]
        await self.reply(consumer_pb2.ConsumeReply(results=results))

    async def settled_each(self) -> None:
        """The results of each frame that has settlements. The frames are removed."""
        await turns(10)
        while any(frame.settlements for frame in self.frames):
            frames, self.frames = self.frames, []
            for frame in frames:
                results = [
                    consumer_pb2.SettlementResult(settlement_id=one.settlement_id)
                    for one in frame.settlements
                ]
                if results:
                    await self.reply(consumer_pb2.ConsumeReply(results=results))


class Scene:
    """A stream with its fake broker, and the owner of both."""

    def __init__(self, prefetch: int | None = 100, bytes_max: int = 1 << 20, **options: Any) -> None:
        self.inbox = Inbox(prefetch, bytes_max)
        self.streams: list[FakeStream] = []
        self.reported: list[tuple[int, bool, str]] = []
        settings = StreamSettings(
            group="g", topic="orders", filter_type="tag", filter="*", invisible_ms=None, client_id="c"
        )
        pool: Any = SimpleNamespace(options=ClientOptions(**options))
        owner: Any = self
        connect: Any = self._connection
        self.stream = GroupStream(owner, pool, connect, "broker-a", settings, self.inbox, count(1))
        self.running = asyncio.ensure_future(self.stream.run())

    def _connection(self) -> Any:
        return SimpleNamespace(open=self._open)

    def _open(self, _method: str, _decode: object, *, metadata: object) -> FakeStream:
        assert metadata
        self.streams.append(FakeStream())
        return self.streams[-1]

    # --- Owner --------------------------------------------------------------------------------------
    def check_loop(self) -> None:
        """It has one loop."""

    def on_joined(self, broker: str, settings: GroupSettings) -> None:
        """Its settings are the default."""

    def on_broken(self, broker: str, error: TroveError) -> None:
        """Nothing is logged here."""

    def put_all(self, messages: Sequence[ReceivedMessage]) -> None:
        self.inbox.put_all(messages)

    def put_batch(self, batch: StreamedBatch) -> None:
        self.inbox.put_batch(batch)

    def release_waiting(self, broker: str, keep: int = 0) -> None:
        for message in self.inbox.drain(broker, keep):
            assert isinstance(message, StreamedMessage)
            self.stream.release(message)

    def release_before(self, broker: str, poll: int | None) -> None:
        for message in self.inbox.drain_before(broker, poll):
            assert isinstance(message, StreamedMessage)
            self.stream.release(message)

    def unreadable(self, message: StreamedMessage, error: TroveError) -> None:
        raise AssertionError(message, error)

    def on_result(self, message: ReceivedMessage, *, done: bool, failure: TroveError | None) -> None:
        self.reported.append((message.queue_offset, done, failure.symbol if failure else ""))

    def consumed(self, message: ReceivedMessage) -> bool:
        assert isinstance(message, StreamedMessage)
        return self.stream.consume(message)

    async def wait_for_capacity(self) -> None:
        await self.stream.wait_for_capacity()

    def is_final(self, error: TroveError) -> bool:
        return not error.retriable

    # --- for tests ------------------------------------------------------------------------------------
    @property
    def now(self) -> FakeStream:
        return self.streams[-1]

    async def opened(self, size: int) -> list[StreamedMessage]:
        """The first batch, taken out of the inbox."""
        await turns(10)
        await self.now.batch(0, size)
        return [self.take() for _ in range(size)]

    def take(self) -> StreamedMessage:
        message = self.inbox.take()
        assert isinstance(message, StreamedMessage)
        return message

    async def over(self) -> None:
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)
        await self.stream.close(until=asyncio.get_running_loop().time())


@fake_time
async def test_acknowledgements_of_one_turn_are_one_settlement_of_ranges() -> None:
    here = Scene()
    messages = await here.opened(8)
    for index in (5, 0, 1, 2, 7):
        here.stream.settle(messages[index], None)
    await turns(10)
    (settlement,) = here.now.settlements()
    assert (settlement.kind, settlement.receipt) == (consumer_pb2.ACKNOWLEDGE, RECEIPT)
    assert list(settlement.ranges) == [0, 3, 5, 1, 7, 1]
    await here.now.settled()
    await here.stream.consumed(until=asyncio.get_running_loop().time() + 1)
    assert here.reported == [], "nobody waits for one of them"
    await here.over()


@given(
    st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=10, unique_by=itemgetter(0)),
    st.sets(st.integers(0, 9)),
    st.sampled_from(["answered", "lost", "over"]),
)
def test_blocks_of_process_settle_as_single_calls_do(
    settled: list[tuple[int, bool]], refused: set[int], end: str
) -> None:
    """The same frames, the same reports, in both modes of gathering. True: the writer runs afterwards."""

    async def scene(by_blocks: bool) -> tuple[object, ...]:
        here = Scene()
        messages = await here.opened(10)
        for index, has_turn in settled:
            message = messages[index]
            if by_blocks:
                async with message.process():
                    pass
                assert message.settled
            else:
                here.stream.settle(message, None)
            if has_turn:
                await turns(10)
        counted = here.stream.unacknowledged
        await turns(10)
        said = [(each.kind, list(each.ranges)) for each in here.now.settlements()]
        error = common_pb2.Error(symbol="RECEIPT_HANDLE_ILLEGAL", message="late")
        if end == "answered":
            while any(frame.settlements for frame in here.now.frames):
                frames, here.now.frames = here.now.frames, []
                for each in (one for frame in frames for one in frame.settlements):
                    late = [offset for offset in sorted(refused) if offset in offsets_of(each)]
                    result = consumer_pb2.SettlementResult(
                        settlement_id=each.settlement_id,
                        refused=[consumer_pb2.RefusedOffset(offset=offset, error=error) for offset in late],
                    )
                    await here.now.reply(consumer_pb2.ConsumeReply(results=[result]))
            assert here.stream.unacknowledged == 0
        elif end == "lost":
            await here.now.reply(LOST)
            await asyncio.sleep(1)
            said += [(each.kind, list(each.ranges)) for each in here.now.settlements()]
        await here.over()
        return said, counted, sorted(here.reported)

    assert run(scene(True)) == run(scene(False))


def offsets_of(settlement: consumer_pb2.Settlement) -> set[int]:
    pairs = zip(settlement.ranges[::2], settlement.ranges[1::2], strict=True)
    return {offset for first, size in pairs for offset in range(first, first + size)}


@fake_time
async def test_blocks_wait_while_too_many_settlements_have_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settlements, "UNDER_WAY_MAX", 3)
    here = Scene()
    messages = await here.opened(6)
    here.stream.settle(messages[5], RELEASE)
    for message in messages[:2]:
        async with message.process():
            pass
    third = asyncio.ensure_future(messages[2].consumed())
    fourth = asyncio.ensure_future(messages[3].__aexit__(None, None, None))
    await turns(10)
    assert messages[2].settled
    assert not third.done()
    assert not fourth.done()
    await here.now.settled()
    await here.now.settled()
    await asyncio.gather(third, fourth)
    await here.over()


class FakeBroker:
    """A broker with one stream, and its connection. The client becomes a member when it is opened."""

    def __init__(self, name: str, *, orderly: bool) -> None:
        self.name = name
        self.stream = FakeStream()
        self._settings = group_pb2.GroupSettings(orderly=orderly, retry_max=16)

    def open(self, *_: object, **__: object) -> FakeStream:
        reply = consumer_pb2.ConsumeReply(settings=self._settings)
        self.stream._replies.put_nowait(reply.SerializeToString())
        return self.stream


@fake_time
async def test_a_group_that_turned_orderly_while_a_run_gathered_stood_still() -> None:
    """Its lane did not hear of the blocks that were gathered, and never moved on."""
    routes = SimpleNamespace(
        is_fifo=lambda _topic: False, has_topic=lambda _topic, _broker: True, find=lambda _broker: None
    )
    pool: Any = SimpleNamespace(
        options=ClientOptions(),
        routes=routes,
        closed=False,
        check_loop=lambda: None,
        connection=lambda broker: broker,
    )
    inbox = Inbox(100, 1 << 20)
    subscription = GroupSubscription(topic="orders", group="g", filter=MessageFilter("tag", "*"))
    consumer = GroupConsumer(pool, subscription, inbox)
    one: Any = FakeBroker("broker-a", orderly=False)
    other: Any = FakeBroker("broker-b", orderly=True)
    receiving = [asyncio.ensure_future(consumer._receive(one))]
    await turns(10)
    await one.stream.batch(0, 6)
    for _ in range(settlements.FRAMES_UNANSWERED_MAX):
        await consume(inbox, 1)
        await turns(10)
    assert await consume(inbox, 1) == [("broker-a", 2)]  # gathers for the frame after these
    receiving.append(asyncio.ensure_future(consumer._receive(other)))
    await turns(10)
    await other.stream.batch(100, 1)
    assert await consume(inbox, 9) == [("broker-a", 3), ("broker-b", 100)]
    for offset in (4, 5):  # each follows when the broker has confirmed the one before it
        await one.stream.settled_each()
        assert await consume(inbox, 9) == [("broker-a", offset)]
    for task in receiving:
        task.cancel()
    await asyncio.gather(*receiving, return_exceptions=True)
    for stream in consumer._streams.values():
        await stream.close(until=asyncio.get_running_loop().time())


async def consume(inbox: Inbox, count_max: int) -> list[tuple[str, int]]:
    """The next messages that are ready: their brokers and queue offsets."""
    consumed: list[tuple[str, int]] = []
    while len(consumed) < count_max and (message := inbox.take()) is not None:
        async with message.process():
            consumed.append((message.broker, message.queue_offset))
    return consumed


@fake_time
async def test_messages_that_are_acknowledged_together_are_one_settlement() -> None:
    here = Scene()
    messages = await here.opened(8)
    here.stream.settle_all(RECEIPT, [messages[index] for index in (5, 0, 1, 2, 7)])
    await turns(10)
    (settlement,) = here.now.settlements()
    assert (settlement.kind, settlement.receipt) == (consumer_pb2.ACKNOWLEDGE, RECEIPT)
    assert list(settlement.ranges) == [0, 3, 5, 1, 7, 1]
    await here.now.settled()
    await here.stream.consumed(until=asyncio.get_running_loop().time() + 1)
    await here.over()
    here.stream.settle_all(RECEIPT, [messages[3], messages[4]])
    assert here.reported == [(3, True, "CLIENT_CLOSED"), (4, True, "CLIENT_CLOSED")]


@fake_time
async def test_batches_are_confirmed_and_credit_follows_what_was_taken() -> None:
    here = Scene(prefetch=8)
    await turns(10)
    first, credit = here.now.frames[0], here.now.frames[1]
    assert (first.start.filter, first.group, first.topic) == ("*", "g", "orders")
    assert (credit.credit_messages, credit.credit_bytes) == (8, 1 << 20)
    await here.now.batch(0, 6, number=1)
    assert here.now.frames[-1].received_batch == 1
    assert sum(frame.credit_messages for frame in here.now.frames) == 8
    for _ in range(5):
        here.take()
    await turns(10)
    assert sum(frame.credit_messages for frame in here.now.frames) == 8 + 5
    assert here.inbox.count + 8 + 5 - 6 == 8
    await here.over()


@fake_time
@pytest.mark.parametrize("bytes_max", [1, 300])
async def test_bytes_in_the_inbox_hold_back_the_credit(bytes_max: int) -> None:
    here = Scene(bytes_max=bytes_max)
    await turns(10)
    assert sum(frame.credit_bytes for frame in here.now.frames) == bytes_max
    await here.now.batch(0, 4)
    size = here.inbox.size
    assert size > bytes_max
    assert sum(frame.credit_bytes for frame in here.now.frames) == bytes_max
    for _ in range(4):
        here.take()
    await turns(10)
    assert sum(frame.credit_bytes for frame in here.now.frames) == bytes_max + size
    await here.over()


@fake_time
async def test_waiting_callers_get_acknowledgements_and_refusals() -> None:
    here = Scene()
    one, two, three = await here.opened(3)
    first, second = here.stream.settle_with_result(one, None), here.stream.settle_with_result(two, None)
    here.stream.settle(three, None)
    await turns(10)
    error = common_pb2.Error(symbol="RECEIPT_HANDLE_ILLEGAL", message="late")
    await here.now.settled(refused=[consumer_pb2.RefusedOffset(offset=1, error=error)])
    assert first.result() is None
    assert isinstance(second.exception(), TroveError)
    assert here.reported == [(0, True, ""), (1, True, "RECEIPT_HANDLE_ILLEGAL"), (2, True, "")]
    await here.over()


@fake_time
async def test_settlements_without_a_result_go_out_again_after_a_break() -> None:
    here = Scene()
    one, two, three = await here.opened(3)
    here.stream.settle(one, None)
    returned = here.stream.settle_with_result(two, Change(5_000, suspend=False))
    await turns(10)
    await here.now.reply(LOST)
    here.stream.settle(three, None)
    await asyncio.sleep(1)
    assert len(here.streams) == 2
    assert here.streams[0].cancelled
    again = [(each.kind, list(each.ranges)) for each in here.now.settlements()]
    assert again == [(0, [0, 1]), (1, [1, 1]), (0, [2, 1])]
    assert here.now.frames[0].HasField("start")
    error = common_pb2.Error(symbol="RECEIPT_HANDLE_ILLEGAL", message="replaced")
    await here.now.settled(refused=[consumer_pb2.RefusedOffset(offset=1, error=error)])
    assert returned.result() is None, "the first try had arrived"
    await here.over()


@fake_time
@pytest.mark.parametrize("noticed_after_s", [0, 30], ids=["killed", "machine lost"])
async def test_acknowledgements_lost_by_a_killed_broker_held_up_their_group(noticed_after_s: int) -> None:
    """Their messages stayed leased to the client, which lived on."""
    here = Scene()
    messages = await here.opened(5)
    for message in messages[:2]:
        here.stream.settle(message, None)
    await turns(10)
    await here.now.settled()
    await asyncio.sleep(3)
    for message in messages[2:4]:
        here.stream.settle(message, None)
    here.stream.settle(messages[4], Change(0, suspend=False))
    await turns(10)
    await here.now.settled()
    reported = list(here.reported)
    await asyncio.sleep(noticed_after_s)
    for _ in range(2):  # the new stream breaks, too, before it has said anything
        await here.now.reply(LOST)
        await asyncio.sleep(0.5)
    assert [(each.kind, list(each.ranges)) for each in here.now.settlements()] == [(0, [2, 2])]
    error = common_pb2.Error(symbol="RECEIPT_HANDLE_ILLEGAL", message="replaced")
    await here.now.settled(error=error)
    assert here.reported == reported
    await here.now.reply(LOST)
    await asyncio.sleep(1)
    assert here.now.settlements() == []
    await here.over()


@fake_time
async def test_messages_came_twice_after_the_nameserver_had_restarted() -> None:
    """The broker left the routes for a moment, and gave the messages that waited here to another member."""
    here = Scene()
    await turns(10)
    await here.now.batch(0, 3)
    here.take()
    here.running.cancel()
    await turns(10)
    assert here.inbox.take() is None
    ended = [here.now.cancelled]
    await here.now.batch(3, 2, number=2)
    assert here.inbox.take() is None
    returned = [offset for one in here.now.settlements() for offset in sorted(offsets_of(one))]
    assert returned == [1, 2, 3, 4]
    assert {one.kind for one in here.now.settlements()} == {consumer_pb2.RETURN}
    await here.now.settled_each()
    await turns(10)
    ended.append(here.now.cancelled)
    assert ended == [False, True], "the broker learns it first"
    await here.over()


def test_a_stream_that_cannot_be_written_to_does_not_live_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        here = Scene()
        (one,) = await here.opened(1)
        monkeypatch.setattr(here.now, "send", broken)
        here.stream.settle(one, None)
        await turns(10)
        assert here.streams[0].cancelled
        await here.over()

    async def broken(_frame: bytes) -> None:
        raise LOST

    run(scene())


@fake_time
async def test_a_settlement_that_cannot_be_said_in_time_fails() -> None:
    here = Scene(reconnect_timeout_ms=1_000)
    (one,) = await here.opened(1)
    answer = here.stream.settle_with_result(one, None)
    for _ in range(40):
        await here.now.reply(LOST)
        await asyncio.sleep(0.1)
    assert isinstance(answer.exception(), TroveError)
    assert here.reported == [(0, True, "BROKER_UNREACHABLE")]
    await here.over()


@fake_time
async def test_a_refusal_that_passes_is_tried_again_later() -> None:
    here = Scene()
    (one,) = await here.opened(1)
    answer = here.stream.settle_with_result(one, Change(0, suspend=True))
    await turns(10)
    await here.now.settled(error=common_pb2.Error(symbol="LIMIT_EXCEEDED", message="full"))
    assert not answer.done()
    await asyncio.sleep(1)
    assert len(here.now.settlements()) == 2
    await here.now.settled()
    assert answer.result() is None
    await here.over()


@fake_time
async def test_frames_without_an_answer_are_bounded_and_more_gathers_meanwhile() -> None:
    here = Scene()
    for message in await here.opened(20):
        here.stream.settle(message, None)
        await turns(3)
    frames = [frame for frame in here.now.frames if frame.settlements]
    assert len(frames) == settlements.FRAMES_UNANSWERED_MAX
    for frame in frames:
        results = [
            consumer_pb2.SettlementResult(settlement_id=one.settlement_id) for one in frame.settlements
        ]
        await here.now.reply(consumer_pb2.ConsumeReply(results=results))
    frames = [frame for frame in here.now.frames if frame.settlements]
    assert len(frames) == settlements.FRAMES_UNANSWERED_MAX + 1
    await here.over()


@fake_time
async def test_a_loop_that_ended_left_a_task_that_never_ran() -> None:
    """The loop cancels all tasks, in any order: here the stream first, then its receiver."""
    here = Scene()
    await turns(10)
    await here.now.batch(0, 2)
    for task in asyncio.all_tasks():
        if task.get_name().startswith("consume stream"):
            task.cancel()
    here.running.cancel()
    await asyncio.gather(here.running, return_exceptions=True)
    await turns(10)
    assert [task for task in asyncio.all_tasks() if task.get_name().startswith("consume stream")] == []


@fake_time
async def test_after_the_end_nothing_is_settled() -> None:
    here = Scene()
    one, two = await here.opened(2)
    late = here.stream.settle_with_result(one, None)
    await here.over()
    with pytest.raises(TroveError, match="CLIENT_CLOSED"):
        await late
    with pytest.raises(TroveError, match="CLIENT_CLOSED"):
        await here.stream.settle_with_result(two, None)
    assert here.streams[0].cancelled


@fake_time
async def test_a_regular_end_stops_the_batches_first() -> None:
    here = Scene()
    await here.opened(2)
    ending = asyncio.ensure_future(here.stream.stop(until=asyncio.get_running_loop().time() + 5))
    await turns(10)
    assert here.now.frames[-1].stop
    await here.now.batch(2, 2, number=2)
    assert not ending.done()
    await here.now.reply(consumer_pb2.ConsumeReply(stopped=True))
    await ending
    here.running.cancel()
    for _ in range(2):
        here.stream.release(here.take())
    closing = asyncio.ensure_future(here.stream.close(until=asyncio.get_running_loop().time() + 5))
    await turns(10)
    (settlement,) = here.now.settlements()
    assert (settlement.kind, settlement.suspend) == (consumer_pb2.RETURN, True)
    assert list(settlement.ranges) == [2, 2]
    assert sum(frame.credit_messages for frame in here.now.frames) == 100, "none after the stop"
    await here.now.settled()
    await closing
    assert here.now.cancelled
