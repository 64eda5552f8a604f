"""A node with an empty store that joins a group: how fast it copies the log, and how long the leader's sends
take meanwhile."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Final

from bench import limits
from bench.peers import ours
from bench.peers.servers import Server
from bench.peers.task import BODY_SIZE, Task
from bench.replicas.groups import LOOK_S, Node, group_of, our_nodes, sending
from bench.report import Report
from trovemq import sync

SIZE: Final = 1 << 30
NODES: Final = 3
TOPIC: Final = "filled"
FILLED_IN_S: Final = 120.0
BEFORE_S: Final = 3.0
SETTLE_S: Final = 1.0
CAUGHT_UP_IN_S: Final = 120.0
RATE: Final = 200.0
COPY_GOAL: Final = 0.6
P99_GOAL: Final = 1.5


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """Rates in bytes a second, times in seconds."""

    copied: float
    disk: float
    p99_before: float
    p99_meanwhile: float


def measure(report: Report, directory: Path, say: Callable[[str], None], *, rounds: int, quick: bool) -> None:
    """With the rate to which a leader limits it by default, and without a limit."""
    for name, settings in (("catching up", ()), ("catching up, no limit", ("catch_up_bytes_per_s=0",))):
        with our_nodes(directory / name.replace(" ", "-"), NODES, synced=False, settings=settings) as nodes:
            leader, joining = nodes[0], nodes[-1]
            with sync.connect(leader.address) as client:
                joining.stop()
                _fill(client, leader, SIZE // (2 if quick else 1))
                found = []
                for number in range(1, rounds + 1):
                    found.append(_round(client, leader, joining, directory))
                    say(f"{name}, {number} of {rounds}: {found[-1].copied / 1e6:,.0f} MB/s")
        _report(report, name, found)
        shutil.rmtree(leader.store.parent)


def _report(report: Report, case: str, found: Sequence[CaughtUp]) -> None:
    report.add(f"{case}: a new node's copy", median(one.copied for one in found) / 1e6, "MB/s")
    report.add(f"{case}: a copy by a program", median(one.disk for one in found) / 1e6, "MB/s")
    rate = median(one.copied / one.disk for one in found)
    report.add(f"{case}: a new node's copy to a program's", rate, "x", at_least=COPY_GOAL)
    report.add(f"{case}: send, p99 before", median(one.p99_before for one in found) * 1e3, "ms")
    report.add(f"{case}: send, p99 meanwhile", median(one.p99_meanwhile for one in found) * 1e3, "ms")
    ratio = median(one.p99_meanwhile / one.p99_before for one in found)
    report.add(f"{case}: send, p99 meanwhile to before", ratio, "x", at_most=P99_GOAL)


def _fill(client: sync.Client, leader: Node, size: int) -> None:
    """Until the log has `size` bytes."""
    client.admin.create_topic(TOPIC, queue_count=ours.QUEUES)
    server = Server(ours.PEER, leader.pid, leader.address)
    while (left := size - _end(client, leader.name)) > 0:
        count = max(left // (BODY_SIZE + 128), 1_000)
        server.run("batch", "produce", Task(leader.address, TOPIC, count, FILLED_IN_S, 16_000))


def _round(client: sync.Client, leader: Node, joining: Node, directory: Path) -> CaughtUp:
    """The joining node does not run, and does not at the end."""
    shutil.rmtree(joining.store, ignore_errors=True)
    limits.warm_page_cache(directory)
    command = [sys.executable, "-m", "bench.replicas.sender", leader.address, TOPIC, str(RATE)]
    with sending(command) as sender:
        time.sleep(SETTLE_S)
        before = (time.perf_counter(), time.perf_counter() + BEFORE_S)
        time.sleep(BEFORE_S)
        target = _end(client, leader.name)
        joining.start(wait=False)
        first, last = _copied(client, joining, target)
        times = _ended(sender)
    joining.stop()
    segments = sorted((leader.store / "commitlog").iterdir())
    disk = limits.copy_bytes_per_second(segments, directory, target)
    copied = (last[1] - first[1]) / (last[0] - first[0])
    return CaughtUp(copied, disk, _p99(times, *before), _p99(times, first[0], last[0]))


def _copied(client: sync.Client, joining: Node, target: int) -> tuple[tuple[float, int], tuple[float, int]]:
    """(time, end of the log) of the node when its copy had begun, and when it had the target."""
    deadline, first = time.perf_counter() + CAUGHT_UP_IN_S, None
    while time.perf_counter() < deadline:
        at, end = time.perf_counter(), _end(client, joining.name)
        if first is None and end > 0:
            first = (at, end)
        if first is not None and end >= target:
            return first, (at, end)
        time.sleep(LOOK_S)
    raise RuntimeError(f"{joining.name} has not caught up: {joining.log()[-2000:]}")


def _end(client: sync.Client, name: str) -> int:
    """Where the node's log ends; 0 if it does not answer."""
    found = group_of(client)
    return next((node.end or 0 for node in found.nodes if node.node == name), 0) if found else 0


def _ended(sender: subprocess.Popen[str]) -> list[tuple[float, float]]:
    out, _ = sender.communicate("", timeout=CAUGHT_UP_IN_S)
    return [(due, seconds) for due, seconds in json.loads(out)]


def _p99(times: Sequence[tuple[float, float]], begin: float, end: float) -> float:
    found = [seconds for due, seconds in times if begin <= due < end]
    if len(found) < 2:
        raise RuntimeError(f"{len(found)} sends are too few")
    return quantiles(found, n=100)[98]
