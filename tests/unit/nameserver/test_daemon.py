"""`trovemq nameserver` as a user meets it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.support.fork_server import popen, run

pytestmark = pytest.mark.slow


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "trovemq_nameserver", *arguments]


@contextmanager
def started(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """The process and its first line of log."""
    process = popen(command("--log-format", "json", *arguments), stderr=subprocess.PIPE, text=True)
    with process:
        try:
            assert process.stderr is not None
            yield process, json.loads(process.stderr.readline())
        finally:
            process.kill()


def test_it_serves_until_ctrl_c_and_its_port_is_its_own() -> None:
    with started("--listen", "127.0.0.1:0", "--http", "127.0.0.1:0") as (process, line):
        assert line["event"] == "nameserver.started"
        with httpx.Client(trust_env=False) as client:
            assert client.get(f"http://{line['http']}/readyz").status_code == 200
            assert "trovemq_registered_brokers 0.0" in client.get(f"http://{line['http']}/metrics").text
        second = run(command("--listen", line["listen"], "--http", "off"))
        assert second.returncode == 6
        assert len(second.stderr.splitlines()) == 1
        assert line["listen"] in second.stderr.decode()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--listen", "0.0.0.0:1"], "--insecure"),
        (["--listen", "nowhere"], "HOST:PORT"),
        (["--set", "brokers_max=0", "--set", "nonsense=1"], "nonsense.*\n|brokers_max"),
        (["--config", "/no/such/file"], "cannot read"),
        (["--nonsense"], "--nonsense"),
    ],
)
def test_wrong_input_is_a_usage_error(arguments: list[str], message: str) -> None:
    done = run(command(*arguments))
    said = done.stderr.decode()
    assert (done.returncode, done.stdout) == (2, b"")
    assert re.search(message, said)
    assert "Traceback" not in said
