# ruff: noqa: PT017  a model decides whether an error is right
"""The route table with a fake clock: against a plain model, and the rules one by one."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from trovemq_nameserver.broker import Broker
from trovemq_nameserver.lost import LOST_KEPT_MS
from trovemq_nameserver.routes import RouteLimits, RouteTable
from trovemq_nameserver.topics import TopicFields, TopicNames, TopicRoute, checked_topics
from trovemq_proto.errors import TroveError
from trovemq_store.engine.steps import finished

LIMITS = RouteLimits(
    broker_silent_ms=10_000,
    broker_broken_ms=2_000,
    brokers_max=3,
    topics_per_broker_max=3,
    topic_routes_max=7,
)
NAMES = ("a", "b", "c", "d")


def fields(name: str, queue_count: int) -> TopicFields:
    return name, queue_count, "NORMAL", ()


TOPICS = st.lists(st.sampled_from(["t1", "t2", "t3"]), unique=True).map(
    lambda names: [fields(name, 4) for name in names]
)


def of(*topics: TopicFields) -> dict[str, TopicRoute]:
    return finished(checked_topics(topics, TopicNames()))


def broker(name: str = "a", port: int = 8081) -> Broker:
    return Broker("DefaultCluster", name, f"127.0.0.1:{port}")


@dataclass
class Modelled:
    session: int
    broker: Broker
    topics: dict[str, TopicRoute]
    data_version: int
    heard_at: int
    broken_at: int | None = None

    @property
    def ends_at(self) -> int:
        return self.heard_at + 10_000 if self.broken_at is None else self.broken_at + 2_000


class RouteTableMachine(RuleBasedStateMachine):
    """Brokers come, talk, break and go in any order; the table must agree with a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.table = RouteTable(LIMITS)
        self.model: dict[str, Modelled] = {}
        self.now = 0
        self.sessions = 0
        self.last_seen = (0, repr(self.table.routes()))

    @rule(name=st.sampled_from(NAMES), port=st.sampled_from([1, 2]), topics=TOPICS, version=st.integers(0, 3))
    def register(self, name: str, port: int, topics: list[TopicFields], version: int) -> None:
        self.sessions += 1
        before = self.model.get(name)
        same_returns = (
            before is not None
            and before.broker == broker(name, port)
            and (before.broken_at is not None or self.now - before.heard_at > 5_000)
        )
        total = len(topics) + sum(len(other.topics) for key, other in self.model.items() if key != name)
        allowed = (before is None and len(self.model) < 3) or same_returns
        try:
            self.table.register(self.sessions, broker(name, port), of(*topics), version, self.now)
        except TroveError as error:
            assert not allowed or total > 7, error
            expected = "LIMIT_EXCEEDED" if before is None or same_returns else "BROKER_NAME_TAKEN"
            assert error.symbol == expected
        else:
            assert allowed
            assert total <= 7
            by_name = of(*topics)
            self.model[name] = Modelled(self.sessions, broker(name, port), by_name, version, self.now)

    @precondition(lambda self: self.model)
    @rule(data=st.data(), topics=TOPICS, version=st.integers(0, 3))
    def heartbeat(self, data: st.DataObject, topics: list[TopicFields], version: int) -> None:
        entry = data.draw(st.sampled_from([self.model[name] for name in sorted(self.model)]))
        if entry.broken_at is not None:
            return
        others = sum(len(other.topics) for other in self.model.values() if other is not entry)
        try:
            self.table.heartbeat(entry.session, self.now, topics=of(*topics), data_version=version)
        except TroveError as error:
            assert error.symbol == "LIMIT_EXCEEDED"
            assert others + len(topics) > 7
            return
        entry.heard_at = self.now
        if version != entry.data_version:
            entry.topics, entry.data_version = of(*topics), version

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def stream_breaks(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from([self.model[name] for name in sorted(self.model)]))
        self.table.stream_broken(entry.session, self.now)
        entry.broken_at = self.now if entry.broken_at is None else entry.broken_at

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.model)))
        self.table.leave(self.model.pop(name).session)

    @rule(session=st.integers(1, 50))
    def forgotten_sessions_do_nothing(self, session: int) -> None:
        if session in {entry.session for entry in self.model.values()}:
            return
        self.table.leave(session)
        self.table.stream_broken(session, self.now)
        with pytest.raises(TroveError, match="BROKER_NOT_FOUND"):
            self.table.heartbeat(session, self.now)

    @rule(step=st.sampled_from([1, 500, 1_999, 2_000, 4_999, 5_001, 10_000]))
    def time_passes(self, step: int) -> None:
        self.now += step
        overdue = {name for name, entry in self.model.items() if entry.ends_at <= self.now}
        assert set(self.table.expire(self.now)) == overdue
        for name in overdue:
            del self.model[name]

    @invariant()
    def the_routes_are_the_models(self) -> None:
        routes = {route.broker.name: route for route in self.table.routes()}
        assert list(routes) == sorted(self.model)
        for name, entry in self.model.items():
            assert routes[name].topics == entry.topics
            assert routes[name].data_version == entry.data_version
            assert self.table.registered(entry.session)
        assert self.table.next_expiry() == min((entry.ends_at for entry in self.model.values()), default=None)

    @invariant()
    def the_version_tells_of_each_change(self) -> None:
        seen = (self.table.version, repr(self.table.routes()))
        if seen[1] != self.last_seen[1]:
            assert seen[0] > self.last_seen[0]
        self.last_seen = seen


TestRouteTable = RouteTableMachine.TestCase
TestRouteTable.settings = settings(max_examples=100, stateful_step_count=30)


def test_a_heartbeat_alone_changes_no_version() -> None:
    table = RouteTable(LIMITS)
    table.register(1, broker(), of(fields("t1", 8)), 5, 0)
    version = table.version
    table.heartbeat(1, 3_000, broker=broker(), topics={}, data_version=5)
    assert table.version == version
    assert table.routes()[0].topics == {"t1": TopicRoute(8)}


def test_a_broker_is_gone_at_ten_silent_seconds_and_not_before() -> None:
    table = RouteTable(LIMITS)
    table.register(1, broker(), {}, 0, 100)
    assert table.expire(10_099) == []
    assert table.expire(10_100) == ["a"]


def test_a_lost_broker_is_known_until_it_returns_and_one_that_left_is_not() -> None:
    table = RouteTable(LIMITS)
    table.register(1, broker(), of(fields("t1", 8)), 0, 0)
    table.expire(10_000)
    (lost,) = table.lost(11_000)
    assert (lost.broker.name, lost.topics, lost.lost_at) == ("a", frozenset({"t1"}), 10_000)
    assert table.lost(10_000 + LOST_KEPT_MS) == []
    table.register(2, broker(), {}, 0, 12_000)
    table.expire(30_000)
    assert [one.topics for one in table.lost(30_000)] == [frozenset()]
    table.register(3, broker(), {}, 0, 31_000)
    assert table.lost(31_000) == []
    table.leave(3)
    assert table.lost(31_000) == []


def test_system_topics_counted_as_topics_of_a_lost_broker() -> None:
    """The count was greater than that of the live broker."""
    table = RouteTable(LIMITS)
    table.register(1, broker(), of(fields("t1", 8), fields("t2", 8), fields("%RETRY%g", 1)), 0, 0)
    table.register(2, broker("b", 8082), of(fields("t2", 8)), 0, 9_000)
    table.expire(10_000)
    (lost,) = table.lost(11_000)
    assert table.topic_counts(lost) == (2, 1)
    table.leave(2)
    assert table.topic_counts(lost) == (2, 2)
    table.register(3, broker("b", 8082), of(fields("%RETRY%g", 1), fields("t1", 8)), 0, 12_000)
    assert table.topic_counts(lost) == (2, 1)


def test_a_lost_broker_is_forgotten_and_a_live_one_is_not() -> None:
    table = RouteTable(LIMITS)
    table.register(1, broker(), of(fields("t1", 4)), 1, 0)
    assert not table.forget("a", 0), "it is live"
    assert table.removed(0) == []
    table.expire(10_000)
    version = table.version
    assert table.forget("a", 10_000)
    assert (table.lost(11_000), table.version) == ([], version + 1)
    assert not table.forget("a", 11_000)
    assert table.version == version + 1


def test_a_removed_broker_is_named_for_a_day_or_until_it_is_back() -> None:
    table = RouteTable(LIMITS)
    table.register(1, broker(), of(fields("t1", 4)), 1, 0)
    table.leave(1)
    version = table.version
    assert not table.forget("a", 0), "it has left, and is not lost"
    assert (table.removed(LOST_KEPT_MS - 1), table.version) == (["a"], version + 1)
    assert table.removed(LOST_KEPT_MS) == []
    assert not table.forget("a", LOST_KEPT_MS)
    assert (table.removed(LOST_KEPT_MS), table.version) == (["a"], version + 2)
    for name in map(str, range(LIMITS.brokers_max)):
        table.forget(name, LOST_KEPT_MS)
    assert "a" not in table.removed(LOST_KEPT_MS), "the newest are kept"
    assert len(table.removed(LOST_KEPT_MS)) == LIMITS.brokers_max
    table.register(2, broker("0"), {}, 1, LOST_KEPT_MS)
    assert "0" not in table.removed(LOST_KEPT_MS)


def test_watchers_did_not_hear_that_a_lost_broker_was_no_longer_kept() -> None:
    table = RouteTable(LIMITS)
    table.register(1, broker(), of(fields("t1", 4)), 1, 0)
    table.expire(10_000)
    version = table.version
    assert table.expire(10_000 + LOST_KEPT_MS - 1) == []
    assert table.version == version
    assert table.expire(10_000 + LOST_KEPT_MS) == [], "it has left the routes before"
    assert table.version == version + 1
    assert table.expire(10_001 + LOST_KEPT_MS) == []
    assert table.version == version + 1


def test_lost_brokers_are_limited_by_number_and_topics() -> None:
    table = RouteTable(replace(LIMITS, brokers_max=2, topic_routes_max=4))
    for number, topics in enumerate((1, 1, 2, 3)):
        routes = of(*(fields(f"t{topic}", 1) for topic in range(topics)))
        table.register(number, broker(f"b{number}"), routes, 0, number)
        table.lose(number, number)
        assert [one.broker.name for one in table.lost(number)] == [
            ["b0"],
            ["b0", "b1"],
            ["b1", "b2"],
            ["b3"],
        ][number]


def test_topics_of_brokers_that_are_lost_no_longer_do_not_count() -> None:
    table = RouteTable(replace(LIMITS, topic_routes_max=4))
    three = of(*(fields(f"t{topic}", 1) for topic in range(3)))
    table.register(1, broker("a"), three, 0, 0)
    table.lose(1, 0)
    table.register(2, broker("a"), three, 0, 1)
    table.lose(2, 1)
    assert table.lost(1 + LOST_KEPT_MS) == []
    table.register(3, broker("b"), three, 0, 1 + LOST_KEPT_MS)
    table.lose(3, 1 + LOST_KEPT_MS)
    table.register(4, broker("c"), of(fields("t0", 1)), 0, 1 + LOST_KEPT_MS)
    table.lose(4, 1 + LOST_KEPT_MS)
    assert [one.broker.name for one in table.lost(1 + LOST_KEPT_MS)] == ["b", "c"]


def test_a_broken_stream_has_two_seconds_for_the_same_address_only() -> None:
    table = RouteTable(LIMITS)
    table.register(1, broker(), {}, 0, 0)
    table.stream_broken(1, 1_000)
    with pytest.raises(TroveError, match="BROKER_NAME_TAKEN"):
        table.register(2, broker(port=9), {}, 0, 1_500)
    table.register(3, broker(), {}, 0, 2_900)
    assert table.expire(3_000) == []
    table.stream_broken(3, 3_000)
    assert table.expire(5_000) == ["a"]
    table.register(4, broker(port=9), {}, 0, 5_000)


def test_the_end_of_a_replaced_stream_does_not_touch_its_successor() -> None:
    table = RouteTable(LIMITS)
    table.register(1, broker(), {}, 0, 0)
    table.register(2, broker(), {}, 0, 6_000)  # the old connection is dead, but not yet detected
    table.stream_broken(1, 6_001)
    table.leave(1)
    assert table.expire(9_000) == []
    assert table.registered(2)


def test_topics_asked_for_leave_the_others_out() -> None:
    table = RouteTable(LIMITS)
    table.register(1, broker("a"), of(fields("t1", 8), fields("t2", 8)), 0, 0)
    table.register(2, broker("b", 2), of(fields("t3", 8)), 0, 0)
    assert [(r.broker.name, list(r.topics)) for r in finished(table.routes_of(["t2", "t2", "none"]))] == [
        ("a", ["t2"])
    ]
    assert finished(table.routes_of(["none"])) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"name": "x" * 128},
        {"name": "a\nb"},
        {"cluster": ""},
        {"address": "nowhere"},
        {"address": "0.0.0.0:8081"},
        {"address": "[::]:8081"},
        {"address": "10.0.0.1:0"},
        {"address": "::1:8081"},
        {"version": "v" * 65},
    ],
)
def test_a_broker_that_nobody_could_use_is_refused(wrong: dict[str, str]) -> None:
    table = RouteTable(LIMITS)
    with pytest.raises(TroveError, match="REQUEST_ILLEGAL"):
        table.register(1, replace(broker(), **wrong), {}, 0, 0)  # type: ignore[arg-type]
    assert table.version == 0


@pytest.mark.parametrize("topic", [fields("", 1), fields("x" * 256, 1), fields("t", -1), fields("a\x00", 1)])
def test_an_illegal_topic_refuses_the_heartbeat_and_changes_nothing(topic: TopicFields) -> None:
    table = RouteTable(LIMITS)
    table.register(1, broker(), of(fields("t1", 8)), 1, 0)
    with pytest.raises(TroveError, match="REQUEST_ILLEGAL"):
        table.heartbeat(1, 1, topics=of(topic), data_version=2)
    assert list(table.routes()[0].topics) == ["t1"]


def test_a_stream_cannot_change_its_brokers_name() -> None:
    table = RouteTable(LIMITS)
    table.register(1, broker(), {}, 0, 0)
    with pytest.raises(TroveError, match="REQUEST_ILLEGAL"):
        table.heartbeat(1, 1, broker=broker("b"))
