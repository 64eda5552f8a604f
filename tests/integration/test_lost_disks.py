"""The leader of three real nodes loses its disk under `trovemq verify produce`, and another node is promoted:
everything that was acknowledged is there. No node elects a leader."""

from __future__ import annotations

import json
import os
import shutil
import signal
from functools import partial
from pathlib import Path

import pytest

from tests.integration.test_cluster_local import Command, running
from tests.integration.test_damaged_copies import delete
from tests.integration.test_failover import trove
from tests.integration.test_replica_groups import NAMES, SMALL, in_sync, objects, until
from tests.support.command_line import run_here
from tests.support.trials import Trials

pytestmark = pytest.mark.slow

GOAL = "replication", "stores of leaders removed under verify"
TOTAL = 24
RATE, SECONDS_MAX = 150, 10_000
SENT_BETWEEN = 100
"""Outcomes that the ledger has before a disk is lost, and after the promotion."""


def lines_of(ledger: Path) -> int:
    return ledger.read_bytes().count(b"\n") if ledger.exists() else 0


def until_sent(ledger: Path) -> None:
    wanted = lines_of(ledger) + SENT_BETWEEN
    until("messages are sent", lambda: lines_of(ledger) >= wanted)


def lose_disk(command: Command, leader: str, *, is_killed: bool) -> None:
    """Its process runs on, and ends when it meets that; or it was killed at that moment. The command starts
    it again, with an empty store."""
    store = Path(command.rows[leader]["store"])
    if is_killed:
        os.kill(int((store / "abort").read_text()), signal.SIGKILL)
        shutil.rmtree(store, ignore_errors=True)
    else:
        delete(store)


def promote(command: Command, node: str) -> None:
    def promoted() -> bool:
        address = str(command.rows[node]["address"])
        code, out, _ = run_here(address, "--json", "cluster", "promote", node)
        return code == 0 and json.loads(out)["leader"] == node

    until("a node that has all is promoted", promoted)


def test_a_leaders_disk_is_lost_under_load(tmp_path: Path, trials: Trials) -> None:
    """Trials with an even number: the process runs. The next node in turn is promoted."""
    numbers, ledger = list(trials.chosen(TOTAL, (0,))), tmp_path / "ledger"
    with running(tmp_path / "cluster", "--nodes", "3", *SMALL) as command:
        command.until_ready()
        until("all are in sync", lambda: in_sync(command, NAMES[0]))
        command.run("topic", "create", "verified", "--queues", "2")
        arguments = ("--rate", str(RATE), "--seconds", str(SECONDS_MAX), "--ledger", str(ledger))
        with trove(command, "verify", "produce", "verified", *arguments):
            for turn, number in enumerate(numbers):
                leader, other = NAMES[turn % 3], NAMES[(turn + 1) % 3]
                with trials.one(number):
                    until_sent(ledger)
                    lose_disk(command, leader, is_killed=number % 2 == 1)
                    promote(command, other)
                    until_sent(ledger)
                    until("the lost copy is in sync", partial(in_sync, command, other))
        (report,) = objects(command.server, "verify", "check", "--ledger", str(ledger))
        assert (report["wrong"], report["faults"]) == (0, [])
        assert report["acknowledged"] >= 2 * SENT_BETWEEN * len(numbers)
        assert command.ended(signal.SIGTERM)[0] == 0
    trials.count(*GOAL, len(numbers))
