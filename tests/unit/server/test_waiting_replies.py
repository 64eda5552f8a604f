"""Replies of calls that waited for messages: one message may be the answer to a thousand of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import grpc
import pytest

from tests.support.call_forms import guarded as by_guard
from tests.support.consuming import GROUP, ConsumeClient, acknowledgement
from tests.support.engine import append, record
from tests.support.fake_loop import fake_time, turns
from tests.support.memory_broker import ROOMY, TestBroker, message
from tests.support.rpc_context import RpcContext
from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.server.native.fetch_stream import begin_pull
from trovemq_broker.server.wire import pulls
from trovemq_broker.server.wire.rocketmq_messages import message_of
from trovemq_daemon import handler_guard
from trovemq_daemon.calls import AwaitedCall, CallHandler
from trovemq_daemon.handler_guard import HandlerGuard
from trovemq_daemon.metrics import RpcMetrics, new_registry
from trovemq_daemon.reply_budget import ReplyBudget, ReplyLimits
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2 as service
from trovemq_proto.v1 import message_pb2

pytestmark = fake_time


SIZE = 100_000
"""Of a body: its reply is counted."""
LIMITS = ReplyLimits(total_max=20 * SIZE, connection_max=3 * SIZE, reply_size_expected=SIZE)
LARGE = replace(ROOMY, body_size_max=1 << 18)
SPACE = LIMITS.connection_max + SIZE + 10_000
"""The last reply may go beyond the limit."""


def parts_with(replies: ReplyBudget | None = None, **settings: Any) -> TestBroker:
    consumers = ConsumerSettings(new_group_start="begin", **settings)
    return TestBroker(LARGE, consumers=consumers, replies=replies)


def same(request: Any) -> Any:
    """A reader of requests that are read already."""
    return request


def guard_with(replies: ReplyBudget) -> HandlerGuard:
    return HandlerGuard(RpcMetrics(new_registry("1"), cluster="c", node_type="t", node_id="n"), replies)


async def test_pulls_that_waited_took_a_messages_size_times_their_number() -> None:
    replies = ReplyBudget(LIMITS)
    parts = parts_with(replies)
    request = message_pb2.FetchRequest(topic="orders", wait_ms=20_000)
    handler = CallHandler(
        on_calls=lambda calls: begin_pull(parts, *calls), read=message_pb2.FetchRequest.FromString
    )
    guarded = guard_with(replies).calls("Pull", handler)
    calls = [UnreadCall(replies, request.SerializeToString(), guarded.read) for _ in range(40)]
    for one in calls:
        guarded.on_calls([one])
    await turns()
    append(parts.store, record(bytes(SIZE)))
    parts.on_messages_available(parts.store.dispatch())
    await turns(20)
    assert SIZE <= replies.budget.used <= SPACE
    for one in calls:
        one.ended()


class UnreadCall(AwaitedCall):
    """Its client does not read the reply."""

    def __init__(self, replies: ReplyBudget, data: bytes, read: Any) -> None:
        super().__init__(RpcContext(), read, data)
        self._replies = replies

    def reply(self, reply: Any) -> bool:
        self._replies.claim(self.peer(), len(reply))  # as grpcio's is counted, in the same step
        return super().reply(reply)


async def test_streams_that_waited_took_a_messages_size_times_their_number() -> None:
    """And a client that reads gets the messages that they have no space for."""
    replies = ReplyBudget(LIMITS)
    parts = parts_with(replies)
    unread = [ConsumeClient(parts, client_id=f"c{n}") for n in range(40)]
    for client in unread:
        await client.open()
    await asyncio.sleep(5)  # until each was notified of those that joined
    for client in unread:
        client.context.may_write.clear()
        await client.say(credit_messages=10)
    for number in range(30):
        await parts.send(message(bytes(SIZE), message_id=f"M{number}"))
    await turns(20)
    assert SIZE <= replies.budget.used <= SPACE
    reader = ConsumeClient(parts.with_replies(ReplyBudget(LIMITS)), client_id="reader")
    await reader.open(100, 1 << 24)
    await turns(200)
    assert len(reader.messages()) >= 25
    for client in (*unread, reader):
        await client.break_off()


async def test_a_batch_was_made_to_wait_behind_results_nobody_reads() -> None:
    """It was outside of every budget there."""
    parts = parts_with(ReplyBudget(LIMITS))
    client = ConsumeClient(parts)
    await client.open(10)
    await parts.send(message(b"0", message_id="M0"))
    await turns(20)
    (got,) = client.messages()
    client.context.may_write.clear()
    await client.settle(acknowledgement(got))
    await parts.send(message(b"1", message_id="M1"))
    await turns(20)
    assert parts.delivery.in_flight_count == 0
    client.context.may_write.set()
    await turns(60)
    assert [one.body for one in client.messages()] == [b"1"]
    await client.end()


def pull_request(count: int, polling_ms: int) -> service.PullMessageRequest:
    request = service.PullMessageRequest(
        group=v2.Resource(name=GROUP),
        message_queue=v2.MessageQueue(topic=v2.Resource(name="orders"), id=0),
        batch_size=count,
    )
    request.long_polling_timeout.FromMilliseconds(polling_ms)
    return request


async def test_rocketmqs_pulls_that_waited_took_everybodys_space() -> None:
    """Sixty-four of them, each with space for a large reply, and every large reply of others was refused."""
    replies, parts = ReplyBudget(LIMITS), parts_with()
    handler = grpc.unary_stream_rpc_method_handler(parts.pulls.pull, request_deserializer=same)
    guarded: Any = by_guard(guard_with(replies), "PullMessage", handler).unary_stream

    async def pulled() -> None:
        async for _ in guarded(pull_request(32, 20_000), RpcContext()):
            pass

    calls = [asyncio.create_task(pulled()) for _ in range(40)]
    await turns(10)
    assert replies.budget.used == 0
    assert replies.has_space(RpcContext().peer())
    for call in calls:
        call.cancel()


async def test_the_messages_of_a_pull_nobody_reads_were_all_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []

    def counted(*given: Any) -> v2.Message:
        made.append(given)
        return message_of(*given)

    monkeypatch.setattr(pulls, "message_of", counted)
    parts = parts_with()
    append(parts.store, *(record(b"x", unique_key=f"U{n}") for n in range(100)))
    parts.store.dispatch()
    stream = parts.pulls.pull(pull_request(80, 0), RpcContext())
    for _ in range(3):  # the status and two messages
        await anext(stream)
    assert len(made) == 2
    rest = [service.PullMessageResponse.FromString(one) async for one in stream]
    assert len(rest) == 78 + 1
    assert rest[-1].next_offset == len(made) == 80
    assert [one.message.system_properties.queue_offset for one in rest[:-1]] == list(range(2, 80))


async def test_a_stream_that_is_read_fast_held_up_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    """On our own transport a reply that its client takes is written without a pause."""
    monkeypatch.setattr(handler_guard, "TURN_S", 0.0)

    async def many(_request: object, _context: object) -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b"x"

    handler = grpc.unary_stream_rpc_method_handler(many, request_deserializer=same)
    guarded: Any = by_guard(guard_with(ReplyBudget(LIMITS)), "Many", handler).unary_stream

    async def read() -> int:
        return len([one async for one in guarded(object(), RpcContext())])

    reading = asyncio.create_task(read())
    passes = 0
    while not reading.done():
        await asyncio.sleep(0)
        passes += 1
    assert await reading == 100
    assert passes >= 100
