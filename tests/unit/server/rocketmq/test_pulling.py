"""PullMessage and the offsets' calls: each status, filters, and waiting at a queue's end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.engine import NOW_MS, flush, send
from tests.support.fake_loop import fake_time, turns
from tests.support.memory_broker import TestBroker, message
from tests.support.rpc_context import RpcContext
from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.server.wire.statuses import code_of
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueId
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2 as service

pytestmark = fake_time


def queue(topic: str = "steps", queue_id: QueueId = QueueId(0)) -> v2.MessageQueue:
    return v2.MessageQueue(topic=v2.Resource(name=topic), id=queue_id)


class Bench:
    """Ten messages in one queue of a FIFO topic: bodies 0 to 9, tags even and odd, property n."""

    def __init__(self, **settings: Any) -> None:
        self.parts = TestBroker(consumers=ConsumerSettings(**settings))
        self.queue_id = -1

    async def fill(self, count: int = 10) -> Bench:
        for number in range(count):
            self.parts.now_ms = NOW_MS + number
            await self.parts.send(
                message(
                    str(number).encode(),
                    "steps",
                    message_id=f"M{number}",
                    message_group="g",
                    tag="odd" if number % 2 else "even",
                    properties={"n": str(number)},
                )
            )
            await turns()
        (found,) = self.parts.store.consume_queues.queues("steps")
        self.queue_id = found.queue_id
        flush(self.parts.store)
        return self

    async def pull(
        self, offset: int = 0, *, polling_ms: int = 0, deadline_s: float | None = None, **fields: Any
    ) -> list[service.PullMessageResponse]:
        request = service.PullMessageRequest(
            group=v2.Resource(name=fields.pop("group", "g")),
            message_queue=queue(fields.pop("topic", "steps"), fields.pop("queue_id", self.queue_id)),
            offset=offset,
            **fields,
        )
        request.long_polling_timeout.FromMilliseconds(polling_ms)
        stream = self.parts.pulls.pull(request, RpcContext(deadline_s=deadline_s))
        return [service.PullMessageResponse.FromString(element) async for element in stream]

    async def bodies(self, offset: int = 0, **fields: Any) -> tuple[list[bytes], int]:
        replies = await self.pull(offset, **fields)
        assert replies[0].status.code == (v2.OK if len(replies) > 2 else v2.MESSAGE_NOT_FOUND)
        return [reply.message.body for reply in replies[1:-1]], replies[-1].next_offset


async def code(call: Any) -> v2.Code:
    with pytest.raises(TroveError) as caught:
        await call
    return code_of(caught.value)


async def test_status_then_messages_then_the_next_offset() -> None:
    bench = await Bench().fill()
    replies = await bench.pull(2, batch_size=3)
    kinds = [reply.WhichOneof("content") for reply in replies]
    assert kinds == ["status", "message", "message", "message", "next_offset"]
    assert replies[0].status.code == v2.OK
    first = replies[1].message
    assert (first.body, first.topic.name) == (b"2", "steps")
    system = first.system_properties
    assert (system.queue_id, system.queue_offset, system.message_id) == (bench.queue_id, 2, "M2")
    assert not system.HasField("receipt_handle")
    assert replies[-1].next_offset == 5
    assert bench.parts.delivery.in_flight_count == 0
    assert (await bench.bodies())[1] == 10, "32 by default"


async def test_a_pull_that_asks_for_more_than_a_part_gets_all_of_it() -> None:
    """A part has 32 messages."""
    bench = await Bench().fill(70)
    assert await bench.bodies(0, batch_size=65) == ([str(number).encode() for number in range(65)], 65)


async def test_filters_continue_after_what_they_drop() -> None:
    bench = await Bench().fill()
    tags = v2.FilterExpression(type=v2.TAG, expression="odd || other")
    assert await bench.bodies(0, filter_expression=tags, batch_size=2) == ([b"1", b"3"], 4)
    sql = v2.FilterExpression(type=v2.SQL, expression="n > 7")
    assert await bench.bodies(0, filter_expression=sql, batch_size=2) == ([b"8", b"9"], 10)
    nothing = v2.FilterExpression(type=v2.TAG, expression="nothing")
    assert await bench.bodies(0, filter_expression=nothing) == ([], 10)


async def test_a_pull_at_the_end_waits_for_a_message() -> None:
    bench, loop = await Bench().fill(), asyncio.get_running_loop()
    task = asyncio.ensure_future(bench.bodies(10, polling_ms=15_000))
    await asyncio.sleep(3)
    await bench.parts.send(message(b"new", "steps", message_group="g"))
    assert await task == ([b"new"], 11)
    assert loop.time() == pytest.approx(3.0)


async def test_a_pull_that_waited_went_on_in_the_namesake_of_its_topic() -> None:
    bench = await Bench().fill()
    task = asyncio.ensure_future(code(bench.pull(10, polling_ms=15_000)))
    await turns()
    store = bench.parts.store
    store.delete_topic("steps", bench.parts.now_ms)
    store.topics.create("steps", queue_count=4, message_type="FIFO")
    for _ in range(20):
        send(store, b"new", topic="steps", queue_id=bench.queue_id)
    bench.parts.long_polls.wake([("steps", QueueId(bench.queue_id))])
    assert await task == v2.ILLEGAL_OFFSET


@pytest.mark.parametrize(
    ("polling_ms", "deadline_s", "waited_s"),
    [(0, None, 0.0), (-5, None, 0.0), (3_000, None, 3.0), (60_000, None, 20.0), (10_000, 4.0, 3.9)],
)
async def test_how_long_a_pull_waits(polling_ms: int, deadline_s: float | None, waited_s: float) -> None:
    bench, loop = await Bench().fill(1), asyncio.get_running_loop()
    found = await bench.bodies(1, polling_ms=polling_ms, deadline_s=deadline_s)
    assert found == ([], 1)
    assert loop.time() == pytest.approx(waited_s)
    assert len(bench.parts.long_polls) == 0


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"topic": "a b"}, v2.ILLEGAL_TOPIC),
        ({"topic": "nowhere"}, v2.TOPIC_NOT_FOUND),
        ({"queue_id": 77}, v2.NOT_FOUND),
        ({"queue_id": -1}, v2.NOT_FOUND),
        ({"group": ""}, v2.ILLEGAL_CONSUMER_GROUP),
        ({"offset": 3}, v2.ILLEGAL_OFFSET),
        ({"offset": -1}, v2.ILLEGAL_OFFSET),
        (
            {"filter_expression": v2.FilterExpression(type=v2.SQL, expression="(")},
            v2.ILLEGAL_FILTER_EXPRESSION,
        ),
    ],
)
async def test_a_pull_that_is_refused(fields: dict[str, Any], expected: v2.Code) -> None:
    bench = await Bench().fill(2)
    assert await code(bench.pull(**fields)) == expected


async def test_groups_and_permissions() -> None:
    bench = await Bench(auto_create_group=False).fill(1)
    assert await code(bench.pull()) == v2.CONSUMER_GROUP_NOT_FOUND
    bench.parts.store.topics.alter("steps", perm=2)
    assert await code(bench.pull()) == v2.FORBIDDEN


async def test_an_offset_is_set_and_got() -> None:
    bench = await Bench().fill()
    puller, group = bench.parts.pulls, v2.Resource(name="g")
    where = queue(queue_id=QueueId(bench.queue_id))
    get = service.GetOffsetRequest(group=group, message_queue=where)
    assert await code(puller.get_offset(get, RpcContext())) == v2.OFFSET_NOT_FOUND
    update = service.UpdateOffsetRequest(group=group, message_queue=where, offset=4)
    assert (await puller.update_offset(update, RpcContext())).status.code == v2.OK
    found = await puller.get_offset(get, RpcContext())
    assert (found.status.code, found.offset) == (v2.OK, 4)
    for offset in (-1, 11):
        update.offset = offset
        assert await code(puller.update_offset(update, RpcContext())) == v2.ILLEGAL_OFFSET
    assert (await puller.get_offset(get, RpcContext())).offset == 4


async def test_an_offset_that_is_set_forgets_what_is_in_flight() -> None:
    bench = await Bench(new_group_start="begin").fill()
    assert len(await bench.parts.messages("steps", batch_size=6)) == 6
    update = service.UpdateOffsetRequest(
        group=v2.Resource(name="g"), message_queue=queue(queue_id=QueueId(bench.queue_id)), offset=8
    )
    await bench.parts.pulls.update_offset(update, RpcContext())
    assert bench.parts.delivery.in_flight_count == 0
    assert [one.body for one in await bench.parts.messages("steps")] == [b"8", b"9"]


async def test_the_offsets_of_beginning_end_and_a_time() -> None:
    bench = await Bench().fill()
    puller, where = bench.parts.pulls, queue(queue_id=QueueId(bench.queue_id))

    async def query(policy: int, timestamp_ms: int | None = None) -> tuple[v2.Code, int]:
        request = service.QueryOffsetRequest(message_queue=where)
        request.query_offset_policy = policy  # type: ignore[assignment]
        if timestamp_ms is not None:
            request.timestamp.FromMilliseconds(timestamp_ms)
        response = await puller.query_offset(request, RpcContext())
        return response.status.code, response.offset

    assert await query(v2.BEGINNING) == (v2.OK, 0)
    assert await query(v2.END) == (v2.OK, 10)
    assert await query(v2.TIMESTAMP, NOW_MS + 6) == (v2.OK, 6)
    assert await query(v2.TIMESTAMP, NOW_MS + 60) == (v2.OK, 10)
    assert await query(v2.TIMESTAMP, 0) == (v2.OK, 0)
    assert await code(query(v2.TIMESTAMP)) == v2.BAD_REQUEST
    assert await code(query(9)) == v2.BAD_REQUEST
    where.topic.name = "orders"
    where.id = 0
    assert await query(v2.TIMESTAMP, NOW_MS) == (v2.OK, 0), "an empty queue"
    where.topic.name = "nowhere"
    assert await code(query(v2.END)) == v2.TOPIC_NOT_FOUND
