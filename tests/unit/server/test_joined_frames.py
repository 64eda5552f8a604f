"""Frames of Append streams that come in one iteration of the loop: joined or each alone, all is the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from operator import itemgetter
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.engine import NOW_MS, SMALL, open_store, own_properties, read_queue, record
from tests.support.engine import with_crc_property as with_crc
from tests.support.fake_loop import fake_time, run, turns
from tests.support.memory_broker import TestBroker
from tests.support.trials import SOAK
from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.produce.accumulator import Accumulator
from trovemq_broker.produce.append import AppendSettings
from trovemq_broker.produce.batches import Batch, Done
from trovemq_broker.security.creators import reset_creator, set_creator
from trovemq_broker.server.core.refused_message import RefusedMessage
from trovemq_broker.server.native.append_stream import AppendStream
from trovemq_broker.server.wire.frames import AppendFrame
from trovemq_broker.state.consumer_state import ConsumerState
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset, QueueId
from trovemq_proto.records.layout import SYS_FLAG_BORN_HOST_IPV6
from trovemq_proto.records.message import decode_message
from trovemq_proto.v1 import message_pb2
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.topics.creators import Creator, creator_of

ROOMY = replace(SMALL, commit_log_file_size=1 << 20, batch_size_max=1 << 20)
PEERS = ("ipv4:10.0.0.2:5000", "ipv4:10.0.0.3:70", "ipv6:%5B::1%5D:5000", "unix:socket")
TOPICS: dict[str, dict[str, Any]] = {
    "orders": {},
    "grouped": {"message_type": "FIFO"},
    "ranked": {"options": {"order": "priority"}},
    "once": {"options": {"deduplicate": "1h"}},  # refused here: there are no trees
}
FAILURES = {"disk full": errors.DISK_FULL, "failed": errors.STORE_FAILED}
REFUSAL = TroveError(errors.SERVICE_NOT_AVAILABLE, "not now")


class Context:
    """The server's side of a call on our own transport."""

    def __init__(self, peer: str) -> None:
        self._peer = peer
        self.frames: asyncio.Queue[Any] = asyncio.Queue()
        self.replies: list[message_pb2.AppendReply] = []
        self.writes = 0  # that did not wait for the end of the iteration
        self.receiver: Callable[[Any], bool] | None = None
        self.can_send = True

    def peer(self) -> str:
        return self._peer

    async def read(self) -> Any:
        return await self.frames.get()

    async def write(self, message: bytes) -> None:
        self.replies.append(message_pb2.AppendReply.FromString(message))

    def try_send(self, message: bytes) -> bool:
        if self.can_send:
            self.replies.append(message_pb2.AppendReply.FromString(message))
        return self.can_send

    def try_send_now(self, message: bytes) -> bool:
        self.writes += 1
        return self.try_send(message)

    def set_receiver(self, receiver: Callable[[Any], bool] | None) -> None:
        self.receiver = receiver


class Bench:
    """Streams of some peers to one store, with async flush."""

    def __init__(
        self, *, gathers: bool = True, store: MessageStore | None = None, in_flight: int = 256
    ) -> None:
        self.store = store or open_store(MemoryFileSystem(), ROOMY)
        model = ConsumerState.open(self.store, self.store.files, ConsumerSettings(), NOW_MS)
        for topic, values in TOPICS.items():
            if topic != "orders":
                self.store.topics.create(topic, 4, **values)
        self.parts = TestBroker(opened=(self.store, model), append_frames_in_flight_max=in_flight)
        self.appender, self.traffic = self.parts.appender, self.parts.traffic
        if not gathers:
            append_each_at_once(self.parts.accumulator)
        self.contexts: list[Context] = []
        self.streams: list[AppendStream] = []
        self.serving: list[asyncio.Task[None]] = []

    def begin_turn(self) -> None:
        """The turn's first frame, which is appended at once, has come."""
        self.parts.accumulator._schedule()

    async def open(self, *peers: str) -> None:
        for peer in peers:
            context: Any = Context(peer)
            self.contexts.append(context)
            self.streams.append(AppendStream(self.parts, context))
            self.serving.append(asyncio.create_task(self.streams[-1].serve()))
        await turns()

    def send(self, at: int, *frames: AppendFrame | RefusedMessage) -> None:
        """As the transport does in the callback of a read."""
        context = self.contexts[at]
        for frame in frames:
            if context.receiver is None or context.frames.qsize() or not context.receiver(frame):
                context.frames.put_nowait(frame)

    def answered(self, at: int) -> list[int]:
        return [reply.frame_id for reply in self.contexts[at].replies]

    async def close(self) -> list[BaseException | None]:
        for context in self.contexts:
            context.frames.put_nowait(grpc.aio.EOF)
        return await asyncio.gather(*self.serving, return_exceptions=True)


def frame_of(records: bytes, number: int = 1, *, topic: str = "orders", **fields: Any) -> AppendFrame:
    return AppendFrame(number, topic, fields.pop("queue_id", QueueId(0)), records, **fields)


ODDITIES: dict[str, list[Any]] = {
    "topic": ["grouped", "ranked", "once", "nowhere"],
    "queue_id": [9],
    "one_way": [True],
    "owned": [True],
    "fault": ["cut"],
    "count": [0, 2, 3],
    "size": [5_000, 9_000],
    "named": [
        {"tag": "paid"},
        {"properties": {"__SHARDINGKEY": "g"}},
        {"properties": {"TROVEMQ_TX_ID": "1"}},
        {"born_host": bytes(20), "sys_flag": SYS_FLAG_BORN_HOST_IPV6},
    ],
    "spoilt": list(product([0, 3, 4, 8, 15, 39, 52, 55, 75, 90], [1, 16, 128])),
    "refused": [True],
}
USUAL = {"topic": "orders", "queue_id": 0}
ODD = [{**USUAL, name: value} for name, values in ODDITIES.items() for value in values]
PLAIN = st.builds(
    lambda queue_id, size: {**USUAL, "queue_id": queue_id, "size": size},
    st.sampled_from([0, 0, 1, 3]),
    st.sampled_from([0, 20, 90]),
)
FRAMES = PLAIN | PLAIN | PLAIN | PLAIN | st.sampled_from(ODD)
TURNS = st.lists(st.lists(st.tuples(st.integers(0, 3), FRAMES), max_size=12), min_size=1, max_size=3)


def made(number: int, fields: dict[str, Any]) -> AppendFrame | RefusedMessage:
    fields = dict(fields)
    topic, queue_id, named = fields["topic"], QueueId(fields["queue_id"]), fields.pop("named", {})
    body = b"%d" % number + bytes(fields.pop("size", 20))
    one = with_crc(record(body, topic=topic, queue_id=queue_id, **named))
    data = bytearray(one * fields.pop("count", 1))
    if data and "spoilt" in fields:
        at, byte = fields["spoilt"]
        data[at % len(data)] ^= byte
    fields.pop("spoilt", None)
    refused = fields.pop("refused", False)
    frame = AppendFrame(number, records=memoryview(data), **fields)
    return RefusedMessage(frame, REFUSAL) if refused else frame


def reply_without_place(bench: Bench, reply: message_pb2.AppendReply) -> str:
    """The reply. Its place in the log depends on the order of queues there: it is checked and left out."""
    if not reply.error.symbol:
        found = bench.store.record_at(PhysicalOffset(reply.physical_offset))
        assert found is not None
        first = decode_message(found)
        assert first.queue_offset == reply.first_queue_offset
        assert first.body.startswith(b"%d" % reply.frame_id)
    if reply.error.symbol == "STORE_FAILED":
        reply.error.ClearField("message")  # the first one alone says which write failed
    reply.physical_offset = reply.append_time_us = 0
    return str(reply)


def stored(bench: Bench) -> list[Any]:
    found = []
    for topic in TOPICS:
        for queue_id in range(4):
            for one in read_queue(bench.store, topic, QueueId(queue_id)):
                place = (topic, queue_id, one.queue_offset, one.store_timestamp)
                found.append((place, one.body, one.born_host, one.born_timestamp, own_properties(one)))
    return found


def counted(bench: Bench) -> Any:
    traffic = bench.traffic
    sizes = {topic: buckets.counts for topic, buckets in traffic.message_sizes.items()}
    return traffic.messages_in, traffic.bytes_in, sizes, traffic.refusals, traffic.one_way_refusals


async def outcome(sent: Any, end: str, *, gathers: bool) -> Any:
    bench = Bench(gathers=gathers)
    await bench.open(*PEERS)
    number = 0
    for turn, frames in enumerate(sent):
        if turn == len(sent) - 1:
            if end == "held":
                bench.appender.hold(REFUSAL)
            elif end in FAILURES:
                fail_writes(bench.store, TroveError(FAILURES[end], "planted"))
        for at, fields in frames:
            number += 1
            frame = made(number, fields)
            received = frame.records if isinstance(frame, AppendFrame) and not frame.owned else b""
            queued = bench.contexts[at].frames.qsize()
            bench.send(at, frame)
            if isinstance(received, memoryview) and bench.contexts[at].frames.qsize() == queued:
                received[:] = bytes(len(received))  # the receive buffer gets other bytes
        await turns()
    assert [stream._waiting for stream in bench.streams] == [0] * len(PEERS), "each is answered once"
    ends = await bench.close()
    for context in bench.contexts:
        places = [(one.frame_id, one.physical_offset) for one in context.replies if not one.error.symbol]
        assert sorted(places) == sorted(places, key=itemgetter(1)), "a stream's frames keep their order"
    replies = [[reply_without_place(bench, reply) for reply in one.replies] for one in bench.contexts]
    return replies, stored(bench), counted(bench), bench.store.end_offset, [str(one) for one in ends]


def fail_writes(store: MessageStore, error: Exception) -> None:
    def write(*_args: object) -> None:
        raise error

    store._log.write = write  # type: ignore[method-assign, assignment]


@pytest.mark.slow
@given(TURNS, st.sampled_from(["", "", "held", *FAILURES]))
@settings(max_examples=300 if SOAK else 100, deadline=None)
def test_joined_frames_are_stored_answered_and_counted_as_each_by_itself(sent: Any, end: str) -> None:
    same_both_ways([[(0, USUAL)], *sent], end)


@pytest.mark.parametrize(
    "odd", ODD, ids=lambda odd: "-".join(map(str, list(odd.values())[2:])) or odd["topic"]
)
def test_a_frame_among_others_is_treated_as_by_itself(odd: dict[str, Any]) -> None:
    same_both_ways([[(0, USUAL)], [(0, USUAL), (1, odd), (1, USUAL)], [(1, odd)]], "")


def same_both_ways(sent: Any, end: str) -> None:
    assert run(outcome(sent, end, gathers=True)) == run(outcome(sent, end, gathers=False))


def append_each_at_once(accumulator: Accumulator) -> None:
    """Each batch is one append, as soon as it comes."""
    submit = accumulator.submit

    def submit_alone(batch: Batch, done: Done) -> None:
        submit(batch, done)
        accumulator.append_all()

    accumulator.submit = submit_alone  # type: ignore[method-assign]


def log_of(bench: Bench) -> bytes:
    end = bench.store.end_offset
    return bytes(bench.store.read(bench.store.min_offset, end - bench.store.min_offset))


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 400)), min_size=1, max_size=80))
@settings(deadline=None)
def test_the_log_of_one_queue_has_the_same_bytes(sent: list[tuple[int, int]]) -> None:
    async def log(*, gathers: bool) -> bytes:
        bench = Bench(gathers=gathers)
        await bench.open(*PEERS)
        for number, (at, size) in enumerate(sent):
            bench.send(at, frame_of(with_crc(record(bytes(size))), number))
        await turns()
        await bench.close()
        return log_of(bench)

    assert run(log(gathers=True)) == run(log(gathers=False))


@fake_time
async def test_the_frames_of_a_turn_are_one_append_and_one_write_for_each_stream() -> None:
    bench = Bench()
    await bench.open(*PEERS[:2])
    bench.begin_turn()
    appends = count_appends(bench.store)
    for number in range(20):
        queue_id = QueueId(number * 3 // 20)
        bench.send(number % 2, frame_of(with_crc(record(b"x", queue_id=queue_id)), number, queue_id=queue_id))
    assert bench.answered(0) == bench.answered(1) == []
    await asyncio.sleep(0)
    assert bench.answered(0) == list(range(0, 20, 2)), "in the order in which they came"
    assert bench.answered(1) == list(range(1, 20, 2))
    assert [one.writes for one in bench.contexts] == [1, 1]
    assert appends() == 1
    assert len(read_queue(bench.store)) == 7, "and dispatched in the same iteration"
    await bench.close()


def count_appends(store: MessageStore) -> Callable[[], int]:
    """Returns how many writes to the log there were."""
    count, write = 0, store._log.write

    def counted(*args: Any) -> None:
        nonlocal count
        count += 1
        write(*args)

    store._log.write = counted  # type: ignore[method-assign, assignment]
    return lambda: count


@fake_time
@pytest.mark.parametrize("in_flight", [3, 256])
async def test_no_more_frames_are_gathered_than_may_be_in_flight(in_flight: int) -> None:
    bench = Bench(in_flight=in_flight)
    await bench.open(PEERS[0])
    bench.begin_turn()
    bench.send(0, *(frame_of(with_crc(record(b"x")), number) for number in range(in_flight + 1)))
    assert bench.streams[0]._waiting == in_flight
    await turns(10)
    assert bench.answered(0) == list(range(in_flight + 1))
    await bench.close()


@fake_time
async def test_gathered_frames_are_answered_before_the_broker_stops() -> None:
    bench = Bench()
    await bench.open(*PEERS[:2])
    bench.begin_turn()
    bench.send(0, frame_of(with_crc(record(b"x")), 7), frame_of(with_crc(record(b"y")), 8))
    bench.send(1, frame_of(with_crc(record(b"z")), 9, one_way=True))
    for stream in bench.streams:
        stream.end()
    await turns()
    assert bench.answered(0) == [7, 8]
    assert [one.body for one in read_queue(bench.store)][-3:] == [b"x", b"y", b"z"]
    assert {str(one) for one in await bench.close()} == {
        "SERVICE_NOT_AVAILABLE (E308): the broker is stopping"
    }


@fake_time
async def test_gathered_frames_are_appended_when_their_client_is_gone() -> None:
    bench = Bench()
    await bench.open(*PEERS[:2])
    bench.begin_turn()
    for at in (0, 1):
        bench.send(at, frame_of(with_crc(record(b"x")), at))
    bench.serving[0].cancel()
    bench.contexts[0].can_send = False
    await turns()
    assert [one.body for one in read_queue(bench.store)][-2:] == [b"x", b"x"]
    assert bench.answered(1) == [1]
    await bench.close()


@fake_time
@pytest.mark.parametrize("count", [1, 2])
async def test_an_unexpected_error_ends_the_streams_of_the_gathered_frames(count: int) -> None:
    bench = Bench()
    await bench.open(*PEERS[:3])
    bench.begin_turn()
    fail_writes(bench.store, AssertionError("planted"))
    for at in range(count):
        bench.send(at, frame_of(with_crc(record(b"x")), at, one_way=at == 1))
    await turns(10)
    assert [task.done() for task in bench.serving] == [at < count for at in range(3)]
    assert [str(one) for one in (await bench.close())[:count]] == ["planted"] * count


@fake_time
async def test_a_client_that_does_not_read_gets_its_replies_later() -> None:
    bench = Bench()
    await bench.open(*PEERS[:2])
    bench.begin_turn()
    bench.send(0, frame_of(with_crc(record(b"x")), 1), frame_of(with_crc(record(b"y")), 2))
    bench.contexts[0].can_send = False
    await turns()
    assert bench.answered(0) == [1, 2], "by the writer, which waits for the client"
    await bench.close()


@fake_time
async def test_deduplication_that_began_in_the_turn_was_missed() -> None:
    store = open_store(MemoryFileSystem(), replace(ROOMY, tree_index_enable=True))
    bench = Bench(gathers=True, store=store)
    await bench.open(*PEERS[:2])
    bench.begin_turn()
    for at in (0, 1):
        bench.send(at, frame_of(with_crc(record(b"x%d" % at, unique_key="same")), 50 + at))
    store.topics.alter("orders", options={"deduplicate": "1h"})
    await turns(10)
    assert [bench.answered(at) for at in (0, 1)] == [[50], [51]]
    assert [message.body for message in read_queue(store) if message.body[:1] == b"x"] == [b"x0"]
    await bench.close()


@fake_time
async def test_a_gathered_frame_made_a_topic_for_another_user() -> None:
    bench = Bench(gathers=True)
    bench.appender.apply(AppendSettings(auto_create_topic_enable=True))
    bench.store.topics.create("bills", 4)
    await bench.open(*PEERS[:2])
    bench.begin_turn()
    for at, (user, topic) in enumerate([("alice", "orders"), ("bob", "bills")]):
        token = set_creator(Creator(user))
        bench.send(at, frame_of(with_crc(record(b"x", topic=topic)), 1, topic=topic))
        reset_creator(token)
    bench.store.delete_topic("bills", NOW_MS)
    await turns()
    made = bench.store.topics.get("bills")
    assert made is not None
    assert creator_of(made.attributes) == "bob"
    await bench.close()
