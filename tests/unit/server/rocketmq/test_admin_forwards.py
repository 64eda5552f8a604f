"""Calls of RocketMQ's Admin service that concern another broker: two brokers in memory."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.call_forms import grpc_form
from tests.support.rpc_context import RpcContext
from tests.unit.server.rocketmq.test_forwards import Node, two
from tests.unit.server.rocketmq.test_routes import Other
from trovemq_daemon.addresses import Address
from trovemq_proto.positions import QueueId
from trovemq_proto.rocketmq.v2 import admin_pb2 as pb
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2

pytestmark = pytest.mark.asyncio

ORDERS, THERE = v2.Resource(name="orders"), v2.Resource(name="there")
WORKERS = v2.Resource(name="workers")


async def admin(node: Node, name: str, request: Any) -> Any:
    """The reply to a call of the broker's Admin service, without a client id."""
    handler = grpc_form(node.service.admin_handlers()[name])
    reply_type = getattr(pb, name.replace("QueryMessage", "ListMessage") + "Response")
    context = RpcContext("", deadline_s=30.0)
    reply = await handler.unary_unary(request.SerializeToString(), context)
    return reply_type.FromString(handler.response_serializer(reply))


def reset(topic: v2.Resource = ORDERS) -> pb.ResetGroupOffsetRequest:
    request = pb.ResetGroupOffsetRequest(group=WORKERS, topic=topic)
    request.reset_timestamp.FromSeconds(0)
    return request


def offsets(node: Node, topic: str = "orders") -> set[int | None]:
    store = node.parts.store
    return {store.offsets.get("workers", topic, QueueId(number)) for number in range(2)}


async def test_a_reset_reaches_every_broker_of_the_topic() -> None:
    a, b = two()
    reply = await admin(a, "ResetGroupOffset", reset())
    assert reply.status.code == v2.OK, reply.status
    assert (offsets(a), offsets(b)) == ({0}, {0})
    assert [broker for broker, _ in a.sent] == ["broker-b"]
    assert b.sent == [], "a forwarded call is never forwarded again"


async def test_a_reset_of_a_topic_elsewhere_is_made_there() -> None:
    a, b = two()
    reply = await admin(a, "ResetGroupOffset", reset(THERE))
    assert (reply.status.code, offsets(b, "there")) == (v2.OK, {0})
    reply = await admin(a, "ResetGroupOffset", reset(v2.Resource(name="nowhere")))
    assert reply.status.code == v2.TOPIC_NOT_FOUND


async def test_a_reset_that_one_broker_did_not_make_is_an_error() -> None:
    a, b = two()
    a.others.topics["orders"].append(Other("broker-c", Address("10.0.0.3", 8_081)))
    reply = await admin(a, "ResetGroupOffset", reset())
    assert reply.status.code == v2.PROXY_TIMEOUT
    assert "broker-c" in reply.status.message
    assert (offsets(a), offsets(b)) == ({0}, {0}), "all others have made it"
    a.others.topics["orders"].pop()
    a.placements["orders"] = {"broker-a": 2, "broker-b": 2, "broker-d": 2}
    reply = await admin(a, "ResetGroupOffset", reset())
    assert reply.status.code == v2.NOT_FOUND
    assert "broker-d" in reply.status.message
    a.placements.clear()
    b.parts.store.topics.delete("orders")
    reply = await admin(a, "ResetGroupOffset", reset())
    assert reply.status.code == v2.TOPIC_NOT_FOUND
    assert reply.status.message.startswith("broker broker-b: ")


def send(topic: v2.Resource, group: str = "", message_id: str = "") -> pb.AdminSendMessageRequest:
    system = v2.SystemProperties(message_group=group) if group else v2.SystemProperties()
    system.message_id = message_id
    return pb.AdminSendMessageRequest(topic=topic, body=b"x", system_properties=system)


async def test_an_operators_message_goes_to_the_broker_of_its_topic() -> None:
    a, b = two()
    assert (await admin(a, "AdminSendMessage", send(ORDERS))).status.code == v2.OK
    assert a.sent == []
    reply = await admin(a, "AdminSendMessage", send(THERE))
    assert (reply.status.code, bool(reply.message_id)) == (v2.OK, True)
    assert [broker for broker, _ in a.sent] == ["broker-b"]
    assert b.parts.store.end_offset > 0


async def test_an_operators_message_keeps_the_order_of_its_group() -> None:
    """Whichever broker is called."""
    a, b = two()
    for node in (a, b):
        node.placements["steps"] = {"broker-a": 2, "broker-b": 2}
    steps = v2.Resource(name="steps")
    for number in range(8):
        for node in (a, b):
            reply = await admin(node, "AdminSendMessage", send(steps, f"g{number}"))
            assert reply.status.code == v2.OK, reply.status
    assert len(a.sent) + len(b.sent) == 8, "of the two sends of a group one is forwarded"
    assert a.sent
    assert b.sent
    a.others.topics.pop("steps")
    a.others.topics.clear()
    a.others.away["broker-b"] = Address("10.0.0.2", 8_081)
    replies = [await admin(a, "AdminSendMessage", send(steps, f"g{number}")) for number in range(8)]
    assert {one.status.code for one in replies} == {v2.OK, v2.TOO_MANY_REQUESTS}


def query(topic: v2.Resource, **fields: Any) -> pb.ListMessageRequest:
    return pb.ListMessageRequest(topic=topic, **fields)


async def test_a_message_is_found_by_its_id_on_any_broker() -> None:
    a, b = two()
    for topic in (ORDERS, THERE):
        sent = await admin(b, "AdminSendMessage", send(topic, message_id=f"id-{topic.name}"))
        assert sent.status.code == v2.OK
        reply = await admin(a, "QueryMessage", query(topic, message_id=f"id-{topic.name}"))
        assert (reply.status.code, [one.body for one in reply.messages]) == (v2.OK, [b"x"]), reply.status
    reply = await admin(a, "QueryMessage", query(ORDERS, message_id="id-none"))
    assert reply.status.code == v2.MESSAGE_NOT_FOUND
    a.nodes.clear()
    reply = await admin(a, "QueryMessage", query(ORDERS, message_id="id-none"))
    assert reply.status.code == v2.PROXY_TIMEOUT, "the broker that is away may have it"


async def test_a_query_that_names_a_broker_goes_there() -> None:
    a, b = two()
    request = send(ORDERS)
    request.key = "k"
    assert (await admin(b, "AdminSendMessage", request)).status.code == v2.OK
    reply = await admin(a, "QueryMessage", query(ORDERS, message_key="k", broker_name="broker-b"))
    assert [one.body for one in reply.messages] == [b"x"]
    reply = await admin(a, "QueryMessage", query(ORDERS, message_key="k", broker_name="broker-a"))
    assert (reply.status.code, len(reply.messages)) == (v2.OK, 0)
    reply = await admin(a, "QueryMessage", query(ORDERS, message_key="k", broker_name="broker-z"))
    assert reply.status.code == v2.NOT_FOUND


async def test_the_status_of_a_topic_elsewhere_is_asked_there() -> None:
    a, _ = two()
    reply = await admin(a, "DescribeTopicStatus", pb.DescribeTopicStatusRequest(topic=THERE))
    assert (reply.status.code, reply.tags["message_type"]) == (v2.OK, "MIXED")


async def test_other_methods_of_admin_are_not_taken_from_brokers() -> None:
    a, _ = two()
    handlers = a.service.forwarded_handlers()
    assert "ChangeLogLevel" not in handlers
    assert "ResetGroupOffset" in handlers
