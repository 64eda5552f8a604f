"""Runs brokers and their clients: each server a process, each workload a client process."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from bench.measure import scheduled_seconds
from bench.peers.peer import Peer
from bench.peers.task import Answer, Task
from bench.processes import answers
from trovemq.testing import free_port

START_TIMEOUT_S: Final = 60.0
CLIENT_TIMEOUT_S: Final = 180.0


def client_command(peer: Peer, client: str, work: str, task: Task) -> list[str]:
    """A process that does one workload."""
    begin = [str(peer.python), "-m", "bench.peers.client", peer.module, client, work]
    return [*begin, json.dumps(asdict(task))]


def run_client(peer: Peer, client: str, work: str, task: Task) -> Answer:
    """One workload."""
    done = subprocess.run(
        client_command(peer, client, work, task),
        capture_output=True,
        text=True,
        timeout=CLIENT_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{peer.name}, {client}, {work}: {done.stderr[-2000:]}")
    answer: Answer = json.loads(done.stdout.splitlines()[-1])
    return answer


@dataclass(frozen=True, slots=True)
class Server:
    """A running broker."""

    peer: Peer
    pid: int
    address: str

    def run(self, client: str, work: str, task: Task) -> Answer:
        """One workload. Adds the server's processor time: `server_us` a message."""
        before = scheduled_seconds(self.pid)
        answer = run_client(self.peer, client, work, task)
        spent = scheduled_seconds(self.pid) - before
        return answer | {"server_us": spent / max(answer["count"], 1) * 1e6}


@contextmanager
def serving(peer: Peer, directory: Path, *, synced: bool) -> Iterator[Server]:
    """A server with a new store, ended at the end."""
    directory = directory.resolve()
    directory.mkdir(parents=True)
    port = free_port()
    command = peer.command(directory, port, synced=synced)
    with (directory / "server.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        try:
            if not answers(port, process, START_TIMEOUT_S):
                raise RuntimeError(f"{command!r} does not answer on port {port}")
            yield Server(peer, process.pid, f"127.0.0.1:{port}")
        finally:
            process.terminate()
            process.wait(START_TIMEOUT_S)
