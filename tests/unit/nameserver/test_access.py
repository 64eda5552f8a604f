"""A nameserver that asks who calls: real brokers' registrations and real clients, on both transports."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

import trovemq
from tests.support.stubs import REGISTRATION, ROUTES, stub_of
from tests.unit.nameserver.test_registration import FAST, Topic, local_broker, until
from tests.unit.nameserver.test_services import heartbeat, names
from trovemq._wire.failures import error_from_grpc
from trovemq_broker.cluster.registration import Registrations, RegistrationState, registration_channels
from trovemq_daemon.addresses import Address
from trovemq_daemon.errors import SettingsError
from trovemq_daemon.private_files import read_credentials
from trovemq_nameserver import access
from trovemq_nameserver.app import NameserverApp
from trovemq_nameserver.broker import Broker
from trovemq_nameserver.settings import NameserverSettings
from trovemq_proto import errors
from trovemq_proto.authentication.credentials import Credentials
from trovemq_proto.channels import GrpcTransport
from trovemq_proto.errors import TroveError
from trovemq_proto.v1 import route_pb2

pytestmark = pytest.mark.asyncio

SECRET = "canary-secret-5"
BROKER = Credentials("a-key", SECRET)
ALICE = Credentials("alice", SECRET)
ROOT = Credentials("root", SECRET)


def users_text(secret: str = SECRET, old: str = "", name: str = "broker-a") -> str:
    also = f'old_secret_key = "{old}"\n' if old else ""
    broker = f'[[broker]]\nname = "{name}"\naccess_key = "a-key"\nsecret_key = "{secret}"\n{also}'
    return broker + f'[[client]]\naccess_key = "alice"\nsecret_key = "{SECRET}"\n'


def replace(path: Path, text: str) -> None:
    """As an operator's tool does it: at once."""
    new = path.with_name("new")
    new.write_text(text, encoding="utf-8")
    os.replace(new, path)


@pytest.fixture
def users_file(tmp_path: Path) -> Path:
    path = tmp_path / "users.toml"
    path.write_text(users_text(), encoding="utf-8")
    return path


@asynccontextmanager
async def served(
    users_file: Path | str, transport: GrpcTransport = "grpcio"
) -> AsyncIterator[tuple[NameserverApp, Address]]:
    settings = NameserverSettings(
        listen="127.0.0.1:0",
        http="off",
        grpc_transport=transport,
        users_file=str(users_file),
        files_reload_interval_ms=10,
        broker_broken_ms=0,
    )
    app = NameserverApp(settings)
    address, _ = await app.start()
    try:
        yield app, address
    finally:
        await app.stop()


@asynccontextmanager
async def registering(
    nameserver: Address,
    who: Credentials | None,
    transport: GrpcTransport = "grpcio",
    topic_count: int = 1,
) -> AsyncIterator[Registrations]:
    broker, topics = local_broker()
    topics.topics |= {name: Topic(name) for name in (f"topic-{number}" for number in range(1, topic_count))}
    registrations = Registrations(
        [nameserver],
        broker,
        FAST,
        lambda: 0.5,
        registration_channels(None, transport),
        None if who is None else lambda: who,
    )
    registrations.start()
    try:
        yield registrations
    finally:
        await registrations.stop()


async def refused(registrations: Registrations, reason: str) -> None:
    """grpcio sometimes loses the reason of a stream that ends under a write: the next attempt has it."""
    (registration,) = registrations.registrations
    await until(lambda: reason in registration.detail)
    assert registration.state is RegistrationState.WAITING
    assert "canary" not in registration.detail


def refusal(failure: Any) -> str:
    return error_from_grpc(failure, "nameserver").symbol


async def test_a_known_broker_registers_under_its_name_and_leaves(
    users_file: Path, transport: GrpcTransport
) -> None:
    async with served(users_file, transport) as (app, address):
        async with registering(address, BROKER, transport) as registrations:
            await until(lambda: app.registry.table.broker_count == 1)
            await until(lambda: registrations.registrations[0].heartbeats > 2)
        await until(lambda: app.registry.table.broker_count == 0)
        assert not app.registry.refusals


@pytest.mark.parametrize(
    ("who", "reason"),
    [
        (None, "AUTHENTICATION_FAILED"),
        (Credentials("a-key", "wrong-secret"), "AUTHENTICATION_FAILED"),
        (Credentials("nobody", SECRET), "AUTHENTICATION_FAILED"),
        (ALICE, "ACCESS_DENIED"),
    ],
)
async def test_other_users_may_not_register(
    users_file: Path, transport: GrpcTransport, who: Credentials | None, reason: str
) -> None:
    async with served(users_file, transport) as (app, address):
        async with registering(address, who, transport) as registrations:
            await refused(registrations, reason)
        assert app.registry.table.broker_count == 0


@pytest.mark.parametrize("topic_count", [1, 1_000])
async def test_a_broker_does_not_register_under_the_name_of_another(
    users_file: Path, topic_count: int
) -> None:
    """With many topics its heartbeat is read in steps, and checked afterwards."""
    replace(users_file, users_text(name="broker-b"))
    async with served(users_file) as (app, address):
        async with registering(address, BROKER, topic_count=topic_count) as registrations:
            await refused(registrations, "registers broker 'broker-b', not 'broker-a'")
        assert app.registry.table.broker_count == 0


async def test_a_clients_large_heartbeat_was_read_before_it_was_refused(
    users_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers wait while it is read."""
    read = []

    def reading(data: bytes, *_: Any) -> None:
        read.append(data)
        raise TroveError(errors.ACCESS_DENIED, "alice is not a broker, but it was read")

    monkeypatch.setattr("trovemq_nameserver.registration.read_large", reading)
    async with served(users_file) as (app, address):
        async with registering(address, ALICE, topic_count=1_000) as registrations:
            await refused(registrations, "alice is not a broker")
        assert app.registry.table.broker_count == 0
        assert not read


async def test_a_broker_with_credentials_registers_without_authentication(transport: GrpcTransport) -> None:
    async with (
        served("", transport) as (app, address),
        registering(address, BROKER, transport) as registrations,
    ):
        await until(lambda: app.registry.table.broker_count == 1)
        assert registrations.log_in_warning().startswith(f"{address} checks no log-ins")


@pytest.mark.parametrize("who", [BROKER, None])
async def test_no_warning_where_a_log_in_is_checked_or_not_wanted(
    users_file: Path, who: Credentials | None
) -> None:
    async with (
        served(users_file if who is not None else "") as (app, address),
        registering(address, who) as registrations,
    ):
        await until(lambda: app.registry.table.broker_count == 1)
        assert registrations.log_in_warning() == ""


async def test_clients_read_routes_with_credentials_alone(users_file: Path, transport: GrpcTransport) -> None:
    async with served(users_file, transport) as (app, address), registering(address, BROKER, transport):
        await until(lambda: app.registry.table.broker_count == 1)
        async with trovemq.connect(
            str(address), access_key=ALICE.access_key, secret_key=ALICE.secret_key
        ) as client:
            assert [broker.name for broker in client._pool.routes.brokers(None)] == ["broker-a"]
        for access_key, secret_key in ((None, None), ("alice", "wrong-secret")):
            with pytest.raises(TroveError) as raised:
                await trovemq.connect(str(address), access_key=access_key, secret_key=secret_key)
            assert raised.value.symbol == "AUTHENTICATION_FAILED"


async def test_without_credentials_there_is_health_and_nothing_else(users_file: Path) -> None:
    async with served(users_file) as (app, address), grpc.aio.insecure_channel(str(address)) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        assert (await health.Check(health_pb2.HealthCheckRequest())).status == 1
        routes = stub_of(ROUTES, channel)
        calls = (
            routes.GetServerInfo(route_pb2.GetServerInfoRequest()),
            routes.GetRoute(route_pb2.GetRouteRequest(topic="orders")),
            routes.GetCluster(route_pb2.GetClusterRequest()),
            routes.WatchRoutes(route_pb2.WatchRoutesRequest()).read(),
            stub_of(REGISTRATION, channel).Register().read(),
            stub_of(REGISTRATION, channel).Forget(route_pb2.ForgetRequest(broker="broker-a")),
            names(channel),
        )
        for call in calls:
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await call
            assert refusal(raised.value) == "AUTHENTICATION_FAILED"
        unsigned = stub_of(REGISTRATION, channel).Register(metadata=(("trovemq-auth-bin", b"x" * 56),))
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await unsigned.write(heartbeat())
        assert await unsigned.code() is grpc.StatusCode.UNAUTHENTICATED
        assert app._access is not None
        assert app._access.refusals.counts["AUTHENTICATION_FAILED"] >= len(calls)


async def test_any_client_could_have_a_lost_broker_forgotten(
    users_file: Path, transport: GrpcTransport
) -> None:
    administrator = f'[[administrator]]\naccess_key = "root"\nsecret_key = "{SECRET}"\n'
    replace(users_file, users_text() + administrator)
    async with served(users_file, transport) as (app, address):

        def lose(name: str) -> None:
            app.registry.table.register(99, Broker("c", name, "127.0.0.1:1"), {}, 1, app.registry.clock())
            app.registry.table.lose(99, app.registry.clock())

        async def forgets(who: Credentials, name: str) -> bool:
            async with trovemq.connect(
                str(address), access_key=who.access_key, secret_key=who.secret_key
            ) as client:
                return bool(await client.admin.brokers.forget(name))

        lose("broker-b")
        for one in (ALICE, BROKER):
            text = f"{one.access_key} is neither an administrator of the users_file nor broker 'broker-b'"
            with pytest.raises(TroveError, match=text) as raised:
                await forgets(one, "broker-b")
            assert raised.value.symbol == "ACCESS_DENIED"
        assert [one.broker.name for one in app.registry.table.lost(app.registry.clock())] == ["broker-b"]
        assert await forgets(ROOT, "broker-b")
        lose("broker-a")
        assert await forgets(BROKER, "broker-a")
        async with registering(address, ROOT, transport) as registrations:
            await refused(registrations, "ACCESS_DENIED")


async def test_a_call_that_the_check_does_not_know_is_refused(
    users_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a call would be that a later version adds."""
    monkeypatch.setattr(access, "_FOR_EVERY_USER", ())
    async with served(users_file) as (_, address):
        with pytest.raises(TroveError, match=r"alice may not call /trovemq\.v1\.RouteService/") as raised:
            await trovemq.connect(str(address), access_key=ALICE.access_key, secret_key=ALICE.secret_key)
        assert raised.value.symbol == "ACCESS_DENIED"


async def test_a_secret_that_is_changed_ends_the_old_ones_registration(
    users_file: Path, tmp_path: Path
) -> None:
    own = tmp_path / "own"
    own.write_text(f"access_key=a-key\nsecret_key={SECRET}\n", encoding="utf-8")
    broker, _ = local_broker()
    async with served(users_file) as (app, address):
        registrations = Registrations(
            [address], broker, FAST, lambda: 0.5, None, lambda: read_credentials(own, "x")
        )
        (registration,) = registrations.registrations
        registrations.start()
        await until(lambda: app.registry.table.broker_count == 1)
        replace(users_file, users_text("another-secret", old=SECRET))
        beats = registration.heartbeats
        await until(lambda: registration.heartbeats > beats + 3)
        replace(users_file, "this is no users' file")
        beats = registration.heartbeats
        await until(lambda: registration.heartbeats > beats + 3)
        replace(users_file, users_text("another-secret"))
        await until(lambda: app.registry.table.broker_count == 0)
        own.write_text("access_key=a-key\nsecret_key=another-secret\n", encoding="utf-8")
        await until(lambda: app.registry.table.broker_count == 1)
        await registrations.stop()


async def test_a_watch_ends_when_its_user_is_removed(users_file: Path) -> None:
    async with (
        served(users_file) as (app, address),
        trovemq.connect(str(address), access_key="alice", secret_key=SECRET),
    ):
        await until(lambda: len(app.registry.watchers) == 1)
        replace(users_file, users_text().partition("[[client]]")[0])
        await until(lambda: app._access is not None and app._access.user("alice") is None)
        async with registering(address, BROKER):
            await until(lambda: len(app.registry.watchers) == 0)


async def test_files_that_do_not_work_stop_the_start(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        async with served(tmp_path / "none.toml"):
            pass
    with pytest.raises(SettingsError, match="no such file"):
        read_credentials(tmp_path / "none", "x")
    own = tmp_path / "own"
    own.write_bytes(b"secret_key=\xffcanary")
    with pytest.raises(SettingsError, match="not UTF-8") as raised:
        read_credentials(own, "x")
    assert "canary" not in str(raised.value)


async def test_a_nameserver_that_asks_may_listen_on_more_than_loopback() -> None:
    assert any("--insecure" in one for one in NameserverSettings(listen="0.0.0.0:1").problems())
    assert not any(
        "--insecure" in one for one in NameserverSettings(listen="0.0.0.0:1", users_file="u").problems()
    )
