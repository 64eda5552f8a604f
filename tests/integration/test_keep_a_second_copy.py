"""The blocks of the how-to "Keep a second copy of the log", with real nodes."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_how_to import Reader, exit_code
from tests.integration.test_replica_groups import Broker, objects, until
from tests.support.event_loop import EventLoop
from trovemq.testing import free_port
from trovemq_broker.__main__ import main as broker_main

pytestmark = pytest.mark.slow

PAGE = Path(__file__).resolve().parents[2] / "docs/how-to/keep-a-second-copy.md"
PROMOTED, READ, SINGLE = "127.0.0.1:8102", "127.0.0.1:8103", "10.0.0.1:8081"
FIRST, SECOND, THIRD = "broker-1-1", "broker-1-2", "broker-1-3"


@dataclass
class Operator(Reader):
    """Stops the first node, and starts a single one where the page starts a daemon."""

    single: list[Broker] = field(default_factory=list)

    def command(self, words: list[str]) -> int:
        if words[0] == "kill":
            pid = int(self.row(FIRST)[2])
            os.kill(pid, signal.SIGTERM)
            until("the node has ended", lambda: not Path(f"/proc/{pid}").exists())
            return 0
        if words[:2] == ["rm", "-rf"]:
            shutil.rmtree(self.directory / words[2])
            return 0
        if words[:2] == ["trovemq", "server"]:
            node = Broker(self.directory, "a", (free_port(), free_port()))
            self.daemons.callback(node.stop)
            self.single.append(node.start())
            return exit_code(broker_main, [*words[1:], "--print-config"])
        if "send" in words:
            self.until_in_sync(FIRST)
        return super().command(words)

    def row(self, name: str) -> list[str]:
        """Of the cluster's table."""
        return next(row for row in self.rows if row[1:2] == [name])

    def here(self, text: str) -> str:
        """With the address of the node that the page names."""
        if text in (PROMOTED, READ):
            return self.row(SECOND if text == PROMOTED else THIRD)[3]
        return self.single[0].address if text == SINGLE else text

    def until_in_sync(self, leader: str) -> None:
        def found() -> bool:
            (group,) = objects(self.row(SECOND)[3], "cluster", "status")
            return (group["leader"], group["in_sync"]) == (leader, [FIRST, SECOND, THIRD])

        until("all nodes are in sync", found)


def test_the_blocks_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    unused: Any = None
    with asyncio.Runner(loop_factory=EventLoop) as runner:
        reader = Operator(PAGE, unused, tmp_path, runner, monkeypatch=monkeypatch)
        with reader.daemons:
            reader.follow()
            (group,) = objects(reader.single[0].address, "cluster", "status")
            assert [one["node"] for one in group["nodes"]] == ["a", "b"]
        with reader.daemons:
            reader.command(["trovemq", "cluster", "local", "--nodes", "3", "--dir", "cluster"])
            reader.until_in_sync(SECOND)
            (found,) = objects(reader.server, "query", "orders", "order-42")
            assert found["body"] == "12 apples"
