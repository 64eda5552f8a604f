"""A forked process equals a started one: arguments, streams, environment, signals, exit code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest

from tests.support import fork_server
from tests.support.fork_server import ForkedProcess, popen, run

pytestmark = pytest.mark.slow

CLI = [sys.executable, "-m", "trovemq.cli"]
BROKER = [sys.executable, "-P", "-m", "trovemq_broker"]


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--no-such-option"], ["query"], ["--server", "127.0.0.1:1", "topic", "list"]]
)
def test_output_and_exit_code_are_those_of_a_new_interpreter(arguments: list[str]) -> None:
    started = subprocess.run([*CLI, *arguments], capture_output=True, check=False, timeout=240)
    forked = run([*CLI, *arguments])
    assert (forked.returncode, forked.stdout, forked.stderr) == (
        started.returncode,
        started.stdout,
        started.stderr,
    )


def test_environment_and_directory_are_the_callers(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text('name = "from-the-file"\n')
    environment = {**os.environ, "TROVEMQ_BROKER_CLUSTER": "from-the-environment"}
    command = [*BROKER, "--config", "own.toml", "--print-config"]
    with popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        shown = process.stdout.read()
    assert isinstance(process, ForkedProcess)
    assert process.returncode == 0
    assert "from-the-file" in shown
    assert "from-the-environment" in shown


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 0), (signal.SIGKILL, -9)])
def test_a_signal_reaches_the_process_and_its_parent_reads_the_end(
    number: signal.Signals, code: int, tmp_path: Path
) -> None:
    arguments = ["--store", str(tmp_path), "--listen", "127.0.0.1:0", "--http", "off", "--log-format", "json"]
    with popen([*BROKER, *arguments], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if json.loads(line)["event"] == "broker.started":
                break
        assert process.poll() is None
        assert Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[1] == str(os.getpid())
        process.send_signal(number)
        process.stderr.read()
    assert process.returncode == code


def test_input_is_read_to_its_end() -> None:
    ran = run([*CLI, "apply", "-", "--dry-run", "--server", "127.0.0.1:1"], input=b"topics: [")
    assert ran.returncode != 0
    assert ran.stderr


def test_other_commands_start_without_a_fork() -> None:
    with popen([sys.executable, "-c", "raise SystemExit(7)"]) as process:
        pass
    assert not isinstance(process, ForkedProcess)
    assert process.returncode == 7


def test_two_threads_that_start_daemons_first_share_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a server each, one did not know the other's child, and a kill of it killed nothing."""
    both = threading.Barrier(2)

    @cache
    def slow_start() -> object:
        try:
            both.wait(0.5)
        except threading.BrokenBarrierError:
            pass  # no other process is starting one
        return object()

    monkeypatch.setattr(fork_server, "_the_server", slow_start)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: fork_server._server(), range(2))
    assert first is second


STARTS_AND_IS_KILLED = """
import os, signal, sys
from tests.support.fork_server import popen
ports = ["--listen", "127.0.0.1:0", "--http", "off"]
daemon = popen([sys.executable, "-m", "trovemq_broker", "--store", sys.argv[1], *ports])
print(daemon.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_worker_that_was_killed_left_its_daemons(tmp_path: Path) -> None:
    """As the guard against hangs ends it. Its output ends with the last process that has it."""
    command = [sys.executable, "-c", STARTS_AND_IS_KILLED, str(tmp_path)]
    with subprocess.Popen(command, cwd=fork_server.ROOT, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        daemon = int(worker.stdout.readline())
        try:
            worker.communicate(timeout=240)
        except subprocess.TimeoutExpired:
            os.kill(daemon, signal.SIGKILL)
            pytest.fail("the daemon lives")
    assert worker.returncode == -signal.SIGKILL


def test_a_silent_server_is_an_error_and_its_end_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_server, "ANSWER_S_MAX", 0.01)
    server = fork_server._Server()
    os.kill(server._process.pid, signal.SIGSTOP)
    try:
        with pytest.raises(RuntimeError, match=r"no answer of the fork server in 0\.01 s"):
            server.fork({}, [])
    finally:
        server.close()
    assert server._process.returncode == -signal.SIGKILL
