"""Messages with a priority, as the official clients send and receive them."""

from __future__ import annotations

import pytest

from tests.support.engine import NOW_MS, flush, read_queue
from tests.support.fake_loop import fake_time
from tests.support.memory_broker import TestBroker, message
from tests.support.rocketmq_service import ServiceBench
from trovemq_broker.server.wire.send_checks import kind_of
from trovemq_broker.server.wire.statuses import code_of
from trovemq_proto.errors import TroveError
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2 as service


def parts_with_topic(
    name: str = "urgent", message_type: str = "NORMAL", order: str = "priority"
) -> TestBroker:
    parts = TestBroker()
    parts.store.topics.create(name, 1, message_type, options={"order": order})
    return parts


def urgent(body: str, priority: int | None, topic: str = "urgent") -> v2.Message:
    made = message(body.encode(), topic, message_id=f"ID-{body}", message_type=v2.PRIORITY)
    if priority is not None:
        made.system_properties.priority = priority
    return made


@fake_time
@pytest.mark.parametrize(
    ("message_type", "order"), [("NORMAL", "priority"), ("MIXED", "priority"), ("PRIORITY", "log")]
)
async def test_they_are_received_highest_first_with_their_priority(message_type: str, order: str) -> None:
    parts = parts_with_topic(message_type=message_type, order=order)
    for body, priority in (("a", 0), ("b", 9), ("c", None), ("d", 4), ("e", 9)):
        response = await parts.send(urgent(body, priority))
        assert response.status.code == v2.OK, response
    flush(parts.store)
    got = await parts.messages("urgent")
    assert [one.body for one in got] == [b"b", b"e", b"c", b"d", b"a"]
    system = [one.system_properties for one in got]
    assert [one.priority if one.HasField("priority") else None for one in system] == [9, 9, None, 4, 0]
    assert [one.message_type for one in system] == [v2.PRIORITY] * 2 + [v2.NORMAL] + [v2.PRIORITY] * 2
    assert not any(one.user_properties for one in got)
    stored = read_queue(parts.store, "urgent")
    assert [one.properties.get("_SYS_MSG_PRIORITY_") for one in stored] == ["0", "9", None, "4", "9"]


@fake_time
async def test_the_messages_of_one_send_keep_their_order() -> None:
    parts = parts_with_topic()
    await parts.send(*[urgent(f"{number}", 1 if number % 2 else None) for number in range(6)])
    flush(parts.store)
    assert [one.body for one in read_queue(parts.store, "urgent")] == [b"%d" % number for number in range(6)]


@fake_time
@pytest.mark.parametrize("priority", [-1, 10, 2**31 - 1, -(2**31)])
async def test_a_priority_that_is_not_0_to_9_is_refused(priority: int) -> None:
    parts = parts_with_topic()
    with pytest.raises(TroveError, match=f"the priority '{priority}' is not 0 to 9") as caught:
        await parts.send(urgent("good", 1), urgent("bad", priority))
    assert code_of(caught.value) == v2.ILLEGAL_MESSAGE_PROPERTY_KEY
    assert read_queue(parts.store, "urgent") == []


@fake_time
async def test_a_priority_and_a_message_group_contradict_each_other() -> None:
    parts = parts_with_topic(message_type="MIXED")
    with pytest.raises(TroveError, match="not both") as caught:
        await parts.send(message(topic="urgent", priority=3, message_group="g"))
    assert code_of(caught.value) == v2.BAD_REQUEST


@fake_time
async def test_a_topic_not_received_by_priority_refuses_them_and_says_why() -> None:
    parts = TestBroker()
    with pytest.raises(TroveError, match="order is not priority") as caught:
        await parts.send(urgent("a", 3, topic="mixed"))
    assert code_of(caught.value) == v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE


@fake_time
async def test_a_delayed_message_keeps_its_priority() -> None:
    parts = parts_with_topic(message_type="MIXED")
    await parts.send(message(b"later", "urgent", deliver_ms=NOW_MS + 1_000, priority=7))
    await parts.send(message(b"low", "urgent", message_id="low", priority=1))
    flush(parts.store)
    parts.now_ms += 2_000
    parts.timers.catch_up()
    parts.timers.deliver_due(parts.now_ms)
    flush(parts.store)
    got = await parts.messages("urgent")
    assert [(one.body, one.system_properties.priority) for one in got] == [(b"later", 7), (b"low", 1)]


def test_the_kind_of_a_message() -> None:
    assert kind_of(message(priority=0)) == v2.PRIORITY
    assert kind_of(message(message_type=v2.PRIORITY)) == v2.PRIORITY
    assert kind_of(message(priority=0, deliver_ms=NOW_MS)) == v2.DELAY
    assert kind_of(message(priority=0, message_type=v2.TRANSACTION)) == v2.TRANSACTION


@fake_time
async def test_the_service_offers_the_topic_to_clients_and_serves_them() -> None:
    bench = ServiceBench()
    bench.parts.store.topics.create("urgent", 1, "PRIORITY")
    route = await bench.ask("QueryRoute", service.QueryRouteRequest(topic=v2.Resource(name="urgent")))
    assert list(route.message_queues[0].accept_message_types) == [v2.PRIORITY]
    for body, priority in (("low", 2), ("high", 8)):
        request = service.SendMessageRequest(messages=[urgent(body, priority)])
        sent = await bench.ask("SendMessage", request)
        assert sent.status.code == v2.OK
    flush(bench.parts.store)
    got = await bench.parts.messages("urgent")
    assert [one.body for one in got] == [b"high", b"low"]
