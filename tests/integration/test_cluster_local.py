"""`trovemq cluster local` with real daemons: rows, kills, a restart, and the daemons of a killed command."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import run_here
from tests.support.fork_server import popen
from trovemq import sync

pytestmark = pytest.mark.slow

END_S_MAX = 120
# Neither the machine's disk nor its speed refuses a message.
SETTINGS = ("--set", "disk_warning_percent=100", "--set", "syncFlushTimeout=60000")


def without_settings() -> dict[str, str]:
    """The environment, without settings of daemons."""
    return {name: value for name, value in os.environ.items() if not name.startswith("TROVEMQ_")}


class Command:
    """A running command; its children end when it does."""

    def __init__(self, directory: Path, *arguments: str, variables: Mapping[str, str] = {}) -> None:
        line = ["cluster", "local", "--dir", str(directory), "--json", *SETTINGS, *arguments]
        self.process = popen(
            [sys.executable, "-m", "trovemq.cli", *line],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**without_settings(), **variables},
        )
        self.rows: dict[str, dict[str, Any]] = {}

    def line(self) -> dict[str, Any]:
        """The next object of standard output."""
        assert self.process.stdout is not None
        text = self.process.stdout.readline()
        assert text, self.process.stderr and self.process.stderr.read()
        found: dict[str, Any] = json.loads(text)
        if "name" in found:
            self.rows[found["name"]] = found
        return found

    def until_ready(self) -> Command:
        while self.line() != {"ready": True}:
            pass
        return self

    @property
    def server(self) -> str:
        return str(self.rows["nameserver"]["address"])

    def run(self, *line: str) -> bytes:
        code, out, err = run_here(self.server, *line)
        assert code == 0, err
        return out

    def ended(self, number: signal.Signals) -> tuple[int, list[dict[str, Any]]]:
        """The exit code after a signal, and the objects on standard error."""
        self.process.send_signal(number)
        _, err = self.process.communicate(timeout=END_S_MAX)
        return self.process.returncode, [json.loads(line) for line in err.splitlines()]


@contextmanager
def running(directory: Path, *arguments: str, variables: Mapping[str, str] = {}) -> Iterator[Command]:
    command = Command(directory, *arguments, variables=variables)
    try:
        yield command
    finally:
        if command.process.poll() is None:
            command.process.kill()
            command.process.communicate()


def bodies(command: Command) -> set[str]:
    found = command.run("--json", "query", "orders", "key-1").splitlines()
    return {json.loads(line)["messageId"] for line in found}


def configuration(command: Command) -> dict[str, str]:
    """The state of the configuration on each broker."""
    lines = command.run("--json", "cluster", "config").splitlines()
    return {one["broker"]: one["state"] for one in map(json.loads, lines)}


def until_shared(server: str) -> None:
    """Until the routes say that all brokers share a configuration."""
    deadline = time.monotonic() + END_S_MAX
    with sync.connect(server) as client:
        while any(one.broker.config is None for one in client.admin.cluster().brokers):
            assert time.monotonic() < deadline
            time.sleep(0.02)


def until_gone(pids: Sequence[int]) -> None:
    deadline = time.monotonic() + END_S_MAX
    for pid in pids:
        with suppress(ProcessLookupError):
            while time.monotonic() < deadline:
                os.kill(pid, 0)
                time.sleep(0.02)
            raise AssertionError(f"process {pid} still runs")


def test_two_brokers_live_through_a_kill_and_a_second_start(tmp_path: Path) -> None:
    directory = tmp_path / "cluster"
    with running(directory, "--brokers", "2") as command:
        command.until_ready()
        rows = dict(command.rows)
        assert [(row["role"], row["name"], row["group"]) for row in rows.values()] == [
            ("nameserver", "nameserver", None),
            ("broker", "broker-1", "broker-1"),
            ("broker", "broker-2", "broker-2"),
        ]
        assert [row["store"] for row in rows.values()] == [
            None,
            str(directory / "broker-1/store"),
            str(directory / "broker-2/store"),
        ]
        assert len({os.getsid(row["pid"]) for row in rows.values()}) == 3
        segment = next((directory / "broker-1/store/commitlog").iterdir())
        assert segment.stat().st_size == 64 << 20

        assert configuration(command) == {"broker-1": "owner", "broker-2": "current"}
        command.run("topic", "create", "orders", "--queues", "1")
        for number in range(4):
            command.run("send", "orders", f"body {number}", "--key", "key-1")
        stored = bodies(command)
        assert len(stored) == 4

        os.kill(rows["broker-1"]["pid"], signal.SIGKILL)
        again = command.line()
        assert again["pid"] != rows["broker-1"]["pid"]
        assert {**again, "pid": 0} == {**rows["broker-1"], "pid": 0}
        assert bodies(command) == stored

        with running(directory) as second:
            _, err = second.process.communicate(timeout=END_S_MAX)
            assert (second.process.returncode, json.loads(err)["error"]) == (1, "CLUSTER_RUNNING")
        code, notes = command.ended(signal.SIGTERM)
        assert code == 0, notes
        assert [note["name"] for note in notes] == ["broker-1"]
        until_gone([row["pid"] for row in command.rows.values()])

    with running(directory) as command:
        command.until_ready()
        assert {name: row["address"] for name, row in command.rows.items()} == {
            name: row["address"] for name, row in rows.items()
        }
        assert bodies(command) == stored
        # Killed, it leaves nothing that runs for ever; the next start waits for the daemons' end.
        pids = [row["pid"] for row in command.rows.values()]
        command.process.kill()
        command.process.communicate()
    with running(directory, "--brokers", "1") as command:
        command.until_ready()
        until_gone(pids)
        assert set(command.rows) == {"nameserver", "broker-1"}
        code, notes = command.ended(signal.SIGINT)
        assert code == 0
        assert notes[-1]["message"] == "stopped: broker-2; `--brokers 2` starts all"


def test_a_broker_that_was_removed_was_started_again(tmp_path: Path) -> None:
    with running(tmp_path, "--brokers", "2") as command:
        command.until_ready()
        command.run("broker", "remove", "broker-2", "--yes")
        assert command.process.stderr is not None
        note = json.loads(command.process.stderr.readline())
        assert (note["name"], "stays stopped" in note["message"]) == ("broker-2", True)
        until_gone([command.rows["broker-2"]["pid"]])
        assert configuration(command) == {"broker-1": "owner"}
        assert command.ended(signal.SIGTERM) == (0, [])
    # The next start waited for it, for five minutes.
    with running(tmp_path) as command:
        command.until_ready()
        assert command.process.stderr is not None
        note = json.loads(command.process.stderr.readline())
        store = tmp_path / "broker-2" / "store"
        why = f"it was removed from its cluster; without {store} it joins as a new one"
        assert note["message"] == f"broker-2 stays stopped: {why}"
        assert configuration(command) == {"broker-1": "owner"}
        assert command.ended(signal.SIGTERM) == (0, [])


def test_new_topics_lay_on_a_broker_that_had_been_removed(tmp_path: Path) -> None:
    def refused(broker: str) -> tuple[str, str]:
        _, _, err = run_here(command.server, "broker", "remove", broker, "--yes")
        error = json.loads(err.splitlines()[-1])
        return error["error"], error["message"]

    def placement(topic: str) -> list[dict[str, int]]:
        lines = command.run("--json", "topic", "describe", topic).splitlines()
        return [json.loads(line)["placement"] for line in lines]

    with running(tmp_path, "--brokers", "2") as command:
        command.until_ready()
        until_shared(command.server)
        command.run("topic", "create", "orders", "--queues", "1")
        command.run("topic", "create", "bills", "--queues", "1", "--type", "FIFO")
        assert refused("broker-1")[0] == "CONFIG_OWNER_STAYS"
        error, message = refused("broker-2")
        assert (error, message.partition(": ")[2]) == (
            "BROKER_NOT_EMPTY",
            "trovemq topic spread bills --brokers broker-1",
        )
        command.run("topic", "spread", "bills", "--brokers", "broker-1")
        command.run("broker", "remove", "broker-2", "--yes")
        command.run("topic", "create", "later", "--queues", "1")
        for topic in ("orders", "bills", "later"):
            assert placement(topic) == [{"broker-1": 1}]


def test_a_wrong_setting_ends_the_start_with_its_reason(tmp_path: Path) -> None:
    with running(tmp_path, "--brokers", "1", "--set", "no_such_setting=1") as command:
        _, err = command.process.communicate(timeout=END_S_MAX)
        error = json.loads(err.splitlines()[-1])
        assert (command.process.returncode, error["error"]) == (1, "DAEMON_FAILED")
        assert "broker-1 ended with exit code 2: " in error["message"]
        assert "no_such_setting" in error["message"]
        assert str(tmp_path / "broker-1" / "log") in error["message"]


def test_settings_of_another_broker_kept_all_from_starting(tmp_path: Path) -> None:
    variables = {
        "TROVEMQ_BROKER_CONFIG": str(tmp_path / "none.toml"),
        "TROVEMQ_BROKER_HTTP_TLS": "true",
        "TROVEMQ_NAMESERVER_USERS_FILE": str(tmp_path / "none"),
    }
    with running(tmp_path, "--brokers", "1", variables=variables) as command:
        command.until_ready()
        code, notes = command.ended(signal.SIGTERM)
    assert (code, [note["message"] for note in notes]) == (0, [f"ignored, use --set: {', '.join(variables)}"])


def test_a_port_of_another_process_is_a_named_error(tmp_path: Path) -> None:
    with running(tmp_path, "--brokers", "1") as command:
        command.until_ready()
        assert command.ended(signal.SIGTERM)[0] == 0
    address = command.rows["broker-1"]["address"]
    with socket.socket() as other:
        other.bind(("127.0.0.1", int(address.rpartition(":")[2])))
        other.listen()
        with running(tmp_path) as command:
            out, err = command.process.communicate(timeout=END_S_MAX)
    error = json.loads(err)
    assert (command.process.returncode, out, error["error"]) == (1, b"", "ADDRESS_IN_USE")
    assert address in error["message"]


def test_a_second_signal_ends_all_at_once(tmp_path: Path) -> None:
    with running(tmp_path, "--brokers", "1") as command:
        command.until_ready()
        broker = command.rows["broker-1"]["pid"]
        os.kill(broker, signal.SIGSTOP)  # it cannot stop
        command.process.send_signal(signal.SIGTERM)
        code, _ = command.ended(signal.SIGINT)
        assert code == 128 + signal.SIGINT
        until_gone([row["pid"] for row in command.rows.values()])
