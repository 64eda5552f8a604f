"""The blocks of three how-tos run, with real nodes and a real etcd: a machine is replaced, a group upgraded,
and its etcd lost for ever."""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.integration.test_fail_over import producing
from tests.integration.test_how_to import ROOT, blocks, exit_code
from tests.integration.test_recover_group import Nodes, three
from tests.integration.test_replica_groups import Broker, send, stored, until
from tests.support.command_line import run_here
from tests.support.etcd_process import EtcdProcess, etcd_process, needs_etcd
from trovemq.testing import free_port
from trovemq_broker.__main__ import main as broker_main

pytestmark = [pytest.mark.slow, needs_etcd]

CHECK_S_MAX = 60


def lines(page: str) -> Iterator[str]:
    """Of the sh blocks."""
    for block in blocks(ROOT / "docs" / "how-to" / f"{page}.md"):
        if block.kind == "sh":
            yield from block.text.splitlines()


def places(nodes: Nodes, etcd: EtcdProcess, *more: Broker) -> Mapping[str, str]:
    """The addresses of the pages, and those of this test."""
    found = {" shop ": " solo ", '"shop"': '"solo"'}
    for at, node in enumerate((*nodes.all, *more), 1):
        found |= {f"10.0.0.{at}:8081": node.address, f"10.0.0.{at}:8084": node.streams}
        found |= {f"10.0.0.{at}:2379": etcd.address}
    return found


def here(text: str, known: Mapping[str, str]) -> str:
    for name, value in known.items():
        text = text.replace(name, value)
    return text


def ran(server: str, line: str) -> None:
    words = shlex.split(line)
    if words[1] == "--server":
        server, words = words[2], [words[0], *words[3:]]
    more = ["--yes"] if words[2] in ("recover", "elect") else []
    code, out, err = run_here(server, *words[1:], *more)
    assert code == 0, (line, out, err)


def until_well(server: str) -> None:
    until("all is well", lambda: run_here(server, "cluster", "check")[0] == 0)


def until_said(node: Broker, problem: str) -> None:
    def is_said() -> bool:
        out = run_here(node.address, "--json", "cluster", "status")[1]
        groups = [json.loads(line) for line in out.splitlines()]
        return any(
            problem in one["problem"]
            for group in groups
            for one in group["nodes"]
            if one["node"] == node.name
        )

    until(problem, is_said)


def test_a_machine_is_replaced(tmp_path: Path) -> None:
    with etcd_process(tmp_path) as etcd, three(tmp_path) as nodes:
        a, b, c = nodes.all
        nodes.start("abc", etcd)
        leader = nodes.until_led("abc")
        if leader is c:
            assert run_here(c.address, "cluster", "switch-over", "solo", "--to", "a")[0] == 0
        sent = send(a.address, 3)
        c.stop(signal.SIGKILL)
        (tmp_path / "new").mkdir()
        new = Broker(tmp_path / "new", "c", (free_port(), free_port()))
        known = places(nodes, etcd, new)
        (toml,) = [one for one in blocks(ROOT / "docs/how-to/replace-a-machine.md") if one.kind == "toml"]
        config = tmp_path / "broker.toml"
        config.write_text(here(toml.text, known))
        try:
            for line in lines("replace-a-machine"):
                if "trovemq server" in line:
                    assert exit_code(broker_main, ["server", "--config", str(config), "--print-config"]) == 0
                    named = f"replica_nodes=a@{a.address}/{a.streams},b@{b.address}/{b.streams}"
                    named += f",c@{new.address}/{new.streams}"
                    new.start(named, "coordination=etcd", f"etcd_endpoints={etcd.address}")
                    until("c is in sync", lambda: nodes.leader("abc") in (a, b))
                elif "export" not in line:
                    ran(a.address, here(line, known))
            assert stored(nodes.until_led("abc").address) == sent
        finally:
            if new.process is not None:
                new.stop(signal.SIGKILL)


def test_a_group_is_upgraded_and_no_send_fails(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    with etcd_process(tmp_path) as etcd, three(tmp_path) as nodes:
        nodes.start("abc", etcd)
        if nodes.until_led("abc").name != "a":
            assert run_here(nodes.all[1].address, "cluster", "switch-over", "solo", "--to", "a")[0] == 0
        a = nodes.until_led("abc")
        until_well(a.address)
        sending = producing(a.address, ledger, 20)
        until("messages are sent", lambda: ledger.exists() and ledger.stat().st_size > 10_000)
        for line in lines("upgrade-without-a-stop"):
            mine = here(line, places(nodes, etcd))
            if line.startswith("ssh"):
                name = line.split()[1]
                nodes.stop(name)
                nodes.start(name, etcd)
            elif line.startswith("until"):
                until_well(shlex.split(mine)[3] if "--server" in mine else a.address)
            elif "export" not in line:
                ran(a.address, mine)
        out, err = sending.communicate(timeout=120)
        assert sending.returncode == 0, (out, err)
        summary = json.loads(out)
        assert summary["acknowledged"] > 100, summary
        assert summary["acknowledged"] == summary["sent"], "no send failed"
        code, said, errors = run_here(
            nodes.all[1].address, "--json", "verify", "check", "--ledger", str(ledger)
        )
        assert code == 0, (said, errors)
        assert nodes.until_led("abc") is nodes.all[1]


def test_a_lost_etcd_and_then_all_copies_in_sync(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    with three(tmp_path) as nodes:
        with etcd_process(tmp_path / "old") as etcd:
            nodes.start("abc", etcd)
            sent = send(nodes.until_led("abc").address, 2)
            nodes.stop()
        shutil.rmtree(tmp_path / "old")
        with etcd_process(tmp_path) as etcd:
            nodes.start("abc", etcd)
            for one in nodes.all:  # as the page says
                until_said(one, "etcd has nothing of the group")
            recover, check, elect = lines("what-happens-when")
            code, out, err = run_here(nodes.all[0].address, *shlex.split(recover)[1:], "--yes")
            if code != 0:  # as the page says
                assert "has a longer or later log" in err, (out, err)
                (other,) = [one for one in nodes.all if f"cluster recover {one.name}" in err]
                ran(other.address, f"trovemq cluster recover {other.name}")
            leader = nodes.until_led("abc")
            until_well(leader.address)
            ran(leader.address, check)
            assert stored(leader.address) == sent

            third = nodes.all[2]
            if leader is third:
                assert run_here(third.address, "cluster", "switch-over", "solo", "--to", "a")[0] == 0
            third.stop()
            nodes.until_led("ab")
            nodes.stop("ab", signal.SIGKILL)
            third.start(nodes.named, "coordination=etcd", f"etcd_endpoints={etcd.address}")
            ends = time.monotonic() + CHECK_S_MAX
            while "lead" in (said := run_here(third.address, *shlex.split(elect)[1:], "--yes"))[2]:
                assert time.monotonic() < ends, "the leases of the killed nodes have ended"
                time.sleep(0.2)
            assert said[0] == 0, said
            shutil.rmtree(tmp_path / "a")
            ran(third.address, "trovemq cluster replace a --yes")  # alone it serves no client
            nodes.start("a", etcd)
            assert nodes.until_led("ac") is third
            assert stored(third.address) == sent
