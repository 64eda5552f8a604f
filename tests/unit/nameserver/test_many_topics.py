"""A nameserver with many topics and watchers: each step of work is small, and it is done once for all."""

from __future__ import annotations

import asyncio
import itertools
import tracemalloc
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.fake_loop import fake_time
from tests.support.services_here import CallContext, NameserverServices
from trovemq_daemon.turns import Turns
from trovemq_nameserver.broker import Broker
from trovemq_nameserver.heartbeats import HeartbeatReader
from trovemq_nameserver.registration import Received, RegistrationService
from trovemq_nameserver.replies import ClusterReplies
from trovemq_nameserver.routes import RouteLimits, RouteTable
from trovemq_nameserver.service import Registry, RouteService
from trovemq_nameserver.topics import TOPICS_A_STEP, TopicNames, TopicRoute, checked_topics
from trovemq_nameserver.wire import lost_to_wire, route_to_wire, routes_to_wire
from trovemq_proto.errors import TroveError
from trovemq_proto.v1 import common_pb2, route_pb2
from trovemq_store.engine.steps import Steps, finished

NATIVE = "trovemq.v1."
WATCHERS = 200


def topics_of(count: int) -> dict[str, TopicRoute]:
    topics = ((f"topic-{number}", 8, "NORMAL", ()) for number in range(count))
    return finished(checked_topics(topics, TopicNames()))


def broker(name: str) -> Broker:
    return Broker("c", name, "10.0.0.1:8081")


def step_count(steps: Steps[Any]) -> int:
    return sum(1 for _ in steps)


def test_topics_are_read_and_written_in_small_steps() -> None:
    topics = [(f"topic-{number}", 8, "NORMAL", ()) for number in range(10 * TOPICS_A_STEP)]
    assert step_count(checked_topics(topics, TopicNames())) == 10
    table = RouteTable(RouteLimits())
    table.register(1, broker("a"), topics_of(10 * TOPICS_A_STEP), 1, 0)
    assert step_count(routes_to_wire(table.routes())) == 10


def test_illegal_message_types_of_megabytes_stayed_in_memory() -> None:
    tracemalloc.start()
    try:
        for number in range(32):
            with pytest.raises(TroveError, match="illegal message type"):
                finished(checked_topics([("orders", 8, f"{number:02}" * 500_000, ())], TopicNames()))
        assert tracemalloc.get_traced_memory()[0] < 2_000_000
    finally:
        tracemalloc.stop()


def test_equal_names_and_routes_of_two_brokers_are_one_object() -> None:
    names = TopicNames()
    first = finished(checked_topics([("orders-1", 8, "NORMAL", ())], names))
    names.add(first)
    second = finished(checked_topics([("-".join(("orders", "1")), 8, "NORMAL", ())], names))
    assert next(iter(first)) is next(iter(second))
    assert first["orders-1"] is second["orders-1"]


def plain(table: RouteTable, now: int) -> route_pb2.ClusterReply:
    """The reply with everything, made in one go."""
    live = {topic for route in table.routes() for topic in route.topics}
    lost = [lost_to_wire(one, (len(one.topics), len(one.topics - live)), now) for one in table.lost(now)]
    brokers = map(route_to_wire, table.routes())
    return route_pb2.ClusterReply(brokers=brokers, version=table.version, lost=lost)


@fake_time
async def test_the_reply_is_the_tables_and_unchanged_brokers_are_used_again() -> None:
    table = RouteTable(RouteLimits())
    replies = ClusterReplies(table, lambda: 7, Turns())

    async def is_right() -> None:
        version, reply = await replies.of_everything()
        assert version == table.version
        assert route_pb2.ClusterReply.FromString(reply) == plain(table, 7)

    await is_right()
    for number, name in enumerate("abc"):
        table.register(number, broker(name), topics_of(100 * number), 1, 0)
        await is_right()
    assert replies.routes_made == 3
    table.heartbeat(1, 1, topics=topics_of(500), data_version=2)
    await is_right()
    assert replies.routes_made == 4
    table.lose(2, 3)
    await is_right()
    table.leave(1)
    await is_right()
    assert replies.routes_made == 4


@fake_time
async def test_with_a_lost_broker_each_caller_had_a_copy_of_all_routes() -> None:
    table, now = RouteTable(RouteLimits()), 0
    replies = ClusterReplies(table, lambda: now, Turns())
    for number, name in enumerate("abc"):
        table.register(number, broker(name), topics_of(100), 1, 0)
    table.lose(2, 0)
    _, first = await replies.of_everything()
    assert (await replies.of_everything())[1] is first
    now = 2_000
    _, second = await replies.of_everything()
    assert route_pb2.ClusterReply.FromString(second).lost[0].lost_ms == 2_000
    now += 24 * 3_600_000
    _, third = await replies.of_everything()
    assert not route_pb2.ClusterReply.FromString(third).lost
    assert (await replies.of_everything())[1] is third
    assert replies.routes_made == 2


@fake_time
async def test_changes_of_whole_brokers_were_kept_for_64_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    table = RouteTable(RouteLimits())
    replies = ClusterReplies(table, lambda: 0, Turns())
    for number in range(20):
        table.register(number, broker(f"b{number}"), topics_of(100), 1, 0)
    one = await replies.since(0)
    assert one is not None
    monkeypatch.setattr("trovemq_nameserver.replies.CHANGES_KEPT_SIZE", 2 * len(one[1]))
    for version in (*range(20), *range(20)):
        assert await replies.since(version) is not None
    assert sum(map(len, replies._changes.values())) <= 2 * len(one[1])


class Watching:
    """Clients that watch all topics; each has its newest version."""

    def __init__(self, service: RouteService, count: int) -> None:
        self.newest = [0] * count
        self.replies = 0
        self._service = service
        self._tasks = [asyncio.create_task(self._watch(number)) for number in range(count)]

    async def _watch(self, number: int) -> None:
        context: Any = CallContext()
        async for reply in self._service.watch_routes(route_pb2.WatchRoutesRequest(), context):
            self.newest[number] = route_pb2.ClusterReply.FromString(reply).version
            self.replies += 1

    async def all_have(self, version: int) -> None:
        while any(one < version for one in self.newest):
            await asyncio.sleep(0)

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@fake_time
async def test_at_a_change_each_of_200_watchers_made_all_routes_again() -> None:
    registry = Registry(RouteLimits(), WATCHERS, lambda: 0)
    registry.table.register(1, broker("a"), topics_of(100), 1, 0)
    registry.table.register(2, broker("b"), topics_of(100), 1, 0)
    watching = Watching(RouteService(registry, name=str, version="1"), WATCHERS)
    await watching.all_have(2)
    assert registry.replies.routes_made == 2
    registry.table.heartbeat(1, 1, topics=topics_of(101), data_version=2)
    registry.changed()
    await watching.all_have(3)
    assert registry.replies.routes_made == 3
    assert watching.replies == 2 * WATCHERS
    await watching.end()


async def heartbeats(sent: Sequence[Received]) -> AsyncIterator[Received]:
    for one in sent:
        yield one


@fake_time
async def test_a_registration_of_60_000_topics_takes_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count()
    every_step_takes_a_turn = SimpleNamespace(perf_counter=lambda: float(next(ticks)))
    monkeypatch.setattr("trovemq_daemon.turns.time", every_step_takes_a_turn)
    info = common_pb2.BrokerInfo(cluster="c", name="a", address="10.0.0.1:8081")
    topics = [common_pb2.TopicRoute(topic=f"topic-{number}", queue_count=8) for number in range(60_000)]
    first = route_pb2.Heartbeat(broker=info, topics=topics, data_version=1)
    registry = Registry(RouteLimits(), WATCHERS, lambda: 0)
    service, context = RegistrationService(registry), CallContext()
    some: Any = context
    await service.register(heartbeats([HeartbeatReader()(first.SerializeToString())]), some)
    assert registry.turns.turn_count == 2 * (60_000 // TOPICS_A_STEP) + 1  # cut into parts, then read
    assert registry.table.routes()[0].topics.keys() == {topic.topic for topic in topics}
    assert [reply.error.symbol for reply in context.written] == [""]


@fake_time
@pytest.mark.parametrize("count", [262_145, 524_288])
async def test_too_many_topics_are_refused_before_they_are_converted(count: int) -> None:
    """524,288 empty ones are so few bytes that their parts are not counted before they are parsed."""
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(
            "trovemq_nameserver.heartbeats.topics_from_wire", lambda _topics: pytest.fail("converted")
        )
        services = NameserverServices()
        info = common_pb2.BrokerInfo(cluster="c", name="a", address="10.0.0.1:8081")
        data = route_pb2.Heartbeat(broker=info).SerializeToString() + b"\x12\x00" * count
        outcome = await services.call(f"{NATIVE}RegistrationService.Register", [data])
        reply = services.parse(f"{NATIVE}RegistrationService.Register", outcome.replies[-1])
        assert reply.error.symbol == "LIMIT_EXCEEDED"
