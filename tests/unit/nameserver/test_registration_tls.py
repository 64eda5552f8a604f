"""A broker that registers by TLS, and a nameserver that serves by TLS, on both transports."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.certificates import LONG_AGO, Certificates
from tests.unit.nameserver.test_registration import FakeTopics, until
from trovemq_broker.cluster.registration import (
    Registrations,
    RegistrationSettings,
    RegistrationState,
    registration_channels,
)
from trovemq_broker.cluster.view import BrokerDescription, LocalBroker
from trovemq_broker.daemon.settings import BrokerSettings
from trovemq_daemon.addresses import Address
from trovemq_daemon.errors import SettingsError
from trovemq_nameserver.app import NameserverApp
from trovemq_nameserver.broker import check_broker
from trovemq_nameserver.settings import NameserverSettings
from trovemq_nameserver.wire import broker_from_wire
from trovemq_proto.channels import GrpcTransport
from trovemq_proto.errors import TroveError
from trovemq_proto.tls import TlsOptions
from trovemq_proto.v1 import common_pb2

FAST = RegistrationSettings(
    heartbeat_interval_ms=50, registration_retry_min_ms=10, registration_retry_max_ms=100
)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.made(tmp_path_factory.mktemp("certificates"))


def broker() -> LocalBroker:
    description = BrokerDescription(
        cluster="c",
        name="broker-a",
        address="127.0.0.1:8081",
        tls_address="127.0.0.1:8082",
        store_host_ipv6=False,
        append_property_crc=True,
        body_size_max=100,
        batch_size_max=200,
        flush_mode="sync",
        version="0.1.0",
    )
    return LocalBroker(description, FakeTopics())


@asynccontextmanager
async def served(
    certificates: Certificates, transport: GrpcTransport, *, client_ca: str = ""
) -> AsyncIterator[tuple[NameserverApp, Address, Address]]:
    """The nameserver with its plain and its TLS address."""
    app = NameserverApp(
        NameserverSettings(
            listen="127.0.0.1:0",
            http="off",
            grpc_transport=transport,
            tls_listen="127.0.0.1:0",
            tls_certificate=str(certificates.pem("server")),
            tls_key=str(certificates.key("server")),
            tls_client_ca=client_ca,
        )
    )
    plain, _ = await app.start()
    assert app.tls_address is not None
    try:
        yield app, plain, app.tls_address
    finally:
        await app.stop()


@asynccontextmanager
async def registering(
    nameserver: Address, tls: TlsOptions | None, transport: GrpcTransport
) -> AsyncIterator[Registrations]:
    channels = registration_channels(tls, transport)
    registrations = Registrations([nameserver], broker(), FAST, lambda: 0.5, channels)
    registrations.start()
    try:
        yield registrations
    finally:
        await registrations.stop()


async def lost(registrations: Registrations) -> str:
    """Why the nameserver is not reached."""
    (registration,) = registrations.registrations
    await until(lambda: registration.state is RegistrationState.WAITING)
    return registration.detail


@pytest.mark.asyncio
async def test_a_broker_registers_by_tls_and_routes_name_its_tls_port(
    certificates: Certificates, transport: GrpcTransport
) -> None:
    async with served(certificates, transport) as (app, _, by_tls):
        async with registering(by_tls, TlsOptions(ca=certificates.ca), transport):
            await until(lambda: bool(app.registry.table.routes()))
            (route,) = app.registry.table.routes()
            assert route.broker.tls_address == "127.0.0.1:8082"
        await until(lambda: not app.registry.table.routes())


@pytest.mark.asyncio
async def test_a_nameserver_that_asks_for_a_certificate(
    certificates: Certificates, transport: GrpcTransport
) -> None:
    shown = TlsOptions(
        ca=certificates.ca, certificate=certificates.pem("server"), key=certificates.key("server")
    )
    async with served(certificates, transport, client_ca=str(certificates.ca)) as (app, _, by_tls):
        async with registering(by_tls, shown, transport):
            await until(lambda: bool(app.registry.table.routes()))
        async with registering(by_tls, TlsOptions(ca=certificates.ca), transport) as registrations:
            assert "asks for a client's certificate" in await lost(registrations)


@pytest.mark.asyncio
async def test_a_plain_registration_at_a_tls_port_and_the_other_way_round(
    certificates: Certificates, transport: GrpcTransport
) -> None:
    async with served(certificates, transport) as (_, plain, by_tls):
        async with registering(by_tls, None, transport) as registrations:
            assert "speaks TLS" in await lost(registrations)
        async with registering(plain, TlsOptions(ca=certificates.ca), transport) as registrations:
            assert "speaks no TLS" in await lost(registrations)


@pytest.mark.asyncio
async def test_files_that_do_not_work_are_errors_of_the_settings(
    certificates: Certificates, tmp_path: Path
) -> None:
    certificates.client("expired", now=LONG_AGO)
    missing, expired = tmp_path / "missing.pem", certificates.pem("expired")
    for options, text in (
        (TlsOptions(ca=missing), "missing.pem cannot be read"),
        (TlsOptions(certificate=expired, key=certificates.key("expired")), "expired.pem has expired"),
    ):
        with pytest.raises(SettingsError, match=text):
            registration_channels(options)
    settings = NameserverSettings(
        listen="127.0.0.1:0", http="off", tls_listen="127.0.0.1:0", tls_client_ca=str(missing)
    )
    app = NameserverApp(settings)
    with pytest.raises(SettingsError, match=r"missing\.pem cannot be read"):
        await app.start()
    await app.stop()


def test_settings_of_tls_that_do_not_go_together() -> None:
    for settings, text in (
        (NameserverSettings(tls_certificate="a"), "tls_certificate and tls_key are given together"),
        (NameserverSettings(tls_client_ca="a"), "tls_client_ca is given, but no tls_listen"),
        (NameserverSettings(tls_listen="0.0.0.0:1"), "--insecure"),
        (NameserverSettings(tls_listen="127.0.0.1:9870", tls_mode="permissive"), "a port for both"),
        (BrokerSettings(tls_advertise="x"), "tls_advertise is given, but no tls_listen"),
        (BrokerSettings(nameserver_tls_ca="a"), "but nameserver_tls is off"),
    ):
        assert text in "; ".join(settings.problems()), text


def test_the_tls_address_of_routes_has_a_host_that_can_be_dialled() -> None:
    plain, bound = Address("broker-a", 8081), Address("127.0.0.1", 8082)
    anywhere = Address("0.0.0.0", 8082)
    assert BrokerSettings().tls_advertised(plain, bound) == bound
    assert BrokerSettings().tls_advertised(plain, anywhere) == Address("broker-a", 8082)
    named = BrokerSettings(tls_advertise="mq.example:18082")
    assert named.tls_advertised(plain, anywhere) == Address("mq.example", 18082)
    settings = BrokerSettings(nameserver_tls=True, nameserver_tls_ca="c", tls_certificate="a", tls_key="k")
    assert settings.nameserver_tls_options() == TlsOptions(ca="c", certificate="a", key="k")


def test_a_tls_address_that_cannot_be_dialled_is_refused() -> None:
    for text in ("nowhere", "0.0.0.0:1", "h:0", "x" * 300):
        info = common_pb2.BrokerInfo(cluster="c", name="b", address="10.0.0.1:8081", tls_address=text)
        with pytest.raises(TroveError):
            check_broker(broker_from_wire(info))
