"""The table of the other brokers' routes, from the answers of nameservers."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from trovemq_broker.cluster.cluster_reply import ReplyReader, Routes
from trovemq_broker.cluster.cluster_routes import KEPT_S, RETURN_S, ClusterRoutes, OtherQueues
from trovemq_daemon.addresses import Address
from trovemq_daemon.turns import Turns
from trovemq_nameserver.broker import Broker
from trovemq_nameserver.replies import ClusterReplies
from trovemq_nameserver.routes import RouteLimits, RouteTable
from trovemq_nameserver.topics import TopicRoute
from trovemq_proto.v1 import common_pb2, route_pb2
from trovemq_store.topics.topics import QUEUE_COUNT_MAX

Topics = Mapping[str, int]


def port_of(broker: str) -> int:
    return 8_000 + ord(broker[-1])


def entry(
    name: str,
    topics: Topics,
    *,
    cluster: str = "C",
    version: int = 1,
    address: str = "",
    tls_address: str = "",
    draining: bool = False,
    removed: Iterable[str] = (),
) -> common_pb2.BrokerRoute:
    return common_pb2.BrokerRoute(
        broker=common_pb2.BrokerInfo(
            cluster=cluster,
            name=name,
            address=address or f"10.0.0.1:{port_of(name)}",
            tls_address=tls_address,
            data_version=version,
            draining=draining,
        ),
        topics=[
            common_pb2.TopicRoute(topic=topic, queue_count=count, message_type="FIFO")
            for topic, count in topics.items()
        ],
        removed_topics=removed,
    )


def answer(
    *brokers: common_pb2.BrokerRoute,
    changes: bool = False,
    lost: Iterable[str] = (),
    removed: Iterable[str] = (),
) -> bytes:
    reply = route_pb2.ClusterReply(
        brokers=brokers,
        version=7,
        changes=changes,
        lost=[
            route_pb2.LostBroker(name=name, cluster="C", address=f"10.0.0.1:{port_of(name)}") for name in lost
        ],
        removed_brokers=removed,
    )
    return reply.SerializeToString()


def read(reader: ReplyReader, data: bytes) -> Routes:
    steps = reader.read(data)
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: Routes = stop.value
            return result


def shown(routes: Routes) -> dict[str, dict[str, int]]:
    return {
        name: {topic: queues.queue_count for topic, queues in one.topics.items()}
        for name, one in routes.brokers.items()
    }


class Cluster:
    """A table with readers of two nameservers, and a clock that the test moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.routes = ClusterRoutes(lambda: self.now)
        self.readers: dict[str, ReplyReader] = {}

    def hears(self, *brokers: common_pb2.BrokerRoute, at: str = "ns1", **fields: Any) -> None:
        reader = self.readers.setdefault(at, ReplyReader("C", "own"))
        self.routes.report(at, read(reader, answer(*brokers, **fields)))

    def loses(self, at: str = "ns1") -> None:
        self.readers.pop(at, None)
        self.routes.broken(at)

    @property
    def names(self) -> list[str]:
        return [one.name for one in self.routes.brokers]


def test_the_routes_have_the_other_brokers_of_the_cluster() -> None:
    cluster = Cluster()
    cluster.hears(
        entry("b", {"orders": 2}, tls_address="10.0.0.1:9099", draining=True),
        entry("own", {"orders": 4}),
        entry("x", {"orders": 4}, cluster="another"),
        entry("a", {"orders": 8, "bills": 1}),
    )
    assert cluster.routes.holding("orders") == [
        OtherQueues("a", Address("10.0.0.1", port_of("a")), None, False, 8, "FIFO"),
        OtherQueues("b", Address("10.0.0.1", port_of("b")), Address("10.0.0.1", 9_099), True, 2, "FIFO"),
    ]
    assert [one.broker for one in cluster.routes.holding("bills")] == ["a"]
    assert cluster.routes.holding("missing") == []


def test_listeners_hear_of_brokers_that_join_and_leave_alone() -> None:
    cluster, heard = Cluster(), list[list[str]]()
    cluster.routes.add_change_listener(lambda: heard.append(cluster.names))
    cluster.hears(entry("a", {"orders": 8}))
    cluster.hears(entry("a", {"orders": 9}, version=2))
    cluster.hears(entry("a", {"orders": 9}, version=2), entry("b", {}))
    cluster.hears(entry("b", {}))
    assert heard == [["a"], ["a", "b"], ["b"]]
    cluster.hears(entry("b", {}), lost=["a"])
    cluster.hears(entry("b", {}), lost=["a", "b"])
    assert (len(heard), cluster.routes.lost()) == (4, {"a"}), "b is live at another nameserver, perhaps"
    cluster.hears(entry("b", {}))
    assert (len(heard), cluster.routes.lost()) == (5, frozenset())


def test_changes_add_and_remove_topics_and_lost_brokers_leave() -> None:
    cluster = Cluster()
    cluster.hears(entry("a", {"orders": 8, "bills": 1}), entry("b", {"orders": 2}))
    cluster.hears(entry("a", {"mail": 3, "orders": 9}, version=2, removed=["bills"]), changes=True)
    assert [one.queue_count for one in cluster.routes.holding("orders")] == [9, 2]
    assert cluster.routes.holding("bills") == []
    assert len(cluster.routes.holding("mail")) == 1
    cluster.hears(changes=True, lost=["b"])
    assert cluster.names == ["a"]


def test_the_brokers_that_are_away_are_remembered_behind_the_live_ones() -> None:
    cluster = Cluster()
    cluster.hears(entry("a", {"orders": 8}), entry("b", {"orders": 2}))
    cluster.hears(changes=True, lost=["a"])
    routes = cluster.routes
    assert (routes.names(), routes.remembered()) == (["b"], ["b", "a"])
    assert [routes.knows(name) for name in ("a", "b", "c")] == [True, True, False]


def test_a_broker_that_left_with_changes_alone_stayed_in_the_routes() -> None:
    cluster = Cluster()
    cluster.hears(entry("a", {"orders": 8}), entry("b", {"orders": 2}))
    cluster.hears(changes=True, removed=["b"])
    assert cluster.names == ["a"]


def test_a_broker_that_changes_send_whole_kept_its_old_topics() -> None:
    cluster = Cluster()
    cluster.hears(entry("a", {"orders": 8}))
    cluster.hears(entry("a", {"mail": 1}), changes=True, removed=["a"])
    assert cluster.routes.holding("orders") == []
    assert len(cluster.routes.holding("mail")) == 1


def test_a_broker_that_came_from_another_cluster_lacked_its_old_topics() -> None:
    table, turns = RouteTable(RouteLimits()), Turns()
    replies = ClusterReplies(table, lambda: 0, turns)
    topics = {"orders": TopicRoute(8), "bills": TopicRoute(1)}
    reader = ReplyReader("C", "own")
    table.register(1, Broker("another", "a", "10.0.0.1:8081"), topics, 1, 0)

    def changes(since: int) -> bytes:
        found = asyncio.run(replies.since(since))
        assert found is not None
        return found[1]

    assert not read(reader, asyncio.run(replies.of_everything())[1]).brokers
    table.stream_broken(1, 0)
    table.register(2, Broker("C", "a", "10.0.0.1:8081"), topics, 2, 0)
    assert shown(read(reader, changes(1))) == {"a": {"orders": 8, "bills": 1}}
    table.heartbeat(2, 0, broker=Broker("another", "a", "10.0.0.1:8081"), topics=topics, data_version=3)
    assert not read(reader, changes(2)).brokers


def test_a_broker_that_left_a_nameserver_leaves_the_table() -> None:
    cluster = Cluster()
    cluster.hears(entry("a", {"orders": 8}), entry("b", {"orders": 2}))
    cluster.hears(entry("a", {"orders": 8}))
    assert cluster.names == ["a"]


def test_the_last_known_brokers_stay_while_all_nameservers_are_away() -> None:
    cluster = Cluster()
    cluster.hears(entry("a", {"orders": 8}))
    cluster.hears(entry("b", {"orders": 8}), at="ns2")
    cluster.loses("ns1")
    cluster.loses("ns2")
    cluster.now += 100 * KEPT_S
    assert (cluster.names, cluster.routes.connected) == (["a", "b"], 0)
    cluster.hears(entry("b", {"orders": 8}), at="ns2")
    assert cluster.names == ["b"], "another nameserver reports: the old view of the first one has ended"


def test_a_broker_that_one_nameserver_cannot_hear_stays() -> None:
    cluster = Cluster()
    cluster.hears(entry("a", {"orders": 8}))
    cluster.hears(at="ns2")
    assert cluster.names == ["a"]
    cluster.loses("ns1")
    cluster.now += KEPT_S - 1
    assert cluster.names == ["a"]
    cluster.now += 1
    assert cluster.names == []


def test_a_restarted_nameserver_may_hear_of_its_brokers_one_by_one() -> None:
    cluster = Cluster()
    cluster.hears(entry("a", {"orders": 8}), entry("b", {"orders": 8}), entry("c", {"orders": 8}))
    cluster.loses()
    cluster.hears(entry("a", {"orders": 8}))
    assert cluster.names == ["a", "b", "c"]
    cluster.hears(entry("a", {"orders": 8}), lost=["b"])
    assert cluster.names == ["a", "c"], "the nameserver lost b itself"
    cluster.now += RETURN_S
    assert cluster.names == ["a"]


def test_an_old_view_does_not_remove_a_topic() -> None:
    cluster = Cluster()
    cluster.hears(entry("a", {"orders": 8}, version=5))
    cluster.hears(entry("a", {}, version=4), at="ns2")
    assert len(cluster.routes.holding("orders")) == 1
    cluster.hears(entry("a", {}, version=6), at="ns2")
    assert cluster.routes.holding("orders") == []


def test_a_restarted_broker_stayed_drained_in_the_view_of_before() -> None:
    """A drain raises the data version, and a start takes that back."""
    cluster = Cluster()
    for nameserver in ("ns1", "ns2"):
        cluster.hears(entry("a", {"orders": 8}, version=6, draining=True), at=nameserver)
    cluster.loses("ns2")
    cluster.hears(entry("a", {"orders": 8}, version=5))
    assert [one.draining for one in cluster.routes.holding("orders")] == [False]
    cluster.hears(at="ns2")
    assert [one.draining for one in cluster.routes.holding("orders")] == [False]


def test_an_advertised_address_is_known_by_any_of_its_texts() -> None:
    cluster = Cluster()
    cluster.hears(
        entry("a", {}, address="127.0.0.1:8081"), entry("b", {}, address="B.example:1", tls_address="[::1]:2")
    )
    for host, port, by_tls in (
        ("localhost", 8_081, False),
        ("127.0.0.1", 8_081, False),
        ("b.EXAMPLE", 1, False),
        ("0:0:0:0:0:0:0:1", 2, True),
    ):
        assert cluster.routes.advertises(Address(host, port), by_tls=by_tls), host
        assert not cluster.routes.advertises(Address(host, port), by_tls=not by_tls), host
    assert not cluster.routes.advertises(Address("10.0.0.1", 8_081), by_tls=False)


def test_the_addresses_of_brokers_that_are_away_are_remembered() -> None:
    cluster = Cluster()
    there, secure = Address("b.example", 1), Address("b.example", 2)
    cluster.hears(entry("a", {}))
    assert not cluster.routes.advertised(there, by_tls=False)
    cluster.hears(entry("a", {}), entry("b", {}, address="b.example:1", tls_address="b.example:2"))
    assert cluster.routes.advertised(there, by_tls=False)
    cluster.hears(entry("a", {}))
    for address, by_tls in ((there, False), (secure, True)):
        assert not cluster.routes.advertises(address, by_tls=by_tls)
        assert cluster.routes.advertised(address, by_tls=by_tls)
        assert not cluster.routes.advertised(address, by_tls=not by_tls)


def test_a_broker_whose_routes_have_not_changed_is_not_read_again() -> None:
    reader = ReplyReader("C", "own")
    many = {f"topic-{number}": 4 for number in range(2_000)}
    first = read(reader, answer(entry("a", many), entry("b", many)))
    second = read(reader, answer(entry("a", many), entry("b", {**many, "new": 1}, version=2)))
    assert reader.brokers_read == 3
    assert second.brokers["a"] is first.brokers["a"]
    assert len(second.brokers["b"].topics) == 2_001


@pytest.mark.parametrize(
    ("limits", "kept"),
    [({"brokers_max": 2}, ["a", "b"]), ({"topics_max": 5}, ["a", "c"]), ({"topics_max": 2}, ["c"])],
)
def test_brokers_beyond_the_limits_are_left_out_whole(limits: dict[str, int], kept: list[str]) -> None:
    reader = ReplyReader("C", "own", **limits)
    brokers = [("a", 3), ("b", 3), ("c", 2)]
    routes = read(reader, answer(*(entry(name, {f"t{i}": 1 for i in range(n)}) for name, n in brokers)))
    assert list(routes.brokers) == kept
    assert routes.left_out == 3 - len(kept)
    table = ClusterRoutes(lambda: 0.0)
    table.report("ns1", routes)
    assert table.left_out == routes.left_out


def test_changes_of_a_broker_beyond_the_limits_showed_a_part_of_it() -> None:
    reader = ReplyReader("C", "own", topics_max=3)
    read(reader, answer(entry("a", {"t": 1, "u": 1}), entry("b", {"t": 1, "u": 1})))
    routes = read(reader, answer(entry("b", {"v": 1}), changes=True))
    assert (list(routes.brokers), routes.left_out, reader.lacks_brokers) == (["a"], 1, False)
    routes = read(reader, answer(changes=True, removed=["a"]))
    assert (list(routes.brokers), routes.left_out, reader.lacks_brokers) == ([], 1, True)
    routes = read(reader, answer(entry("b", {"v": 1}), changes=True, removed=["b"]))
    assert (list(routes.brokers), routes.left_out, reader.lacks_brokers) == (["b"], 0, False)


@pytest.mark.parametrize("address", ["nowhere", "10.0.0.1:0", "0.0.0.0:8081", "[::]:8081", ":8081"])
@pytest.mark.parametrize("changes", [True, False])
def test_clients_were_sent_to_an_address_that_cannot_be_dialled(address: str, changes: bool) -> None:
    cluster = Cluster()
    cluster.hears(entry("a", {"orders": 8}))
    cluster.hears(entry("a", {"orders": 8}, address=address), changes=changes)
    assert cluster.names == []
    cluster.hears(entry("b", {"orders": 8}, tls_address=address), changes=changes)
    assert cluster.names == []


@pytest.mark.parametrize(("sent", "kept"), [(-1, 0), (2**31 - 1, QUEUE_COUNT_MAX)])
def test_a_route_had_a_queue_for_each_of_two_billion(sent: int, kept: int) -> None:
    cluster = Cluster()
    cluster.hears(entry("a", {"orders": sent}))
    assert cluster.routes.holding("orders")[0].queue_count == kept


def test_the_steps_of_a_large_answer_are_short() -> None:
    reader = ReplyReader("C", "own")
    many = {f"topic-{number}": 4 for number in range(5_000)}
    assert sum(1 for _ in reader.read(answer(entry("a", many), entry("b", many)))) >= 18


def test_a_topic_of_the_table_takes_at_most_300_bytes() -> None:
    reader = ReplyReader("C", "own")
    data = answer(entry("a", {f"a-topic-with-a-long-name-{number:06}": 4 for number in range(20_000)}))
    tracemalloc.start()
    try:
        routes = read(reader, data)
        assert len(routes.brokers["a"].topics) == 20_000
        assert tracemalloc.get_traced_memory()[0] < 300 * 20_000
    finally:
        tracemalloc.stop()


@given(st.binary(max_size=200))
def test_bytes_that_are_no_answer_are_refused_or_read(data: bytes) -> None:
    try:
        read(ReplyReader("C", "own"), data)
    except (ValueError, DecodeError):
        pass


_TOPICS = st.dictionaries(st.sampled_from("tuvw"), st.integers(1, 9), max_size=4)
_STATES = st.dictionaries(st.sampled_from("abc"), _TOPICS, max_size=3)


@given(st.lists(st.tuples(_STATES, st.booleans()), min_size=1, max_size=8))
def test_answers_with_all_and_with_changes_lead_to_the_same_routes(
    steps: list[tuple[dict[str, dict[str, int]], bool]],
) -> None:
    reader, before = ReplyReader("C", "own"), dict[str, dict[str, int]]()
    for number, (state, by_changes) in enumerate(steps):
        if number and by_changes:
            changed = [
                entry(name, topics, version=number, removed=before.get(name, {}).keys() - topics.keys())
                for name, topics in state.items()
            ]
            data = answer(*changed, changes=True, removed=before.keys() - state.keys())
        else:
            data = answer(*(entry(name, topics, version=number) for name, topics in state.items()))
        assert shown(read(reader, data)) == state
        before = state
