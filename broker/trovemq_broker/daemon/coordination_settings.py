"""Settings of a node that agrees with the other nodes of its group by etcd. Times in milliseconds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Final

from trovemq_broker.coordination.etcd_client import EtcdAccess
from trovemq_daemon.addresses import Address, parse_address
from trovemq_daemon.errors import SettingsError
from trovemq_daemon.private_files import read_private
from trovemq_daemon.settings import setting
from trovemq_daemon.threads import run_in_thread
from trovemq_proto.channels import ChannelSettings
from trovemq_proto.errors import TroveError
from trovemq_proto.tls import TlsOptions, read_tls

ENDPOINTS_MAX: Final = 16
LEASE_MIN_MS: Final = 2_000
"""etcd grants no shorter one."""
PASSWORD_SIZE_MAX: Final = 1_024


@dataclass(frozen=True, kw_only=True)
class CoordinationSettings:
    """`etcd_problems()` reports contradictions."""

    etcd_endpoints: Annotated[tuple[str, ...], setting("HOST:PORT")] = ()
    """Addresses of etcd's members for clients, separated by commas; with `coordination = etcd`."""
    etcd_prefix: Annotated[str, setting()] = "/trovemq"
    """The group's keys in etcd are below PREFIX/CLUSTER/NAME/. All nodes of a group have one prefix."""
    etcd_tls_certificate: Annotated[str, setting("FILE")] = ""
    """PEM file with the certificate that this node shows to etcd; empty = none."""
    etcd_tls_key: Annotated[str, setting("FILE")] = ""
    """PEM file with that certificate's private key, not encrypted."""
    etcd_tls_ca: Annotated[str, setting("FILE")] = ""
    """PEM file with the authority of etcd's certificates; with it, or with a certificate, etcd is called by
    TLS."""
    etcd_user: Annotated[str, setting()] = ""
    """User of etcd, which needs read and write rights below etcd_prefix; empty = no log-in."""
    etcd_password_file: Annotated[str, setting("FILE")] = ""
    """File with that user's password; read again for each log-in."""
    leader_lease_ms: Annotated[int, setting("ms", LEASE_MIN_MS, 60_000)] = 3_000
    """A leader that is lost without a trace is replaced after this time and half a second, at the latest.
    Whole seconds."""
    replica_priority: Annotated[int, setting(minimum=0, maximum=1_000)] = 100
    """Of nodes whose logs are equally long, the one with the highest priority becomes the leader."""

    @property
    def etcd_addresses(self) -> tuple[Address, ...]:
        """SettingsError."""
        return tuple(dict.fromkeys(parse_address(one) for one in self.etcd_endpoints))

    @property
    def etcd_has_tls(self) -> bool:
        return bool(self.etcd_tls_ca or self.etcd_tls_certificate)

    def etcd_access(self, channels: ChannelSettings) -> EtcdAccess:
        """`channels`: how connections behave. Reads the files of TLS, and the password once; blocks.
        SettingsError."""
        tls = None
        if self.etcd_has_tls:
            try:
                tls = read_tls(
                    TlsOptions(
                        ca=self.etcd_tls_ca or None,
                        certificate=self.etcd_tls_certificate or None,
                        key=self.etcd_tls_key or None,
                    )
                )
            except TroveError as error:
                raise SettingsError(error.message) from None
        if self.etcd_user:
            self.etcd_password()
        return EtcdAccess(
            endpoints=tuple(map(str, self.etcd_addresses)),
            channels=replace(channels, tls=tls),
            user=self.etcd_user,
            password=partial(run_in_thread, self.etcd_password) if self.etcd_user else None,
        )

    def etcd_password(self) -> str:
        """Reads the file; blocks. SettingsError, whose text shows nothing of its content."""
        shown = f"etcd_password_file {self.etcd_password_file}"
        try:
            content = read_private(Path(self.etcd_password_file))
            password = "" if content is None else content.decode().strip()
        except TroveError as error:
            raise SettingsError(f"etcd_password_file: {error.message}") from None
        except UnicodeDecodeError:
            raise SettingsError(f"{shown}: it is not UTF-8") from None
        if content is None:
            raise SettingsError(f"{shown}: there is no such file")
        if not 1 <= len(password) <= PASSWORD_SIZE_MAX:
            raise SettingsError(f"{shown}: it must have a password of 1 to {PASSWORD_SIZE_MAX} characters")
        return password

    def etcd_problems(self, *, is_used: bool, insecure: bool) -> Iterator[str]:
        """The contradictions, one sentence each. `is_used`: coordination = etcd."""
        if not is_used:
            if self.etcd_endpoints:
                yield "etcd_endpoints: for the nodes of a replica group with coordination = etcd"
            return
        try:
            addresses = self.etcd_addresses
        except SettingsError as error:
            yield from (f"etcd_endpoints: {one}" for one in error.problems)
            return
        if not 1 <= len(addresses) <= ENDPOINTS_MAX:
            yield f"coordination = etcd needs 1 to {ENDPOINTS_MAX} etcd_endpoints"
        if any(not one.port or one.is_unspecified for one in addresses):
            yield "etcd_endpoints has an address that cannot be dialled"
        away = [str(one) for one in addresses if not one.is_loopback]
        if (
            away
            and not insecure
            and not (self.etcd_has_tls and (self.etcd_user or self.etcd_tls_certificate))
        ):
            yield (
                f"etcd at {', '.join(away)} is on other machines: call it by TLS (etcd_tls_ca) and log in"
                " (etcd_user and etcd_password_file, or etcd_tls_certificate and _key); or say insecure"
            )
        if bool(self.etcd_tls_certificate) != bool(self.etcd_tls_key):
            yield "etcd_tls_certificate and etcd_tls_key are given together or not at all"
        if bool(self.etcd_user) != bool(self.etcd_password_file):
            yield "etcd_user and etcd_password_file are given together or not at all"
        if not self.etcd_prefix.startswith("/") or len(self.etcd_prefix) > 256:
            yield "etcd_prefix must begin with / and have at most 256 characters"
        if self.leader_lease_ms % 1_000:
            yield f"leader_lease_ms {self.leader_lease_ms} must be whole seconds: etcd counts in them"
