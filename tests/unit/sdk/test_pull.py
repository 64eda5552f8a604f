"""Pulling: pages, the end of the queue, tags, waiting, broken streams."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import numpy as np
import pytest

from tests.unit.sdk.conftest import Connect
from tests.unit.sdk.fake_server import FakeServer, wire_error
from trovemq import Client, TroveError
from trovemq_proto import errors
from trovemq_proto.records import encode_record
from trovemq_proto.v1 import message_pb2, query_pb2

pytestmark = pytest.mark.asyncio


class FakeQueue:
    """A queue that a FakeServer serves; grows by `append`, and breaks off after `remaining_answers`."""

    def __init__(self, server: FakeServer, count: int, size: int = 50) -> None:
        self.records = [self._record(i, size) for i in range(count)]
        self.remaining_answers = 1 << 30
        self.min_offset = 0
        self.wrong_offsets = False
        self.missing = False  # for the next fetch
        self.identity: int | None = None  # an older broker has none, and checks none
        self._server = server
        self._grown = asyncio.Event()
        server.on_fetch = self._answer

    def _record(self, offset: int, size: int = 50) -> bytes:
        return encode_record(
            "orders", b"%d" % offset + bytes(size), queue_offset=offset, physical_offset=offset
        )

    def append(self) -> None:
        self.records.append(self._record(len(self.records)))
        self._grown.set()

    def remake(self, count: int) -> None:
        """The topic is deleted and recreated, and the stream breaks off."""
        assert self.identity is not None
        self.identity += 1_000
        self.records = [self._record(i) for i in range(count)]
        self.remaining_answers = 0
        self._grown.set()

    def offsets(self) -> query_pb2.QueueOffsetsReply:
        """The answer of QueueOffsets."""
        own = query_pb2.QueueOffsets(min_offset=self.min_offset, max_offset=len(self.records))
        return query_pb2.QueueOffsetsReply(queues=[own], topic_identity=self.identity)

    async def _answer(self, request: message_pb2.FetchRequest) -> message_pb2.FetchReply | None:
        if self.remaining_answers <= 0:
            self.remaining_answers = 1 << 30
            return None
        self.remaining_answers -= 1
        refusal = self._refusal(request)
        if refusal is not None:
            return message_pb2.FetchReply(fetch_id=request.fetch_id, error=wire_error(refusal))
        if request.wait_ms and request.offset == len(self.records):
            self._grown.clear()
            await self._grown.wait()
            if self.remaining_answers == 0:
                return await self._answer(request)
        stop = len(self.records)
        if request.messages_max:
            stop = min(stop, request.offset + request.messages_max)
        size = 0
        taken: list[bytes] = []
        for record in self.records[request.offset : stop]:
            size += len(record)
            if taken and size > request.bytes_max:
                break
            taken.append(record)
        end = request.offset + len(taken)
        reply = message_pb2.FetchReply(
            fetch_id=request.fetch_id,
            records=b"".join(taken),
            next_offset=end,
            max_offset=len(self.records),
            topic_identity=self.identity,
        )
        if self.wrong_offsets:
            reply.queue_offsets = np.arange(request.offset, end, dtype="<i8").tobytes()
        return reply

    def _refusal(self, request: message_pb2.FetchRequest) -> TroveError | None:
        low, count = self.min_offset, len(self.records)
        if self.missing:
            self.missing = False
            return TroveError(errors.QUEUE_NOT_FOUND)
        checked = self.identity is not None and request.HasField("topic_identity")
        if checked and request.topic_identity != self.identity:
            return TroveError(errors.TOPIC_RECREATED, "the new topic begins at offset 0")
        if not low <= request.offset <= count:
            return TroveError(errors.OFFSET_OUT_OF_RANGE, "no", min_offset=low, max_offset=count)
        return None


async def offsets(client: Client, **arguments: object) -> list[int]:
    return [m.queue_offset async for m in client.pull("orders", **arguments)]  # type: ignore[arg-type]


@pytest.mark.parametrize("prefetch", [1, 2, 4])
async def test_a_whole_queue(broker: FakeServer, connect: Connect, prefetch: int) -> None:
    FakeQueue(broker, 500)
    client = await connect(broker)
    batches = [b async for b in client.pull_batches("orders", bytes_max=5_000, prefetch=prefetch)]
    assert [int(offset) for batch in batches for offset in batch.offsets] == list(range(500))
    assert len(batches) > 10
    assert (batches[-1].next_offset, batches[-1].max_offset) == (500, 500)
    assert all(batch.nbytes <= 5_000 for batch in batches)


async def test_from_an_offset_and_at_the_end(broker: FakeServer, connect: Connect) -> None:
    FakeQueue(broker, 20)
    client = await connect(broker)
    assert await offsets(client, offset=15) == [15, 16, 17, 18, 19]
    assert await offsets(client, offset=20) == []


async def test_outside_of_the_queue(broker: FakeServer, connect: Connect) -> None:
    FakeQueue(broker, 20)
    client = await connect(broker)
    with pytest.raises(TroveError) as refused:
        await offsets(client, offset=21)
    assert refused.value.fields == {"min_offset": "0", "max_offset": "20"}


async def test_offsets_of_the_reply_win_over_the_records(broker: FakeServer, connect: Connect) -> None:
    queue = FakeQueue(broker, 5)
    queue.records = [queue._record(100 + i) for i in range(5)]
    queue.wrong_offsets = True
    client = await connect(broker)
    assert await offsets(client, offset=2) == [2, 3, 4]


async def test_tags_are_asked_for_one_fetch_at_a_time(broker: FakeServer, connect: Connect) -> None:
    FakeQueue(broker, 50)
    client = await connect(broker)
    assert await offsets(client, tags=["a", "b"], bytes_max=1_000) == list(range(50))
    assert {tuple(request.tags) for request in broker.fetches} == {("a", "b")}
    assert {request.messages_max for request in broker.fetches} == {0}


async def test_following_waits_for_what_comes(broker: FakeServer, connect: Connect) -> None:
    queue = FakeQueue(broker, 2)
    client = await connect(broker)
    seen = []
    async with aclosing(client.pull("orders", follow=True)) as messages:
        async for message in messages:
            seen.append(message.queue_offset)
            if len(seen) == 10:
                break
            if len(seen) >= 2:
                queue.append()
    assert seen == list(range(10))


async def test_a_broken_stream_is_taken_up_where_it_stood(broker: FakeServer, connect: Connect) -> None:
    queue = FakeQueue(broker, 300)
    client = await connect(broker)
    seen: list[int] = []
    async for message in client.pull("orders", bytes_max=3_000):
        seen.append(message.queue_offset)
        if len(seen) in (50, 150):
            queue.remaining_answers = 1
        if len(seen) == 200:
            await broker.stop()
            await broker.start()
    assert seen == list(range(300))


async def test_a_broker_that_stays_away(broker: FakeServer, connect: Connect) -> None:
    FakeQueue(broker, 100)
    client = await connect(broker, reconnect_timeout_ms=50)

    async def pull_from_the_dead() -> None:
        async for message in client.pull("orders", bytes_max=500):
            if message.queue_offset == 3:
                await broker.stop()

    with pytest.raises(TroveError) as failure:
        await pull_from_the_dead()
    assert failure.value.spec is errors.BROKER_UNREACHABLE


async def test_a_queue_of_two_brokers_needs_a_name(
    nameserver: FakeServer, broker: FakeServer, other: FakeServer, connect: Connect
) -> None:
    FakeQueue(broker, 3)
    FakeQueue(other, 5)
    client = await connect(nameserver)
    with pytest.raises(TroveError) as refused:
        await offsets(client)
    assert (refused.value.spec, refused.value.fields["brokers"]) == (errors.BROKER_AMBIGUOUS, "b1, b2")
    assert await offsets(client, broker="b2") == list(range(5))
    with pytest.raises(TroveError) as refused:
        await offsets(client, broker="b3")
    assert refused.value.spec is errors.BROKER_NOT_FOUND


async def test_a_pull_without_an_offset_failed_after_messages_had_expired(
    broker: FakeServer, connect: Connect
) -> None:
    queue, client = FakeQueue(broker, 20), await connect(broker)
    queue.min_offset = 7
    assert [message.queue_offset async for message in client.pull("orders")] == list(range(7, 20))
    async with aclosing(client.pull_batches("orders", end=9)) as batches:
        assert sum([len(batch) async for batch in batches]) == 2
    with pytest.raises(TroveError) as refused:
        await anext(client.pull("orders", offset=0))
    assert refused.value.spec is errors.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize("follow", [False, True])
async def test_a_pull_went_on_in_the_namesake_of_its_topic(
    broker: FakeServer, connect: Connect, follow: bool
) -> None:
    queue, client = FakeQueue(broker, 300), await connect(broker)
    queue.identity = 0
    seen: list[int] = []

    async def read() -> None:
        async for message in client.pull("orders", bytes_max=3_000, follow=follow):
            seen.append(message.queue_offset)
            if len(seen) == 150:
                queue.remake(400)
            if len(seen) == 300:
                return

    with pytest.raises(TroveError) as ended:
        await read()
    assert (ended.value.spec, ended.value.retriable) == (errors.TOPIC_RECREATED, False)
    assert seen == list(range(len(seen)))
    assert len(seen) < 300
    assert not broker.fetches[0].HasField("topic_identity"), "an integer from a user is not checked"
    assert {fetch.topic_identity for fetch in broker.fetches[1:]} == {0}


async def test_a_position_with_its_topics_identity_is_checked(broker: FakeServer, connect: Connect) -> None:
    queue, client = FakeQueue(broker, 30), await connect(broker)
    queue.identity = 77
    async with aclosing(client.pull_batches("orders", bytes_max=1_000)) as batches:
        batch = await anext(batches)
    assert batch.topic_identity == 77
    position = {"offset": batch.next_offset, "topic_identity": batch.topic_identity}
    async with aclosing(client.pull_batches("orders", **position)) as rest:  # type: ignore[arg-type]
        assert sum([len(batch) async for batch in rest]) == 30 - batch.next_offset
    queue.remake(40)
    queue.remaining_answers = 9
    with pytest.raises(TroveError, match="TOPIC_RECREATED"):
        await anext(client.pull_batches("orders", **position))  # type: ignore[arg-type]
    with pytest.raises(TroveError, match="REQUEST_ILLEGAL"):
        await anext(client.pull_batches("orders", topic_identity="77"))  # type: ignore[arg-type]


async def test_a_broker_that_tells_no_identity_is_asked_for_none(
    broker: FakeServer, connect: Connect
) -> None:
    queue, client = FakeQueue(broker, 300), await connect(broker)
    assert await offsets(client, bytes_max=3_000) == list(range(300))
    assert not any(fetch.HasField("topic_identity") for fetch in broker.fetches)
    queue.identity = 5
    assert await offsets(client, offset=250) == list(range(250, 300))


@pytest.mark.parametrize("was_missing", [False, True])
async def test_a_broadcast_skipped_the_beginning_of_a_recreated_topic(
    broker: FakeServer, connect: Connect, caplog: pytest.LogCaptureFixture, was_missing: bool
) -> None:
    broker.serve_topics(orders=1)
    queue, client = FakeQueue(broker, 20), await connect(broker)
    queue.identity = 0
    broker.on_queue_offsets = queue.offsets
    async with client.subscribe("orders", "g", broadcast=True) as subscription:
        queue.append()
        assert (await anext(subscription)).queue_offset == 20
        queue.remake(60)
        queue.missing = was_missing
        async with asyncio.timeout(60):
            assert [(await anext(subscription)).queue_offset for _ in range(60)] == list(range(60))
        queue.append()
        assert (await anext(subscription)).queue_offset == 60
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("WARNING", "broker b1: the new topic begins at offset 0; it is read from there")
    ]
