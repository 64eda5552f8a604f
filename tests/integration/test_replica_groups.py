"""Replica groups with real nodes: `cluster local --nodes`, kills, promotion, a lost disk."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_cluster_local import Command, running
from tests.support.command_line import run_here

pytestmark = pytest.mark.slow

WAIT_S_MAX = 60
TOPIC = "letters"
SMALL = ("--set", "commit_log_file_size=16777216", "--set", "auto_create_topic_enable=true")
NAMES = ["broker-1-1", "broker-1-2", "broker-1-3"]


def until(what: str, found: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S_MAX
    while not found():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def objects(server: str, *line: str) -> list[dict[str, Any]]:
    code, out, err = run_here(server, "--json", *line)
    assert code == 0, err
    return [json.loads(one) for one in out.splitlines()]


def group(command: Command, node: str) -> dict[str, Any]:
    """The group by one of its nodes."""
    (found,) = objects(str(command.rows[node]["address"]), "cluster", "status")
    return found


def leads(command: Command, node: str) -> bool:
    """False also while the node changes its role: its address is closed for a moment."""
    code, out, _ = run_here(str(command.rows[node]["address"]), "--json", "cluster", "status")
    if code != 0 or not out:
        return False
    found = json.loads(out)
    nodes = {one["node"]: one for one in found["nodes"]}
    return bool(found["leader"] == node and nodes[node]["role"] == "leader")


def in_sync(command: Command, node: str) -> bool:
    """Whether all nodes are in sync, and have all of the log."""
    found = group(command, node)
    return found["in_sync"] == NAMES and {one["lag_bytes"] for one in found["nodes"]} == {0}


def log_of(command: Command, node: str, end: int) -> bytes:
    segments = sorted((Path(command.rows[node]["store"]) / "commitlog").iterdir())
    return b"".join(one.read_bytes() for one in segments)[:end]


def send(server: str, count: int, first: int = 0) -> set[str]:
    """Sends messages, each acknowledged."""
    sent = set()
    for number in range(first, first + count):
        (receipt,) = objects(server, "send", TOPIC, f"letter {number}", "--key", "k")
        sent.add(receipt["uniqKey"])
    return sent


def stored(server: str) -> set[str]:
    return {one["uniqKey"] for one in objects(server, "query", TOPIC, "k")}


def test_a_group_lives_through_the_loss_of_its_leader_and_of_a_disk(tmp_path: Path) -> None:
    with running(tmp_path, "--nodes", "3", *SMALL) as command:
        command.until_ready()
        first, second, third = NAMES
        rows = dict(command.rows)
        assert [(row["role"], row["name"], row["group"]) for row in rows.values()] == [
            ("nameserver", "nameserver", None),
            *(("broker", name, "broker-1") for name in NAMES),
        ]
        until("the first node leads", lambda: leads(command, first))
        until("all are in sync", lambda: in_sync(command, first))

        sent = send(command.server, 5)
        until("the copies have all", lambda: in_sync(command, first))
        end = group(command, first)["nodes"][0]["end"]
        logs = {log_of(command, name, end) for name in NAMES}
        assert len(logs) == 1, "the logs are equal byte for byte"

        code, _, err = run_here(str(rows[second]["address"]), "send", TOPIC, "to a follower")
        assert code != 0, err

        # The command starts the killed leader again; it follows, or steps down for the promotion.
        os.kill(rows[first]["pid"], signal.SIGKILL)
        (promoted,) = objects(str(rows[second]["address"]), "cluster", "promote", second)
        assert promoted["leader"] == second
        until("the promoted node leads", lambda: leads(command, second))
        until("the former leader follows", lambda: in_sync(command, second))
        sent |= send(str(rows[second]["address"]), 2, first=5)
        assert stored(str(rows[second]["address"])) == sent, "all that was acknowledged is read"

        pid = next(row["pid"] for row in command.rows.values() if row["name"] == third)
        os.kill(pid, signal.SIGKILL)
        shutil.rmtree(rows[third]["store"])
        until("the empty node has all", lambda: in_sync(command, second))
        end = max(one["end"] for one in group(command, second)["nodes"])
        assert log_of(command, third, end) == log_of(command, second, end)
        code, notes = command.ended(signal.SIGTERM)
        assert code == 0, notes

    with running(tmp_path, "--nodes", "3", *SMALL) as command:
        command.until_ready()
        until("the last leader leads again", lambda: leads(command, second))
        assert stored(str(command.rows[second]["address"])) == sent
        assert command.ended(signal.SIGTERM)[0] == 0
