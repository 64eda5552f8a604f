"""Serving by TLS: the certificate that is shown, given or made for development."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ed25519
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry

from tests.support.logs import logged
from trovemq_daemon.addresses import Address
from trovemq_daemon.errors import AddressInUseError, SettingsError
from trovemq_daemon.grpc_server import GrpcLimits, GrpcServer
from trovemq_daemon.metrics import RpcMetrics
from trovemq_daemon.tls import (
    PEM_SIZE_MAX,
    TlsIdentity,
    development_identity,
    identity_for,
    log_identity,
    read_identity,
)

NOW = datetime(2026, 1, 2, tzinfo=UTC)
LOOPBACK = Address("127.0.0.1", 0)


@pytest.fixture(scope="module")
def identity() -> TlsIdentity:
    return development_identity([], datetime.now(UTC))


@pytest.fixture
def files(tmp_path: Path, identity: TlsIdentity) -> tuple[Path, Path]:
    certificate, key = tmp_path / "broker.crt", tmp_path / "broker.key"
    certificate.write_bytes(identity.certificate)
    key.write_bytes(identity.key)
    key.chmod(0o600)
    return certificate, key


def new_server() -> GrpcServer:
    metrics = RpcMetrics(CollectorRegistry(), cluster="c", node_type="broker", node_id="a")
    return GrpcServer(GrpcLimits(), metrics)


@asynccontextmanager
async def served(identity: TlsIdentity) -> AsyncIterator[tuple[Address, Address]]:
    """The plain and the TLS address of a server that answers health checks."""
    server = new_server()
    plain, by_tls = server.bind(LOOPBACK), server.bind_tls(LOOPBACK, identity)
    await server.start()
    await server.set_serving(True)
    try:
        yield plain, by_tls
    finally:
        await server.stop(0)


async def is_healthy(channel: Any) -> bool:
    stub = health_pb2_grpc.HealthStub(channel)
    reply = await stub.Check(health_pb2.HealthCheckRequest(), timeout=10)
    return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)


def secure_channel(address: Address, trusted: bytes) -> Any:
    return grpc.aio.secure_channel(str(address), grpc.ssl_channel_credentials(trusted))


@pytest.mark.asyncio
async def test_one_server_answers_by_tls_and_plainly(identity: TlsIdentity) -> None:
    async with served(identity) as (plain, by_tls):
        assert plain.port != by_tls.port != 0
        async with grpc.aio.insecure_channel(str(plain)) as channel:
            assert await is_healthy(channel)
        for host in ("127.0.0.1", "localhost"):
            async with secure_channel(Address(host, by_tls.port), identity.certificate) as channel:
                assert await is_healthy(channel), host


@pytest.mark.asyncio
async def test_a_client_that_verifies_does_not_take_another_certificate(identity: TlsIdentity) -> None:
    other = development_identity([], datetime.now(UTC))
    async with served(identity) as (_, by_tls), secure_channel(by_tls, other.certificate) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await is_healthy(channel)
        assert failed.value.code() == grpc.StatusCode.UNAVAILABLE


@pytest.mark.asyncio
async def test_a_plain_client_gets_nothing_from_the_tls_port(identity: TlsIdentity) -> None:
    async with served(identity) as (_, by_tls), grpc.aio.insecure_channel(str(by_tls)) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await is_healthy(channel)
        assert failed.value.code() == grpc.StatusCode.UNAVAILABLE


@pytest.mark.asyncio
async def test_a_client_that_verifies_nothing_speaks_http2(identity: TlsIdentity) -> None:
    """As RocketMQ's Java and Go clients come."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    async with served(identity) as (_, by_tls):
        _reader, writer = await asyncio.open_connection(by_tls.host, by_tls.port, ssl=context)
        shown: ssl.SSLObject = writer.get_extra_info("ssl_object")
        assert shown.selected_alpn_protocol() == "h2"
        assert shown.version() in ("TLSv1.2", "TLSv1.3")
        certificate = shown.getpeercert(binary_form=True)
        assert certificate == ssl.PEM_cert_to_DER_cert(identity.certificate.decode())
        writer.transport.abort()


@pytest.mark.asyncio
async def test_a_port_that_is_taken_is_refused(identity: TlsIdentity) -> None:
    other = new_server()
    async with served(identity) as (taken, _):
        with pytest.raises(AddressInUseError, match="in use"):
            other.bind_tls(taken, identity)
    await other.stop(0)


def test_a_development_certificate_names_the_hosts_and_holds_for_a_year() -> None:
    made = development_identity(["broker-a.example", "10.1.2.3", "fd00::1", "localhost"], NOW)
    certificate = x509.load_pem_x509_certificate(made.certificate)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost", "broker-a.example"]
    addresses = [str(address) for address in names.get_values_for_type(x509.IPAddress)]
    assert addresses == ["127.0.0.1", "::1", "10.1.2.3", "fd00::1"]
    assert certificate.subject.rfc4514_string() == "CN=localhost"
    assert certificate.not_valid_before_utc <= NOW - timedelta(hours=12), "for clients whose clock is behind"
    assert made.expires == certificate.not_valid_after_utc == NOW + timedelta(days=365)
    assert made.development
    assert made.fingerprint == certificate.fingerprint(hashes.SHA256()).hex()


def test_every_development_certificate_has_a_key_of_its_own() -> None:
    first, second = development_identity([], NOW), development_identity([], NOW)
    assert first.key != second.key
    assert first.fingerprint != second.fingerprint


def test_files_are_read(files: tuple[Path, Path], identity: TlsIdentity) -> None:
    read = identity_for(str(files[0]), str(files[1]), hosts=[])
    assert (read.certificate, read.key, read.development) == (identity.certificate, identity.key, False)
    assert (read.fingerprint, read.expires) == (identity.fingerprint, identity.expires)


def test_without_files_one_is_made() -> None:
    assert identity_for("", "", hosts=["x"]).development


def test_a_chain_may_follow_the_certificate(files: tuple[Path, Path], identity: TlsIdentity) -> None:
    chain = identity.certificate + development_identity([], NOW).certificate
    files[0].write_bytes(chain)
    read = read_identity(*files)
    assert (read.certificate, read.fingerprint) == (chain, identity.fingerprint)


def test_the_key_does_not_show(identity: TlsIdentity) -> None:
    assert repr(identity) == f"TlsIdentity({identity.fingerprint})"


def encrypted_key() -> bytes:
    return ed25519.Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )


@pytest.mark.parametrize(
    ("which", "content", "fault"),
    [
        (0, None, r"broker\.crt cannot be read: No such file"),
        (1, None, r"broker\.key cannot be read: No such file"),
        (0, b"", r"broker\.crt holds no certificate"),
        (0, b"\x30\x82binary", r"broker\.crt holds no certificate"),
        (0, b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "holds no certificate"),
        (1, b"", r"broker\.key holds no private key"),
        (1, b"nonsense", r"broker\.key holds no private key"),
        (1, encrypted_key(), r"broker\.key is encrypted"),
        (
            1,
            development_identity([], NOW).key,
            r"broker\.key is not the key of the certificate in .*broker\.crt",
        ),
        (0, b" " * (PEM_SIZE_MAX + 1), "more than 1048576 bytes"),
    ],
)
def test_files_that_do_not_work_name_themselves(
    files: tuple[Path, Path], which: int, content: bytes | None, fault: str
) -> None:
    if content is None:
        files[which].unlink()
    else:
        files[which].write_bytes(content)
    with pytest.raises(SettingsError, match=fault):
        read_identity(*files)


def test_a_directory_is_not_a_file(files: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read: Is a directory"):
        read_identity(tmp_path, files[1])


def test_a_certificate_that_is_not_valid_yet_was_logged_as_a_good_one(files: tuple[Path, Path]) -> None:
    later = development_identity([], datetime(2999, 1, 1, tzinfo=UTC))
    files[0].write_bytes(later.certificate)
    files[1].write_bytes(later.key)
    with logged() as stream:
        log_identity(read_identity(*files))
    assert "warning tls.certificate_not_valid_yet" in stream.getvalue()
    assert "begins=2998-12-31T00:00:00+00:00" in stream.getvalue()


def test_the_log_says_which_certificate_it_is(identity: TlsIdentity, files: tuple[Path, Path]) -> None:
    expired = development_identity([], datetime(2020, 1, 1, tzinfo=UTC))
    with logged() as stream:
        log_identity(identity)
        log_identity(read_identity(*files))
        files[0].write_bytes(expired.certificate)
        files[1].write_bytes(expired.key)
        log_identity(read_identity(*files))
    made, given, late = stream.getvalue().splitlines()
    assert "warning tls.development_certificate" in made
    assert f"sha256={identity.fingerprint}" in made
    assert "info    tls.certificate " in given
    assert "tls.certificate_expired" in late
    assert "expires=2020-12-31T00:00:00+00:00" in late
