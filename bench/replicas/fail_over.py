"""How long sends wait while a group changes its leader: after a kill beside Kafka, and as planned.

A client sends all the time, one message after the other. A change begins once all copies are in sync, and the
killed server is started again after each.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from bench.peers import ours
from bench.peers.peer import Peer
from bench.peers.servers import client_command, run_client
from bench.peers.task import Task
from bench.replicas.groups import GROUP, LOOK_S, Node, group_of, our_nodes, programs, sending
from bench.replicas.peers import KAFKA, kafka_quorum
from bench.report import Report
from trovemq import sync
from trovemq.testing import free_port

NODES: Final = 3
TOPIC: Final = "steady"
KILLS: Final = 12
KAFKA_KILLS: Final = 3
SWITCH_OVERS: Final = 12
SETTLED_IN_S: Final = 90.0
BETWEEN_S: Final = 0.5
KILL_GOAL_S: Final = 1.5
KAFKA_GOAL: Final = 0.3
HOLD_GOAL_S: Final = 0.3

Say = Callable[[str], None]


class Change(NamedTuple):
    """Of the leader. `began_s`: the kill, or the call; `ended_s`: the process has ended, or the call."""

    began_s: float
    ended_s: float


class Sends:
    """Of the client: when each began and ended, and its error."""

    def __init__(self, sends: Sequence[tuple[float, float, str]]) -> None:
        self._sends = sends

    @property
    def failed(self) -> int:
        return sum(1 for _, _, error in self._sends if error)

    def resumed_s(self, kill: Change) -> float:
        """From the kill to the first acknowledgement of a send that began after the end of the process."""
        found = [end for begin, end, error in self._sends if not error and begin >= kill.ended_s]
        if not found:
            raise RuntimeError("no send was acknowledged after a kill")
        return min(found) - kill.began_s

    def longest_s(self, change: Change, until_s: float) -> float:
        """The longest send from the change on."""
        return max(end - begin for begin, end, _ in self._sends if end >= change.began_s and begin < until_s)


def measure(report: Report, directory: Path, say: Say, *, quick: bool) -> None:
    """Ours first. Rows that need a program which is not installed say so."""
    case, divisor = f"kill of the leader, {NODES} nodes, async", 3 if quick else 1
    theirs: list[float] = []
    reason = f"{missing} is not installed" if (missing := KAFKA.missing()) else ""
    mine: list[float] = []
    if shutil.which("etcd") is None:
        report.not_shown(f"{case}: ours, median", "s", "etcd is not installed", at_most=KILL_GOAL_S)
    else:
        mine = _measure_ours(report, directory / "ours", say, case, divisor)
    if not reason:
        theirs = _kafka_kills(directory / "kafka", say, KAFKA_KILLS // divisor)
        report.add(f"{case}: Kafka, median of {len(theirs)}", median(theirs), "s")
    name = f"{case}: ours to Kafka"
    if mine and theirs:
        report.add(name, median(mine) / median(theirs), "x", at_most=KAFKA_GOAL)
    else:
        report.not_shown(name, "x", reason or "etcd is not installed", at_most=KAFKA_GOAL)


def _measure_ours(report: Report, directory: Path, say: Say, case: str, divisor: int) -> list[float]:
    """Seconds after each kill."""
    with _etcd(directory) as etcd, our_nodes(directory, NODES, synced=False, etcd=etcd) as nodes:
        servers = ",".join(node.address for node in nodes)
        with sync.connect([node.address for node in nodes]) as client:
            client.admin.create_topic(TOPIC, queue_count=1, options={"deduplicate": "1h"})
            group = _OurGroup(nodes, client)
            with _sender(ours.PEER, servers) as sender:
                kills = _changes(group.kill, KILLS // divisor)
                sends = _ended(sender)
            found = sorted(sends.resumed_s(kill) for kill in kills)
            say(f"{case}, ours: " + ", ".join(f"{one:.2f}" for one in found))
            report.add(f"{case}: ours, median of {len(found)}", median(found), "s")
            report.add(f"{case}: ours, longest of {len(found)}", found[-1], "s", at_most=KILL_GOAL_S)
            report.add(f"{case}: ours, failed sends", sends.failed, "")
            with _sender(ours.PEER, servers) as sender:
                changes = _changes(group.switch_over, SWITCH_OVERS // divisor)
                sends = _ended(sender)
    ends = [*(change.began_s for change in changes[1:]), float("inf")]
    holds = sorted(sends.longest_s(change, end) for change, end in zip(changes, ends, strict=True))
    case = "planned switch-over"
    say(f"{case}: " + ", ".join(f"{one:.2f}" for one in holds))
    report.add(f"{case}: longest send, median of {len(holds)}", median(holds), "s")
    report.add(f"{case}: longest send of all", holds[-1], "s", at_most=HOLD_GOAL_S)
    report.add(f"{case}: failed sends", sends.failed, "", at_most=0)
    return found


def _changes(change: Callable[[], Change], count: int) -> list[Change]:
    found = []
    for _ in range(count):
        time.sleep(BETWEEN_S)
        found.append(change())
    time.sleep(BETWEEN_S)
    return found


@contextmanager
def _sender(peer: Peer, servers: str) -> Iterator[subprocess.Popen[str]]:
    task = Task(servers, TOPIC, 0, 0.0, copies=NODES)
    with sending(client_command(peer, peer.clients[0], "steady", task)) as sender:
        yield sender


def _ended(sender: subprocess.Popen[str]) -> Sends:
    out, _ = sender.communicate("", timeout=SETTLED_IN_S)
    return Sends(json.loads(out.splitlines()[-1])["sends"])


def _until(what: str, is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SETTLED_IN_S
    while not is_so():
        if time.monotonic() > deadline:
            raise RuntimeError(f"not in time: {what}")
        time.sleep(LOOK_S)


class _OurGroup:
    """Three nodes. Each change returns when all are in sync again."""

    def __init__(self, nodes: Sequence[Node], client: sync.Client) -> None:
        self._nodes = {node.name: node for node in nodes}
        self._client = client

    def kill(self) -> Change:
        leader = self._settled()
        began_s = time.perf_counter()
        leader.kill()
        kill = Change(began_s, time.perf_counter())
        self._settled_without(leader)
        leader.start(wait=False)
        self._settled()
        return kill

    def switch_over(self) -> Change:
        leader, began_s = self._settled(), time.perf_counter()
        self._client.admin.replicas.switch_over(GROUP)
        change = Change(began_s, time.perf_counter())
        self._settled_without(leader)
        self._settled()
        return change

    def _settled(self) -> Node:
        """The leader, with all copies in sync."""
        found: list[str] = []

        def is_settled() -> bool:
            group = group_of(self._client)
            found[:] = [group.leader] if group is not None and group.leader is not None else []
            return group is not None and bool(found) and {*group.in_sync} == {*self._nodes}

        _until("one node leads, and all copies are in sync", is_settled)
        return self._nodes[found[0]]

    def _settled_without(self, former: Node) -> None:
        def is_settled() -> bool:
            group = group_of(self._client)
            return group is not None and group.leader not in (None, former.name)

        _until("another node leads", is_settled)


def _kafka_kills(directory: Path, say: Say, count: int) -> list[float]:
    with kafka_quorum(directory, NODES) as (servers, addresses):
        task = Task(addresses, TOPIC, 1, 1.0, in_flight=0, copies=NODES)
        client = KAFKA.clients[0]
        run_client(KAFKA, client, "make_topic", task)
        leader = 0

        def leads_with(copies: int, former: int = 0) -> bool:
            nonlocal leader
            answer = run_client(KAFKA, client, "leader", task)
            leader = int(answer["leader"])
            return answer["in_sync"] >= copies and leader not in (former, -1)

        def kill() -> Change:
            _until("all copies are in sync", lambda: leads_with(NODES))
            former, began_s = leader, time.perf_counter()
            servers[former - 1].kill()
            change = Change(began_s, time.perf_counter())
            _until("another broker leads", lambda: leads_with(1, former))
            servers[former - 1].start()
            _until("all copies are in sync", lambda: leads_with(NODES))
            return change

        with _sender(KAFKA, addresses) as sender:
            kills = _changes(kill, max(count, 1))
            sends = _ended(sender)
    found = sorted(sends.resumed_s(one) for one in kills)
    say("kill of the leader, Kafka: " + ", ".join(f"{one:.2f}" for one in found))
    return found


@contextmanager
def _etcd(directory: Path) -> Iterator[str]:
    """One of one member, on loopback; HOST:PORT for clients."""
    directory = directory.resolve() / "etcd"
    directory.mkdir(parents=True)
    port, peer = free_port(), f"http://127.0.0.1:{free_port()}"
    client = f"http://127.0.0.1:{port}"
    command = [
        "etcd",
        f"--data-dir={directory / 'data'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--logger=zap",
        "--log-level=error",
    ]
    with programs(directory, [command], [port]):
        yield f"127.0.0.1:{port}"
