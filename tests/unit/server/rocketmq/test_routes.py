"""QueryRoute and QueryAssignment: the basis of all clients' decisions."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.engine import SMALL, send
from tests.support.memory_broker import TestBroker
from tests.support.rpc_context import RpcContext
from trovemq_broker.server.rocketmq.routes import Routes
from trovemq_broker.server.wire.statuses import code_of
from trovemq_proto.errors import TroveError
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2
from trovemq_store.topics.subscription_groups import SubscriptionGroup
from trovemq_store.topics.topics import MESSAGE_TYPES

CAME_BY = v2.Endpoints(scheme=v2.DOMAIN_NAME, addresses=[v2.Address(host="broker.example", port=9_081)])
CONTEXT: Any = RpcContext()


class Bench:
    def __init__(self) -> None:
        core = TestBroker(SMALL, auto_create_group=False)
        core.groups.create(SubscriptionGroup("workers"))
        core.groups.create(SubscriptionGroup("ordered", orderly=True))
        self.store = core.store
        self.routes = Routes(core, lambda: True)

    def route(self, topic: str = "orders", **fields: Any) -> service_pb2.QueryRouteResponse:
        request = service_pb2.QueryRouteRequest(topic=v2.Resource(name=topic), **fields)
        return asyncio.run(self.routes.query_route(request, CONTEXT))

    def assignment(
        self, group: str = "workers", topic: str = "orders"
    ) -> service_pb2.QueryAssignmentResponse:
        request = service_pb2.QueryAssignmentRequest(
            topic=v2.Resource(name=topic), group=v2.Resource(name=group), endpoints=CAME_BY
        )
        return asyncio.run(self.routes.query_assignment(request, CONTEXT))


def test_a_route_has_every_queue_in_a_stable_order() -> None:
    bench = Bench()
    reply = bench.route(endpoints=CAME_BY)
    assert reply.status.code == v2.OK
    assert [queue.id for queue in reply.message_queues] == [0, 1, 2, 3]
    for queue in reply.message_queues:
        assert queue.topic.name == "orders"
        assert queue.permission == v2.READ_WRITE
        assert (queue.broker.name, queue.broker.id) == ("broker-a", 0)
        assert queue.broker.endpoints == CAME_BY, "the client has just come by it"
        assert list(queue.accept_message_types) == [v2.NORMAL]
    assert bench.route(endpoints=CAME_BY) == reply


def test_without_endpoints_the_advertised_address_is_the_answer() -> None:
    (first, *_) = Bench().route().message_queues
    assert first.broker.endpoints == v2.Endpoints(
        scheme=v2.IPv4, addresses=[v2.Address(host="10.0.0.1", port=8_081)]
    )


def test_malformed_endpoints_are_refused() -> None:
    with pytest.raises(TroveError) as caught:
        Bench().route(endpoints=v2.Endpoints(scheme=v2.IPv4))
    assert code_of(caught.value) == v2.ILLEGAL_ACCESS_POINT


@pytest.mark.parametrize("message_type", MESSAGE_TYPES)
def test_the_topics_type_says_what_it_takes(message_type: str) -> None:
    bench = Bench()
    bench.store.topics.create("typed", 1, message_type)
    (queue,) = bench.route("typed").message_queues
    if message_type in ("MIXED", "UNSPECIFIED"):
        assert list(queue.accept_message_types) == [v2.NORMAL, v2.FIFO, v2.DELAY, v2.TRANSACTION]
    else:
        assert [v2.MessageType.Name(kind) for kind in queue.accept_message_types] == [message_type]


@pytest.mark.parametrize(
    ("perm", "permission"),
    [(0, v2.NONE), (2, v2.WRITE), (4, v2.READ), (6, v2.READ_WRITE), (7, v2.READ_WRITE)],
)
def test_the_topics_permission_is_the_queues(perm: int, permission: v2.Permission) -> None:
    bench = Bench()
    bench.store.topics.alter("orders", perm=perm)
    assert {queue.permission for queue in bench.route().message_queues} == {permission}


def test_a_namespace_is_echoed() -> None:
    bench = Bench()
    bench.store.topics.create("shop%orders", 2)
    topic = v2.Resource(name="orders", resource_namespace="shop")
    reply = asyncio.run(bench.routes.query_route(service_pb2.QueryRouteRequest(topic=topic), CONTEXT))
    assert [queue.topic for queue in reply.message_queues] == [topic, topic]


def test_a_topic_that_only_the_store_knows_can_be_read() -> None:
    bench = Bench()
    bench.store.topics.create("old", 3)
    send(bench.store, b"hello", topic="old", queue_id=2)
    del bench.store.topics._configs["old"]
    assert [queue.permission for queue in bench.route("old").message_queues] == [v2.READ] * 3


@pytest.mark.parametrize("topic", ["missing", "%DLQ%nobody"])
def test_an_unknown_topic(topic: str) -> None:
    with pytest.raises(TroveError, match="TOPIC_NOT_FOUND"):
        Bench().route(topic)
    with pytest.raises(TroveError, match="TOPIC_NOT_FOUND"):
        Bench().assignment(topic=topic)


def test_a_dead_letter_topic_can_be_subscribed() -> None:
    bench = Bench()
    bench.store.topics.ensure_internal("%DLQ%workers", 1)
    assert [queue.id for queue in bench.route("%DLQ%workers").message_queues] == [0]
    assert len(bench.assignment(topic="%DLQ%workers").assignments) == 1


@pytest.mark.parametrize("topic", ["", "rmq_sys_wheel_timer", "TBW102", "a b"])
def test_an_illegal_topic(topic: str) -> None:
    with pytest.raises(TroveError, match="TOPIC_ILLEGAL"):
        Bench().route(topic)


def test_a_normal_group_is_assigned_any_queue() -> None:
    (assignment,) = Bench().assignment().assignments
    queue = assignment.message_queue
    assert (queue.id, queue.topic.name, queue.permission) == (-1, "orders", v2.READ_WRITE)
    assert (queue.broker.name, queue.broker.endpoints) == ("broker-a", CAME_BY)


def test_an_ordered_group_is_assigned_each_queue() -> None:
    assignments = Bench().assignment("ordered").assignments
    assert [assignment.message_queue.id for assignment in assignments] == [0, 1, 2, 3]


def test_no_readable_queue_is_forbidden() -> None:
    bench = Bench()
    bench.store.topics.alter("orders", perm=2)
    with pytest.raises(TroveError, match="PERMISSION_MISSING"):
        bench.assignment()


@pytest.mark.parametrize(
    ("group", "symbol"), [("", "GROUP_ILLEGAL"), ("g" * 121, "GROUP_ILLEGAL"), ("unknown", "GROUP_NOT_FOUND")]
)
def test_groups_that_get_no_assignment(group: str, symbol: str) -> None:
    with pytest.raises(TroveError, match=symbol):
        Bench().assignment(group)
