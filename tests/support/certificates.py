"""An authority and its certificates, as files in a directory of a test."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc

from trovemq._net.certificates import HOSTS_DEFAULT, KeyPair, make_authority, make_client, make_server

NOW = datetime.now(UTC)
LONG_AGO = NOW - timedelta(days=1_000)


@dataclass(frozen=True)
class Certificates:
    """DIR/ca.pem, DIR/NAME.pem and DIR/NAME.key."""

    directory: Path
    authority: KeyPair

    @classmethod
    def made(cls, directory: Path) -> Certificates:
        directory.mkdir(parents=True, exist_ok=True)
        certificates = cls(directory, make_authority("test CA", 30, NOW))
        certificates.write("ca", certificates.authority)
        certificates.server("server")
        certificates.client("client")
        return certificates

    @property
    def ca(self) -> Path:
        return self.pem("ca")

    def pem(self, name: str) -> Path:
        return self.directory / f"{name}.pem"

    def key(self, name: str) -> Path:
        return self.directory / f"{name}.key"

    def server(self, name: str, *hosts: str, now: datetime = NOW) -> KeyPair:
        pair = make_server(self.authority.certificate, self.authority.key, hosts or HOSTS_DEFAULT, 30, now)
        return self.write(name, pair)

    def client(self, name: str, *, now: datetime = NOW) -> KeyPair:
        return self.write(name, make_client(self.authority.certificate, self.authority.key, name, 30, now))

    def write(self, name: str, pair: KeyPair) -> KeyPair:
        self.pem(name).write_bytes(pair.certificate)
        self.key(name).write_bytes(pair.key)
        return pair

    def credentials(self, name: str = "server", *, asks_clients: bool = False) -> grpc.ServerCredentials:
        """Of grpcio."""
        pair = (self.key(name).read_bytes(), self.pem(name).read_bytes())
        roots = self.authority.certificate if asks_clients else None
        return grpc.ssl_server_credentials([pair], roots, asks_clients)
