"""TLS of the SDK on both transports: who is trusted, and one clear error for everything else."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

import trovemq
from tests.support.certificates import LONG_AGO, NOW, Certificates
from tests.unit.sdk.conftest import QUICK
from tests.unit.sdk.fake_server import FakeServer
from trovemq import ClientOptions, TlsOptions, TroveError, errors
from trovemq._net.certificates import make_authority
from trovemq.testing import free_port
from trovemq_proto.channels import TRANSPORTS, GrpcTransport
from trovemq_proto.tls import PEM_SIZE_MAX, chosen_tls

pytestmark = pytest.mark.asyncio


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.made(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(params=TRANSPORTS)
def options(request: pytest.FixtureRequest) -> ClientOptions:
    transport: GrpcTransport = request.param
    return ClientOptions(grpc_transport=transport, **QUICK)  # type: ignore[arg-type]


async def sent(server: FakeServer, tls: bool | TlsOptions | None, options: ClientOptions) -> str:
    async with trovemq.connect(server.address, tls=tls, options=options) as client:
        return (await client.send("orders", b"1")).status


async def refused(server: str, tls: bool | TlsOptions | None, options: ClientOptions) -> str:
    with pytest.raises(TroveError) as failed:
        await trovemq.connect(server, tls=tls, options=options)
    assert failed.value.spec is errors.TLS_FAILED, failed.value
    assert server in failed.value.message
    return failed.value.message


def broker(certificates: Certificates, name: str = "server", *, asks_clients: bool = False) -> FakeServer:
    return FakeServer("b1", tls=certificates.credentials(name, asks_clients=asks_clients))


async def test_a_message_is_sent_by_tls(certificates: Certificates, options: ClientOptions) -> None:
    async with broker(certificates) as server:
        server.serve_topics(orders=1)
        assert await sent(server, TlsOptions(ca=certificates.ca), options) == "PUT_OK"


async def test_a_server_that_asks_for_a_certificate_gets_it(
    certificates: Certificates, options: ClientOptions
) -> None:
    async with broker(certificates, asks_clients=True) as server:
        server.serve_topics(orders=1)
        tls = TlsOptions(
            ca=certificates.ca, certificate=certificates.pem("client"), key=certificates.key("client")
        )
        assert await sent(server, tls, options) == "PUT_OK"
        text = await refused(server.address, TlsOptions(ca=certificates.ca), options)
        assert "asks for a client's certificate" in text
        assert "--tls-cert" in text


async def test_a_client_s_certificate_of_nobody_is_refused(
    certificates: Certificates, options: ClientOptions, tmp_path: Path
) -> None:
    other = Certificates.made(tmp_path)
    async with broker(certificates, asks_clients=True) as server:
        tls = TlsOptions(ca=certificates.ca, certificate=other.pem("client"), key=other.key("client"))
        assert "refuses this client's certificate" in await refused(server.address, tls, options)


async def test_another_name_in_the_certificate(certificates: Certificates, options: ClientOptions) -> None:
    certificates.server("elsewhere", "broker.example")
    async with broker(certificates, "elsewhere") as server:
        server.serve_topics(orders=1)
        text = await refused(server.address, TlsOptions(ca=certificates.ca), options)
        assert "is not for 127.0.0.1" in text
        assert "--tls-server-name" in text
        named = TlsOptions(ca=certificates.ca, server_name="broker.example")
        assert await sent(server, named, options) == "PUT_OK"


async def test_a_server_s_certificate_that_has_expired(
    certificates: Certificates, options: ClientOptions
) -> None:
    certificates.server("old", now=LONG_AGO)
    async with broker(certificates, "old") as server:
        assert "has expired" in await refused(server.address, TlsOptions(ca=certificates.ca), options)


async def test_a_clock_that_is_before_the_server_s_certificate_is_named(
    certificates: Certificates, options: ClientOptions
) -> None:
    certificates.server("new", now=NOW + timedelta(days=1_000))
    async with broker(certificates, "new") as server:
        text = await refused(server.address, TlsOptions(ca=certificates.ca), options)
        assert "is not valid yet: is the clock of this machine right?" in text


async def test_a_server_s_certificate_of_somebody_else(
    certificates: Certificates, options: ClientOptions, tmp_path: Path
) -> None:
    other = Certificates.made(tmp_path)
    async with broker(certificates) as server:
        text = await refused(server.address, TlsOptions(ca=other.ca), options)
        assert "signed by no authority that is trusted here" in text
        assert "--tls-ca" in text
        assert "signed by no authority" in await refused(server.address, True, options)


async def test_a_plain_client_at_a_tls_port(certificates: Certificates, options: ClientOptions) -> None:
    async with broker(certificates) as server:
        assert "speaks TLS, and this client does not" in await refused(server.address, False, options)
    async with broker(certificates, asks_clients=True) as server:
        assert "speaks TLS, and this client does not" in await refused(server.address, False, options)


async def test_a_tls_client_at_a_plain_port(certificates: Certificates, options: ClientOptions) -> None:
    async with FakeServer("b1") as server:
        text = await refused(server.address, TlsOptions(ca=certificates.ca), options)
        assert "speaks no TLS" in text
        assert "--no-tls" in text


async def test_where_nobody_listens_tls_is_not_blamed(
    certificates: Certificates, options: ClientOptions
) -> None:
    address = f"127.0.0.1:{free_port()}"
    for tls in (False, TlsOptions(ca=certificates.ca)):
        with pytest.raises(TroveError) as failed:
            await trovemq.connect(address, tls=tls, options=options)
        assert failed.value.spec is errors.BROKER_UNREACHABLE


async def test_brokers_of_the_routes_are_dialled_at_their_tls_port(
    certificates: Certificates, options: ClientOptions
) -> None:
    credentials = certificates.credentials()
    async with broker(certificates) as server, FakeServer("ns", role="NAMESERVER", tls=credentials) as names:
        names.set_routes(server.route({"orders": 1}, address="127.0.0.1:1", tls_address=server.address))
        assert await sent(names, TlsOptions(ca=certificates.ca), options) == "PUT_OK"


async def test_a_broker_without_a_tls_port_is_named(
    certificates: Certificates, options: ClientOptions
) -> None:
    credentials = certificates.credentials()
    async with FakeServer("b1") as server, FakeServer("ns", role="NAMESERVER", tls=credentials) as names:
        names.set_routes(server.route({"orders": 1}))
        async with trovemq.connect(
            names.address, tls=TlsOptions(ca=certificates.ca), options=options
        ) as client:
            for call in (client.send("orders", b"1"), client.queue_offsets("orders")):
                with pytest.raises(TroveError, match="broker b1 has no TLS port") as failed:
                    await call
                assert failed.value.spec is errors.TLS_FAILED
    assert not server.frames


# --- files ----------------------------------------------------------------------------------------------
def faulty(certificates: Certificates, tmp_path: Path) -> dict[str, tuple[TlsOptions, str]]:
    """Fault -> the options, and a part of the error."""
    ca, pem, key = certificates.ca, certificates.pem("client"), certificates.key("client")
    certificates.client("expired", now=LONG_AGO)
    certificates.write("old-ca", make_authority("old", 30, LONG_AGO))
    junk, large, encrypted = tmp_path / "junk", tmp_path / "large", tmp_path / "encrypted"
    junk.write_bytes(b"\x30\x82 no PEM")
    large.write_bytes(b" " * (PEM_SIZE_MAX + 1))
    encrypted.write_bytes(
        b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n"
    )
    missing = tmp_path / "missing.pem"

    def both(certificate: Path, its_key: Path) -> TlsOptions:
        return TlsOptions(ca=ca, certificate=certificate, key=its_key)

    return {
        "no CA": (TlsOptions(ca=missing), f"{missing} cannot be read: No such file"),
        "directory": (TlsOptions(ca=tmp_path), f"{tmp_path} cannot be read: Is a directory"),
        "no PEM": (TlsOptions(ca=junk), f"{junk} holds no certificate"),
        "too large": (TlsOptions(ca=large), f"{large} has more than"),
        "key as CA": (TlsOptions(ca=key), f"{key} holds no certificate"),
        "expired CA": (TlsOptions(ca=certificates.pem("old-ca")), "old-ca.pem has expired, on "),
        "no certificate": (both(missing, key), f"{missing} cannot be read"),
        "no key": (both(pem, missing), f"{missing} cannot be read"),
        "certificate alone": (TlsOptions(certificate=pem), "a certificate and no key"),
        "key alone": (TlsOptions(key=key), "a key and no certificate"),
        "wrong key": (
            both(pem, certificates.key("server")),
            "server.key is not the key of the certificate in",
        ),
        "key that is none": (both(pem, junk), f"{junk} holds no private key"),
        "certificate that is none": (both(junk, key), f"{junk} holds no certificate"),
        "encrypted": (both(pem, encrypted), f"{encrypted} is encrypted"),
        "expired": (
            both(certificates.pem("expired"), certificates.key("expired")),
            "expired.pem has expired",
        ),
    }


async def test_files_that_do_not_work_name_themselves_before_anything_connects(
    certificates: Certificates, tmp_path: Path
) -> None:
    for what, (tls, text) in faulty(certificates, tmp_path).items():
        with pytest.raises(TroveError) as failed:
            trovemq.connect("127.0.0.1:1", tls=tls)
        assert failed.value.spec is errors.TLS_OPTION_ILLEGAL, what
        assert text in failed.value.message, what


async def test_a_file_of_certificates_may_have_comments(certificates: Certificates, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle.pem"
    bundle.write_bytes("# Führungsstelle\n".encode() + certificates.ca.read_bytes() * 2)
    read = chosen_tls(TlsOptions(ca=bundle))
    assert read is not None
    assert read.ca == certificates.ca.read_bytes() * 2
    assert "KEY" not in repr(read)


async def test_the_environment_decides_where_nothing_is_given(certificates: Certificates) -> None:
    ca = {"TROVEMQ_TLS_CA": str(certificates.ca)}
    cases: list[tuple[bool | None, Mapping[str, str], bool]] = [
        (None, {}, False),
        (None, {"TROVEMQ_TLS": "1"}, True),
        (None, {"TROVEMQ_TLS": "off", **ca}, False),
        (None, ca, True),
        (False, ca, False),
        (True, {}, True),
        (True, {"TROVEMQ_TLS": "0", **ca}, True),
    ]
    for given, environment, wanted in cases:
        assert (chosen_tls(given, environment) is not None) is wanted, (given, environment)
    read = chosen_tls(True, {**ca, "TROVEMQ_TLS_SERVER_NAME": "x"})
    assert read is not None
    assert (read.ca, read.server_name) == (certificates.ca.read_bytes(), "x")
    with pytest.raises(TroveError, match="TROVEMQ_TLS is 1 or 0, not 'maybe'"):
        chosen_tls(None, {"TROVEMQ_TLS": "maybe"})


async def test_a_reconnection_is_by_tls_too(certificates: Certificates, options: ClientOptions) -> None:
    server = broker(certificates)
    await server.start()
    server.serve_topics(orders=1)
    options = replace(options, send_attempts_max=200)  # connecting may fail before the server listens
    async with trovemq.connect(server.address, tls=TlsOptions(ca=certificates.ca), options=options) as client:
        await client.send("orders", b"1")
        (stream,) = client._pool._streams.values()
        await server.stop()
        async with asyncio.timeout(240):
            while stream._broken is None:  # a message that goes out before is in doubt (test_delivery.py)
                await asyncio.sleep(0.005)
        await server.start()
        server.serve_topics(orders=1)
        before = len(server.frames)
        receipt = await client.send("orders", b"2")
        assert receipt.status == "PUT_OK"
        assert len(server.frames) == before + 1, "it was sent once"
    await server.stop()
