"""The blocks of the how-to about one configuration, with real brokers."""

from __future__ import annotations

import asyncio
import io
import json
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, Final

import pytest

from tests.integration.test_how_to import Reader, command_line, exit_code
from tests.support.event_loop import EventLoop
from trovemq.testing import BrokerProcess, NameserverProcess
from trovemq_broker.__main__ import main as broker_main

pytestmark = pytest.mark.slow

PAGE: Final = Path(__file__).resolve().parents[2] / "docs/how-to/one-configuration.md"
SETTLE_S_MAX: Final = 60.0


class Operator(Reader):
    """Starts real brokers where the page does, each with its name and store, and looks at the configuration
    when it has settled."""

    nameserver: NameserverProcess

    def command(self, words: list[str]) -> int:
        if words[:2] == ["trovemq", "nameserver"]:
            return 0  # it runs
        if words[:2] == ["trovemq", "server"]:
            self.start_broker(words[2:])
            with redirect_stdout(io.StringIO()):
                return exit_code(broker_main, [*words[1:], "--print-config"])
        assert words[0] == "trovemq"
        if words[1:] == ["cluster", "config"]:
            self.settle()
        return command_line(["--server", self.nameserver.address, *words[1:]])

    def start_broker(self, words: list[str]) -> None:
        options = dict(zip(words[::2], words[1::2], strict=True))
        settings = ["--set", options["--set"]] if "--set" in options else []
        broker = BrokerProcess(
            name=options["--name"],
            store=self.directory / options["--store"],
            nameservers=[self.nameserver],
            arguments=settings,
        )
        self.daemons.enter_context(broker)

    def settle(self) -> None:
        """A former owner that is back obeys when it has seen the routes."""
        deadline = time.monotonic() + SETTLE_S_MAX
        while not (settled := is_settled(self.states())) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert settled

    def states(self) -> list[str]:
        out = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
        with redirect_stdout(out), redirect_stderr(io.StringIO()):
            command_line(["--json", "--server", self.nameserver.address, "cluster", "config"])
        lines = out.detach().getvalue().splitlines()
        return [json.loads(line)["state"] for line in lines]


def is_settled(states: list[str]) -> bool:
    return states.count("owner") == 1 and states.count("current") == len(states) - 1


def test_the_blocks_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    unused: Any = None
    with NameserverProcess() as nameserver, asyncio.Runner(loop_factory=EventLoop) as runner:
        reader = Operator(PAGE, unused, tmp_path, runner, monkeypatch=monkeypatch)
        reader.nameserver = nameserver
        with reader.daemons:
            reader.follow()
