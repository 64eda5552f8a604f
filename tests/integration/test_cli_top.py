"""`trovemq top` as a process at a terminal, over two brokers of which one is killed."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import run_here
from trovemq.testing import BrokerProcess, NameserverProcess

pytestmark = pytest.mark.slow
DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def nameserver() -> Iterator[NameserverProcess]:
    with NameserverProcess() as process:
        yield process


@pytest.fixture
def brokers(nameserver: NameserverProcess, tmp_path: Path) -> Iterator[list[BrokerProcess]]:
    server = nameserver.address
    with (
        BrokerProcess(store=tmp_path / "a", name="a", nameserver=server) as one,
        BrokerProcess(store=tmp_path / "b", name="b", nameserver=server) as other,
    ):
        yield [one, other]


def answer(server: str, *arguments: str) -> list[dict[str, Any]]:
    code, out, err = run_here(server, *arguments)
    assert code == 0, err
    return [json.loads(line) for line in out.splitlines()]


def until(descriptor: int, texts: tuple[str, ...]) -> str:
    """Reads the terminal until each text was shown; all that was read."""
    shown, deadline = b"", time.monotonic() + DEADLINE_S
    while not all(text.encode() in shown for text in texts):
        assert time.monotonic() < deadline, shown.decode(errors="replace")
        shown += os.read(descriptor, 65_536)
    return shown.decode(errors="replace")


def test_a_killed_broker_has_a_row_and_the_others_go_on(
    nameserver: NameserverProcess, brokers: list[BrokerProcess]
) -> None:
    server = nameserver.address
    answer(server, "topic", "create", "orders")
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "trovemq.cli", "--server", server, "top", "--interval", "200ms"]
    shown = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=subprocess.PIPE)
    try:
        os.close(slave)
        until(master, ("broker", "serving"))
        for _ in range(20):
            answer(server, "send", "orders", "x")
        until(master, ("orders",))
        brokers[1].kill()
        until(master, ("lost", "without b"))
        shown.send_signal(signal.SIGINT)
        _, err = shown.communicate(timeout=DEADLINE_S)
    finally:
        shown.kill()
        os.close(master)
    assert (shown.returncode, err) == (130, b"")
    (found,) = answer(server, "top", "--once", "--interval", "200ms", "--by", "name")
    assert [(one["broker"], one["state"]) for one in found["brokers"]] == [("a", "serving"), ("b", "lost")]
    assert found["missing"] == ["b"]
    assert [one["topic"] for one in found["topics"]] == ["orders"]
