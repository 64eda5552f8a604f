"""The placement of a topic passes from broker to nameserver, to the other brokers and to clients."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.nameserver.test_cluster_routes import Cluster, entry, port_of
from tests.unit.nameserver.test_registration import FakeTopics, Topic, local_broker
from trovemq_broker.cluster import view as views
from trovemq_broker.cluster.announced import Announced
from trovemq_broker.cluster.view import LocalBroker
from trovemq_daemon.addresses import Address
from trovemq_nameserver.broker import Broker
from trovemq_nameserver.heartbeats import read_large
from trovemq_nameserver.routes import RouteLimits, RouteTable, TopicChanges
from trovemq_nameserver.topics import (
    PLACES_AS_A_TOPIC,
    PLACES_MAX,
    TOPICS_A_STEP,
    Placement,
    TopicNames,
    TopicRoute,
    checked_topics,
    places_of,
)
from trovemq_nameserver.wire import changed_route_to_wire, route_to_wire, routes_to_wire, topics_from_wire
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.v1 import common_pb2, route_pb2
from trovemq_proto.varints import write_varint
from trovemq_store.engine.steps import finished

OWN = "broker-a"


def placed_broker(placements: dict[str, dict[str, int]]) -> tuple[LocalBroker, FakeTopics]:
    local, topics = local_broker(OWN)
    topics.topics["steps"] = Topic("steps", 4, "FIFO")
    return LocalBroker(local.description(), topics, lambda topic: placements.get(topic, {})), topics


def sent(announced: Announced) -> dict[str, dict[str, int]]:
    heartbeat, _ = announced.next()
    announced.answered(route_pb2.HeartbeatReply(changes=True))
    return {topic.topic: dict(topic.placement) for topic in heartbeat.topics}


def test_heartbeats_have_the_placements_that_changed() -> None:
    placements = {"steps": {OWN: 1}, "orders": {OWN: 4, "b": 4}}
    local, topics = placed_broker(placements)
    announced = Announced(local)
    assert sent(announced) == {"steps": {OWN: 1}, "orders": {}}, "of FIFO topics alone"
    assert sent(announced) == {}
    placements["steps"] = {"b": 2}
    local.placements_changed(["steps"])
    assert sent(announced) == {"steps": {"b": 2}}
    placements["orders"] = {"b": 4}
    topics.create("new")
    local.placements_changed(["orders"])
    assert sent(announced) == {"new": {}, "orders": {"b": 4}}, "it gets no new messages here"


@given(st.lists(st.sampled_from(["create", "place", "place", "look"])))
def test_a_reader_sees_every_change_since_it_last_looked(steps: list[str]) -> None:
    local, topics = placed_broker({})
    seen, expected = local.change_count, set[str]()
    for number, step in enumerate(steps):
        name = f"t{number}"
        if step == "create":
            topics.create(name)
            expected.add(name)
        elif step == "place":
            local.placements_changed([name])
            expected.add(name)
        else:
            found = local.changed_since(seen)
            assert found is not None
            assert set(found) == expected
            seen, expected = local.change_count, set()


def test_a_change_of_a_user_or_group_sent_a_heartbeat_at_once() -> None:
    local, _ = placed_broker({})
    version, calls = local.data_version, list[None]()
    local.add_change_listener(lambda: calls.append(None))
    local.placements_changed(iter(()))
    assert (local.data_version, calls) == (version, [])


def test_placements_that_changed_too_long_ago_are_all_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "PLACEMENTS_KEPT", 2)
    local, _ = placed_broker({})
    counts = [local.change_count]
    for name in ("a", "b", "c"):
        local.placements_changed([name])
        counts.append(local.change_count)
    assert [local.changed_since(count) for count in counts] == [None, ["b", "c"], ["c"], []]


def read(*topics: common_pb2.TopicRoute) -> dict[str, TopicRoute]:
    return finished(checked_topics(topics_from_wire(topics), TopicNames()))


def fifo(name: str, placement: dict[str, int]) -> common_pb2.TopicRoute:
    return common_pb2.TopicRoute(topic=name, queue_count=2, message_type="FIFO", placement=placement)


def test_a_nameserver_passes_placements_on_and_notices_their_changes() -> None:
    table = RouteTable(RouteLimits())
    broker = Broker("c", OWN, "10.0.0.1:8081")
    table.register(1, broker, read(fifo("steps", {"b": 2, OWN: 1})), 1, 0)
    assert dict(route_to_wire(table.routes()[0]).topics[0].placement) == {OWN: 1, "b": 2}
    version = table.version
    table.heartbeat(1, 0, topics=read(fifo("steps", {"b": 2})), data_version=2)
    assert table.version == version + 1
    assert table.may_concern({"steps"}, version)
    (changed,) = changed_route_to_wire(table.routes()[0], ["steps"]).topics
    assert dict(changed.placement) == {"b": 2}
    table.heartbeat(1, 0, topics=read(fifo("steps", {"b": 2})), data_version=3)
    assert not table.may_concern({"steps"}, version + 1)


@pytest.mark.parametrize(
    "placement",
    [
        {"": 1},
        {"n" * 128: 1},
        {"b\n": 1},
        {"b": -1},
        {"b": 70_000},
        {f"b{number}": 1 for number in range(PLACES_MAX + 1)},
    ],
)
def test_an_illegal_placement_is_refused(placement: dict[str, int]) -> None:
    with pytest.raises(TroveError) as refused:
        read(fifo("steps", placement))
    assert refused.value.spec is errors.REQUEST_ILLEGAL


def held_memory() -> int:
    """In bytes, without the memory that the interpreter keeps for later objects."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def test_topics_of_100_brokers_share_their_placement() -> None:
    """And one without a placement takes no more than before."""
    names = [f"topic-{number}" for number in range(1_000)]

    def routes_of(placement: dict[str, int]) -> list[dict[str, TopicRoute]]:
        known = TopicNames()
        known.add(names)
        fields: Callable[[], list[tuple[str, int, str, Placement]]] = lambda: list(  # noqa: E731
            topics_from_wire(fifo(name, placement) for name in names)
        )
        return [finished(checked_topics(fields(), known)) for _ in range(10)]

    placement = {f"broker-{number}": 8 for number in range(100)}
    for known in ({}, placement):
        routes_of(known)  # the objects that later routes share are made
    tracemalloc.start()
    try:
        before = held_memory()
        bare = routes_of({})
        middle = held_memory()
        placed = routes_of(placement)
        after = held_memory()
    finally:
        tracemalloc.stop()
    assert len({id(route) for topics in (*bare, *placed) for route in topics.values()}) == 2
    assert after - middle < 1.5 * (middle - before)


def test_other_brokers_know_where_a_broker_was_that_died() -> None:
    cluster = Cluster()
    placement = {"a": 2, "b": 1, "lost": 1, "never": 1}
    routes = [entry(name, {"steps": 2}) for name in ("a", "b")]
    for route in routes:
        route.topics[0].placement.update(placement)
    cluster.hears(*routes)
    assert {one.broker: one.placement for one in cluster.routes.holding("steps")} == dict.fromkeys(
        ("a", "b"), placement
    )
    lost = route_pb2.LostBroker(name="lost", cluster="C", address="10.0.0.9:1")
    other = route_pb2.LostBroker(name="never", cluster="D", address="10.0.0.9:2")
    reply = route_pb2.ClusterReply(brokers=[routes[0]], lost=[lost, other])
    cluster.routes.report("ns1", finished(cluster.readers["ns1"].read(reply.SerializeToString())))
    away = cluster.routes.without("steps", placement)
    assert [(one.broker, one.address, one.queue_count) for one in away] == [
        ("b", Address("10.0.0.1", port_of("b")), 0),
        ("lost", Address("10.0.0.9", 1), 0),
    ]
    cluster.hears(*routes, entry("lost", {}))
    assert [one.broker for one in cluster.routes.without("steps", placement)] == ["lost"]


def heartbeat(*topics: common_pb2.TopicRoute) -> bytes:
    return route_pb2.Heartbeat(topics=topics).SerializeToString()


def test_a_placement_of_a_million_brokers_was_parsed_before_it_was_refused() -> None:
    """Its entries are counted in the bytes; those of one key would be one place after all."""
    whole = common_pb2.TopicRoute(topic="steps", message_type="FIFO").SerializeToString()
    whole += b"\x22\x00" * 1_000_000
    data = b"\x12" + write_varint(len(whole)) + whole
    tracemalloc.start()
    try:
        with pytest.raises(TroveError, match="LIMIT_EXCEEDED"):
            finished(read_large(data, RouteLimits(), TopicNames()))
        assert tracemalloc.get_traced_memory()[1] < 4 * len(data)
    finally:
        tracemalloc.stop()


def test_topics_on_a_thousand_brokers_are_read_and_written_in_small_steps() -> None:
    placement = {f"broker-{number}": 8 for number in range(PLACES_MAX)}
    data = heartbeat(*(fifo(f"t{number}", placement) for number in range(TOPICS_A_STEP)))
    reading = read_large(data, RouteLimits(), TopicNames())
    steps = 0
    try:
        while True:
            next(reading)
            steps += 1
    except StopIteration as end:
        _, topics = end.value
    assert len(topics) == TOPICS_A_STEP
    assert steps > PLACES_MAX // PLACES_AS_A_TOPIC
    table = RouteTable(RouteLimits())
    table.register(1, Broker("c", OWN, "10.0.0.1:8081"), topics, 1, 0)
    assert sum(1 for _ in routes_to_wire(table.routes())) >= TOPICS_A_STEP // 3


def test_placements_of_all_brokers_together_had_no_limit() -> None:
    table = RouteTable(RouteLimits(topic_places_max=5))
    some, more = fifo("steps", {"a": 1, "b": 1}), fifo("more", {"a": 1, "b": 1})
    table.register(1, Broker("c", "a", "10.0.0.1:8081"), read(some), 1, 0)
    with pytest.raises(TroveError, match="topic_places_max = 5"):
        table.register(2, Broker("c", "b", "10.0.0.2:8081"), read(some, more), 1, 0)
    table.register(2, Broker("c", "b", "10.0.0.2:8081"), read(some), 1, 0)
    assert table.topic_places == 4
    with pytest.raises(TroveError, match="LIMIT_EXCEEDED"):
        table.heartbeat(2, 0, topics=TopicChanges(1, read(more), []), data_version=2)
    with pytest.raises(TroveError, match="LIMIT_EXCEEDED"):
        table.heartbeat(2, 0, topics=read(some, more), data_version=2)
    table.heartbeat(2, 0, topics=TopicChanges(1, read(more), ["steps"]), data_version=2)
    assert table.topic_places == 4
    table.heartbeat(2, 0, topics=read(fifo("more", {"b": 1})), data_version=3)
    assert table.topic_places == 3
    table.leave(1)
    assert table.topic_places == 1


def test_a_lost_broker_kept_its_placements_for_a_day() -> None:
    table = RouteTable(RouteLimits())
    topics = read(fifo("steps", {"a": 1, "b": 1}))
    table.register(1, Broker("c", OWN, "10.0.0.1:8081"), topics, 1, 0)
    table.lose(1, 0)
    (lost,) = table.lost(0)
    assert list(lost.topics) == ["steps"]
    kept: Any = lost.topics
    assert places_of(kept.mapping.values()) == 0
    assert table.topic_places == 0
