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


@dataclass(frozen=True, slots=True)
class Server:
    """A running broker."""

    peer: Peer
    pid: int
    address: str

    def run(self, client: str, work: str, task: Task) -> Answer:
        """One workload. Adds the server's processor time: `server_us` a message."""
        before = scheduled_seconds(self.pid)
        command = [str(self.peer.python), "-m", "bench.peers.client", self.peer.module, client, work]
        done = subprocess.run(
            [*command, json.dumps(asdict(task))],
            capture_output=True,
            text=True,
            timeout=CLIENT_TIMEOUT_S,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{self.peer.name}, {client}, {work}: {done.stderr[-2000:]}")
        answer: Answer = json.loads(done.stdout.splitlines()[-1])
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
