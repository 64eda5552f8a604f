"""The configuration that brokers share, owned by a replica group: its next leader owns it without a command.
Real nodes, etcd, and a broker that follows."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_cluster_local import Command, running
from tests.integration.test_replica_groups import NAMES, SMALL, in_sync, leads
from tests.support.broker_process import BrokerProcess
from tests.support.command_line import run_here
from tests.support.etcd_process import needs_etcd

pytestmark = pytest.mark.slow

GROUP = "broker-1"
FIRST, SECOND, _ = NAMES
FAST = ("heartbeat_interval_ms=100", "registration_retry_min_ms=20", "registration_retry_max_ms=200")


WAIT_S_MAX = 300
"""A busy machine takes a minute to start a node."""


def until(condition: str, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S_MAX
    while not holds():
        assert time.monotonic() < deadline, condition
        time.sleep(0.1)


@contextmanager
def follower_of(command: Command, directory: Path) -> Iterator[BrokerProcess]:
    """A single broker that follows the group, which is named with the address of its first leader."""
    owner = f"config_owner={GROUP}@{command.rows[FIRST]['address']}"
    broker = BrokerProcess(
        directory / "solo", ("brokerName=solo", f"nameserver={command.server}", *FAST, owner)
    )
    try:
        assert broker.address, broker.lines
        yield broker
    finally:
        broker.end()


def statuses(command: Command) -> Mapping[str, Mapping[str, Any]]:
    """The state of the configuration by broker; empty while a command fails."""
    code, out, _ = run_here(command.server, "--json", "cluster", "config")
    if code:
        return {}
    return {one["broker"]: one for one in map(json.loads, out.splitlines()) if "broker" in one}


def states(command: Command) -> Mapping[str, str]:
    return {name: str(one["state"]) for name, one in statuses(command).items()}


def ready(command: Command) -> None:
    command.until_ready()
    until("all are in sync", lambda: in_sync(command, FIRST))


def create(command: Command, topic: str, server: str | None = None) -> None:
    """As soon as the configuration takes changes again."""

    def created() -> bool:
        code, _, err = run_here(server or command.server, "topic", "create", topic, "--queues", "2")
        return code == 0 or "EXISTS" in str(err)

    until(f"{topic} is created", created)


def topics(server: str) -> set[str]:
    code, out, _ = run_here(server, "--json", "topic", "list")
    return {json.loads(line)["topic"] for line in out.splitlines()} if code == 0 else set()


def shared(command: Command) -> bool:
    return states(command) == {GROUP: "owner", "solo": "current"}


def follows_again(command: Command, solo: BrokerProcess, *names: str) -> Callable[[], bool]:
    return lambda: shared(command) and set(names) <= topics(solo.address)


@needs_etcd
def test_the_next_leader_owns_the_configuration_after_a_kill(tmp_path: Path) -> None:
    with running(tmp_path, "--nodes", "3", "--etcd", *SMALL) as command:
        ready(command)
        with follower_of(command, tmp_path) as solo:
            until("both share a configuration", lambda: shared(command))
            create(command, "orders")
            create(command, "bills", solo.address)
            before = statuses(command)[GROUP]

            os.kill(command.rows[FIRST]["pid"], signal.SIGKILL)
            create(command, "late", solo.address)
            until("the follower has all", follows_again(command, solo, "orders", "bills", "late"))
            after = statuses(command)[GROUP]
            assert after["generation"] == before["generation"], "no take-over"

            until("the former leader is in sync again", lambda: in_sync(command, _leader(command)))
            assert _leader(command) != FIRST
            command.run("cluster", "switch-over", GROUP, "--to", FIRST)
            until("the first node leads again", lambda: leads(command, FIRST))
            create(command, "last", solo.address)
            until("the follower has the last", follows_again(command, solo, "orders", "late", "last"))
            assert statuses(command)[GROUP]["generation"] == before["generation"]
        assert command.ended(signal.SIGTERM)[0] == 0


def _leader(command: Command) -> str:
    return next((name for name in NAMES if leads(command, name)), FIRST)


def test_a_promoted_node_owns_the_configuration(tmp_path: Path) -> None:
    with running(tmp_path, "--nodes", "3", *SMALL) as command:
        ready(command)
        with follower_of(command, tmp_path) as solo:
            until("both share a configuration", lambda: shared(command))
            create(command, "orders")
            address = str(command.rows[SECOND]["address"])
            code, _, err = run_here(address, "cluster", "promote", SECOND)
            assert code == 0, err
            until("the second node leads", lambda: leads(command, SECOND))
            create(command, "late")
            until("the follower has both", follows_again(command, solo, "orders", "late"))
        assert command.ended(signal.SIGTERM)[0] == 0
