"""Certificates that are replaced under a nameserver that runs, on both transports."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.support.certificates import LONG_AGO, NOW, Certificates
from tests.support.logs import logged
from trovemq._net.certificates import revoke
from trovemq_broker.daemon.settings import BrokerSettings
from trovemq_daemon.addresses import Address
from trovemq_daemon.errors import SettingsError
from trovemq_daemon.file_watch import FileWatch
from trovemq_daemon.tls import TlsIdentity, identity_for
from trovemq_nameserver.app import NameserverApp
from trovemq_nameserver.settings import NameserverSettings
from trovemq_proto.channels import GrpcTransport


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.made(tmp_path_factory.mktemp("old"))


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.made(tmp_path_factory.mktemp("new"))


class Files:
    """The files of a daemon, which an operator replaces."""

    def __init__(self, directory: Path) -> None:
        self.certificate, self.key, self.ca, self.crl = (
            directory / name for name in ("cert.pem", "cert.key", "clients.pem", "revoked.pem")
        )

    def put(self, certificates: Certificates) -> None:
        self.put_key(certificates)
        self.put_one(certificates.pem("server"), self.certificate)
        self.put_one(certificates.ca, self.ca)

    def put_key(self, certificates: Certificates) -> None:
        self.put_one(certificates.key("server"), self.key)

    def put_content(self, content: bytes, target: Path) -> None:
        made = target.with_suffix(".content")
        made.write_bytes(content)
        self.put_one(made, target)

    def put_one(self, source: Path, target: Path) -> None:
        made = target.with_suffix(".new")
        shutil.copyfile(source, made)
        made.replace(target)


@asynccontextmanager
async def served(files: Files, transport: GrpcTransport, *, clients: bool = False) -> AsyncIterator[Address]:
    app = NameserverApp(
        NameserverSettings(
            listen="127.0.0.1:0",
            http="off",
            grpc_transport=transport,
            tls_listen="127.0.0.1:0",
            tls_certificate=str(files.certificate),
            tls_key=str(files.key),
            tls_client_ca=str(files.ca) if clients else "",
            tls_client_crl=str(files.crl) if files.crl.exists() else "",
            files_reload_interval_ms=10,
        )
    )
    await app.start()
    assert app.tls_address is not None
    try:
        yield app.tls_address
    finally:
        await app.stop()


async def reaches(
    address: Address, trusted: Certificates, client: Certificates | None = None, name: str = "client"
) -> bool:
    """Whether a client that trusts this authority is served; `client`: it shows a certificate of that one."""
    pair = (None, None) if client is None else (client.key(name), client.pem(name))
    key, certificate = (None if path is None else path.read_bytes() for path in pair)
    credentials = grpc.ssl_channel_credentials(trusted.ca.read_bytes(), key, certificate)
    options = [("grpc.use_local_subchannel_pool", 1)]  # a separate connection
    async with grpc.aio.secure_channel(str(address), credentials, options) as channel:
        try:
            await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
            return False
        return True


async def until_shown(address: Address, certificates: Certificates) -> None:
    shown = certificates.pem("server").read_text(encoding="ascii")
    async with asyncio.timeout(240):
        while await asyncio.to_thread(_shown, address) != ssl.PEM_cert_to_DER_cert(shown):
            await asyncio.sleep(0.01)


def _shown(address: Address) -> bytes:
    return ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate((address.host, address.port)))


@pytest.mark.asyncio
async def test_a_new_certificate_is_shown_from_the_next_connection_on(
    tmp_path: Path, old: Certificates, new: Certificates, transport: GrpcTransport
) -> None:
    files = Files(tmp_path)
    files.put(old)
    credentials = grpc.ssl_channel_credentials(old.ca.read_bytes())
    async with (
        served(files, transport) as address,
        grpc.aio.secure_channel(str(address), credentials) as channel,
    ):
        health = health_pb2_grpc.HealthStub(channel)
        await health.Check(health_pb2.HealthCheckRequest())
        files.put(new)
        await until_shown(address, new)
        assert (await reaches(address, old), await reaches(address, new)) == (False, True)
        await health.Check(health_pb2.HealthCheckRequest())


@pytest.mark.asyncio
async def test_another_authority_of_clients_counts_from_the_next_connection_on(
    tmp_path: Path, old: Certificates, new: Certificates, transport: GrpcTransport
) -> None:
    files = Files(tmp_path)
    files.put(old)
    async with served(files, transport, clients=True) as address:
        assert await reaches(address, old, client=old)
        assert not await reaches(address, old, client=new)
        files.put_one(new.ca, files.ca)
        async with asyncio.timeout(240):
            while not await reaches(address, old, client=new):
                await asyncio.sleep(0.01)
        assert not await reaches(address, old, client=old)
        assert not await reaches(address, old)


def revoked(certificates: Certificates, *names: str, days: int = 30, now: datetime = NOW) -> bytes:
    authority, pems = certificates.authority, [certificates.pem(name).read_bytes() for name in names]
    return revoke(authority.certificate, authority.key, pems, None, days, now)[0]


@pytest.mark.asyncio
async def test_clients_whose_certificate_expired_and_old_tls_are_refused(
    tmp_path: Path, old: Certificates, transport: GrpcTransport
) -> None:
    files = Files(tmp_path)
    files.put(old)
    old.client("late", now=LONG_AGO)
    async with served(files, transport, clients=True) as address:
        assert not await reaches(address, old, client=old, name="late")
        assert await reaches(address, old, client=old)
    async with served(files, transport) as address:
        for newest, name in ((ssl.TLSVersion.TLSv1_2, "TLSv1.2"), (ssl.TLSVersion.TLSv1_3, "TLSv1.3")):
            assert await asyncio.to_thread(_handshake, address, newest) == name
        for version in (ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await asyncio.to_thread(_handshake, address, version)


def _handshake(address: Address, newest: ssl.TLSVersion) -> str | None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, newest
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection((address.host, address.port), timeout=10) as plain,
        context.wrap_socket(plain) as secured,
    ):
        return secured.version()


@pytest.mark.asyncio
async def test_a_revoked_certificate_is_refused_from_the_next_connection_on(
    tmp_path: Path, old: Certificates
) -> None:
    files = Files(tmp_path)
    files.put(old)
    files.crl.write_bytes(revoked(old))
    old.client("other")

    async def until_served(name: str, *, served: bool) -> None:
        async with asyncio.timeout(240):
            while await reaches(address, old, client=old, name=name) is not served:
                await asyncio.sleep(0.01)

    async with served(files, "trovemq", clients=True) as address:
        assert await reaches(address, old, client=old)
        files.put_content(revoked(old, "client"), files.crl)
        await until_served("client", served=False)
        assert await reaches(address, old, client=old, name="other")
        files.put_content(revoked(old, days=1, now=LONG_AGO), files.crl)
        await until_served("other", served=False)  # an outdated list vouches for no certificate
        files.put_content(revoked(old), files.crl)
        await until_served("client", served=True)


def test_lists_that_do_not_fit_the_authorities_are_named(
    tmp_path: Path, old: Certificates, new: Certificates
) -> None:
    path = tmp_path / "lists.pem"

    def read() -> TlsIdentity:
        files = str(old.pem("server")), str(old.key("server"))
        return identity_for(*files, hosts=(), client_ca=str(old.ca), client_crl=str(path))

    for content, what in (
        (None, "cannot be read"),
        (b"", "holds no list of revoked certificates"),
        (old.ca.read_bytes(), "holds no list of revoked certificates"),
        (b"-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n", "cannot be read"),
        (revoked(new), "holds no list of 'CN=test CA'"),
    ):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(SettingsError, match=what):
            read()
    path.write_bytes(revoked(new) + revoked(old))
    assert read().client_crl == path.read_bytes()
    for settings, what in (
        ({"tls_client_ca": ""}, "tls_client_crl needs tls_client_ca"),
        ({"grpc_transport": "grpcio"}, "tls_client_crl needs grpc_transport = trovemq"),
    ):
        own = {"tls_listen": "127.0.0.1:0", "tls_client_ca": "a", "tls_client_crl": "b", **settings}
        assert what in " ".join(NameserverSettings(**own).problems())  # type: ignore[arg-type]
        assert what in " ".join(BrokerSettings(**own).problems())  # type: ignore[arg-type]


@pytest.mark.asyncio
async def test_files_that_do_not_fit_each_other_leave_the_certificate_of_before(
    tmp_path: Path, old: Certificates, new: Certificates, transport: GrpcTransport
) -> None:
    files = Files(tmp_path)
    files.put(old)
    with logged() as log:
        async with served(files, transport) as address:
            for spoil in (
                lambda: files.put_key(new),
                lambda: files.certificate.write_text("no certificate", encoding="ascii"),
                files.certificate.unlink,
            ):
                said = _count(log.getvalue())
                spoil()
                async with asyncio.timeout(240):
                    while _count(log.getvalue()) == said:
                        await asyncio.sleep(0.01)
                assert await reaches(address, old)
            files.put(new)
            await until_shown(address, new)


def _count(text: str) -> int:
    return text.count("tls.files_not_read")


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.write_text("longer", encoding="ascii"),
        lambda path: path.unlink(),
        lambda path: (
            path.with_name("x").write_text("same", encoding="ascii"),
            path.with_name("x").replace(path),
        ),
    ],
)
def test_a_file_that_was_written_replaced_or_removed_is_noticed_once(
    tmp_path: Path, change: Callable[[Path], object]
) -> None:
    path = tmp_path / "file"
    path.write_text("same", encoding="ascii")
    link = tmp_path / "link"
    link.symlink_to(path)
    for name in (path, link):
        path.write_text("same", encoding="ascii")
        watch = FileWatch([name, tmp_path / "never"])
        assert not watch.changed()
        change(path)
        assert (watch.changed(), watch.changed()) == (True, False)
