"""QueryRoute and QueryAssignment: the basis of all clients' decisions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.engine import SMALL, send
from tests.support.logs import logged
from tests.support.memory_broker import TestBroker
from tests.support.rpc_context import RpcContext
from trovemq_broker.server.rocketmq.routes import SEVERAL_BY_TLS, WARNED_MAX, Routes
from trovemq_broker.server.wire.resources import endpoints_of, message_types
from trovemq_broker.server.wire.routes import (
    AWAY_FIRST,
    BrokerQueues,
    Route,
    assignment_reply,
    route_reply,
)
from trovemq_broker.server.wire.statuses import code_of
from trovemq_daemon.addresses import Address
from trovemq_proto.errors import TroveError
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2
from trovemq_store.topics.subscription_groups import SubscriptionGroup
from trovemq_store.topics.topics import MESSAGE_TYPES, PERM_READ, PERM_WRITE, TopicConfig

CAME_BY = v2.Endpoints(scheme=v2.DOMAIN_NAME, addresses=[v2.Address(host="broker.example", port=9_081)])
CONTEXT: Any = RpcContext()


OWN_TLS = Address("10.0.0.1", 8_082)


class Other(NamedTuple):
    """The queues of a topic on another broker."""

    broker: str
    address: Address
    tls_address: Address | None = None
    draining: bool = False
    queue_count: int = 2
    message_type: str = "NORMAL"
    placement: Mapping[str, int] = {}


@dataclass
class Others:
    """The other brokers, whose topics the test sets."""

    topics: dict[str, list[Other]] = field(default_factory=dict)
    away: dict[str, Address] = field(default_factory=dict)

    def holding(self, topic: str) -> list[Other]:
        return self.topics.get(topic, [])

    def without(self, topic: str, placement: Mapping[str, int]) -> list[Other]:
        missing = sorted(placement.keys() & self.away.keys())
        return [Other(name, self.away[name], None, False, 0, "FIFO", placement) for name in missing]

    def names(self) -> list[str]:
        return sorted({one.broker for others in self.topics.values() for one in others})

    def knows(self, broker: str) -> bool:
        return broker in self.names() or broker in self.away

    def addresses(self) -> dict[str, str]:
        return {}

    def remembered(self) -> list[str]:
        return [*self.names(), *self.away]

    def lost(self) -> list[str]:
        return []

    def add_change_listener(self, listener: Callable[[], None]) -> None:
        raise AssertionError("routes are made at each request")

    def draining(self) -> list[str]:
        return sorted({one.broker for others in self.topics.values() for one in others if one.draining})

    def advertised(self, address: Address, *, by_tls: bool) -> bool:
        return self.advertises(address, by_tls=by_tls) or address in self.away.values()

    def advertises(self, address: Address, *, by_tls: bool) -> bool:
        everyone = [one for others in self.topics.values() for one in others]
        return address in [one.tls_address if by_tls else one.address for one in everyone]


class Bench:
    def __init__(self) -> None:
        core = TestBroker(SMALL, auto_create_group=False)
        core.groups.create(SubscriptionGroup("workers"))
        core.groups.create(SubscriptionGroup("ordered", orderly=True))
        self.core = core
        self.store = core.store
        self.others = Others()
        self.offers_writes = True
        self.placements: dict[str, dict[str, int]] = {}
        self.nodes: list[Address] = []
        self.tls_nodes: list[Address] = []
        self.routes = Routes(
            core,
            lambda: self.offers_writes,
            self.others,
            OWN_TLS,
            lambda topic: self.placements.get(topic, {}),
            nodes=lambda by_tls: self.tls_nodes if by_tls else self.nodes,
        )

    def route(
        self, topic: str = "orders", *, context: Any = CONTEXT, **fields: Any
    ) -> service_pb2.QueryRouteResponse:
        request = service_pb2.QueryRouteRequest(topic=v2.Resource(name=topic), **fields)
        return asyncio.run(self.routes.query_route(request, context))

    def assignment(
        self, group: str = "workers", topic: str = "orders", endpoints: v2.Endpoints = CAME_BY
    ) -> service_pb2.QueryAssignmentResponse:
        request = service_pb2.QueryAssignmentRequest(
            topic=v2.Resource(name=topic), group=v2.Resource(name=group), endpoints=endpoints
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


# --- several brokers ------------------------------------------------------------------------------------
B = Other("broker-b", Address("10.0.0.2", 8_081), Address("10.0.0.2", 8_082))
C = Other("broker-0", Address("node-c.example", 8_081))


def places(queues: Any) -> list[tuple[str, int]]:
    return [(queue.broker.name, queue.id) for queue in queues]


def addresses(queues: Any) -> dict[str, str]:
    return {
        queue.broker.name: f"{queue.broker.endpoints.addresses[0].host}:"
        f"{queue.broker.endpoints.addresses[0].port}"
        for queue in queues
    }


def dialled(*texts: str) -> v2.Endpoints:
    pairs = [text.rsplit(":", 1) for text in texts]
    return v2.Endpoints(
        scheme=v2.DOMAIN_NAME if len(texts) == 1 else v2.IPv4,
        addresses=[v2.Address(host=host, port=int(port)) for host, port in pairs],
    )


def test_a_route_has_the_queues_of_all_brokers_in_a_stable_order() -> None:
    bench = Bench()
    bench.others.topics["orders"] = [C, B]
    queues = bench.route().message_queues
    assert places(queues) == [
        *(("broker-0", 0), ("broker-a", 0), ("broker-b", 0)),
        *(("broker-0", 1), ("broker-a", 1), ("broker-b", 1)),
        *(("broker-a", 2), ("broker-a", 3)),
    ]
    assert {queue.permission for queue in queues} == {v2.READ_WRITE}
    assert {queue.broker.id for queue in queues} == {0}
    assert addresses(queues) == {
        "broker-0": "node-c.example:8081",
        "broker-a": "10.0.0.1:8081",
        "broker-b": "10.0.0.2:8081",
    }


@pytest.mark.parametrize("offers_writes", [True, False])
def test_a_draining_brokers_queues_are_for_reading(offers_writes: bool) -> None:
    bench = Bench()
    bench.offers_writes = offers_writes
    bench.others.topics["orders"] = [B._replace(draining=offers_writes)]
    shown = {queue.broker.name: queue.permission for queue in bench.route().message_queues}
    drained, serving = ("broker-b", "broker-a") if offers_writes else ("broker-a", "broker-b")
    assert shown == {drained: v2.READ, serving: v2.READ_WRITE}
    assigned = bench.assignment(endpoints=v2.Endpoints()).assignments
    assert {one.message_queue.broker.name for one in assigned} == {drained, serving}


def test_a_topic_that_only_another_broker_has_is_found() -> None:
    bench = Bench()
    bench.others.topics["elsewhere"] = [B._replace(message_type="DELAY")]
    (first, second) = bench.route("elsewhere").message_queues
    assert (first.broker.name, second.broker.name) == ("broker-b", "broker-b")
    assert (list(first.accept_message_types), first.permission) == ([v2.DELAY], v2.READ_WRITE)
    (assigned,) = bench.assignment(topic="elsewhere", endpoints=v2.Endpoints()).assignments
    assert (assigned.message_queue.broker.name, assigned.message_queue.id) == ("broker-b", -1)


@pytest.mark.parametrize(("message_type", "ids"), [("FIFO", [0, 1]), ("NORMAL", [-1])])
def test_a_group_of_a_topic_elsewhere_is_not_created_here(message_type: str, ids: list[int]) -> None:
    bench = Bench()
    bench.others.topics["elsewhere"] = [B._replace(message_type=message_type)]
    assigned = bench.assignment("new", "elsewhere", v2.Endpoints()).assignments
    assert [one.message_queue.id for one in assigned] == ids
    assert bench.core.groups.get("new") is None


def test_groups_are_assigned_the_queues_of_all_brokers() -> None:
    bench = Bench()
    bench.others.topics["orders"] = [B]
    shown = [one.message_queue for one in bench.assignment(endpoints=v2.Endpoints()).assignments]
    assert places(shown) == [("broker-a", -1), ("broker-b", -1)]
    shown = [one.message_queue for one in bench.assignment("ordered", endpoints=v2.Endpoints()).assignments]
    assert places(shown) == [(f"broker-{name}", number) for number in (0, 1) for name in "ab"] + [
        ("broker-a", 2),
        ("broker-a", 3),
    ]


def test_a_topic_that_cannot_be_read_here_is_read_nowhere() -> None:
    bench = Bench()
    bench.store.topics.alter("orders", perm=2)
    bench.others.topics["orders"] = [B]
    assert {queue.permission for queue in bench.route().message_queues} == {v2.WRITE}
    with pytest.raises(TroveError, match="PERMISSION_MISSING"):
        bench.assignment(endpoints=v2.Endpoints())


def test_a_client_that_came_by_tls_gets_the_addresses_for_tls() -> None:
    bench, context = Bench(), RpcContext()
    context.by_tls = True
    bench.others.topics["orders"] = [B, C]
    with logged() as log:
        for _ in range(2):
            queues = bench.route(context=context, endpoints=dialled("10.0.0.1:8082")).message_queues
            assert addresses(queues) == {"broker-a": "10.0.0.1:8082", "broker-b": "10.0.0.2:8082"}
    assert log.getvalue().count("route.no_tls_address") == 1, "broker-0 cannot be reached by TLS"
    queues = bench.route(context=context, endpoints=dialled("10.0.0.1:8081")).message_queues
    assert addresses(queues) == {"broker-a": "10.0.0.1:8081"}, "not an address for TLS"
    bench.others.topics["elsewhere"] = [C]
    with pytest.raises(TroveError, match="without TLS only"):
        bench.route("elsewhere", context=context)


@pytest.mark.parametrize(
    "texts", [["10.0.0.1:8081"], ["10.0.0.2:8081"], ["10.9.9.9:1", "10.0.0.2:8081"], ["10.0.0.1:8081", "x:1"]]
)
def test_any_advertised_address_shows_the_whole_cluster(texts: list[str]) -> None:
    bench = Bench()
    bench.others.topics["orders"] = [B]
    shown = addresses(bench.route(endpoints=dialled(*texts)).message_queues)
    assert shown == {"broker-a": "10.0.0.1:8081", "broker-b": "10.0.0.2:8081"}


def test_a_forwarded_port_shows_the_broker_alone_with_one_log_event() -> None:
    bench = Bench()
    bench.others.topics.update(orders=[B], elsewhere=[B])
    with logged() as log:
        for _ in range(2):
            queues = bench.route(endpoints=CAME_BY).message_queues
            assert places(queues) == [("broker-a", number) for number in range(4)]
            assert {tuple(map(str, queue.broker.endpoints.addresses)) for queue in queues} == {
                tuple(map(str, CAME_BY.addresses))
            }
    assert log.getvalue().count("route.address_not_advertised") == 1
    (assigned,) = bench.assignment().assignments
    assert assigned.message_queue.broker.endpoints == CAME_BY
    with pytest.raises(TroveError, match=r"on broker-b, and broker\.example:9081 is not advertised"):
        bench.route("elsewhere", endpoints=CAME_BY)


def test_without_other_brokers_a_forwarded_port_logs_nothing() -> None:
    with logged() as log:
        Bench().route(endpoints=CAME_BY)
    assert log.getvalue() == ""


def test_the_addresses_of_a_client_are_remembered_up_to_a_limit() -> None:
    bench = Bench()
    bench.others.topics["orders"] = [B]
    with logged() as log:
        for number in range(WARNED_MAX + 10):
            bench.route(endpoints=dialled(f"host-{number}:1"))
    assert log.getvalue().count("route.address_not_advertised") == WARNED_MAX


def test_route_data_of_several_brokers() -> None:
    bench = Bench()
    bench.others.topics["orders"] = [B._replace(draining=True)]
    data: Any = bench.routes.data_of("orders")
    assert [one["brokerAddrs"] for one in data["brokerDatas"]] == [
        {"0": "10.0.0.1:8081"},
        {"0": "10.0.0.2:8081"},
    ]
    assert [(one["perm"], one["readQueueNums"]) for one in data["queueDatas"]] == [(6, 4), (4, 2)]


_PLACES = st.lists(
    st.tuples(st.sampled_from([-1, 0, 1, 127, 128, 1_023]), st.sampled_from([0, PERM_READ, PERM_WRITE, 6])),
    max_size=4,
)
_BROKERS = st.dictionaries(
    st.text(min_size=1, max_size=200),
    st.tuples(st.sampled_from([None, OWN_TLS, Address("::1", 1)]), st.sampled_from(MESSAGE_TYPES), _PLACES),
    max_size=4,
)


@given(_BROKERS, st.sampled_from(["", "shop"]))
def test_a_route_of_many_queues_stopped_the_broker_for_seconds(brokers: Any, namespace: str) -> None:
    """So it is put together from bytes, and is the same as one of messages."""
    name = v2.Resource(name="orders", resource_namespace=namespace)
    route = Route(
        [
            BrokerQueues(broker, address, TopicConfig("orders", message_type=kind), queues)
            for broker, (address, kind, queues) in sorted(brokers.items())
        ]
    )
    expected = [
        v2.MessageQueue(
            topic=name,
            id=queue_id,
            permission={0: v2.NONE, PERM_READ: v2.READ, PERM_WRITE: v2.WRITE, 6: v2.READ_WRITE}[bits],
            broker=v2.Broker(
                name=one.broker, endpoints=CAME_BY if one.address is None else endpoints_of(one.address)
            ),
            accept_message_types=message_types(one.topic),
        )
        for queue_id, place, bits in sorted(
            (queue_id, place, bits)
            for place, one in enumerate(route.brokers)
            for queue_id, bits in one.queues
        )
        for one in [route.brokers[place]]
    ]
    query = service_pb2.QueryRouteRequest(topic=name, endpoints=CAME_BY)
    assert list(route_reply(query, route).message_queues) == expected
    asked = service_pb2.QueryAssignmentRequest(topic=name, endpoints=CAME_BY)
    assert [one.message_queue for one in assignment_reply(asked, route).assignments] == expected


# --- FIFO topics with a placement -------------------------------------------------------------------------
PLACED = {"a": 2, "broker-a": 1, "z": 2}


def fifo_bench() -> Bench:
    bench = Bench()
    bench.placements["steps"] = PLACED
    bench.others.topics["steps"] = [
        Other(name, Address("10.0.0.2", port), None, False, 2, "FIFO", PLACED)
        for name, port in (("a", 1), ("z", 2))
    ]
    return bench


def permissions(reply: service_pb2.QueryRouteResponse) -> list[tuple[str, int, int]]:
    return [(one.broker.name, one.id, one.permission) for one in reply.message_queues]


def list_of(reply: service_pb2.QueryRouteResponse) -> list[tuple[str, int]]:
    """The queues in their order: clients map message groups to positions in the list."""
    return [(one.broker.name, one.id % AWAY_FIRST) for one in reply.message_queues]


@pytest.mark.parametrize("known", [True, False])
def test_message_groups_moved_when_a_broker_died(known: bool) -> None:
    """`known`: this broker knows where the other one was."""
    bench = fifo_bench()
    before = bench.route("steps")
    gone = bench.others.topics["steps"].pop()
    if known:
        bench.others.away["z"] = gone.address
    after = bench.route("steps")
    assert list_of(after) == list_of(before)
    away = [one for one in after.message_queues if one.broker.name == "z"]
    assert [(one.id, one.permission) for one in away] == [(AWAY_FIRST, v2.WRITE), (AWAY_FIRST + 1, v2.WRITE)]
    endpoints = endpoints_of(bench.core.advertised)
    reply = bench.assignment(topic="steps", endpoints=endpoints)
    assigned = {one.message_queue.broker.name for one in reply.assignments}
    assert assigned == {"a", "broker-a"}, "there is nothing to receive from a broker that is away"


def of_language(language: str) -> Any:
    return RpcContext(x_mq_language=language)


@pytest.mark.parametrize("language", ["", "JAVA", "GO", "CPP", "RUST", "HTTP"])
def test_no_new_client_started_while_a_broker_of_a_fifo_topic_was_away(language: str) -> None:
    """Clients in Java and Go start when every address of a route has answered."""
    bench = fifo_bench()
    bench.others.away["z"] = bench.others.topics["steps"].pop().address
    reply = bench.route("steps", context=of_language(language))
    addresses = {one.broker.endpoints.addresses[0].port for one in reply.message_queues}
    assert addresses == {1, bench.core.advertised.port}
    ids = [one.id for one in reply.message_queues if one.broker.name == "z"]
    assert ids == [0, 1] if language == "HTTP" else [AWAY_FIRST, AWAY_FIRST + 1]


@pytest.mark.parametrize("language", ["JAVA", "PYTHON", "GO", "HTTP"])
def test_a_client_for_nodejs_called_no_broker_of_a_replica_group(language: str) -> None:
    """It takes several addresses of a broker for one name. The node that it called forwards to the leader."""
    bench = Bench()
    bench.nodes = [Address("10.0.0.2", 8_081), Address("10.0.0.3", 8_081)]
    leader = bench.core.advertised
    for came_by in (leader, bench.nodes[1]):
        reply = bench.route(endpoints=endpoints_of(came_by), context=of_language(language))
        (at,) = {str(one.broker.endpoints): one.broker.endpoints for one in reply.message_queues}.values()
        expected = [came_by] if language == "HTTP" else [leader, *bench.nodes]
        assert [(one.host, one.port) for one in at.addresses] == [(one.host, one.port) for one in expected]


@pytest.mark.parametrize("language", ["JAVA", "GO", "PYTHON", "HTTP"])
def test_a_client_by_tls_knew_the_leader_of_a_replica_group_alone(language: str) -> None:
    """After a kill it asked for routes, up to 30 s later. Python's takes no certificate for several hosts."""
    bench = Bench()
    bench.tls_nodes = [Address("10.0.0.2", 8_082)]
    context = RpcContext(x_mq_language=language)
    context.by_tls = True
    for came_by in (OWN_TLS, bench.tls_nodes[0]):
        reply = bench.route(endpoints=endpoints_of(came_by), context=context)
        (at,) = {str(one.broker.endpoints): one.broker.endpoints for one in reply.message_queues}.values()
        expected = [OWN_TLS, *bench.tls_nodes] if language in SEVERAL_BY_TLS else [came_by]
        assert [(one.host, one.port) for one in at.addresses] == [(one.host, one.port) for one in expected]


def test_python_clients_that_name_no_queue_moved_message_groups() -> None:
    """They start without an address that does not answer."""
    bench = fifo_bench()
    before = bench.route("steps")
    gone = bench.others.topics["steps"].pop()
    bench.others.away["z"] = gone.address
    reply = bench.route("steps", context=of_language("PYTHON"))
    assert [place[:2] for place in permissions(reply)] == [place[:2] for place in permissions(before)]
    away = [one for one in reply.message_queues if one.broker.name == "z"]
    assert away[0].broker.endpoints == endpoints_of(gone.address)


def test_message_groups_moved_when_a_broker_was_drained() -> None:
    bench = fifo_bench()
    before = bench.route("steps")
    bench.offers_writes = False
    bench.others.topics["steps"] = [one._replace(draining=True) for one in bench.others.topics["steps"]]
    assert bench.route("steps") == before
    bench.placements.clear()
    assert bench.route("steps") == before, "as the other brokers have it"


def test_a_broker_without_a_place_is_only_read() -> None:
    bench = fifo_bench()
    bench.placements["steps"] = {"z": 2}
    found = {(name, permission) for name, _, permission in permissions(bench.route("steps"))}
    assert found == {("a", v2.READ), ("broker-a", v2.READ), ("z", v2.READ_WRITE)}


@pytest.mark.parametrize("away", [True, False])
def test_a_normal_topic_left_its_broker_and_still_got_messages(away: bool) -> None:
    bench = Bench()
    bench.others.topics["orders"] = [
        Other("a", Address("10.0.0.2", 1), placement={"broker-a": 4}),
        Other("b", Address("10.0.0.2", 2)),
    ]
    bench.others.away |= {"c": Address("10.0.0.2", 3)} if away else {}
    written = {name for name, _, permission in permissions(bench.route()) if permission == v2.READ_WRITE}
    assert written == {"b", "broker-a"}


def test_the_brokers_of_a_topic_were_read_only_where_it_has_no_place() -> None:
    bench = Bench()
    bench.store.topics.alter("orders", perm=PERM_READ)
    bench.placements["orders"] = {"b": 2}
    bench.others.topics["orders"] = [Other("b", Address("10.0.0.2", 2))]
    found = {(name, permission) for name, _, permission in permissions(bench.route())}
    assert found == {("b", v2.READ_WRITE), ("broker-a", v2.READ)}
