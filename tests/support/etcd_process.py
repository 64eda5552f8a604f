"""A real etcd on free loopback ports, if the program is there."""

from __future__ import annotations

import os
import shutil
import signal
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.certificates import Certificates
from trovemq._common.loopback_ports import kept_port, port_of

START_S_MAX = 60
needs_etcd = pytest.mark.skipif(
    shutil.which("etcd") is None, reason="no etcd in PATH: install the package etcd-server"
)


@dataclass
class EtcdProcess:
    """`address`: HOST:PORT for clients."""

    address: str
    process: subprocess.Popen[bytes]
    command: Sequence[str]
    certificates: Certificates | None = None

    def start_again(self) -> None:
        """With the data that it had; it has ended before."""
        self.process = subprocess.Popen(self.command, env=_environment())
        _until_healthy(self, self.certificates)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(number)
        self.process.wait(START_S_MAX)


@contextmanager
def etcd_process(directory: Path, certificates: Certificates | None = None) -> Iterator[EtcdProcess]:
    """One of one member, started, and ended afterwards. `certificates`: clients use TLS, and show one."""
    with etcd_members(directory, 1, certificates) as (one,):
        yield one


@contextmanager
def etcd_members(
    directory: Path, count: int, certificates: Certificates | None = None
) -> Iterator[list[EtcdProcess]]:
    """One etcd of several members."""
    kept = [kept_port() for _ in range(2 * count)]
    addresses = [f"127.0.0.1:{port_of(one)}" for one in kept]
    clients, peers = addresses[::2], addresses[1::2]
    names = ["default", *(f"member-{at}" for at in range(1, count))]
    cluster = ",".join(f"{name}=http://{peer}" for name, peer in zip(names, peers, strict=True))
    for port in kept:
        port.close()
    found: list[EtcdProcess] = []
    try:
        for name, address, peer in zip(names, clients, peers, strict=True):
            data = directory / ("etcd" if count == 1 else f"etcd-{name}")
            command = _command(name, data, address, peer, cluster, certificates)
            process = subprocess.Popen(command, env=_environment())
            found.append(EtcdProcess(address, process, command, certificates))
        for one in found:
            _until_healthy(one, certificates)
        yield found
    finally:
        for one in found:
            if one.process.poll() is None:
                one.stop(signal.SIGKILL)


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}


def _command(
    name: str, data: Path, address: str, peer: str, cluster: str, certificates: Certificates | None
) -> list[str]:
    scheme, tls = "http", []
    if certificates is not None:
        scheme = "https"
        tls = [
            f"--cert-file={certificates.pem('server')}",
            f"--key-file={certificates.key('server')}",
            f"--trusted-ca-file={certificates.ca}",
            "--client-cert-auth",
        ]
    return [
        "etcd",
        f"--name={name}",
        f"--data-dir={data}",
        f"--listen-client-urls={scheme}://{address}",
        f"--advertise-client-urls={scheme}://{address}",
        f"--listen-peer-urls=http://{peer}",
        f"--initial-advertise-peer-urls=http://{peer}",
        f"--initial-cluster={cluster}",
        "--logger=zap",
        "--log-level=error",
        *tls,
    ]


def _until_healthy(etcd: EtcdProcess, certificates: Certificates | None) -> None:
    context, scheme = None, "http"
    if certificates is not None:
        scheme = "https"
        context = ssl.create_default_context(cafile=str(certificates.ca))
        context.load_cert_chain(certificates.pem("client"), certificates.key("client"))
    deadline = time.monotonic() + START_S_MAX
    while True:
        assert etcd.process.poll() is None, "etcd has ended"
        try:
            with urllib.request.urlopen(
                f"{scheme}://{etcd.address}/health", timeout=1, context=context
            ) as reply:
                if b"true" in reply.read():
                    return
        except OSError:
            assert time.monotonic() < deadline, "etcd does not answer"
        time.sleep(0.05)
