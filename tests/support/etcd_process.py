"""A real etcd of one member on free loopback ports, if the program is there."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

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

    def start_again(self) -> None:
        """With the data that it had; it has ended before."""
        self.process = subprocess.Popen(self.command, env=_environment())
        _until_healthy(self)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(number)
        self.process.wait(START_S_MAX)


@contextmanager
def etcd_process(directory: Path) -> Iterator[EtcdProcess]:
    """Started, and ended afterwards."""
    kept = [kept_port(), kept_port()]
    address, peer = (f"127.0.0.1:{port_of(one)}" for one in kept)
    command = [
        "etcd",
        f"--data-dir={directory / 'etcd'}",
        f"--listen-client-urls=http://{address}",
        f"--advertise-client-urls=http://{address}",
        f"--listen-peer-urls=http://{peer}",
        f"--initial-advertise-peer-urls=http://{peer}",
        f"--initial-cluster=default=http://{peer}",
        "--logger=zap",
        "--log-level=error",
    ]
    for one in kept:
        one.close()
    found = EtcdProcess(address, subprocess.Popen(command, env=_environment()), command)
    try:
        _until_healthy(found)
        yield found
    finally:
        if found.process.poll() is None:
            found.stop(signal.SIGKILL)


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}


def _until_healthy(etcd: EtcdProcess) -> None:
    deadline = time.monotonic() + START_S_MAX
    while True:
        assert etcd.process.poll() is None, "etcd has ended"
        try:
            with urllib.request.urlopen(f"http://{etcd.address}/health", timeout=1) as reply:
                if b"true" in reply.read():
                    return
        except OSError:
            assert time.monotonic() < deadline, "etcd does not answer"
            time.sleep(0.05)
