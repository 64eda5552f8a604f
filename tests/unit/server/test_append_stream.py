"""The Append stream without a network: its answers, their times, and the state after an end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from tests.support.engine import SMALL_SYNC, read_queue, record, with_crc_property
from tests.support.memory_broker import TestBroker
from trovemq_broker.server.native.append_stream import AppendStream
from trovemq_broker.server.native.reply_stream import OpenStreams
from trovemq_broker.server.wire.frames import AppendFrame
from trovemq_proto.errors import UNREAD, TroveError
from trovemq_proto.positions import QueueId
from trovemq_proto.v1 import common_pb2, message_pb2


class Context:
    """The server's side of a call: frames come from a queue, replies go to a list."""

    def __init__(self) -> None:
        self.frames: asyncio.Queue[Any] = asyncio.Queue()
        self.replies: list[message_pb2.AppendReply] = []
        self.may_write = asyncio.Event()
        self.may_write.set()

    def peer(self) -> str:
        return "ipv4:127.0.0.1:5000"

    async def read(self) -> Any:
        return await self.frames.get()

    def offer(self, frame: AppendFrame) -> None:
        self.frames.put_nowait(frame)

    async def write(self, message: bytes) -> None:
        await self.may_write.wait()
        self.replies.append(message_pb2.AppendReply.FromString(message))


class CallbackContext(Context):
    """The same on our own transport: frames are offered first, and replies taken without waiting."""

    receiver: Callable[[Any], bool] | None = None
    reading = False

    @property
    def can_send(self) -> bool:
        return self.may_write.is_set()

    def try_send(self, message: bytes) -> bool:
        if self.can_send:
            self.replies.append(message_pb2.AppendReply.FromString(message))
        return self.can_send

    def set_receiver(self, receiver: Callable[[Any], bool] | None) -> None:
        self.receiver = receiver

    async def read(self) -> Any:
        self.reading = True
        frame = await self.frames.get()
        self.reading = False
        return frame

    def offer(self, frame: AppendFrame) -> None:
        waits = self.receiver is not None and self.reading and self.frames.empty()
        if not (waits and self.receiver is not None and self.receiver(frame)):
            self.frames.put_nowait(frame)


@pytest.fixture(params=[Context, CallbackContext], autouse=True)
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test on both."""
    monkeypatch.setattr(Bench, "context_kind", request.param)


class Bench:
    context_kind: type[Context] = Context

    def __init__(self, frames_in_flight_max: int = 256, sync_flush_timeout_ms: int = 5_000) -> None:
        core = TestBroker(
            SMALL_SYNC,
            append_frames_in_flight_max=frames_in_flight_max,
            sync_flush_timeout_ms=sync_flush_timeout_ms,
        )
        self.store, self.commit = core.store, core.group_commit
        self.traffic, self.accumulator = core.traffic, core.accumulator
        self.context = self.context_kind()
        self.stream = AppendStream(core, self.context)
        self.serving = asyncio.create_task(self.stream.serve())

    def send(self, *numbers: int) -> None:
        for number in numbers:
            frame = AppendFrame(number, "orders", QueueId(0), with_crc_property(record(b"%d" % number)))
            self.context.offer(frame)

    def sync(self) -> None:
        """The flush worker's work, in this thread. The batches of this iteration are appended before."""
        self.accumulator.append_all()
        work = self.commit._store.begin_flush()
        assert work is not None
        work.run()
        self.commit._store.finish_flush(work)
        self.commit._resolve_up_to(self.store.flushed_offset)

    async def close(self) -> None:
        self.context.frames.put_nowait(grpc.aio.EOF)
        await self.serving
        self.commit.close()

    @property
    def answered(self) -> list[int]:
        return [reply.frame_id for reply in self.context.replies]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(240):
        while not condition():
            await asyncio.sleep(0)


@pytest.mark.asyncio
async def test_replies_wait_for_the_sync_and_refusals_do_not() -> None:
    bench = Bench()
    bench.send(1, 2)
    bench.context.frames.put_nowait(AppendFrame(3, "unknown", QueueId(0), with_crc_property(record(b"x"))))
    await until(lambda: bench.answered == [3])
    assert read_queue(bench.store) == []
    bench.sync()
    await until(lambda: bench.answered == [3, 1, 2])
    assert [message.body for message in read_queue(bench.store)] == [b"1", b"2"]
    assert bench.context.replies[1].durability == common_pb2.DISK
    assert bench.traffic.refusals == {"TOPIC_NOT_FOUND": 1}
    await bench.close()


@pytest.mark.asyncio
async def test_a_late_sync_says_where_the_message_is() -> None:
    bench = Bench(sync_flush_timeout_ms=1)
    bench.send(7)
    await until(lambda: bench.answered == [7])
    (reply,) = bench.context.replies
    assert reply.status == common_pb2.FLUSH_DISK_TIMEOUT
    assert reply.error.symbol == "FLUSH_DISK_TIMEOUT"
    assert (reply.durability, reply.record_count) == (common_pb2.MEMORY, 1)
    bench.sync()
    assert len(read_queue(bench.store)) == 1, "it is in the log"
    await bench.close()
    assert bench.answered == [7], "it is answered once"


@pytest.mark.asyncio
async def test_a_failed_store_answers_everybody_who_waits_and_who_comes() -> None:
    bench = Bench()
    bench.send(1, 2)
    await until(lambda: bench.stream._waiting == 2)
    bench.commit.fail(OSError("gone"))
    bench.send(3)
    await until(lambda: len(bench.answered) == 3)
    assert {reply.error.symbol for reply in bench.context.replies} == {"STORE_FAILED"}
    assert {reply.status for reply in bench.context.replies} == {common_pb2.SERVICE_NOT_AVAILABLE}
    await bench.close()


@pytest.mark.asyncio
async def test_frames_are_not_read_while_too_many_wait() -> None:
    bench = Bench(frames_in_flight_max=3)
    bench.send(*range(10))
    await until(lambda: bench.stream._waiting == 3)
    for _ in range(20):
        await asyncio.sleep(0)
    assert bench.context.frames.qsize() == 7
    while bench.answered != list(range(10)):
        bench.sync()
        await until(lambda: bench.store.end_offset > bench.store.flushed_offset or len(bench.answered) == 10)
    await bench.close()


@pytest.mark.asyncio
async def test_the_end_of_the_requests_waits_for_the_last_reply() -> None:
    bench = Bench()
    bench.send(1)
    bench.context.frames.put_nowait(grpc.aio.EOF)
    await until(lambda: bench.stream._waiting == 1)
    assert not bench.serving.done()
    bench.sync()
    await bench.serving
    assert bench.answered == [1]
    bench.commit.close()


@pytest.mark.asyncio
async def test_a_stopping_broker_answers_first_and_ends_then() -> None:
    bench = Bench()
    bench.send(1, 2)
    await until(lambda: bench.stream._waiting == 2)
    bench.context.may_write.clear()
    bench.stream.end()
    bench.sync()
    for _ in range(20):
        await asyncio.sleep(0)
    assert not bench.serving.done()
    bench.context.may_write.set()
    with pytest.raises(TroveError, match="SERVICE_NOT_AVAILABLE") as ended:
        await bench.serving
    assert bench.answered == [1, 2]
    assert UNREAD in ended.value.fields, "a frame without a reply was not read"
    bench.commit.close()


@pytest.mark.asyncio
async def test_a_stream_to_a_stopping_broker_was_cut_in_doubt() -> None:
    bench = Bench(sync_flush_timeout_ms=1)
    streams = OpenStreams()
    await streams.end_all(1)
    bench.send(1)
    with pytest.raises(TroveError, match="SERVICE_NOT_AVAILABLE") as refused:
        await streams.serve(bench.stream)
    assert UNREAD in refused.value.fields
    assert len(streams) == 0
    await bench.close()


@pytest.mark.asyncio
async def test_a_client_that_is_gone_ends_the_stream() -> None:
    bench = Bench()

    async def broken(_message: bytes) -> None:
        raise grpc.aio.UsageError("the call is over")

    bench.context.may_write.clear()
    bench.context.write = broken  # type: ignore[method-assign, assignment]
    bench.send(1)
    await until(lambda: bench.stream._waiting == 1)
    bench.sync()
    with pytest.raises(asyncio.CancelledError):
        await bench.serving
    bench.commit.close()


@pytest.mark.asyncio
async def test_our_transport_gets_replies_within_the_callback_of_the_sync(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Bench, "context_kind", CallbackContext)
    bench = Bench()
    await until(lambda: isinstance(bench.context, CallbackContext) and bench.context.reading)
    bench.send(1, 2)
    assert bench.stream._waiting == 2, "they are appended with those of this iteration"
    bench.sync()
    assert bench.answered == [1, 2], "nor to answer"
    bench.send(3, 4)
    bench.context.may_write.clear()  # the client does not read: the writer waits for it
    bench.sync()
    await asyncio.sleep(0)
    bench.send(5)
    bench.context.may_write.set()
    await until(lambda: bench.answered == [1, 2, 3, 4] and bench.stream._waiting == 1)
    bench.sync()
    assert bench.answered == [1, 2, 3, 4, 5], "no later reply goes before one that waits"
    await bench.close()
