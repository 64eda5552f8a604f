"""The routes of several nameservers, made into one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from trovemq._net.routes import RouteTable
from trovemq._net.views import KEPT_SECONDS, Views
from trovemq._wire.convert import changed_state, cluster_state
from trovemq.models.cluster import BrokerInfo, BrokerRoute, ClusterState, ServerInfo, TopicRoute
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.v1 import common_pb2, route_pb2

NAMESERVER = ServerInfo("nameserver", "1", "ns")


def broker(name: str, version: int = 1, address: str = "10.0.0.1:1", topics: int = 1) -> BrokerRoute:
    info = BrokerInfo("c", name, address, data_version=version)
    return BrokerRoute(info, tuple(TopicRoute(f"t{number}", 4) for number in range(topics)))


def views(*states: list[BrokerRoute]) -> Views:
    """Routes from ns0, ns1, …, one after another."""
    made = Views()
    for number, state in enumerate(states):
        made.update(f"ns{number}", ClusterState(tuple(state)), NAMESERVER)
    return made


def names(made: Views, now: float = 0.0) -> list[str]:
    return [route.broker.name for route in made.whole(now).brokers]


def test_a_broker_that_one_nameserver_knows_is_in_the_routes() -> None:
    made = views([broker("b1")], [broker("b2")], [])
    assert names(made) == ["b1", "b2"]
    made.update("ns0", ClusterState(()))
    assert names(made) == ["b2"]


def test_a_view_that_is_behind_takes_no_topic_away() -> None:
    for order in (0, 1):
        behind, ahead = [broker("b1", 3, topics=1)], [broker("b1", 4, topics=2)]
        made = views(*([behind, ahead], [ahead, behind])[order])
        assert len(made.whole(0.0).brokers[0].topics) == 2
        made.update("ns0", ClusterState(tuple([behind, ahead][order])))
        assert len(made.whole(0.0).brokers[0].topics) == 2


def test_the_address_that_was_reported_last_counts_and_stays() -> None:
    made = views([broker("b1", address="10.0.0.1:1")], [broker("b1", address="10.0.0.1:2")])
    for _ in range(3):
        made.update("ns0", ClusterState((broker("b1", address="10.0.0.1:1"),)))  # nothing new
        assert made.whole(0.0).brokers[0].broker.address == "10.0.0.1:2"
    made.update("ns0", ClusterState((broker("b1", address="10.0.0.1:3"),)))
    assert made.whole(0.0).brokers[0].broker.address == "10.0.0.1:3"


def test_two_brokers_of_one_name_hid_one_another() -> None:
    one, made = ServerInfo("broker", "1", "b1"), Views()
    first, second = (ClusterState((broker("b1", address=f"10.0.0.1:{port}"),)) for port in (1, 2))
    made.check_name("h:1", first, one)
    made.update("h:1", first, one)
    made.check_name("h:1", first, one)
    made.check_name("alias:1", first, one)  # another name of its machine
    made.check_name("ns", second, NAMESERVER)
    made.check_name("h:2", second, ServerInfo("broker", "1", "b2"))
    with pytest.raises(TroveError, match="h:2 and h:1 are two brokers of the name b1") as taken:
        made.check_name("h:2", second, one)
    assert taken.value.spec is errors.BROKER_NAME_TAKEN
    made.broken("h:1", 0.0)
    made.check_name("h:2", second, one)


def test_what_a_nameserver_said_counts_for_a_while_after_it_is_gone() -> None:
    made = views([broker("b1")], [broker("b2")])
    assert made.broken("ns0", 100.0)
    assert not made.broken("ns0", 200.0), "it was not heard of before either"
    assert names(made, 100.0 + KEPT_SECONDS - 0.1) == ["b1", "b2"]
    assert names(made, 100.0 + KEPT_SECONDS) == ["b2"]
    made.broken("ns1", 500.0)
    assert names(made, 1_000.0) == ["b1", "b2"], "nobody can be reached: the last known routes"
    made.update("ns0", ClusterState(()))
    assert names(made, 1_000.0) == []


def test_a_broker_that_was_given_by_its_address() -> None:
    made = Views()
    made.update("127.0.0.1:8081", ClusterState((broker("b1"),)), ServerInfo("broker", "1", "b1"))
    assert made.address_of(broker("b1").broker) == "127.0.0.1:8081"
    assert made.address_of(broker("b2").broker) is None
    assert made.is_known("127.0.0.1:8081")


def test_nodes_that_do_not_lead_say_why_no_broker_is_in_the_routes() -> None:
    """The client said that no broker is in the routes."""
    refusal = common_pb2.Error(symbol="NOT_LEADER", message="node b follows", fields={"leader": "a"})
    state = cluster_state(route_pb2.ClusterReply(refusal=refusal))
    unsure = ClusterState((), refusal=TroveError(errors.NOT_LEADER, "no leader is known"))
    made = Views()
    made.update("c:1", unsure, ServerInfo("broker", "1", "g"))
    made.update("b:1", state, ServerInfo("broker", "1", "g"))
    table = RouteTable()
    table.apply(made.whole(0.0))
    for ask in (table.brokers, lambda: table.broker("g"), lambda: table.brokers_of("orders")):
        with pytest.raises(TroveError, match="node b follows") as refused:
            ask()
        assert refused.value.fields["leader"] == "a"
    made.update("a:1", ClusterState((broker("g"),)), ServerInfo("broker", "1", "g"))
    table.apply(made.whole(0.0))
    assert [one.name for one in table.brokers()] == ["g"]
    with pytest.raises(TroveError, match="BROKER_NOT_FOUND"):
        table.broker("other")


def test_changes_alone_make_the_state_that_a_whole_reply_has() -> None:
    def reply(topics: dict[str, int], removed: Sequence[str] = (), **more: Any) -> route_pb2.ClusterReply:
        route = {
            "broker": {"name": "b1", "data_version": more.get("version", 1)},
            "topics": [{"topic": name, "queue_count": count} for name, count in topics.items()],
            "removed_topics": removed,
        }
        return route_pb2.ClusterReply(brokers=[route], **more)

    state = cluster_state(reply({"a": 1, "b": 2}))
    state = changed_state(state, reply({"b": 3, "c": 4}, ["a", "never"], version=2, changes=True))
    assert state == cluster_state(reply({"b": 3, "c": 4}, version=2))
    assert changed_state(ClusterState(()), reply({"a": 1})) == cluster_state(reply({"a": 1}))


def test_a_topic_is_found_after_each_change_of_its_broker() -> None:
    routes = RouteTable()
    for topics in (("a",), ("a", "b"), ("b",)):
        routes.apply(
            ClusterState((replace(broker("b1"), topics=tuple(TopicRoute(one, 1) for one in topics)),))
        )
        assert [name for name in ("a", "b") if routes.has_topic(name, "b1")] == list(topics)
    routes.apply(ClusterState(()))
    assert not routes.has_topic("b", "b1")


def test_brokers_that_the_given_ones_do_not_lead_to_are_counted() -> None:
    made = Views()
    assert made.unseen() == 0
    made.update("h:1", ClusterState((broker("b1"),)), ServerInfo("broker", "1", "b1", other_brokers=2))
    assert made.unseen() == 2
    made.update("h:2", ClusterState((broker("b2"),)), ServerInfo("broker", "1", "b2", other_brokers=2))
    assert made.unseen() == 1
    made.broken("h:2", 0.0)
    assert made.unseen() == 2
    made.update("h:1", ClusterState((broker("b1"),), other_brokers=1))
    assert made.unseen() == 1, "as it knows them now, not when it was connected"
    made.update("ns:1", ClusterState((broker("b1"), broker("b3"))), NAMESERVER)
    assert made.unseen() == 0, "it leads to every live broker"
