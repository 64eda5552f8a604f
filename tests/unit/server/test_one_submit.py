"""Every message that a client sends goes through one function, whichever call brought it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.support.engine import read_queue, record
from tests.support.engine import with_crc_property as with_crc
from tests.support.fake_loop import fake_time, turns
from tests.support.memory_broker import ROOMY, TestBroker, message
from tests.support.rpc_context import RpcContext
from tests.support.sent_calls import begin, send_call
from tests.unit.server.test_broker_tracing import Traced
from tests.unit.server.test_joined_frames import Context, frame_of
from trovemq_broker.server.native.append_stream import AppendStream
from trovemq_broker.server.native.message_service import MessageService
from trovemq_broker.server.wire.send_requests import reading
from trovemq_daemon.calls import AwaitedCall
from trovemq_proto.positions import QueueId
from trovemq_proto.rocketmq.v2 import service_pb2 as service
from trovemq_proto.v1 import message_pb2

REQUEST = service.SendMessageRequest(messages=[message()])
NATIVE = message_pb2.SendRequest(topic="orders", messages=[message_pb2.OutgoingMessage(body=b"x")])


def native(parts: TestBroker) -> MessageService:
    return MessageService(parts)


async def v2_call(parts: TestBroker) -> None:
    begin(parts, message())


async def v2_task(parts: TestBroker) -> None:
    task = asyncio.create_task(parts.sender.send(reading(REQUEST), RpcContext()))
    await turns()
    task.cancel()


async def v2_turn(parts: TestBroker) -> None:
    parts.sender.on_calls([send_call(message()), send_call(message())])


async def v2_by_group(parts: TestBroker) -> None:
    begin(parts, message(topic="steps", message_group="g"))


async def native_call(parts: TestBroker) -> None:
    native_send(native(parts), NATIVE)


def native_send(service_: MessageService, request: message_pb2.SendRequest) -> asyncio.Future[Any]:
    """The answer."""
    call = AwaitedCall(Context("ipv4:10.0.0.2:5000"), None, request)
    service_.on_sends([call])
    return call.ending


async def frame_in_callback(parts: TestBroker) -> None:
    stream = AppendStream(parts, Context("ipv4:10.0.0.2:5000"))
    assert stream.handle_now(frame_of(with_crc(record(b"x"))))


async def frame_in_task(parts: TestBroker) -> None:
    stream = AppendStream(parts, Context("ipv6:%5B::1%5D:5000"))
    await stream.handle(frame_of(with_crc(record(b"x"))))


async def batch_of_frames(parts: TestBroker) -> None:
    stream = AppendStream(parts, Context("unix:socket"))
    assert stream.handle_now(frame_of(with_crc(record(b"x")) * 3))


def traced_parts() -> TestBroker:
    return Traced().parts


BROKERS: dict[str, Callable[[], TestBroker]] = {
    "async flush": TestBroker,
    "sync flush": lambda: TestBroker(replace(ROOMY, flush_mode="sync")),
    "traced": traced_parts,
}
ENTRIES = (
    v2_call,
    v2_task,
    v2_turn,
    v2_by_group,
    native_call,
    frame_in_callback,
    frame_in_task,
    batch_of_frames,
)


@fake_time
@pytest.mark.parametrize("broker", BROKERS)
@pytest.mark.parametrize("entry", ENTRIES)
async def test_each_entry_is_one_submission(
    broker: str, entry: Callable[[TestBroker], Awaitable[None]]
) -> None:
    parts = BROKERS[broker]()
    submitted: list[Any] = []
    submit = parts.accumulator.submit

    def noted(batch: Any, done: Any) -> None:
        submitted.append(batch)
        submit(batch, done)

    parts.accumulator.submit = noted  # type: ignore[method-assign]
    await entry(parts)
    await turns()
    assert len(submitted) == 1
    assert parts.store.end_offset > 0, "and nothing else appends"


@fake_time
@pytest.mark.parametrize("broker", BROKERS)
async def test_submissions_of_all_kinds_keep_the_order_of_their_queue(broker: str) -> None:
    parts = BROKERS[broker]()
    answers: list[asyncio.Future[Any]] = []
    service_ = native(parts)
    context: Any = Context("ipv4:10.0.0.2:5000")
    stream = AppendStream(parts, context)
    for number in range(4):
        send = message_pb2.SendRequest(topic="orders", queue_id=0)
        send.messages.add(body=b"send %d" % number)
        answers.append(native_send(service_, send))
        stream.handle_now(frame_of(with_crc(record(b"frame %d" % number)), number))
    await turns()
    found = [one.body for one in parts_read(parts)]
    assert found == [b"%b %d" % (kind, number) for number in range(4) for kind in (b"send", b"frame")]
    if not parts.appender.sync:
        assert all(answer.done() for answer in answers)
        assert [reply.frame_id for reply in context.replies] == list(range(4))


def parts_read(parts: TestBroker) -> Any:
    if (work := parts.store.begin_flush()) is not None and parts.appender.sync:
        work.run()
        parts.store.finish_flush(work)
    return read_queue(parts.store, "orders", QueueId(0))
