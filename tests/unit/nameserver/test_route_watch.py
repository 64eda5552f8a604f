"""A broker follows the routes of real nameservers, and of one whose answers the test makes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client import CollectorRegistry

from tests.support.fake_loop import fake_time
from tests.support.logs import logged
from tests.support.stubs import ROUTES, add_fake
from tests.unit.nameserver.test_access import BROKER, SECRET, served, users_text
from tests.unit.nameserver.test_cluster_routes import answer, entry
from tests.unit.nameserver.test_registration import (
    FAST,
    local_broker,
    registered,
    start_nameserver,
    until,
)
from trovemq_broker.cluster.cluster_reply import Routes
from trovemq_broker.cluster.cluster_routes import ClusterRoutes
from trovemq_broker.cluster.registration import registration_channels
from trovemq_broker.cluster.route_metrics import RoutesCollector
from trovemq_broker.cluster.route_watch import RouteWatch, RouteWatches
from trovemq_daemon.addresses import Address
from trovemq_daemon.grpc_server import GrpcLimits, GrpcServer
from trovemq_daemon.handler_guard import ERROR_METADATA_KEY
from trovemq_daemon.metrics import RpcMetrics
from trovemq_daemon.turns import Turns
from trovemq_proto.authentication.credentials import Credentials
from trovemq_proto.channels import GrpcTransport
from trovemq_proto.v1 import common_pb2, route_pb2

pytestmark = pytest.mark.asyncio


@asynccontextmanager
async def following(
    *nameservers: Address, who: Credentials | None = None, transport: GrpcTransport | None = None
) -> AsyncIterator[ClusterRoutes]:
    """The table of a broker `own`, whose cluster is that of `local_broker`."""
    routes = ClusterRoutes(asyncio.get_running_loop().time)
    watches = RouteWatches(
        nameservers,
        routes,
        (local_broker()[0].description().cluster, "own"),
        FAST,
        lambda: 0.5,
        registration_channels(None, transport),
        None if who is None else lambda: who,
        Turns(),
    )
    await watches.start()
    try:
        yield routes
    finally:
        await watches.stop()


def names(routes: ClusterRoutes) -> list[str]:
    return [one.name for one in routes.brokers]


class FakeNameserver:
    """Sends the answers that the test puts into `answers`; an empty one ends the stream."""

    def __init__(self) -> None:
        self.answers: asyncio.Queue[bytes] = asyncio.Queue()
        self.requests: list[route_pb2.WatchRoutesRequest] = []

    async def watch_routes(
        self, request: route_pb2.WatchRoutesRequest, _context: Any
    ) -> AsyncIterator[route_pb2.ClusterReply]:
        self.requests.append(request)
        while sent := await self.answers.get():
            yield route_pb2.ClusterReply.FromString(sent)


@asynccontextmanager
async def fake_nameserver(other: object | None = None) -> AsyncIterator[tuple[FakeNameserver, Address]]:
    fake = FakeNameserver()
    metrics = RpcMetrics(CollectorRegistry(), cluster="c", node_type="nameserver", node_id="n")
    server = GrpcServer(GrpcLimits(), metrics)
    add_fake(server.server, ROUTES, fake if other is None else other)
    address = server.bind(Address("127.0.0.1", 0))
    await server.start()
    try:
        yield fake, address
    finally:
        await server.stop(0)


async def test_a_broker_that_joins_changes_and_leaves_is_followed() -> None:
    app, address = await start_nameserver()
    broker, topics = local_broker()
    async with following(address) as routes:
        assert (names(routes), routes.connected) == ([], 1), "the start waits for the first answer"
        async with registered(broker, address):
            await until(lambda: len(routes.holding("orders")) == 1)
            topics.create("bills")
            await until(lambda: len(routes.holding("bills")) == 1)
            broker.withdraw(draining=True, drained=False)
            await until(lambda: routes.holding("orders")[0].draining)
        await until(lambda: names(routes) == [])
    await app.stop()


async def test_without_nameservers_the_broker_is_alone() -> None:
    async with following() as routes:
        assert (names(routes), routes.connected, routes.reports) == ([], 0, 0)


async def test_all_nameservers_away_keeps_the_routes_and_says_so() -> None:
    app, address = await start_nameserver()
    broker, _ = local_broker()
    registry = CollectorRegistry()
    async with following(address) as routes, registered(broker, address) as registrations:
        registry.register(RoutesCollector(routes, registrations.leaving_out))
        await until(lambda: names(routes) == ["broker-a"])
        with logged() as log:
            await app.stop()
            await until(lambda: routes.connected == 0)
            await until(lambda: "routes.kept" in log.getvalue())
        assert names(routes) == ["broker-a"]
        assert registry.get_sample_value("trovemq_routes_nameservers") == 0
        assert registry.get_sample_value("trovemq_routes_brokers") == 1
        again, _ = await start_nameserver(str(address))
        await until(lambda: routes.connected == 1)
        await again.stop()


async def test_a_stream_that_ends_is_opened_again() -> None:
    async with fake_nameserver() as (fake, address):
        fake.answers.put_nowait(answer(entry("a", {"orders": 1}, cluster=own_cluster())))
        async with following(address) as routes:
            assert names(routes) == ["a"]
            assert fake.requests[0].changes
            assert fake.requests[0].removed_brokers, "else a nameserver sends all topics for each new one"
            fake.answers.put_nowait(b"")
            await until(lambda: len(fake.requests) == 2)
            assert names(routes) == ["a"]
            fake.answers.put_nowait(answer(entry("b", {"orders": 1}, cluster=own_cluster()), lost=["a"]))
            await until(lambda: names(routes) == ["b"])


@pytest.mark.parametrize(
    "error", [b"\xff", common_pb2.Error(symbol="X", fields={"message": "twice"}).SerializeToString()]
)
async def test_after_an_unreadable_error_a_nameserver_was_never_asked_again(error: bytes) -> None:
    class Broken:
        calls = 0

        async def watch_routes(
            self, _request: route_pb2.WatchRoutesRequest, context: Any
        ) -> AsyncIterator[route_pb2.ClusterReply]:
            self.calls += 1
            yield route_pb2.ClusterReply(version=1)
            await context.abort(grpc.StatusCode.INTERNAL, "broken", [(ERROR_METADATA_KEY, error)])

    fake = Broken()
    async with fake_nameserver(fake) as (_, address), following(address):
        await until(lambda: fake.calls > 1)


@fake_time
async def test_a_nameserver_that_ends_each_stream_was_asked_without_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    streams = 0

    async def one_reply(watch: RouteWatch, _channel: Any) -> str:
        nonlocal streams
        streams += 1
        watch._report(Routes({}))
        return "it ended"

    monkeypatch.setattr(RouteWatch, "_one_stream", one_reply)
    async with following(Address("127.0.0.1", 1)):
        await asyncio.sleep(6)
    assert 60 < streams < 100, "after a while one for each of the longest pauses"


async def test_a_nameserver_with_users_wants_a_log_in(tmp_path: Path, transport: GrpcTransport) -> None:
    users_file = tmp_path / "users.toml"
    users_file.write_text(users_text(), encoding="utf-8")
    async with served(users_file, transport) as (_, address):
        async with following(address, who=BROKER, transport=transport) as routes:
            await until(lambda: routes.connected == 1)
        wrong = Credentials("a-key", SECRET + "?")
        with logged() as log:
            async with following(address, who=wrong, transport=transport) as routes:
                await until(lambda: "AUTHENTICATION_FAILED" in log.getvalue())
                assert routes.connected == 0
        assert "canary" not in log.getvalue()


def own_cluster() -> str:
    return local_broker()[0].description().cluster
