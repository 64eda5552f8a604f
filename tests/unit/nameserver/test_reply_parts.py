"""Large replies to watchers come in parts: messages of a bounded size, which their readers join."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.fake_loop import fake_time
from tests.support.services_here import CallContext
from tests.unit.nameserver.test_many_topics import broker, topics_of
from tests.unit.nameserver.test_registration import start_nameserver, until
from tests.unit.nameserver.test_route_watch import following, names
from trovemq._wire.connection import Connection
from trovemq._wire.route_replies import RoutesJoiner
from trovemq.options import ClientOptions
from trovemq_nameserver.outgoing import OutgoingReplies
from trovemq_nameserver.routes import RouteLimits
from trovemq_nameserver.service import Registry, RouteService
from trovemq_proto.channels import open_channel
from trovemq_proto.errors import TroveError
from trovemq_proto.reply_parts import PartJoiner, part_of
from trovemq_proto.v1 import route_pb2

SMALL = 10_000
GRPC_DEFAULT = 4 << 20  # the largest message that gRPC accepts by default
MANY_TOPICS = 60_000  # on each broker: 4.5 MB of routes together
TOPICS = 600
BROKERS = "abc"


@pytest.fixture(autouse=True)
def part_size(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("slow") is None:
        monkeypatch.setattr("trovemq_nameserver.outgoing.PART_SIZE", SMALL)


@given(st.binary(min_size=1, max_size=60), st.integers(1, 61))
def test_a_reply_is_its_parts_joined(reply: bytes, size: int) -> None:
    joiner = PartJoiner()
    parts = [part_of(reply, begin, size) for begin in range(0, len(reply), size)]
    assert [joiner.add(part) for part in parts] == [None] * (len(parts) - 1) + [reply]
    whole = route_pb2.ClusterReply(version=7).SerializeToString()
    assert (joiner.add(whole), joiner.add(b"")) == (whole, b""), "and the next one is another reply"


def test_parts_that_fit_no_reply_are_refused() -> None:
    joiner = PartJoiner(size_max=10)
    assert joiner.add(part_of(bytes(30), 0, 8)) is None
    with pytest.raises(ValueError, match="between the parts"):
        joiner.add(route_pb2.ClusterReply(version=7).SerializeToString())
    with pytest.raises(ValueError, match="more than 10 bytes"):
        joiner.add(part_of(bytes(30), 8, 8))
    with pytest.raises(ValueError, match="without bytes"):
        joiner.add(bytes((58, 0, 64, 1)))
    reader = RoutesJoiner()
    reader.add(part_of(bytes(30), 0, 8))
    with pytest.raises(TroveError, match="not readable"):
        reader.add(b"")


def registry_of(topics: int = TOPICS) -> Registry:
    registry = Registry(RouteLimits(), 10, lambda: 0)
    for number, name in enumerate(BROKERS):
        registry.table.register(number, broker(name), topics_of(topics), 1, 0)
    return registry


def watching(registry: Registry, **fields: Any) -> Any:
    """The messages to one watcher."""
    context: Any = CallContext()
    service = RouteService(registry, name=str, version="1")
    return service.watch_routes(route_pb2.WatchRoutesRequest(**fields), context)


@fake_time
@pytest.mark.parametrize("topics", [(), ("topic-7",)])
async def test_no_message_to_a_watcher_is_large(topics: tuple[str, ...]) -> None:
    registry = registry_of()
    joiner, sizes, whole = PartJoiner(), [], None
    async with aclosing(watching(registry, parts=True, topics=topics)) as replies:
        while whole is None:
            message = await anext(replies)
            sizes.append(len(message))
            whole = joiner.add(message)
    async with aclosing(watching(registry, topics=topics)) as replies:
        assert await anext(replies) == whole, "a client that joins no parts gets it in one message"
    found = route_pb2.ClusterReply.FromString(whole)
    assert [len(one.topics) for one in found.brokers] == [1 if topics else TOPICS] * len(BROKERS)
    assert max(sizes) <= SMALL + 16
    assert len(sizes) == -(-len(whole) // SMALL) == (1 if topics else 5)


@fake_time
async def test_routes_of_slow_watchers_filled_the_memory() -> None:
    """Each watcher that reads a part now and then has the routes of its time: the oldest ones end."""
    registry = registry_of()
    registry.outgoing = OutgoingReplies(size_max=80_000)
    size = len((await registry.replies.of_everything())[1])
    streams, ended = [], []
    for number in range(4):
        streams.append(watching(registry, parts=True))
        await anext(streams[-1])
        assert registry.outgoing.size <= size + (80_000)
        registry.table.heartbeat(0, 1, topics=topics_of(TOPICS + number), data_version=2 + number)
    for stream in streams:
        try:
            for _ in range(size // SMALL):
                await anext(stream)
        except TroveError as error:
            ended.append(error.symbol)
        await stream.aclose()
    assert ended == ["LIMIT_EXCEEDED"] * 2
    streams.clear()
    assert registry.outgoing.size == 0


@fake_time
async def test_a_watcher_that_waits_holds_no_routes() -> None:
    registry = registry_of(10)
    async with aclosing(watching(registry)) as replies:
        await anext(replies)
        waiting = asyncio.create_task(anext(replies))
        await asyncio.sleep(1)
        assert (len(registry.watchers), registry.outgoing.size) == (1, 0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


@pytest.mark.slow
@pytest.mark.asyncio
async def test_brokers_and_clients_join_what_one_message_has_no_space_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Over sockets, and with the limit that gRPC has by default."""
    monkeypatch.setattr(
        "trovemq_broker.cluster.route_watch.open_channel",
        lambda address, settings: open_channel(address, replace(settings, message_size_max=GRPC_DEFAULT)),
    )
    app, address = await start_nameserver()
    for number, name in enumerate(BROKERS):
        one = replace(broker(name), cluster="DefaultCluster", address=f"10.0.0.{number + 1}:8081")
        app.registry.table.register(100 + number, one, topics_of(MANY_TOPICS), 1, app.registry.clock())
    app.registry.changed()
    async with following(address) as routes:
        await until(lambda: names(routes) == [*BROKERS])
        assert [len(one.topics) for one in routes.brokers] == [MANY_TOPICS] * len(BROKERS)
    options = ClientOptions()
    settings = replace(options.channel_settings(), message_size_max=GRPC_DEFAULT)
    connection = Connection(str(address), options, settings)
    watch = connection.watch_routes()
    for state in (await anext(watch), await connection.cluster()):
        assert [len(one.topics) for one in state.brokers] == [MANY_TOPICS] * len(BROKERS)
    await connection.close()
    await app.stop()
