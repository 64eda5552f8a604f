"""Heartbeats with changes: against brokers that always send all topics, at a second nameserver.

Real registration streams of both, without sockets. A watcher adds up the changes that it gets, as the SDK
does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar, cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.support.fake_loop import FakeLoop, fake_time
from tests.unit.nameserver.test_registration import FakeTopics, Topic, local_broker
from trovemq._wire import convert
from trovemq.models.cluster import ClusterState
from trovemq_broker.cluster.announced import Announced
from trovemq_broker.cluster.view import LocalBroker
from trovemq_nameserver import heartbeats
from trovemq_nameserver.changes import NAMES_KEPT, NAMES_OF_CHANGE_MAX, ChangeLog
from trovemq_nameserver.heartbeats import HeartbeatReader
from trovemq_nameserver.registration import Received, RegistrationService
from trovemq_nameserver.routes import BrokerRoute, RouteLimits
from trovemq_nameserver.service import Registry, RouteService
from trovemq_nameserver.topics import TopicRoute
from trovemq_proto.system_topics import user_topic_count
from trovemq_proto.v1 import common_pb2, route_pb2

LIMITS = RouteLimits(brokers_max=2, topics_per_broker_max=4, topic_routes_max=6)
BROKERS = ("a", "b", "c")
TOPICS = ("t1", "t2", "t3", "t4", "t5")

Result = TypeVar("Result")


class Stream:
    """A broker's end of a registration stream, and its state there."""

    def __init__(self, registry: Registry, broker: LocalBroker) -> None:
        self.announced = Announced(broker)
        self._requests: asyncio.Queue[Received | None] = asyncio.Queue()
        self._replies: asyncio.Queue[route_pb2.HeartbeatReply] = asyncio.Queue()
        serving = RegistrationService(registry).register(self._received(), cast(Any, self))
        self._task = asyncio.create_task(serving)

    async def _received(self) -> AsyncIterator[Received]:
        while (request := await self._requests.get()) is not None:
            yield request

    async def write(self, reply: route_pb2.HeartbeatReply) -> None:
        self._replies.put_nowait(reply)

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    async def ask(self, heartbeat: route_pb2.Heartbeat) -> route_pb2.HeartbeatReply:
        """AssertionError if the stream has ended: nothing would ever answer."""
        self._requests.put_nowait(HeartbeatReader()(heartbeat.SerializeToString()))
        reply = asyncio.create_task(self._replies.get())
        await asyncio.wait((reply, self._task), return_when=asyncio.FIRST_COMPLETED)
        assert reply.done(), "the stream has ended"
        return reply.result()

    async def end(self) -> None:
        self._requests.put_nowait(None)
        await self._task


class Side:
    """A nameserver, with the brokers' streams to it."""

    def __init__(self, now: Any, *, understands_changes: bool) -> None:
        self.registry = Registry(LIMITS, 8, now)
        self.streams: dict[str, Stream] = {}
        self._understands_changes = understands_changes

    async def beat(self, name: str, broker: LocalBroker) -> str:
        """The broker's next heartbeat, on a new stream where it has none. Returns the error's symbol."""
        if name not in self.streams:
            self.streams[name] = Stream(self.registry, broker)
        stream = self.streams[name]
        heartbeat, _ = stream.announced.next()
        reply = await stream.ask(heartbeat)
        if reply.HasField("error"):
            await self.break_stream(name)
            return reply.error.symbol
        reply.changes = self._understands_changes
        stream.announced.answered(reply)
        if reply.all_topics:
            assert heartbeat.HasField("base_version") or self._left_out(name), "nothing is asked for twice"
            return await self.beat(name, broker)
        assert reply.HasField("left_out") == bool(heartbeat.topics and self._left_out(name))
        return ""

    def _left_out(self, name: str) -> int:
        route = self.registry.table.route_named(name)
        return 0 if route is None else route.broker.topics_left_out

    async def break_stream(self, name: str) -> None:
        if (stream := self.streams.pop(name, None)) is not None:
            await stream.end()

    async def leave(self, name: str) -> None:
        if name in self.streams:
            await self.streams[name].ask(route_pb2.Heartbeat(leaving=True))
            await self.break_stream(name)

    async def everything(self) -> ClusterState:
        _, reply = await self.registry.replies.of_everything()
        return convert.cluster_state(route_pb2.ClusterReply.FromString(reply))

    async def end(self) -> None:
        for name in list(self.streams):
            await self.break_stream(name)


def contents(state: ClusterState) -> Any:
    """The state without its version: the tables count their changes differently. And without lost brokers'
    lost_ms: it is as old as the reply that named them, and no change says that time has passed."""
    return (
        {route.broker.name: (route.broker, frozenset(route.topics)) for route in state.brokers},
        {one.name: replace(one, lost_ms=0) for one in state.lost},
        state.removed,
    )


def table_of(side: Side) -> dict[str, BrokerRoute]:
    return {route.broker.name: route for route in side.registry.table.routes()}


class ChangesMachine(RuleBasedStateMachine):
    """Topics, streams, brokers and nameservers come and go in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = FakeLoop()
        self.now = 0
        self.brokers = {name: local_broker(name, port) for port, name in enumerate(BROKERS, 1)}
        self._start()

    def _start(self) -> None:
        self.changes = Side(lambda: self.now, understands_changes=True)
        self.model = Side(lambda: self.now, understands_changes=False)
        self.watched: tuple[int, ClusterState] | None = None

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self.loop.run_until_complete(work)

    def topics(self, name: str) -> FakeTopics:
        return self.brokers[name][1]

    @rule(name=st.sampled_from(BROKERS), topics=st.lists(st.sampled_from(TOPICS), min_size=1, max_size=3))
    def topics_are_made_and_deleted(self, name: str, topics: list[str]) -> None:
        for topic in topics:
            if topic in self.topics(name).topics:
                self.topics(name).delete(topic)
            else:
                self.topics(name).create(topic)

    @rule(
        name=st.sampled_from(BROKERS),
        count=st.integers(1, 3),
        message_type=st.sampled_from(["FIFO", "DELAY"]),
    )
    def a_topic_is_altered(self, name: str, count: int, message_type: str) -> None:
        table = self.topics(name)
        for topic in sorted(table.topics)[:1]:
            table.topics[topic] = Topic(topic, count, message_type)
            table._changed(topic)

    @rule(name=st.sampled_from(BROKERS), drained=st.booleans())
    def a_broker_drains(self, name: str, drained: bool) -> None:
        broker, _ = self.brokers[name]
        broker.withdraw(not broker.description().draining, drained)

    @rule(name=st.sampled_from(BROKERS))
    def a_broker_no_longer_knows_what_changed(self, name: str) -> None:
        self.topics(name).changes_known = not self.topics(name).changes_known

    @rule(name=st.sampled_from(BROKERS))
    def a_broker_is_removed(self, name: str) -> None:
        found = [side.registry.table.forget(name, self.now) for side in (self.changes, self.model)]
        assert found[0] == found[1]
        removed = self.changes.registry.table.removed(self.now)
        assert (name in removed) == (name not in table_of(self.changes))

    @rule(name=st.sampled_from(BROKERS))
    def heartbeat(self, name: str) -> None:
        broker, _ = self.brokers[name]
        found = [self.run(side.beat(name, broker)) for side in (self.changes, self.model)]
        assert found[0] == found[1]

    @rule(name=st.sampled_from(BROKERS))
    def a_stream_breaks_before_the_reply(self, name: str) -> None:
        self.heartbeat(name)
        self.stream_breaks(name)

    @rule(name=st.sampled_from(BROKERS))
    def stream_breaks(self, name: str) -> None:
        for side in (self.changes, self.model):
            self.run(side.break_stream(name))

    @rule(name=st.sampled_from(BROKERS))
    def leave(self, name: str) -> None:
        for side in (self.changes, self.model):
            self.run(side.leave(name))

    @rule(name=st.sampled_from(BROKERS), topic=st.sampled_from(TOPICS))
    def a_broker_returns_with_other_topics(self, name: str, topic: str) -> None:
        self.heartbeat(name)
        self.a_watcher_reads()
        self.leave(name)
        self.topics_are_made_and_deleted(name, [topic, *sorted(self.topics(name).topics)[:1]])
        self.heartbeat(name)
        self.a_watcher_reads()

    @precondition(lambda self: self.changes.streams)
    @rule(name=st.sampled_from(BROKERS), base=st.integers(10_000, 10_001))
    def changes_of_another_base_are_ignored(self, name: str, base: int) -> None:
        if name not in self.changes.streams:
            return
        topics = [common_pb2.TopicRoute(topic="wrong", queue_count=1)]
        heartbeat = route_pb2.Heartbeat(
            topics=topics, removed_topics=TOPICS, base_version=base, data_version=20_000
        )
        before = self.changes.registry.table.version
        reply = self.run(self.changes.streams[name].ask(heartbeat))
        assert (reply.all_topics, reply.changes, reply.HasField("error")) == (True, True, False)
        assert self.changes.registry.table.version == before
        heartbeat = route_pb2.Heartbeat(data_version=self._version_at(name))
        if self.run(self.model.streams[name].ask(heartbeat)).HasField("error"):  # it has expired
            self.stream_breaks(name)  # of both: the next heartbeats are alike

    def _version_at(self, name: str) -> int:
        route = table_of(self.model).get(name)
        return 0 if route is None else route.data_version

    @rule(step=st.sampled_from([1, 1_999, 2_000, 5_001, 10_000]))
    def time_passes(self, step: int) -> None:
        self.now += step
        for side in (self.changes, self.model):
            side.registry.table.expire(self.now)

    @rule()
    def the_nameserver_restarts(self) -> None:
        for side in (self.changes, self.model):
            self.run(side.end())
        self._start()

    @rule()
    def a_watcher_reads(self) -> None:
        """At any time, so some changes are many versions together."""
        registry = self.changes.registry
        if self.watched is None:
            self.watched = registry.table.version, self.run(self.changes.everything())
        found = self.run(registry.replies.since(self.watched[0]))
        assert found is not None
        version, reply = found
        changes = route_pb2.ClusterReply.FromString(reply)
        assert changes.changes
        self.watched = version, convert.changed_state(self.watched[1], changes)
        assert self.watched[1].version == registry.table.version
        assert contents(self.watched[1]) == contents(self.run(self.model.everything()))

    @invariant()
    def both_nameservers_have_the_same_routes(self) -> None:
        assert table_of(self.changes) == table_of(self.model)
        for side in (self.changes, self.model):
            table = side.registry.table
            topics = [topic for route in table.routes() for topic in route.topics]
            assert (table.topic_routes, len(table.names)) == (len(topics), len(set(topics)))
            assert table.topics_left_out == sum(one.broker.topics_left_out for one in table.routes())
            for route in table.routes():
                known = self.brokers[route.broker.name][1]
                if route.data_version == known.data_version + self.brokers[route.broker.name][0]._changes:
                    assert len(route.topics) + route.broker.topics_left_out == len(known.topics)
            assert all(topic in table.names for topic in topics)

    @invariant()
    def lost_brokers_are_the_same(self) -> None:
        found = [self.run(side.registry.replies.lost()) for side in (self.changes, self.model)]
        assert found[0] == found[1]
        names = {topic for route in table_of(self.model).values() for topic in route.topics}
        for one in self.changes.registry.table.lost(self.now):
            counts = user_topic_count(one.topics), user_topic_count(one.topics - names)
            assert self.changes.registry.table.topic_counts(one) == counts

    def teardown(self) -> None:
        for side in (self.changes, self.model):
            self.run(side.end())
        self.loop.close()


TestChanges = ChangesMachine.TestCase
TestChanges.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


@pytest.fixture
def machine() -> Iterator[ChangesMachine]:
    machine = ChangesMachine()
    yield machine
    machine.teardown()


def test_changes_for_an_expired_broker_left_the_model_without_a_stream(machine: ChangesMachine) -> None:
    machine.heartbeat("a")
    machine.time_passes(10_000)
    machine.changes_of_another_base_are_ignored("a", 10_000)
    machine.changes_of_another_base_are_ignored("a", 10_000)
    machine.heartbeat("a")
    machine.both_nameservers_have_the_same_routes()


def test_a_watcher_that_saw_a_broker_lost_differed_once_time_had_passed(machine: ChangesMachine) -> None:
    machine.heartbeat("a")
    machine.time_passes(10_000)
    machine.a_watcher_reads()
    machine.time_passes(1_999)
    machine.a_watcher_reads()


@fake_time
async def test_a_change_of_one_topic_among_10_000_is_small() -> None:
    broker, topics = local_broker()
    for number in range(10_000):
        topics.topics[f"topic-{number:05}"] = Topic(f"topic-{number:05}")
    side = Side(lambda: 0, understands_changes=True)
    side.registry.limits = RouteLimits()
    side.registry.table._limits = side.registry.limits
    assert await side.beat("a", broker) == ""
    sent = side.registry.table.version
    topics.create("one-more")
    heartbeat, all_topics = side.streams["a"].announced.next()
    assert (all_topics, heartbeat.ByteSize() < 64) == (0, True)
    made = side.registry.replies.routes_made
    reply = await side.streams["a"].ask(heartbeat)
    assert not reply.all_topics
    changes = await side.registry.replies.since(sent)
    assert changes is not None
    assert len(changes[1]) < 256
    assert side.registry.replies.routes_made == made
    await side.end()


@fake_time
@pytest.mark.parametrize("large", [False, True])
async def test_a_repeated_heartbeat_over_a_limit_was_a_new_version(
    large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All watchers got it, and all topics of the broker were sorted again."""
    monkeypatch.setattr(heartbeats, "LARGE_SIZE", 0 if large else heartbeats.LARGE_SIZE)
    side = Side(lambda: 0, understands_changes=True)
    table = side.registry.table
    first, first_topics = local_broker("a")
    second, second_topics = local_broker("b", 8082)
    for number in range(3):
        first_topics.create(f"a{number}")
        second_topics.create(f"b{number}")
    assert await side.beat("a", first) == await side.beat("b", second) == ""
    assert table.topics_left_out == 2
    chosen, fitting = list[str](), table.fitting

    def counted(broker: str, topics: Mapping[str, TopicRoute]) -> tuple[Mapping[str, TopicRoute], str]:
        chosen.append(broker)
        return fitting(broker, topics)

    monkeypatch.setattr(table, "fitting", counted)
    heartbeat, _ = Announced(second).next()
    version = table.version
    for _ in range(2):
        reply = await side.streams["b"].ask(heartbeat)
        assert (reply.all_topics, table.version, chosen) == (False, version, [])
    first_topics.delete("a0")
    first_topics.create("a3")
    assert await side.beat("a", first) == ""
    version = table.version
    assert await side.beat("b", second) == ""
    assert chosen == ["b"], "there may be space, and so it is asked for all topics"
    assert (table.version, table.topics_left_out) == (version, 2)
    first_topics.delete("a3")
    assert await side.beat("a", first) == await side.beat("b", second) == ""
    assert (table.version, table.topics_left_out) == (version + 2, 1)
    await side.end()


@fake_time
async def test_a_nameserver_before_changes_gets_all_topics() -> None:
    broker, topics = local_broker()
    announced = Announced(broker)
    for number in range(3):
        topics.create(f"t{number}")
        heartbeat, all_topics = announced.next()
        assert not heartbeat.HasField("base_version")
        assert all_topics == len(heartbeat.topics) == number + 2
        announced.answered(route_pb2.HeartbeatReply(data_version=heartbeat.data_version))


def test_all_topics_are_sent_while_some_do_not_fit_and_again_where_more_do() -> None:
    broker, topics = local_broker()
    for number in range(2_000):
        topics.create(f"t{number:04}-{'x' * 100}")
    announced = Announced(broker, 65_536)
    heartbeat, sent = announced.next()
    assert (heartbeat.ByteSize() <= 65_536, len(heartbeat.topics), announced.unsent) == (
        True,
        sent,
        2_001 - sent,
    )
    assert sent > 400
    answer = route_pb2.HeartbeatReply(data_version=heartbeat.data_version, changes=True)
    announced.answered(answer)
    assert not announced.is_behind(), "an older nameserver names no limit"
    topics.create("u")
    assert announced.next_has_all(), "changes have no topics that did not fit"
    assert announced.next()[1] == sent
    answer.heartbeat_size_max = 1 << 20
    announced.answered(answer)
    assert announced.is_behind()
    heartbeat, sent = announced.next()
    assert (sent, announced.unsent, announced.size_max) == (2_002, 0, 1 << 20)
    announced.answered(answer)
    topics.create("v")
    assert len(announced.next()[0].topics) == 1


@fake_time
async def test_a_client_before_changes_gets_whole_states() -> None:
    """It asks for changes, but cannot read of a broker that was removed."""
    registry = Registry(RouteLimits(), 8, lambda: 0)
    side = Side(lambda: 0, understands_changes=True)
    side.registry = registry
    broker, topics = local_broker()
    await side.beat("a", broker)
    service, context = RouteService(registry, name=str, version="1"), cast(Any, None)
    replies = service.watch_routes(route_pb2.WatchRoutesRequest(changes=True), context)
    await anext(replies)
    topics.create("t1")
    await side.beat("a", broker)
    reply = route_pb2.ClusterReply.FromString(await anext(replies))
    assert (reply.changes, len(reply.brokers[0].topics)) == (False, 2)
    await cast(Any, replies).aclose()
    await side.end()


def test_the_log_of_changes_is_bounded_and_never_skips_one() -> None:
    log = ChangeLog()
    names = [f"t{number}" for number in range(NAMES_OF_CHANGE_MAX)]
    for version in range(1, 11):
        log.add(version, f"b{version % 3}", names, described=False)
    kept = NAMES_KEPT // (NAMES_OF_CHANGE_MAX + 1)
    assert log.since(10) == {}
    assert log.since(10 - kept - 1) is None
    found = log.since(10 - kept)
    assert found is not None
    assert set(found) == {f"b{version % 3}" for version in range(11 - kept, 11)}
    log.add(11, "b", [*names, "one-more"], described=False)
    found = log.since(10)
    assert found is not None
    assert found["b"].whole


@pytest.mark.parametrize("size", [0, 20_000])
@fake_time
async def test_a_large_heartbeat_is_the_same_as_a_small_one(size: int) -> None:
    """With 20,000 bytes of unknown fields it is cut into parts."""
    broker, topics = local_broker()
    side = Side(lambda: 0, understands_changes=True)
    await side.beat("a", broker)
    topics.create("t1")
    topics.delete("orders")
    heartbeat, _ = side.streams["a"].announced.next()
    data = heartbeat.SerializeToString() + b"\xfa\x01\x00" * (size // 3)
    assert not (await side.streams["a"].ask(route_pb2.Heartbeat.FromString(data))).all_topics
    assert list(table_of(side)["broker-a"].topics) == ["t1"]
    await side.end()
