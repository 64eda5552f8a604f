"""Groups of servers that each have a copy of the log: processes on loopback, ended by their own ids."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.measure import scheduled_seconds
from bench.paired import PACKAGES
from bench.peers import ours
from bench.peers.peer import Command
from bench.peers.servers import START_TIMEOUT_S, Server
from bench.peers.task import Answer, Task
from bench.processes import ROOT, answers
from trovemq import TroveError, sync
from trovemq.models.replica import ReplicaGroup
from trovemq.testing import DaemonProcess, free_port

IN_SYNC_MIN: Final = 2
SETTLE_S: Final = 0.5
"""Servers still work for a message after its acknowledgement: this long is counted, too."""
LOOK_S: Final = 0.05
GROUP: Final = "group"


@dataclass(frozen=True, slots=True)
class Group:
    """Servers that run. `server`: the leader, or the one that clients ask first; `others`: the processes of
    the other copies."""

    name: str
    server: Server
    others: tuple[int, ...] = ()

    @property
    def copies(self) -> int:
        return 1 + len(self.others)

    def run(self, client: str, work: str, task: Task) -> Answer:
        """Runs one workload, and adds the processor time of a message, in microseconds: `leader_us`, the
        mean of the others `follower_us`, and `servers_us` of all."""
        pids = (self.server.pid, *self.others)
        before = [scheduled_seconds(pid) for pid in pids]
        answer = self.server.run(client, work, task)
        time.sleep(SETTLE_S)
        count = max(answer["count"], 1)
        spent = [(scheduled_seconds(pid) - was) / count * 1e6 for pid, was in zip(pids, before, strict=True)]
        followers = sum(spent[1:]) / max(len(self.others), 1)
        return answer | {"leader_us": spent[0], "follower_us": followers, "servers_us": sum(spent)}


class Program:
    """A server of another broker, on that port: it may be killed, and started again."""

    def __init__(self, command: Command, port: int, log: Path) -> None:
        self._command, self._port, self._log = command, port, log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Of the process that was started last."""
        assert self._process is not None, "it was started"
        return self._process.pid

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=_environment()
            )

    def wait_ready(self) -> None:
        """RuntimeError if it does not listen in time."""
        assert self._process is not None, "it was started"
        if not answers(self._port, self._process, START_TIMEOUT_S):
            raise RuntimeError(f"{self._command!r} does not answer on port {self._port}")

    def kill(self) -> None:
        assert self._process is not None, "it was started"
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(START_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()


def _environment() -> dict[str, str]:
    """etcd takes settings from it."""
    return {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}


@contextmanager
def programs(directory: Path, commands: Sequence[Command], ports: Sequence[int]) -> Iterator[list[Program]]:
    """Servers that were started together, when all of them listen on their ports."""
    with ExitStack() as stack:
        started = []
        for number, (command, port) in enumerate(zip(commands, ports, strict=True), 1):
            program = Program(command, port, directory / f"server-{number}.log")
            stack.callback(program.end)
            program.start()
            started.append(program)
        for program in started:
            program.wait_ready()
        yield started


@contextmanager
def sending(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """A process that sends until its input ends, once it is ready. It prints its sends then."""
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as sender:
        assert sender.stdout is not None
        try:
            if not sender.stdout.readline():
                raise RuntimeError("the sender ended before it was ready")
            yield sender
        finally:
            sender.kill()


# --- ours ---------------------------------------------------------------------------------------------------
class Node(DaemonProcess):
    """A broker with this store, or a node of a replica group."""

    def __init__(self, name: str, store: Path, *, synced: bool, tree: Path | None = None) -> None:
        """`tree`: another source tree, of which it runs."""
        paths = {} if tree is None else {"PYTHONPATH": os.pathsep.join(str(tree / one) for one in PACKAGES)}
        super().__init__("trovemq_broker", environment=paths)
        self.name, self.store = name, store
        self.replication = f"127.0.0.1:{free_port()}"
        self.settings = [f"flushDiskType={'SYNC_FLUSH' if synced else 'ASYNC_FLUSH'}"]
        self.settings.append(f"mappedFileSizeCommitLog={ours.SEGMENT_SIZE}")

    def join(self, nodes: Sequence[Node], etcd: str = "") -> None:
        """It is one of these nodes of a group. `etcd`: by which they choose their leader."""
        named = ",".join(f"{node.name}@{node.address}/{node.replication}" for node in nodes)
        by = ["coordination=etcd", f"etcd_endpoints={etcd}"] if etcd else ["coordination=manual"]
        self.settings += [*by, f"node_name={self.name}", f"replica_nodes={named}"]
        self.settings += [f"replication_listen={self.replication}", f"in_sync_min={IN_SYNC_MIN}"]

    def command(self) -> list[str]:
        given = [part for one in self.settings for part in ("--set", one)]
        return [*super().command(), "--name", GROUP, "--store", str(self.store), *given]


@contextmanager
def our_nodes(
    directory: Path,
    count: int,
    *,
    synced: bool,
    settings: Sequence[str] = (),
    etcd: str = "",
    tree: Path | None = None,
) -> Iterator[list[Node]]:
    """The nodes of a new group, when all are in sync; the leader first, unless they choose it by etcd. With
    one: a broker without copies."""
    names = [f"node-{number}" for number in range(count)]
    nodes = [Node(name, directory / name, synced=synced, tree=tree) for name in names]
    with ExitStack() as stack:
        for node in nodes:
            stack.callback(node.close)
            node.settings += settings
            if count > 1:
                node.join(nodes, etcd)
            node.start(wait=False)
        for node in nodes:
            node.wait_ready()
        if count > 1:
            until_in_sync(nodes)
        yield nodes


def until_in_sync(nodes: Sequence[Node]) -> None:
    """RuntimeError if it takes too long."""
    names, deadline = {node.name for node in nodes}, time.monotonic() + START_TIMEOUT_S
    with sync.connect(nodes[0].address) as client:
        while (found := group_of(client)) is None or not names <= {*found.in_sync}:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{names} are not in sync: {found}\n{nodes[0].log()[-2000:]}")
            time.sleep(LOOK_S)


def group_of(client: sync.Client) -> ReplicaGroup | None:
    """None while no node answers."""
    try:
        return next(iter(client.admin.replicas.groups()), None)
    except TroveError:
        return None


@contextmanager
def our_group(directory: Path, count: int, *, synced: bool, tree: Path | None = None) -> Iterator[Group]:
    directory = directory.resolve()
    directory.mkdir(parents=True)
    with our_nodes(directory, count, synced=synced, tree=tree) as nodes:
        leader, *others = nodes
        server = Server(ours.PEER, leader.pid, leader.address)
        yield Group(ours.PEER.name, server, tuple(node.pid for node in others))
