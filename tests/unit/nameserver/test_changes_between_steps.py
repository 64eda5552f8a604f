"""A reply that is made in steps while the table changes: its reader ends with the table's routes."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.nameserver.test_cluster_routes import read
from trovemq._wire import convert
from trovemq.models.cluster import ClusterState
from trovemq_broker.cluster.cluster_reply import ReplyReader, Routes
from trovemq_daemon.turns import Steps
from trovemq_nameserver.broker import Broker
from trovemq_nameserver.replies import ClusterReplies
from trovemq_nameserver.routes import RouteLimits, RouteTable, TopicChanges
from trovemq_nameserver.topics import TopicRoute
from trovemq_proto.v1 import route_pb2

NAMES, TOPICS = "ab", ("t", "u", "v")

Result = TypeVar("Result")
Change = tuple[str, str, str]
"""A broker's name, a kind of change, and a topic."""


class Brokers:
    """Brokers that send changes and full heartbeats, come, leave and are lost."""

    def __init__(self) -> None:
        self.table = RouteTable(RouteLimits())
        self._sessions: dict[str, int] = {}
        self._count = 0

    def apply(self, change: Change) -> None:
        name, what, topic = change
        self._count += 1
        session = self._sessions.get(name)
        if session is None:
            self._sessions[name] = self._count
            topics = {one: TopicRoute(1) for one in TOPICS if one != topic}
            self.table.register(
                self._count, Broker("C", name, "10.0.0.1:8081"), topics, self._count, self._count
            )
            return
        route = self.table.route_of(session)
        assert route is not None
        match what:
            case "leave":
                self.table.leave(session)
                del self._sessions[name]
            case "lose":
                self.table.lose(session, self._count)
                del self._sessions[name]
            case "all":
                topics = {topic: TopicRoute(self._count)}
                self.table.heartbeat(session, self._count, topics=topics, data_version=self._count)
            case _:
                gone = topic in route.topics
                changes = TopicChanges(
                    route.data_version,
                    {} if gone else {topic: TopicRoute(self._count)},
                    [topic] if gone else [],
                )
                self.table.heartbeat(session, self._count, topics=changes, data_version=self._count)


class BetweenSteps:
    """Turns in which the next change happens after each step."""

    def __init__(self, brokers: Brokers, changes: list[Change]) -> None:
        self._brokers = brokers
        self._changes = changes

    async def run(self, steps: Steps[Result]) -> Result:
        while True:
            try:
                next(steps)
            except StopIteration as stop:
                result: Result = stop.value
                return result
            if self._changes:
                self._brokers.apply(self._changes.pop())

    run_from_now = run


def of_table(table: RouteTable) -> Any:
    return {
        route.broker.name: {name: topic.queue_count for name, topic in route.topics.items()}
        for route in table.routes()
    }


def of_client(state: ClusterState) -> Any:
    return {
        route.broker.name: {topic.topic: topic.queue_count for topic in route.topics}
        for route in state.brokers
    }


def of_broker(routes: Routes) -> Any:
    return {
        name: {topic: queues.queue_count for topic, queues in one.topics.items()}
        for name, one in routes.brokers.items()
    }


CHANGES = st.lists(
    st.tuples(
        st.sampled_from(NAMES),
        st.sampled_from(["topic", "topic", "all", "leave", "lose"]),
        st.sampled_from(TOPICS),
    ),
    max_size=40,
)


@given(CHANGES, CHANGES)
@settings(max_examples=40, deadline=None)
def test_a_reader_ends_with_the_tables_routes(first: list[Change], later: list[Change]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trovemq_nameserver.wire.TOPICS_A_STEP", 1)
        asyncio.run(_follow(first, later))


async def _follow(first: list[Change], later: list[Change]) -> None:
    brokers, reader, state = Brokers(), ReplyReader("C", "own"), ClusterState(())
    for change in first:
        brokers.apply(change)
    replies = ClusterReplies(brokers.table, lambda: 0, cast(Any, BetweenSteps(brokers, later)))
    version, data = await replies.of_everything()
    while True:
        reply = route_pb2.ClusterReply.FromString(data)
        state = convert.changed_state(state, reply) if reply.changes else convert.cluster_state(reply)
        routes = read(reader, data)
        if version == brokers.table.version:
            break
        if later and later[-1][1] == "all":
            brokers.apply(later.pop())
            version, data = await replies.of_everything()
        else:
            found = await replies.since(version)
            assert found is not None
            version, data = found
    assert of_client(state) == of_broker(routes) == of_table(brokers.table)
