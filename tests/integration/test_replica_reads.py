"""Reads from the followers of a group of three real nodes: by the command line, the SDK, the pipeline and the
console."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any

import pytest

import trovemq
from tests.integration.test_cluster_local import Command, running
from tests.integration.test_console import page
from tests.integration.test_replica_groups import (
    NAMES,
    SMALL,
    TOPIC,
    group,
    in_sync,
    leads,
    objects,
    send,
    stored,
    until,
)
from tests.support.command_line import run_here
from tests.support.console_process import running_console
from tests.support.live_source import read_rows
from trovemq_proto.errors import TroveError

pytestmark = pytest.mark.slow

FIRST, SECOND, THIRD = NAMES


@contextmanager
def group_of_three(directory: Path, *settings: str) -> Iterator[Command]:
    """The first node leads, and all are in sync."""
    with running(directory, "--nodes", "3", *SMALL, *settings) as command:
        command.until_ready()
        until("the first node leads", lambda: leads(command, FIRST))
        until("all are in sync", lambda: in_sync(command, FIRST))
        yield command


def address(command: Command, node: str) -> str:
    return str(command.rows[node]["address"])


def replica(command: Command, node: str) -> str:
    """The server of a client that stays with the node."""
    return f"trovemq://{address(command, node)}?replica=true"


def failure(server: str, *line: str) -> dict[str, Any]:
    """The error of a command that must fail."""
    code, _, err = run_here(server, *line)
    assert code != 0
    error: dict[str, Any] = json.loads(err)
    return {"symbol": error["error"], **error["fields"]}


def test_followers_answer_reads_and_name_the_leader_for_the_rest(tmp_path: Path) -> None:
    with group_of_three(tmp_path, "--set", "read_from_replicas=true") as command:
        sent = send(command.server, 5)
        leader, follower = address(command, FIRST), replica(command, SECOND)
        until("the follower shows all", lambda: stored(follower) == sent)
        code, out, err = run_here(follower, "query", TOPIC, "k")
        assert code == 0
        assert len(out.splitlines()) == 5
        lag = json.loads(err)["replica"]
        assert lag["lagBytes"] == 0
        assert lag["lagMs"] < 60_000
        code, _, err = run_here(leader, "query", TOPIC, "k")
        assert "replica" not in json.loads(err)
        found = json.loads(out.splitlines()[0])
        same = [objects(server, "get", found["messageId"]) for server in (leader, follower)]
        assert same[0] == same[1]
        assert objects(follower, "topic", "describe", TOPIC)
        assert objects(follower, "pull", TOPIC, "--queue", str(found["queueId"]))
        assert objects(follower, "search", TOPIC, "--key", "k")
        assert objects(follower, "track", found["messageId"])
        for line in (("send", TOPIC, "x"), ("topic", "create", "more"), ("group", "create", "g")):
            error = failure(follower, "--timeout", "60", *line)
            assert error["symbol"] == "NOT_LEADER", line
            assert (error["leader"], error["address"]) == (FIRST, leader)
        rows = read_rows({"nameServer": follower, "topic": TOPIC})
        assert len(rows) == len(sent)
        asyncio.run(follow_from_replica(command))
        for node in NAMES[:2]:
            shown_by_console(command, address(command, node))
        lost_leader(command, follower, sent)


async def follow_from_replica(command: Command) -> None:
    """A reader at a follower gets messages while they are committed; a consumer group is refused there."""
    async with (
        trovemq.connect(command.server) as leader,
        trovemq.connect(f"{replica(command, THIRD)}&max_lag_ms=30000") as client,
    ):
        await leader.admin.create_topic("live", queue_count=1)
        deadline = asyncio.get_running_loop().time() + 30
        while not (await client.admin.cluster()).brokers[0].topic("live"):
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.05)
        async with asyncio.timeout(60), aclosing(client.pull_batches("live", follow=True)) as batches:
            for number in range(20):
                await leader.send("live", b"%d" % number)
                batch = await anext(batches)
                assert [bytes(one) for one in batch.bodies()] == [b"%d" % number]
                assert batch.replica is not None
        with pytest.raises(TroveError, match="NOT_LEADER"):
            async with client.subscribe("live", group="g") as messages:
                await anext(messages)


def shown_by_console(command: Command, node: str) -> None:
    with running_console(node) as (url, _):
        shown = page(f"{url}/replicas")
    assert f"<strong>{FIRST}</strong> leads" in shown
    for name in NAMES:
        assert address(command, name) in shown


def lost_leader(command: Command, follower: str, sent: set[str]) -> None:
    """A stopped leader: the follower answers those who bear any lag, and refuses the others."""
    pid = command.rows[FIRST]["pid"]
    patient = ("--max-lag-ms", "1500", "query", TOPIC, "k")
    until("a healthy follower answers", lambda: run_here(follower, *patient)[0] == 0)
    os.kill(pid, signal.SIGSTOP)
    try:
        until("the lag grows", lambda: run_here(follower, *patient)[0] != 0)
        error = failure(follower, *patient)
        assert error["symbol"] == "REPLICA_LAG_EXCEEDED"
        assert int(error["lag_ms"]) > 1_500
        assert stored(follower) == sent
    finally:
        os.kill(pid, signal.SIGCONT)
    until("it follows again", lambda: run_here(follower, *patient)[0] == 0)


def test_followers_without_the_setting_name_the_leader(tmp_path: Path) -> None:
    """The command line said that no broker is in the routes."""
    with group_of_three(tmp_path) as command:
        follower, leader = replica(command, SECOND), address(command, FIRST)
        pull = ("pull", TOPIC, "--queue", "0")
        for line in (("query", TOPIC, "k"), ("send", TOPIC, "x"), ("topic", "list"), pull):
            error = failure(follower, "--timeout", "60", *line)
            assert error["symbol"] == "NOT_LEADER", line
            assert (error["leader"], error["address"]) == (FIRST, leader)
        assert group(command, SECOND)["leader"] == FIRST
