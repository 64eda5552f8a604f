"""The nameserver's services over a real gRPC connection in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.support.stubs import REGISTRATION, ROUTES, stub_of
from trovemq_nameserver.app import NameserverApp
from trovemq_nameserver.settings import NameserverSettings
from trovemq_proto.v1 import common_pb2, route_pb2

pytestmark = pytest.mark.asyncio


@asynccontextmanager
async def nameserver(**values: Any) -> AsyncIterator[tuple[NameserverApp, grpc.aio.Channel]]:
    """A nameserver on a free port and a channel to it."""
    app = NameserverApp(NameserverSettings(listen="127.0.0.1:0", http="off", **values))
    address, _ = await app.start()
    try:
        async with grpc.aio.insecure_channel(str(address)) as channel:
            yield app, channel
    finally:
        await app.stop()


def heartbeat(name: str = "a", *topics: str, port: int = 8081, version: int = 1) -> route_pb2.Heartbeat:
    info = common_pb2.BrokerInfo(cluster="C", name=name, address=f"127.0.0.1:{port}", body_size_max=7)
    routes = [common_pb2.TopicRoute(topic=topic, queue_count=4, message_type="NORMAL") for topic in topics]
    return route_pb2.Heartbeat(broker=info, topics=routes, data_version=version)


async def register(channel: grpc.aio.Channel, first: route_pb2.Heartbeat) -> Any:
    call = stub_of(REGISTRATION, channel).Register()
    await call.write(first)
    reply = await call.read()
    assert not reply.HasField("error"), reply
    return call


async def read_all(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


async def names(channel: grpc.aio.Channel, topic: str = "") -> list[str]:
    routes = stub_of(ROUTES, channel)
    if topic:
        reply = await routes.GetRoute(route_pb2.GetRouteRequest(topic=topic))
    else:
        reply = await routes.GetCluster(route_pb2.GetClusterRequest())
    return [route.broker.name for route in reply.brokers]


async def test_registered_brokers_are_in_the_routes_with_all_that_they_said() -> None:
    async with nameserver() as (_, channel):
        await register(channel, heartbeat("a", "orders", "bills"))
        await register(channel, heartbeat("b", "orders", port=8082))
        assert await names(channel) == ["a", "b"]
        assert await names(channel, "orders") == ["a", "b"]
        assert await names(channel, "bills") == ["a"]
        assert await names(channel, "none") == []
        routes = stub_of(ROUTES, channel)
        reply = await routes.GetRoute(route_pb2.GetRouteRequest(topic="bills"))
        assert reply.brokers[0].broker == common_pb2.BrokerInfo(
            cluster="C", name="a", address="127.0.0.1:8081", body_size_max=7, data_version=1
        )
        assert [topic.topic for topic in reply.brokers[0].topics] == ["bills"]


async def test_leaving_takes_effect_before_its_reply() -> None:
    async with nameserver() as (_, channel):
        call = await register(channel, heartbeat("a", "orders"))
        await call.write(route_pb2.Heartbeat(leaving=True, data_version=1))
        assert not (await call.read()).HasField("error")
        assert await call.read() is grpc.aio.EOF
        assert await names(channel) == []


async def test_a_broken_stream_leaves_the_routes_after_its_grace() -> None:
    async with nameserver(broker_broken_ms=200) as (app, channel):
        call = await register(channel, heartbeat("a"))
        watch = stub_of(ROUTES, channel).WatchRoutes(route_pb2.WatchRoutesRequest())
        assert len((await watch.read()).brokers) == 1
        call.cancel()
        last = await watch.read()
        assert len(last.brokers) == 0
        assert app.registry.expirations == 1
        assert [(one.name, one.topics, one.topics_alone) for one in last.lost] == [("a", 0, 0)]


async def test_a_killed_broker_was_forgotten() -> None:
    async with nameserver(broker_broken_ms=100) as (app, channel):
        killed = await register(channel, heartbeat("a", "orders", "bills"))
        stopped = await register(channel, heartbeat("b", "orders", port=8082))
        await register(channel, heartbeat("c", "orders", port=8083))
        await stopped.write(route_pb2.Heartbeat(leaving=True))
        await read_all(stopped)
        killed.cancel()
        async with asyncio.timeout(240):
            while app.registry.expirations == 0:
                await asyncio.sleep(0.05)
        routes = stub_of(ROUTES, channel)
        reply = await routes.GetCluster(route_pb2.GetClusterRequest())
        (lost,) = reply.lost
        assert (lost.name, lost.cluster, lost.address) == ("a", "C", "127.0.0.1:8081")
        assert (lost.topics, lost.topics_alone) == (2, 1)
        assert 0 <= lost.lost_ms < 30_000


async def test_the_error_names_the_killed_broker_that_had_the_topic() -> None:
    async with nameserver(broker_broken_ms=100) as (app, channel):
        killed = await register(channel, heartbeat("a", "orders", "bills"))
        await register(channel, heartbeat("b", "orders", port=8082))
        routes = stub_of(ROUTES, channel)
        reply = await routes.GetRoute(route_pb2.GetRouteRequest(topic="bills"))
        assert not reply.lost
        killed.cancel()
        async with asyncio.timeout(30):
            while app.registry.expirations == 0:
                await asyncio.sleep(0.05)
        reply = await routes.GetRoute(route_pb2.GetRouteRequest(topic="bills"))
        assert [(one.name, one.address, one.topics_alone) for one in reply.lost] == [
            ("a", "127.0.0.1:8081", 1)
        ]
        reply = await routes.GetRoute(route_pb2.GetRouteRequest(topic="orders"))
        assert [one.topics[0].topic for one in reply.brokers] == ["orders"]  # b has it, and a may have more
        assert [one.name for one in reply.lost] == ["a"]
        assert not (await routes.GetRoute(route_pb2.GetRouteRequest(topic="none"))).lost


async def test_a_silent_broker_leaves_and_its_stream_ends_with_the_reason() -> None:
    async with nameserver(broker_silent_ms=200) as (_, channel):
        call = await register(channel, heartbeat("a"))
        reply = await call.read()
        assert reply.error.symbol in ("SERVICE_NOT_AVAILABLE", "BROKER_NOT_FOUND")
        assert await call.read() is grpc.aio.EOF
        assert await names(channel) == []


async def test_a_second_live_broker_of_one_name_is_refused() -> None:
    async with nameserver() as (_, channel):
        await register(channel, heartbeat("a"))
        call = stub_of(REGISTRATION, channel).Register()
        await call.write(heartbeat("a", port=9))
        reply = await call.read()
        assert reply.error.symbol == "BROKER_NAME_TAKEN"
        assert reply.error.fields["address"] == "127.0.0.1:8081"
        assert await call.read() is grpc.aio.EOF
        assert await names(channel) == ["a"]


async def test_the_first_message_must_describe_the_broker() -> None:
    async with nameserver() as (_, channel):
        call = stub_of(REGISTRATION, channel).Register()
        await call.write(route_pb2.Heartbeat(data_version=1))
        assert (await call.read()).error.symbol == "BROKER_NOT_FOUND"


async def test_a_slow_watcher_gets_the_latest_state_once() -> None:
    async with nameserver() as (app, channel):
        call = await register(channel, heartbeat("a", "t0"))
        watch = stub_of(ROUTES, channel).WatchRoutes(route_pb2.WatchRoutesRequest())
        first = await watch.read()
        for version in range(2, 50):
            await call.write(heartbeat("a", f"t{version}", version=version))
            await call.read()
        last = first
        replies = 0
        while last.version < app.registry.table.version:
            last = await watch.read()
            replies += 1
        assert replies <= 48
        assert [topic.topic for topic in last.brokers[0].topics] == ["t49"]


async def test_a_watcher_of_topics_hears_of_those_alone() -> None:
    async with nameserver() as (_, channel):
        call = await register(channel, heartbeat("a", "t1"))
        routes = stub_of(ROUTES, channel)
        watch = routes.WatchRoutes(route_pb2.WatchRoutesRequest(topics=["t9"]))
        assert len((await watch.read()).brokers) == 0
        await register(channel, heartbeat("b", "t2", port=2))
        await call.write(heartbeat("a", "t1", "t9", version=2))
        reply = await watch.read()
        assert [(r.broker.name, [t.topic for t in r.topics]) for r in reply.brokers] == [("a", ["t9"])]


async def test_too_many_watchers_are_refused_and_a_place_becomes_free_again() -> None:
    async with nameserver(watchers_max=1) as (app, channel):
        routes = stub_of(ROUTES, channel)
        first = routes.WatchRoutes(route_pb2.WatchRoutesRequest())
        await first.read()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await routes.WatchRoutes(route_pb2.WatchRoutesRequest()).read()
        assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        metadata = dict(refused.value.trailing_metadata() or ())
        wire = common_pb2.Error.FromString(metadata["trovemq-error-bin"])
        assert wire.symbol == "LIMIT_EXCEEDED"
        first.cancel()
        async with asyncio.timeout(240):
            while len(app.registry.watchers):
                await asyncio.sleep(0)
        await routes.WatchRoutes(route_pb2.WatchRoutesRequest()).read()


async def test_stopping_ends_watchers_and_registrations() -> None:
    app = NameserverApp(NameserverSettings(listen="127.0.0.1:0", http="off"))
    address, _ = await app.start()
    async with grpc.aio.insecure_channel(str(address)) as channel:
        watch = stub_of(ROUTES, channel).WatchRoutes(route_pb2.WatchRoutesRequest())
        await watch.read()
        await register(channel, heartbeat("a"))
        await app.stop()
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await read_all(watch)
        assert ended.value.code() == grpc.StatusCode.UNAVAILABLE


async def test_server_info_health_and_illegal_requests() -> None:
    async with nameserver() as (_, channel):
        routes = stub_of(ROUTES, channel)
        info = await routes.GetServerInfo(route_pb2.GetServerInfoRequest())
        assert info.role == route_pb2.NAMESERVER
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", "trovemq.v1.RouteService", "trovemq.v1.RegistrationService"):
            answer = await health.Check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await routes.GetRoute(route_pb2.GetRouteRequest())
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
