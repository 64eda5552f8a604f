"""Receives that read many records for their filters leave the loop to others between them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.engine import append, record
from tests.support.fake_loop import fake_time
from tests.support.memory_broker import TestBroker, receive_request
from tests.support.rpc_context import RpcContext
from trovemq_broker.groups.delivery.receives import RECEIVE_READS_MAX, RECEIVE_UNITS_MAX
from trovemq_broker.server.core.receiver import EXPENSIVE_SCAN_READS
from trovemq_daemon.calls import CallHandler, for_coroutines
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2

pytestmark = fake_time


RECEIVES = 8
APPENDED_TOGETHER = 2_048
BY_PROPERTY = {"expression": "colour = 'blue'", "kind": v2.SQL}
BY_TAG = {"expression": "blue"}


def backlog(parts: TestBroker, count: int) -> None:
    """Messages that no filter of these tests takes, and one that it does."""
    for colour, messages in (("red", count), ("blue", 1)):
        one = record(b"x", tag=colour, properties={"colour": colour})
        for begin in range(0, messages, APPENDED_TOGETHER):
            append(parts.store, *[one] * min(APPENDED_TOGETHER, messages - begin))
    parts.store.dispatch()


async def received(
    parts: TestBroker,
    bodies: list[bytes],
    filter_: dict[str, Any],
    topic: str = "orders",
    client_id: str = "c",
) -> None:
    """One receive of one message."""
    request, context = receive_request(topic, batch_size=1, **filter_), RpcContext(client_id)
    handler = CallHandler(on_calls=parts.receives.on_calls, streams=True)
    await for_coroutines(handler).unary_stream(request, context)
    for element in context.written:
        reply = service_pb2.ReceiveMessageResponse.FromString(element)
        if reply.HasField("message"):
            bodies.append(reply.message.body)


@pytest.mark.parametrize(
    ("filter_", "count"),
    [(BY_PROPERTY, 2 * RECEIVE_READS_MAX + 100), (BY_TAG, 2 * RECEIVE_UNITS_MAX + 100)],
    ids=["property", "tag"],
)
async def test_a_clients_receives_all_looked_in_one_pass_of_the_loop(
    monkeypatch: pytest.MonkeyPatch, filter_: dict[str, Any], count: int
) -> None:
    parts, bodies, passes, long_looks = TestBroker(), list[bytes](), 0, list[int]()
    backlog(parts, count)
    receive_runs = parts.delivery.receive_runs

    def noted(request: Any) -> Any:
        found = receive_runs(request)
        if parts.delivery.last_reads >= EXPENSIVE_SCAN_READS:
            long_looks.append(passes)
        return found

    monkeypatch.setattr(parts.delivery, "receive_runs", noted)
    tasks = [asyncio.create_task(received(parts, bodies, filter_)) for _ in range(RECEIVES)]
    while not bodies:
        passes += 1
        await asyncio.sleep(0)
        assert passes < 100
    assert bodies == [b"x"]
    assert len(long_looks) > 1
    assert len(set(long_looks)) == len(long_looks)
    await asyncio.gather(*tasks)


async def test_a_long_backlog_held_up_receives_of_all_other_groups() -> None:
    parts, slow, fast = TestBroker(), list[bytes](), list[bytes]()
    backlog(parts, 20 * RECEIVE_READS_MAX)
    append(parts.store, record(b"y", topic="mixed"), topic="mixed")
    parts.store.dispatch()
    first = asyncio.create_task(received(parts, slow, BY_PROPERTY))
    await asyncio.sleep(0)
    await received(parts, fast, {}, "mixed")
    assert (slow, fast) == ([], [b"y"])
    await first
    assert slow == [b"x"]


async def test_receives_with_long_backlogs_before_them_look_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    parts, bodies, looks = TestBroker(), list[bytes](), list[Any]()
    backlog(parts, 6 * RECEIVE_READS_MAX)
    receive_runs = parts.delivery.receive_runs

    def noted(request: Any) -> Any:
        looks.append(request.client_id)
        return receive_runs(request)

    monkeypatch.setattr(parts.delivery, "receive_runs", noted)
    tasks = [
        asyncio.create_task(received(parts, bodies, BY_PROPERTY, client_id=client_id)) for client_id in "abc"
    ]
    while len(looks) < 6:
        await asyncio.sleep(0)
    assert looks == list("abc") * 2
    await asyncio.gather(*tasks)
