"""The server processes that the part `rpc` measures, and the channels to them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import trovemq_rpc as rpc
from bench.rpc.server import LARGE
from trovemq_daemon.tls import development_identity

Kind = Literal["native", "grpcio", "tcp", "grpclib", "pygrpc"]
MODULES: dict[Kind, str] = {"grpclib": "bench.rpc.peer_grpclib", "pygrpc": "bench.rpc.peer_pygrpc"}


@dataclass(frozen=True, slots=True)
class Certificate:
    """Files of a certificate for this machine's loopback addresses and of its key."""

    chain: Path
    key: Path

    @classmethod
    def write(cls, directory: Path) -> Certificate:
        identity = development_identity((), datetime.now(UTC))
        made = cls(directory / "certificate.pem", directory / "key.pem")
        made.chain.write_bytes(identity.certificate)
        made.key.write_bytes(identity.key)
        return made


@dataclass(frozen=True, slots=True)
class Server:
    """A running server process."""

    kind: Kind
    port: int
    pid: int
    certificate: Certificate | None = None

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"


@contextmanager
def serving(kind: Kind, certificate: Certificate | None = None) -> Iterator[Server]:
    command = [sys.executable, "-m", MODULES.get(kind, "bench.rpc.server"), kind]
    if certificate:
        command += ["--tls", str(certificate.key), str(certificate.chain)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            yield Server(kind, int(process.stdout.readline()), process.pid, certificate)
        finally:
            process.terminate()


def channel_to(server: Server, transport: Literal["native", "grpcio"] | None = None) -> Any:
    """A channel of the server's own kind, or of `transport`."""
    credentials: Any = rpc
    channels: Any = rpc
    if (transport or server.kind) == "grpcio":
        import grpc

        credentials, channels = grpc, grpc.aio
    if server.certificate is None:
        return channels.insecure_channel(server.target, LARGE)
    roots = credentials.ssl_channel_credentials(server.certificate.chain.read_bytes())
    return channels.secure_channel(server.target, roots, LARGE)
