"""A broker's registration with real nameservers of this process, and its answers about itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

import trovemq
from tests.support.logs import logged
from tests.support.stubs import ROUTES, add_fake, stub_of
from trovemq_broker.cluster.nameserver_session import back_off_s
from trovemq_broker.cluster.registration import (
    Registrations,
    RegistrationSettings,
    RegistrationState,
    registration_channels,
)
from trovemq_broker.cluster.self_route import SelfRouteService
from trovemq_broker.cluster.view import BrokerDescription, LocalBroker
from trovemq_daemon.addresses import Address
from trovemq_daemon.grpc_server import GrpcLimits, GrpcServer
from trovemq_daemon.metrics import RpcMetrics
from trovemq_nameserver.app import NameserverApp
from trovemq_nameserver.routes import RouteLimits
from trovemq_nameserver.settings import NameserverSettings
from trovemq_proto.channels import GrpcTransport
from trovemq_proto.positions import EpochMs
from trovemq_proto.v1 import route_pb2

FAST = RegistrationSettings(
    heartbeat_interval_ms=50, registration_retry_min_ms=10, registration_retry_max_ms=100
)
SLOW_HEARTBEAT = RegistrationSettings(
    heartbeat_interval_ms=60_000, registration_retry_min_ms=10, registration_retry_max_ms=100
)


@dataclass(frozen=True)
class Topic:
    name: str
    queue_count: int = 4
    message_type: str = "NORMAL"


@dataclass
class FakeTopics:
    """As much of a TopicTable as the cluster looks at."""

    topics: dict[str, Topic] = field(default_factory=dict)
    data_version: int = 1
    listeners: list[Callable[[], None]] = field(default_factory=list)
    listed: int = 0
    changed: list[str] = field(default_factory=list)
    changes_known: bool = True

    @property
    def change_count(self) -> int:
        return len(self.changed)

    def changed_since(self, change_count: int) -> list[str] | None:
        return self.changed[change_count:] if self.changes_known else None

    def names(self, include_system: bool = False) -> list[str]:
        self.listed += 1
        return sorted(self.topics)

    def require(self, name: str) -> Topic:
        return self.topics[name]

    def find(self, name: str) -> Topic | None:
        return self.topics.get(name)

    def add_change_listener(self, listener: Callable[[], None]) -> None:
        self.listeners.append(listener)

    def create(self, name: str) -> None:
        self.topics[name] = Topic(name)
        self._changed(name)

    def delete(self, name: str) -> None:
        del self.topics[name]
        self._changed(name)

    def _changed(self, name: str) -> None:
        self.changed.append(name)
        self.data_version += 1
        for listener in self.listeners:
            listener()


def local_broker(name: str = "broker-a", port: int = 8081) -> tuple[LocalBroker, FakeTopics]:
    description = BrokerDescription(
        cluster="DefaultCluster",
        name=name,
        address=f"127.0.0.1:{port}",
        store_host_ipv6=False,
        append_property_crc=True,
        body_size_max=100,
        batch_size_max=200,
        flush_mode="sync",
        version="0.1.0",
    )
    topics = FakeTopics({"orders": Topic("orders")})
    return LocalBroker(description, topics), topics


async def start_nameserver(listen: str = "127.0.0.1:0", **values: Any) -> tuple[NameserverApp, Address]:
    settings = NameserverSettings(listen=listen, http="off", broker_broken_ms=100, **values)
    app = NameserverApp(settings)
    address, _ = await app.start()
    return app, address


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(240):
        while not condition():
            await asyncio.sleep(0.005)


def live(app: NameserverApp) -> dict[str, list[str]]:
    return {route.broker.name: list(route.topics) for route in app.registry.table.routes()}


@asynccontextmanager
async def registered(
    broker: LocalBroker, *nameservers: Address, settings: RegistrationSettings = FAST
) -> AsyncIterator[Registrations]:
    registrations = Registrations(nameservers, broker, settings, lambda: 0.5)
    registrations.start()
    try:
        yield registrations
    finally:
        await registrations.stop()


@pytest.mark.asyncio
async def test_a_broker_registers_with_all_nameservers_and_leaves_them() -> None:
    first, first_address = await start_nameserver()
    second, second_address = await start_nameserver()
    broker, _ = local_broker()
    async with registered(broker, first_address, second_address) as registrations:
        await until(lambda: live(first) == live(second) == {"broker-a": ["orders"]})
        info = first.registry.table.routes()[0].broker
        assert (info.address, info.append_property_crc, info.batch_size_max) == ("127.0.0.1:8081", True, 200)
        await until(lambda: all(entry.heartbeats > 2 for entry in registrations.registrations))
        assert first.registry.table.version == 1
        assert registrations.problem() == ""
    assert live(first) == live(second) == {}
    assert first.registry.expirations == 0
    assert {entry.state for entry in registrations.registrations} == {RegistrationState.STOPPED}
    await first.stop()
    await second.stop()


@pytest.mark.asyncio
async def test_a_nameserver_that_does_not_list_the_broker_is_a_warning() -> None:
    app, address = await start_nameserver()
    other, gone = await start_nameserver()
    await other.stop()
    broker, _ = local_broker()
    async with registered(broker, address, gone) as registrations:
        assert f"not registered at {address}" in registrations.warning(), "it has not arrived yet"
        await until(lambda: str(address) not in registrations.warning())
        assert "broker-a" in live(app)
        assert f"not registered at {gone}" in registrations.warning()
        assert registrations.problem() == "", "it serves clients that know its address"
    await app.stop()


@pytest.mark.asyncio
async def test_a_new_topic_is_reported_at_once_and_not_at_the_next_heartbeat() -> None:
    app, address = await start_nameserver()
    broker, topics = local_broker()
    async with registered(broker, address, settings=SLOW_HEARTBEAT):
        await until(lambda: bool(live(app)))
        topics.create("bills")
        await until(lambda: live(app) == {"broker-a": ["orders", "bills"]})
    await app.stop()


@pytest.mark.asyncio
async def test_a_restarted_nameserver_regains_the_broker_before_a_heartbeat() -> None:
    app, address = await start_nameserver()
    broker, _ = local_broker()
    async with registered(broker, address, settings=SLOW_HEARTBEAT) as registrations:
        (registration,) = registrations.registrations
        await until(lambda: bool(live(app)))
        await app.stop()
        await until(lambda: registration.state != RegistrationState.REGISTERED)
        assert registrations.problem() == ""
        again, _ = await start_nameserver(str(address))
        await until(lambda: live(again) == {"broker-a": ["orders"]})
    await again.stop()


@pytest.mark.asyncio
async def test_a_name_in_use_is_a_readiness_problem_until_it_is_free() -> None:
    app, address = await start_nameserver()
    first, _ = local_broker(port=8081)
    second, _ = local_broker(port=8082)
    async with registered(first, address) as holder:
        await until(lambda: bool(live(app)))
        async with registered(second, address) as refused:
            await until(lambda: "127.0.0.1:8081" in refused.problem())
            assert holder.problem() == ""
            await holder.stop()
            await until(lambda: refused.problem() == "")
            assert app.registry.table.routes()[0].broker.address == "127.0.0.1:8082"
    await app.stop()


@pytest.mark.asyncio
async def test_a_broker_that_its_nameserver_forgot_registers_again() -> None:
    app, address = await start_nameserver()
    broker, _ = local_broker()
    async with registered(broker, address):
        await until(lambda: bool(live(app)))
        app.registry.table.leave(1)
        await until(lambda: bool(live(app)))
        assert app.registry.registrations == 2
    await app.stop()


@pytest.mark.asyncio
async def test_a_broker_over_a_limit_of_the_nameserver_lost_all_its_routes() -> None:
    app, address = await start_nameserver(topics_per_broker_max=2)
    broker, topics = local_broker()
    with logged() as log:
        await _over_the_limit(app, address, broker, topics)
    assert log.getvalue().count("nameserver.topics_left_out") == 1
    assert log.getvalue().count("nameserver.topics_complete") == 1
    await app.stop()


async def _over_the_limit(
    app: NameserverApp, address: Address, broker: LocalBroker, topics: FakeTopics
) -> None:
    async with registered(broker, address) as registrations:
        await until(lambda: live(app) == {"broker-a": ["orders"]})
        topics.create("bills")
        await until(lambda: live(app) == {"broker-a": ["orders", "bills"]})
        topics.create("all")  # the first by name; those that the routes had stay
        await until(lambda: bool(registrations.leaving_out()))
        topics.create("more")
        await until(lambda: "2 of 4 topics" in registrations.leaving_out()[0])
        assert sorted(live(app)["broker-a"]) == ["bills", "orders"]
        (text,) = registrations.leaving_out()
        assert "(all, more, …)" in text
        assert "topics_per_broker_max = 2" in text
        assert app.registry.table.topics_left_out == 2
        assert app.registry.table.routes()[0].broker.topics_left_out == 2
        assert app.registry.refusals == 0
        topics.delete("orders")
        topics.delete("bills")
        await until(lambda: sorted(live(app)["broker-a"]) == ["all", "more"])
        await until(lambda: not registrations.leaving_out())
        assert app.registry.table.topics_left_out == 0


@pytest.mark.asyncio
async def test_a_heartbeat_that_was_too_large_lost_the_broker_all_its_routes(
    transport: GrpcTransport,
) -> None:
    app, address = await start_nameserver(heartbeat_size_max=65_536, grpc_transport=transport)
    broker, topics = local_broker()
    names = [f"{number:03}-{'x' * 200}" for number in range(900)]
    for name in names:
        topics.topics[name] = Topic(name)
    channels = registration_channels(None, transport)
    registrations = Registrations((address,), broker, FAST, lambda: 0.5, channels)
    registrations.start()
    with logged() as log:
        await until(lambda: "65536" in "".join(registrations.leaving_out()))
    shown = live(app)["broker-a"]
    assert sorted(shown) == sorted([*names, "orders"])[: len(shown)], "the first ones"
    (text,) = registrations.leaving_out()
    assert f"{901 - len(shown)} topics are not in the routes" in text
    assert "heartbeat_size_max = 65536" in text
    assert log.getvalue().count("nameserver.heartbeat_too_large") == 2, "it has twice the size, then half"
    for name in names[:700]:
        topics.delete(name)
    await until(lambda: sorted(live(app)["broker-a"]) == [*names[700:], "orders"])
    await until(lambda: not registrations.leaving_out())
    assert app.registry.refusals == 0
    await registrations.stop()
    await app.stop()


@pytest.mark.asyncio
async def test_topics_left_out_came_in_only_when_the_broker_changed() -> None:
    app, address = await start_nameserver()
    app.registry.table._limits = RouteLimits(topic_routes_max=3)
    first, first_topics = local_broker()
    second, second_topics = local_broker("broker-b", 8082)
    first_topics.create("bills")
    second_topics.create("bills")
    async with registered(first, address):
        await until(lambda: len(live(app).get("broker-a", [])) == 2)
        async with registered(second, address) as registrations:
            await until(lambda: live(app).get("broker-b") == ["bills"])
            await until(lambda: "topic_routes_max = 3" in "".join(registrations.leaving_out()))
            first_topics.delete("bills")
            await until(lambda: sorted(live(app)["broker-b"]) == ["bills", "orders"])
            await until(lambda: not registrations.leaving_out())
    await app.stop()


@pytest.mark.asyncio
async def test_a_broker_was_not_found_right_after_a_restart_of_its_nameserver() -> None:
    app, address = await start_nameserver()
    broker, _ = local_broker()
    async with trovemq.connect(str(address)) as client:
        found = asyncio.create_task(client.admin.brokers.awaited("broker-a"))
        assert (await client.admin.cluster()).brokers == ()
        async with registered(broker, address):
            assert [one.broker.name for one in (await found).brokers] == ["broker-a"]
        app.registry.started -= 11_000
        async with trovemq.connect(str(address)) as later:
            assert (await later.admin.brokers.awaited("broker-a")).brokers == ()
        app.registry.started += 11_000
        async with trovemq.connect(str(address)) as later:
            assert (await later.admin.brokers.awaited("broker-z", within_s=0.0)).brokers == ()
    await app.stop()


@pytest.mark.asyncio
async def test_leaving_is_quick_where_the_nameserver_was_never_there() -> None:
    broker, _ = local_broker()
    registrations = Registrations((Address("127.0.0.1", 1),), broker, FAST, lambda: 0.0)
    registrations.start()
    await until(lambda: registrations.registrations[0].state == RegistrationState.WAITING)
    async with asyncio.timeout(2.5):
        await registrations.stop()


@given(attempt=st.integers(1, 10_000), jitter=st.floats(0, 1, exclude_max=True))
def test_the_back_off_is_bounded_and_spread(attempt: int, jitter: float) -> None:
    settings = RegistrationSettings(registration_retry_min_ms=200, registration_retry_max_ms=5_000)
    wait = back_off_s(attempt, settings, jitter)
    assert 0.1 <= wait <= 5.0
    assert wait <= 0.2 * 2 ** min(attempt - 1, 10)
    assert back_off_s(attempt + 1, settings, jitter) >= wait


NOW_MS = EpochMs(1_700_000_000_000)


@asynccontextmanager
async def self_route(
    broker: LocalBroker,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    others: Sequence[str] = ("broker-b", "broker-c", "broker-away"),
) -> AsyncIterator[tuple[SelfRouteService, grpc.aio.Channel]]:
    metrics = RpcMetrics(CollectorRegistry(), cluster="c", node_type="broker", node_id="a")
    server = GrpcServer(GrpcLimits(), metrics)
    service = SelfRouteService(
        *(broker, lambda: NOW_MS),
        sleep=sleep,
        others=lambda: 2,
        other_names=lambda: others,
    )
    add_fake(server.server, ROUTES, service)
    address = server.bind(Address("127.0.0.1", 0))
    await server.start()
    async with grpc.aio.insecure_channel(str(address)) as channel:
        yield service, channel
    await server.stop(0)


@pytest.mark.asyncio
async def test_a_watch_of_a_broker_says_when_the_cluster_gets_another_one() -> None:
    """A client would not ask it in look-ups."""
    broker, topics = local_broker()
    names = ["broker-b", "broker-c"]
    async with self_route(broker, others=names) as (service, channel):
        watch = stub_of(ROUTES, channel).WatchRoutes(route_pb2.WatchRoutesRequest(changes=True))
        assert (await watch.read()).other_brokers == 2
        names.append("broker-d")
        service.others_changed()
        reply = await watch.read()
        assert (reply.other_brokers, reply.changes, len(reply.brokers[0].topics)) == (3, True, 0)
        topics.create("bills")
        assert (await watch.read()).other_brokers == 3
        service.close()


@pytest.mark.asyncio
async def test_a_broker_answers_about_itself_as_a_nameserver_would() -> None:
    broker, topics = local_broker()
    async with self_route(broker) as (service, channel):
        stub = stub_of(ROUTES, channel)
        info = await stub.GetServerInfo(route_pb2.GetServerInfoRequest())
        assert (info.role, info.name, info.version) == (route_pb2.BROKER, "broker-a", "0.1.0")
        assert (info.now, info.other_brokers) == (NOW_MS, 3)
        assert info.other_names == ["broker-b", "broker-c", "broker-away"]
        route = await stub.GetRoute(route_pb2.GetRouteRequest(topic="orders"))
        assert [topic.topic for topic in route.brokers[0].topics] == ["orders"]
        assert len((await stub.GetRoute(route_pb2.GetRouteRequest(topic="none"))).brokers) == 0
        watch = stub.WatchRoutes(route_pb2.WatchRoutesRequest())
        only = stub.WatchRoutes(route_pb2.WatchRoutesRequest(topics=["t2"]))
        assert (await watch.read()).version == 1
        assert len((await only.read()).brokers) == 0
        topics.create("t1")
        assert [topic.topic for topic in (await watch.read()).brokers[0].topics] == ["orders", "t1"]
        topics.create("t2")
        reply = await only.read()
        assert reply.version == 3
        assert [topic.topic for topic in reply.brokers[0].topics] == ["t2"]
        service.close()
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await only.read()
        assert ended.value.code() == grpc.StatusCode.UNAVAILABLE


@pytest.mark.asyncio
async def test_each_new_topic_was_looked_for_among_all_by_every_route_watcher() -> None:
    broker, topics = local_broker()
    async with self_route(broker) as (service, channel):
        stub = stub_of(ROUTES, channel)
        watch = stub.WatchRoutes(route_pb2.WatchRoutesRequest(topics=["last", "orders"]))
        await watch.read()
        listed = topics.listed
        for number in range(50):
            topics.create(f"t{number}")
            await asyncio.sleep(0)
        topics.create("last")
        reply = await watch.read()
        assert [topic.topic for topic in reply.brokers[0].topics] == ["last", "orders"]
        assert topics.listed == listed
        service.close()


@pytest.mark.asyncio
async def test_many_topics_are_not_sent_again_for_each_new_one() -> None:
    broker, topics = local_broker()
    for number in range(2_000):
        topics.topics[f"t{number}"] = Topic(f"t{number}")
    pauses: list[float] = []
    go_on = asyncio.Event()

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        await go_on.wait()

    async with self_route(broker, sleep) as (service, channel):
        stub = stub_of(ROUTES, channel)
        watch = stub.WatchRoutes(route_pb2.WatchRoutesRequest())
        await watch.read()
        topics.create("first")
        assert len((await watch.read()).brokers[0].topics) == 2_002, "the first one is reported at once"
        listed = topics.listed
        for number in range(50):
            topics.create(f"more{number}")
            await asyncio.sleep(0)
        assert topics.listed == listed
        go_on.set()
        assert len((await watch.read()).brokers[0].topics) == 2_052
        assert 0.05 <= pauses[0] <= 1
        service.close()


@pytest.mark.asyncio
async def test_who_asks_for_changes_gets_no_topic_twice() -> None:
    broker, topics = local_broker()
    async with self_route(broker) as (service, channel):
        stub = stub_of(ROUTES, channel)
        watch = stub.WatchRoutes(route_pb2.WatchRoutesRequest(changes=True))
        first = await watch.read()
        assert (first.changes, [topic.topic for topic in first.brokers[0].topics]) == (False, ["orders"])
        topics.create("t1")
        topics.create("t2")
        topics.delete("orders")
        second = await watch.read()
        (route,) = second.brokers
        assert (second.changes, second.version, route.broker.data_version) == (True, 4, 4)
        assert [topic.topic for topic in route.topics] == ["t1", "t2"]
        assert list(route.removed_topics) == ["orders"]
        topics.changes_known = False
        topics.create("t3")
        third = await watch.read()
        assert (third.changes, [topic.topic for topic in third.brokers[0].topics]) == (
            False,
            ["t1", "t2", "t3"],
        )
        topics.changes_known = True
        broker.withdraw(True, False)
        last = await watch.read()
        assert (last.changes, last.brokers[0].broker.draining, len(last.brokers[0].topics)) == (True, True, 0)
        service.close()


@pytest.mark.asyncio
async def test_changes_that_were_undone_unseen_stayed_in_the_watchers_state() -> None:
    """The state was as at first, and was not said again; the watcher had got a change in between."""
    broker, topics = local_broker()
    async with self_route(broker) as (service, channel):
        watch = stub_of(ROUTES, channel).WatchRoutes(route_pb2.WatchRoutesRequest(changes=True))
        await watch.read()
        topics.create("t1")
        assert (await watch.read()).changes
        topics.changes_known = False
        topics.delete("t1")
        whole = await asyncio.wait_for(watch.read(), 10)
        assert (whole.changes, [topic.topic for topic in whole.brokers[0].topics]) == (False, ["orders"])
        service.close()
