"""/metrics counts messages by priority, of topics that are received by priority."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.engine import flush, send
from tests.support.metrics_bench import Bench
from trovemq_broker.filters.filter import TAKE_ALL
from trovemq_broker.groups.delivery.request import ReceiveRequest
from trovemq_proto.positions import QueueId
from trovemq_store.topics.subscription_groups import SubscriptionGroup

STORED = "trovemq_priority_messages_total"
WAITING = "trovemq_priority_waiting_messages"


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


def put(bench: Bench, *priorities: int, topic: str = "orders") -> None:
    for priority in priorities:
        properties = {"_SYS_MSG_PRIORITY_": str(priority)}
        send(bench.store, b"x", bench.now_ms, topic=topic, properties=properties)
    flush(bench.store)
    bench.dispatch()


@pytest.mark.asyncio
async def test_messages_are_counted_by_priority_while_their_topic_is_received_so(bench: Bench) -> None:
    put(bench, 9)
    assert bench.values(STORED) == []
    bench.store.topics.alter("orders", options={"order": "priority"})
    put(bench, 0, 9, 9, 4)
    put(bench, 9, topic="in-log-order")
    send(bench.store, b"of the default priority", bench.now_ms)
    flush(bench.store)
    bench.dispatch()
    of_topic = {"topic": "orders", "message_type": "NORMAL", "is_system": "false"}
    stored = [bench.value(STORED, priority=str(priority), **of_topic) for priority in range(10)]
    assert stored == [1, 0, 0, 0, 2, 0, 0, 0, 0, 2]
    assert len(bench.values(STORED)) == 10
    bench.parts._topic_deleted("orders")
    assert bench.values(STORED) == []


@pytest.mark.asyncio
async def test_waiting_messages_are_counted_by_group_and_priority(bench: Bench) -> None:
    bench.store.topics.alter("orders", options={"order": "priority"})
    put(bench, 0, 9, 9, 4)
    assert bench.values(WAITING) == []
    group = SubscriptionGroup("workers")
    request = ReceiveRequest(
        group=group,
        topic="orders",
        queue_id=QueueId(0),
        filter=TAKE_ALL,
        count_max=1,
        invisible_ms=20_000,
        now_ms=bench.now_ms,
        client_id="c",
        renewed=False,
        attempt_id="",
    )
    bench.parts.model.groups.create(group)
    bench.parts.model.delivery.reset("workers", "orders", {QueueId(0): 0}, bench.now_ms)
    (got,) = bench.parts.model.delivery.receive(request)
    assert got.queue_offset in (1, 2)
    of_group = {"consumer_group": "workers", "topic": "orders", "is_retry": "false"}
    waits = [bench.value(WAITING, priority=str(priority), **of_group) for priority in range(10)]
    assert waits == [1, 0, 0, 0, 1, 0, 0, 0, 0, 1]
