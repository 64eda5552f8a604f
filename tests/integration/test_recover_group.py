"""A group whose etcd is lost for ever, one without an etcd, and one without a copy in sync: real nodes, real
etcd. Then a machine is replaced, and the last node leaves."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_replica_groups import TOPIC, WAIT_S_MAX, Broker, objects, send, stored, until
from tests.support.command_line import run_here
from tests.support.etcd_process import EtcdProcess, etcd_process, needs_etcd
from trovemq._common.loopback_ports import kept_port, port_of

pytestmark = [pytest.mark.slow, needs_etcd]


class Nodes:
    """a, b and c of one group, with in_sync_min 2."""

    def __init__(self, directory: Path, ports: list[int]) -> None:
        self.directory = directory
        places = [(ports[at], ports[at + 1]) for at in range(0, 6, 2)]
        self.all = [Broker(directory, name, at) for name, at in zip("abc", places, strict=True)]
        named = ",".join(f"{one.name}@{one.address}/{one.streams}" for one in self.all)
        self.named = f"replica_nodes={named}"

    def start(self, names: str, etcd: EtcdProcess | None = None) -> None:
        by = ("coordination=etcd", f"etcd_endpoints={etcd.address}") if etcd is not None else ()
        for one in self.all:
            if one.name in names:
                one.start(self.named, *by)

    def stop(self, names: str = "abc", number: signal.Signals = signal.SIGTERM) -> None:
        for one in self.all:
            if one.name in names and one.process is not None and one.process.poll() is None:
                one.stop(number)

    def leader(self, in_sync: str) -> Broker | None:
        """The node that leads, once that is the set."""
        return next((one for one in self.all if self._runs(one) and one.leads(list(in_sync))), None)

    def until_led(self, in_sync: str) -> Broker:
        found: list[Broker] = []

        def is_led() -> bool:
            found[:] = [one for one in (self.leader(in_sync),) if one is not None]
            return bool(found)

        until(f"{in_sync} are in sync", is_led)
        return found[0]

    @staticmethod
    def _runs(one: Broker) -> bool:
        return one.process is not None and one.process.poll() is None


@contextmanager
def three(directory: Path) -> Iterator[Nodes]:
    kept = [kept_port() for _ in range(6)]
    nodes = Nodes(directory, [port_of(one) for one in kept])
    try:
        yield nodes
    finally:
        for one in kept:
            one.close()
        nodes.stop(number=signal.SIGKILL)


def refused(server: str, *line: str) -> str:
    code, _, err = run_here(server, *line)
    assert code != 0, "it is refused"
    return str(err)


def recovered(*asked: Broker) -> dict[str, Any]:
    """By the one with the longest log, once it has heard from enough others; a command before that is
    refused, and changes nothing."""
    answers: list[dict[str, Any]] = []

    def done() -> bool:
        for node in asked:
            code, out, _ = run_here(node.address, "--json", "cluster", "recover", node.name, "--yes")
            answers[:] = [json.loads(one) for one in out.splitlines()] if code == 0 else []
            if answers:
                return True
        return False

    until("the group is founded again", done)
    return answers[0]


def until_not_recovered(node: Broker, reason: str) -> None:
    def is_said() -> bool:
        return reason in refused(node.address, "cluster", "recover", node.name, "--yes")

    until(f"it is refused: {reason}", is_said)


def check(server: str) -> tuple[int, list[dict[str, object]]]:
    code, out, _ = run_here(server, "--json", "cluster", "check")
    return code, [json.loads(one) for one in out.splitlines()]


def test_a_group_is_founded_again_in_a_new_etcd(tmp_path: Path) -> None:
    """It was led by an operator, got an etcd, and lost it."""
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    with three(tmp_path) as nodes:
        a = nodes.all[0]
        nodes.start("abc")
        leader = nodes.until_led("abc")
        sent = send(leader.address, 2)
        nodes.stop()

        with etcd_process(tmp_path / "old") as etcd:
            nodes.start("ab", etcd)
            until("it is said", lambda: b"cluster recover" in run_here(a.address, "cluster", "status")[1])
            assert check(a.address)[0] == 1
            assert recovered(a)["leader"] in "ab"
            nodes.start("c", etcd)
            leader = nodes.until_led("abc")
            sent |= send(leader.address, 2, first=2)
            assert stored(leader.address) == sent
            follower = next(one for one in nodes.all if one is not leader)
            until_not_recovered(follower, "nothing to recover")
            until("etcd was asked", lambda: check(leader.address)[0] == 0)
            assert {one["check"] for one in check(leader.address)[1]} <= {"etcd"}, "notes on etcd alone"

        with etcd_process(tmp_path / "new") as etcd:
            sent |= send(leader.address, 1, first=4)
            for one in (follower, leader):
                one.stop(signal.SIGKILL)
            nodes.start(follower.name, etcd)
            third = next(one for one in nodes.all if one not in (leader, follower))
            words = f"node {third.name} has an etcd that has its group, or does not answer"
            until_not_recovered(follower, words)
            third.stop()
            until_not_recovered(follower, "start ")
            nodes.start(third.name, etcd)
            recovered(follower, third)  # third may have led for a moment
            nodes.start(leader.name, etcd)
            assert stored(nodes.until_led("abc").address) == sent


def test_a_copy_out_of_sync_leads_and_a_machine_is_replaced(tmp_path: Path) -> None:
    with etcd_process(tmp_path) as etcd, three(tmp_path) as nodes:
        nodes.start("abc", etcd)
        leader = nodes.until_led("abc")
        c = next(one for one in nodes.all if one is not leader)
        others = "".join(one.name for one in nodes.all if one is not c)
        sent = send(leader.address, 2)
        text = refused(c.address, "cluster", "elect", c.name, "--unclean", "--yes")
        assert "it is elected without a command" in text
        c.stop()
        end = next(one["end"] for one in _nodes(nodes.until_led(others)) if one["node"] == leader.name)
        lost = send(leader.address, 3, first=2)
        until("its end is in etcd", lambda: _floor(etcd) > end)
        nodes.stop(others, signal.SIGKILL)

        nodes.start(c.name, etcd)
        until("the lease has ended", lambda: "bytes" in _unclean(c, 0)[1])
        code, err = _unclean(c, 0)
        assert code != 0
        found = re.search(r"at least (\d+) bytes", err)
        assert found is not None, err
        code, err = _unclean(c, int(found[1]))
        assert code == 0, err
        words = b"1 of the 2 copies that a commit needs"
        until("c waits", lambda: words in run_here(c.address, "cluster", "status")[1])
        assert run_here(c.address, "send", TOPIC, "one copy")[0] != 0

        d = next(one for one in nodes.all if one.name in others)
        shutil.rmtree(tmp_path / d.name)
        objects(c.address, "cluster", "replace", d.name, "--yes")
        nodes.start(d.name, etcd)
        nodes.until_led("".join(sorted(c.name + d.name)))
        assert stored(c.address) & (sent | lost) == sent, "messages that only the lost copies had are lost"
        sent |= send(c.address, 1, first=9)
        assert stored(c.address) >= sent


def _nodes(node: Broker) -> list[dict[str, Any]]:
    (found,) = objects(node.address, "cluster", "status")
    return list(found["nodes"])


def _unclean(node: Broker, accept: int) -> tuple[int, str]:
    line = ("cluster", "elect", node.name, "--unclean", "--accept-loss", str(accept), "--yes")
    code, _, err = run_here(node.address, *line)
    return code, str(err)


def test_the_last_node_takes_its_keys_out_of_etcd(tmp_path: Path) -> None:
    with etcd_process(tmp_path) as etcd, three(tmp_path) as nodes:
        a = nodes.all[0]
        a.start("coordination=etcd", f"etcd_endpoints={etcd.address}")
        objects(a.address, "cluster", "init")
        nodes.until_led("a")
        assert b"/state" in _keys(etcd)
        objects(a.address, "cluster", "leave", "a", "--yes")
        assert a.process is not None
        a.process.communicate(timeout=WAIT_S_MAX)
        assert a.process.returncode == 0
        assert _keys(etcd) == b""
        a.start(is_node=False)
        assert a.stop() == 0


def _keys(etcd: EtcdProcess, *more: str) -> bytes:
    command = ["etcdctl", f"--endpoints={etcd.address}", "get", "/trovemq", "--prefix"]
    return subprocess.run(
        [*command, *(more or ("--keys-only",))], stdout=subprocess.PIPE, check=True, env={"ETCDCTL_API": "3"}
    ).stdout.strip()


def _floor(etcd: EtcdProcess) -> int:
    found = re.search(rb'"commitFloor":(\d+)', _keys(etcd, "--print-value-only"))
    return 0 if found is None else int(found[1])
