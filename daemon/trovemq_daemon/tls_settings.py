"""The settings of TLS, which both daemons have, and the port that they open."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from trovemq_daemon.addresses import Address, check_listen, parse_address, parse_advertise
from trovemq_daemon.errors import SettingsError
from trovemq_daemon.grpc_server import GrpcServer
from trovemq_daemon.grpc_transport import GrpcTransport
from trovemq_daemon.settings import setting
from trovemq_daemon.tls import identity_for, log_identity

TlsMode: TypeAlias = Literal["auto", "enforcing", "permissive"]


@dataclass(frozen=True, kw_only=True)
class TlsSettings:
    """The values of the settings; `tls_problems()` reports contradictions."""

    tls_listen: Annotated[str, setting("HOST:PORT")] = ""
    """Address of the same services by TLS, which RocketMQ's Java and Go clients speak; empty = none. The
    address of `listen`: one port for both, by the first byte of a connection."""
    tls_mode: Annotated[TlsMode, setting()] = "auto"
    """Of a port for both: `enforcing` takes TLS alone, `permissive` also connections without it, `auto` takes
    these on loopback alone."""
    tls_advertise: Annotated[str, setting("HOST:PORT or HOST")] = ""
    """Address of the TLS port in routes; empty = the advertised host with the port of tls_listen."""
    tls_certificate: Annotated[str, setting("FILE", rocketmq="tlsCertPath")] = ""
    """PEM file with the certificate and its chain; empty = a development certificate, made at each start."""
    tls_key: Annotated[str, setting("FILE", rocketmq="tlsKeyPath")] = ""
    """PEM file with the certificate's private key, not encrypted."""
    tls_client_ca: Annotated[str, setting("FILE")] = ""
    """PEM file of certificate authorities; by TLS only clients with a certificate of one of them are
    served."""

    tls_client_crl: Annotated[str, setting("FILE")] = ""
    """PEM file of revocation lists, one for each authority of tls_client_ca; certificates on them are
    refused, and so are all of an authority whose list is out of date. Needs grpc_transport = trovemq."""
    files_reload_interval_ms: Annotated[int, setting("ms", 10, 3_600_000)] = 10_000
    """How often files that may be replaced while the daemon runs are checked: certificates, keys, users."""
    http_tls: Annotated[bool, setting()] = False
    """Serves /metrics, /healthz and /readyz by TLS, with tls_certificate."""

    def tls_problems(self, listen: Address, *, insecure: bool) -> Iterator[str]:
        """Contradictions, one sentence each."""
        if self.tls_client_crl and not self.tls_client_ca:
            yield "tls_client_crl needs tls_client_ca"
        if bool(self.tls_certificate) != bool(self.tls_key):
            yield "tls_certificate and tls_key are given together or not at all"
        if self.http_tls and not self.tls_certificate:
            yield "http_tls needs tls_certificate and tls_key"
        for name in ("tls_certificate", "tls_client_ca", "tls_advertise"):
            if (
                getattr(self, name)
                and not self.tls_listen
                and not (self.http_tls and name == "tls_certificate")
            ):
                yield f"{name} is given, but no tls_listen"
        try:
            self._check_tls_addresses(listen, insecure=insecure)
        except SettingsError as error:
            yield from error.problems

    def transport_problems(self, transport: GrpcTransport, listen: str) -> Iterator[str]:
        """Settings that this transport does not support, one sentence each."""
        if transport == "trovemq":
            return
        if self.tls_client_crl:
            yield "tls_client_crl needs grpc_transport = trovemq: grpcio reads no revocation lists"
        with suppress(SettingsError):  # of an address: tls_problems() names it
            if self.shares_port(parse_address(listen)):
                text = "a port of grpcio serves one of them"
                yield f"tls_listen = listen needs grpc_transport = trovemq: {text}"

    def _check_tls_addresses(self, listen: Address, *, insecure: bool) -> None:
        if self.tls_mode != "auto" and not self.shares_port(listen):
            raise SettingsError("tls_mode is for a port for both: tls_listen is the address of listen then")
        address = self.tls_listen_address
        if address is None:
            return
        check_listen("tls_listen", address, insecure=insecure)
        if self.tls_advertise:
            parse_advertise(self.tls_advertise, address.port)

    @property
    def tls_listen_address(self) -> Address | None:
        """The address of the services by TLS; None if there are none."""
        return parse_address(self.tls_listen) if self.tls_listen else None

    def shares_port(self, listen: Address) -> bool:
        """Whether one port takes TLS and plain connections."""
        return bool(listen.port) and self.tls_listen_address == listen

    def is_tls_only(self, address: Address) -> bool:
        """Whether the port for both refuses plain connections."""
        return self.tls_mode == "enforcing" or (self.tls_mode == "auto" and not address.is_loopback)

    @property
    def http_tls_files(self) -> tuple[Path, Path] | None:
        """Certificate and key of the operations HTTP; None if it has no TLS."""
        return (Path(self.tls_certificate), Path(self.tls_key)) if self.http_tls else None

    def tls_advertised(self, advertised: Address, bound: Address) -> Address:
        """The TLS address for routes, once its port is bound; `advertised` is the plain one."""
        if self.tls_advertise:
            return parse_advertise(self.tls_advertise, bound.port)
        return advertised.with_port(bound.port) if bound.is_unspecified else bound


async def bind_tls(
    server: GrpcServer, settings: TlsSettings, listen: Address, advertised: Address
) -> Address | None:
    """Listens by TLS if it is configured; returns the address with its real port. `listen`: of the plain
    port, which is bound. `advertised`: its address in routes.

    Raises SettingsError for files that cannot be used, AddressInUseError.
    """
    wanted = settings.tls_listen_address
    if wanted is None:
        return None
    known = (settings.tls_advertised(advertised, wanted), advertised, wanted)
    hosts = [address.host for address in known if not address.is_unspecified]
    identity = await asyncio.to_thread(
        identity_for,
        settings.tls_certificate,
        settings.tls_key,
        hosts=hosts,
        client_ca=settings.tls_client_ca,
        client_crl=settings.tls_client_crl,
    )
    log_identity(identity)
    if settings.shares_port(listen):
        server.share_port(wanted, identity, tls_only=settings.is_tls_only(wanted))
        return wanted
    return server.bind_tls(wanted, identity)
