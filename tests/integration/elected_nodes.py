"""Three nodes of a replica group as processes, with a real etcd; a test disturbs networks and clocks."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.integration.cut_link import CutLink
from tests.integration.stepped_broker import step_clock
from tests.support.etcd_process import EtcdProcess, etcd_process
from trovemq import sync
from trovemq._common.loopback_ports import kept_port, port_of

NAMES = ("a", "b", "c")
BROKER = Path(__file__).with_name("stepped_broker.py")
ROOT = Path(__file__).parents[2]
WAIT_S_MAX = 90
STEP_S = 3.0
SETTINGS = (
    "disk_warning_percent=100",
    "commit_log_file_size=16777216",
    "syncFlushTimeout=60000",
    "transaction_check_interval_ms=2000",
    # A machine that is busy otherwise drops no copy for its lag, and ends no send.
    "replica_lag_max_ms=15000",
    "replica_ack_timeout_ms=60000",
)


class Node:
    """`peers`: the way of the other nodes to its streams; `etcd`: its way to etcd. `settings`: more of them;
    with a certificate it listens at `tls_address`, too. `by_links`: False: others reach it without links, so
    that a kill is seen as at a machine that refuses connections from that moment on."""

    def __init__(
        self,
        directory: Path,
        name: str,
        etcd: str,
        stack: ExitStack,
        settings: Sequence[str] = (),
        *,
        by_links: bool = True,
    ) -> None:
        ports = [stack.enter_context(kept_port()) for _ in range(5)]
        self.name = name
        self.address, self.http, self.streams, self.tls_address, _ = (
            f"127.0.0.1:{port_of(one)}" for one in ports
        )
        by_tls = any(one.startswith("tls_certificate=") for one in settings)
        self._settings = [*settings, *([f"tls_listen={self.tls_address}"] if by_tls else [])]
        self.peers = stack.enter_context(CutLink(self.streams, port_of(ports[-1])))
        self.etcd = stack.enter_context(CutLink(etcd))
        self.streams_of_others = self.peers.address if by_links else self.streams
        self._etcd_address = self.etcd.address if by_links else etcd
        self.store, self.log = directory / name, directory / f"{name}.log"
        self._clock = directory / f"{name}.clock"
        self._ahead = False
        step_clock(self._clock, 0)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, nodes: str) -> None:
        self.peers.listen()
        settings = [
            *("coordination=etcd", f"node_name={self.name}", f"replication_listen={self.streams}"),
            *(f"replication_advertise={self.streams_of_others}", f"etcd_endpoints={self._etcd_address}"),
            *(nodes, *SETTINGS, *self._settings),
        ]
        line = [sys.executable, str(BROKER), "--name", "solo", "--listen", self.address]
        line += ["--http", self.http, "--store", str(self.store)]
        line += [part for one in settings for part in ("--set", one)]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TROVEMQ_")}
        environment |= {"CLOCK_FILE": str(self._clock), "PYTHONPATH": str(ROOT)}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(line, stdout=log, stderr=log, env=environment)

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        assert self.process is not None
        self.process.wait(WAIT_S_MAX)
        self.peers.refuse()

    def step_clock(self) -> None:
        """By STEP_S, forwards or back again."""
        self._ahead = not self._ahead
        step_clock(self._clock, STEP_S if self._ahead else 0)

    def serves(self) -> bool:
        """Whether it says that it leads."""
        try:
            with urllib.request.urlopen(f"http://{self.http}/leader", timeout=1):
                return True
        except OSError:
            return False

    def in_sync(self) -> list[str]:
        """The nodes whose copies count, as this one knows it."""
        try:
            with urllib.request.urlopen(f"http://{self.http}/replica", timeout=1) as answer:
                found: list[str] = json.load(answer)["in_sync"]
                return found
        except OSError:
            return []


class ElectedNodes:
    def __init__(self, nodes: list[Node], etcd: EtcdProcess) -> None:
        self.nodes = {one.name: one for one in nodes}
        self.etcd = etcd
        self._members = "replica_nodes=" + ",".join(
            f"{one.name}@{one.address}/{one.streams_of_others}" for one in nodes
        )
        self.took_s: list[tuple[str, float]] = []
        """Each failover: its cause, and the seconds until another node served."""
        self.kills: list[tuple[float, float]] = []
        """When each killed leader was sent the signal, and when its process had ended (time.monotonic)."""

    @property
    def addresses(self) -> list[str]:
        return [one.address for one in self.nodes.values()]

    def start(self, node: Node) -> None:
        node.start(self._members)

    def leader(self) -> Node:
        """The leader, once all three copies are in sync."""
        found: list[Node] = []

        def settled() -> bool:
            found[:] = [one for one in self.nodes.values() if one.serves()]
            return len(found) == 1 and found[0].in_sync() == list(NAMES)

        until("one node leads, and all are in sync", settled)
        return found[0]

    def next_leader(self, former: Node, cause: str) -> Node:
        """Another one that serves."""
        began, found = time.monotonic(), list[Node]()

        def served() -> bool:
            found[:] = [one for one in self.nodes.values() if one is not former and one.serves()]
            return bool(found)

        until(f"another node leads after: {cause}", served)
        self.took_s.append((cause, time.monotonic() - began))
        return found[0]

    # --- faults: each returns when another node serves, and the former leader is back --------------------
    def killed(self) -> None:
        former = self.leader()
        killed_s = time.monotonic()
        former.kill()
        self.kills.append((killed_s, time.monotonic()))
        self.next_leader(former, "kill")
        self.start(former)

    def paused(self) -> None:
        former = self.leader()
        former.signal(signal.SIGSTOP)
        self.next_leader(former, "pause")
        former.signal(signal.SIGCONT)

    def cut_off(self) -> None:
        """The leader reaches etcd no more, and its followers do not reach it; clients do."""
        former = self.leader()
        former.peers.cut()
        former.etcd.cut()
        self.next_leader(former, "cut off")
        former.peers.mend()
        former.etcd.mend()

    def clock_stepped(self) -> None:
        """The next leader's clock is another one than the former's."""
        former = self.leader()
        former.step_clock()
        time.sleep(0.5)
        former.kill()
        self.next_leader(former, "clock")
        self.start(former)

    def store_removed(self) -> None:
        """`rm -rf` of the leader's store while it serves."""
        former = self.leader()
        shutil.rmtree(former.store, ignore_errors=True)
        former.kill()
        shutil.rmtree(former.store, ignore_errors=True)
        self.next_leader(former, "rm -rf")
        self.start(former)

    def switched_over(self) -> None:
        """As planned, to the next node."""
        former = self.leader()
        with sync.connect(former.address) as client:
            client.admin.replicas.switch_over("solo")
        self.next_leader(former, "switch-over")

    def etcd_paused(self) -> None:
        etcd = self.etcd.process
        self._healthy_without_etcd(
            lambda: etcd.send_signal(signal.SIGSTOP), lambda: etcd.send_signal(signal.SIGCONT)
        )

    def etcd_killed(self) -> None:
        self._healthy_without_etcd(lambda: self.etcd.stop(signal.SIGKILL), self.etcd.start_again)

    def _healthy_without_etcd(self, take_away: Callable[[], None], bring_again: Callable[[], None]) -> None:
        """Longer than the lease: no node takes over, and the group continues. A group whose nodes answer each
        other later than a lease, as on a machine with much other work, is not healthy: it may try thrice."""
        served = False
        for _ in range(3):
            leader = self.leader()
            take_away()
            time.sleep(4.5)
            served = leader.serves()
            bring_again()
            if served:
                break
        assert served, "a healthy group needs no etcd"


def until(what: str, found: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S_MAX
    while not found():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


@contextmanager
def elected_nodes(
    directory: Path, settings: Sequence[str] = (), *, by_links: bool = True
) -> Iterator[ElectedNodes]:
    """Started, and all in sync. `settings`, `by_links`: of each node."""
    with ExitStack() as stack:
        etcd = stack.enter_context(etcd_process(directory))
        nodes = [Node(directory, name, etcd.address, stack, settings, by_links=by_links) for name in NAMES]
        group = ElectedNodes(nodes, etcd)
        try:
            for node in group.nodes.values():
                group.start(node)
            group.leader()
            yield group
        finally:
            for node in group.nodes.values():
                if node.process is not None and node.process.poll() is None:
                    node.signal(signal.SIGCONT)
                    node.kill()
