"""Failover through a real etcd, with real nodes: a killed leader is replaced, and nothing that two copies had
acknowledged is missing."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from tests.integration.test_cluster_local import Command, running, without_settings
from tests.integration.test_how_to import ROOT, blocks
from tests.integration.test_replica_groups import (
    NAMES,
    SMALL,
    Broker,
    group,
    in_sync,
    leads,
    objects,
    role_of,
    send,
    stored,
    until,
)
from tests.support.command_line import run_here
from tests.support.etcd_process import etcd_process, needs_etcd
from tests.support.fork_server import popen
from trovemq._common.loopback_ports import kept_port, port_of

pytestmark = [pytest.mark.slow, needs_etcd]

FAILOVER_S_MAX = 20.0
"""For a machine that is busy otherwise; alone it takes about a second."""
ETCD = ("--nodes", "3", "--etcd", *SMALL)


def serving(command: Command) -> list[str]:
    """The nodes that say they lead, and serve."""
    found = []
    for name in NAMES:
        try:
            with urllib.request.urlopen(f"http://{command.rows[name]['http']}/leader", timeout=1):
                found.append(name)
        except OSError:
            pass
    return found


def leader_of(command: Command) -> str:
    """The one leader, once it serves and all copies are in sync."""
    found: list[str] = []

    def one_leads() -> bool:
        found[:] = serving(command)
        return len(found) == 1

    until("a node leads", one_leads)
    until("all are in sync", lambda: in_sync(command, found[0]))
    return found[0]


def next_leader(command: Command, former: str) -> tuple[str, float]:
    """Which other node leads, and after how many seconds."""
    began = time.monotonic()
    while not (others := [one for one in serving(command) if one != former]):
        assert time.monotonic() - began < FAILOVER_S_MAX, "no other node leads"
        time.sleep(0.01)
    return others[0], time.monotonic() - began


def has_lease(command: Command) -> bool:
    found = [role_of(command, node) for node in serving(command)]
    return len(found) == 1 and found[0] is not None and bool(found[0]["lease_left_ms"])


def producing(server: str, ledger: Path, seconds: float) -> subprocess.Popen[bytes]:
    line = [
        "verify",
        "produce",
        "orders",
        "--ledger",
        str(ledger),
        "--rate",
        "200",
        "--seconds",
        str(seconds),
    ]
    return popen(
        [sys.executable, "-m", "trovemq.cli", *line, "--server", server, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=without_settings(),
    )


def page_lines() -> tuple[list[str], list[str]]:
    """Of the page's commands in the other terminal: before the kill, and after it."""
    _, (_, *lines), *_ = [
        block.text.splitlines()
        for block in blocks(ROOT / "docs" / "how-to" / "fail-over.md")
        if block.kind == "sh"
    ]
    at = next(number for number, line in enumerate(lines) if line.startswith("kill"))
    return lines[:at], lines[at + 1 :]


def ran(server: str, line: str) -> bytes:
    code, out, err = run_here(server, *shlex.split(line)[1:])
    assert code == 0, (line, err)
    return out


def test_a_killed_leader_is_replaced_and_no_message_is_missing(tmp_path: Path) -> None:
    """With the commands of the page before the load and after it."""
    ledger = tmp_path / "ledger"
    before, after = page_lines()
    with running(tmp_path / "cluster", *ETCD) as command:
        command.until_ready()
        assert command.rows["etcd"]["role"] == "etcd"
        first = leader_of(command)
        assert first == NAMES[0], "the founder leads first"
        epoch = group(command, first)["epoch"]
        for line in before:
            ran(command.server, line)

        sending = producing(command.server, ledger, 12)
        until("messages are sent", lambda: ledger.exists() and ledger.stat().st_size > 50_000)
        os.kill(command.rows[first]["pid"], signal.SIGKILL)
        second, took_s = next_leader(command, first)
        assert took_s < FAILOVER_S_MAX
        assert group(command, second)["epoch"] > epoch
        until("the killed node follows", lambda: leads(command, second) and in_sync(command, second))
        out, err = sending.communicate(timeout=120)
        assert sending.returncode == 0, err
        summary = json.loads(out)
        assert summary["acknowledged"] > 500, summary
        code, out_text, err_text = run_here(
            command.server, "--json", "verify", "check", "--ledger", str(ledger)
        )
        assert code == 0, (out_text, err_text)
        print(f"failover in {took_s:.2f} s: {summary}")
        assert b"12 apples" in b"".join(ran(command.server, line) for line in after)
        assert command.ended(signal.SIGTERM)[0] == 0


def switched_over(command: Command) -> bool:
    """Whether another node leads, as an operator wished; an election that has just begun comes first."""
    first = leader_of(command)
    second = next(one for one in NAMES if one != first)
    line = ("cluster", "switch-over", "broker-1", "--to", second)
    code, out, err = run_here(command.server, "--json", *line)
    if code != 0:
        assert json.loads(err)["retriable"], err
        return False
    state = json.loads(out)
    assert (state["leader"], state["coordination"]) == (second, "etcd")
    return True


def test_etcd_is_away_and_then_another_node_leads_as_planned(tmp_path: Path) -> None:
    with running(tmp_path / "cluster", *ETCD) as command:
        command.until_ready()
        first = leader_of(command)
        etcd = command.rows["etcd"]["pid"]
        sent = send(command.server, 2)
        os.kill(etcd, signal.SIGSTOP)
        try:
            ends = time.monotonic() + 5
            while time.monotonic() < ends:  # longer than the lease
                sent |= send(command.server, 1, first=len(sent))
                time.sleep(0.1)  # a query has the last 100
            assert serving(command) == [first]
        finally:
            os.kill(etcd, signal.SIGCONT)

        # etcd has ended all leases: any node may have been the first to take the lock again, or is about to
        until("a leader has its lease", lambda: has_lease(command))
        until("another node leads as planned", lambda: switched_over(command))
        second = leader_of(command)
        first = next(one for one in NAMES if one != second)
        sent |= send(str(command.rows[second]["address"]), 1, first=len(sent))
        assert stored(str(command.rows[second]["address"])) == sent
        code, _, err = run_here(str(command.rows[first]["address"]), "cluster", "promote", first)
        assert code != 0
        assert "switch-over" in err
        assert command.ended(signal.SIGTERM)[0] == 0


def test_a_paused_leader_is_replaced_and_then_follows(tmp_path: Path) -> None:
    with running(tmp_path / "cluster", *ETCD) as command:
        command.until_ready()
        first = leader_of(command)
        sent = send(command.server, 2)
        os.kill(command.rows[first]["pid"], signal.SIGSTOP)
        second, _ = next_leader(command, first)
        sent |= send(str(command.rows[second]["address"]), 2, first=2)
        os.kill(command.rows[first]["pid"], signal.SIGCONT)
        until("the woken node follows", lambda: leads(command, second) and in_sync(command, second))
        assert stored(str(command.rows[second]["address"])) == sent
        assert command.ended(signal.SIGTERM)[0] == 0


def test_a_single_store_becomes_a_group_by_etcd(tmp_path: Path) -> None:
    kept = [kept_port() for _ in range(4)]
    ports = [port_of(one) for one in kept]
    a, b = Broker(tmp_path, "a", (ports[0], ports[1])), Broker(tmp_path, "b", (ports[2], ports[3]))
    nodes = f"replica_nodes=a@{a.address}/{a.streams},b@{b.address}/{b.streams}"
    with etcd_process(tmp_path) as etcd:
        by_etcd = ("coordination=etcd", f"etcd_endpoints={etcd.address}")
        try:
            a.start(*by_etcd)
            (founded,) = objects(a.address, "cluster", "init")
            assert (founded["group"], founded["in_sync"]) == ("solo", ["a"])
            until("a leads", lambda: a.leads(["a"]))
            objects(a.address, "cluster", "add", "b", "--address", b.address, "--replication", b.streams)
            b.start(*by_etcd, nodes)
            until("b is in sync", lambda: a.leads(["a", "b"]))
            sent = send(a.address, 2)

            assert a.stop() == 0
            assert run_here(b.address, "send", "letters", "one copy")[0] != 0
            a.start(*by_etcd, nodes)
            until("the other node leads both", lambda: b.leads(["a", "b"]))
            sent |= send(b.address, 1, first=2)
            assert stored(b.address) >= sent
            objects(b.address, "cluster", "switch-over", "solo")
            until("a leads both again", lambda: a.leads(["a", "b"]))
            assert stored(a.address) >= sent
        finally:
            for port in kept:
                port.close()
            for one in (a, b):
                if one.process is not None and one.process.poll() is None:
                    one.stop(signal.SIGKILL)
