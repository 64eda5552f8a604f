"""Command lines that are ended from outside: Ctrl-C, a reader that goes away, a server that stands still."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import socket
import subprocess
import sys
import termios
import time
from array import array
from collections.abc import Iterator

import pytest

from tests.support.command_line import run_here
from tests.support.fork_server import popen
from trovemq.testing import BrokerProcess

pytestmark = pytest.mark.slow
PIPE_SIZE, PAGE_SIZE = 65_536, 4_096
MESSAGES = 400  # of 20 kB: more than any pipe holds


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess() as process:
        for line in (
            ("topic", "create", "orders", "--queues", "1"),
            ("group", "create", "billing"),
            ("bench", "produce", "orders", "--messages", str(MESSAGES), "--size", "20000", "--queue", "0"),
        ):
            code, _, err = run_here(process.address, *line)
            assert code == 0, err
        yield process


def started(server: str, *line: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "trovemq.cli", "--server", server, *line]
    return popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def ended(process: subprocess.Popen[bytes]) -> tuple[int, bytes]:
    """Exit code and standard error."""
    try:
        assert process.stderr is not None
        return process.wait(30), process.stderr.read()
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    "line",
    [
        ("pull", "orders", "--queue", "0", "--max", "400", "--json"),
        ("pull", "orders", "--queue", "0", "--max", "400", "-o", "body"),
        ("tail", "orders", "--from-start", "--json"),
        ("consume", "orders", "--group", "readers", "--json"),
        ("search", "orders", "--max", "400", "-o", "yaml"),
        ("errors",),
        ("--help",),
        ("topic", "--help"),
        ("consume", "--help"),
    ],
    ids=lambda line: " ".join(line[:2]),
)
def test_a_reader_that_has_enough_is_no_error(broker: BrokerProcess, line: tuple[str, ...]) -> None:
    """`trovemq … | head -1`"""
    if line[0] == "consume":
        run_here(broker.address, "group", "create", "readers")
        run_here(broker.address, "group", "offset", "reset", "readers", "orders", "--to-min")
    process = started(broker.address, *line)
    assert process.stdout is not None
    assert process.stdout.readline()
    process.stdout.close()
    code, err = ended(process)
    assert (code, err) == (0, b"")


@pytest.mark.parametrize("closed", ["0<&-", ">&-", "2>&-", "0<&- >&- 2>&-"])
def test_a_closed_standard_stream_was_a_traceback(broker: BrokerProcess, closed: str) -> None:
    command = [sys.executable, "-m", "trovemq.cli", "--server", broker.address, "topic", "list", "--json"]
    ran = subprocess.run(
        ["sh", "-c", f'"$@" {closed}', "sh", *command], capture_output=True, timeout=240, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert ran.stdout.startswith(b'{"topic":') == (" >&-" not in f" {closed}")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_disk_behind_the_output_was_an_unknown_error(broker: BrokerProcess) -> None:
    command = [sys.executable, "-m", "trovemq.cli", "--server", broker.address, "topic", "list"]
    with open("/dev/full", "wb") as full:
        ran = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=240, check=False)
    assert ran.returncode == 1
    assert ran.stderr.decode().splitlines()[0] == (
        "✗ REQUEST_ILLEGAL (E100): standard output: No space left on device"
    )


def test_ctrl_c_while_it_waits(broker: BrokerProcess) -> None:
    lines = (
        ("consume", "orders", "--group", "billing", "--json"),
        ("produce", "orders"),
        ("group", "lag", "--all", "--watch", "--json"),
    )
    processes = [started(broker.address, *line) for line in lines]
    consuming, producing, watching = processes
    assert producing.stdin is not None
    producing.stdin.write(b"one line\n")
    producing.stdin.flush()
    assert watching.stdout is not None
    assert watching.stdout.readline()
    run_here(broker.address, "send", "orders", "the last one")
    assert consuming.stdout is not None
    assert consuming.stdout.readline()
    for process in processes:
        process.send_signal(signal.SIGINT)
    assert [ended(process) for process in processes] == [(130, b"")] * len(processes)


def test_ctrl_c_while_nobody_reads_what_it_prints(broker: BrokerProcess) -> None:
    process = started(broker.address, "tail", "orders", "--from-start", "--json")
    assert process.stdout is not None
    waiting = array("i", [0])
    while waiting[0] < PIPE_SIZE - PAGE_SIZE:
        fcntl.ioctl(process.stdout, termios.FIONREAD, waiting)
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert ended(process) == (130, b"")


def test_ctrl_c_before_a_server_that_stands_still_has_answered() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        host, port = listening.getsockname()
        process = started(f"{host}:{port}", "cluster")
        connection, _ = listening.accept()
        with connection:
            process.send_signal(signal.SIGINT)
            assert ended(process) == (130, b"")


@pytest.mark.parametrize(
    ("key", "code"), [(b"\x03", 130), (b"n\n", 1), (b"\x04", 1)], ids=["ctrl-c", "no", "end of input"]
)
def test_a_question_at_a_terminal_can_be_ended(key: bytes, code: int) -> None:
    """Nothing is dialled before the answer."""
    command = ["-m", "trovemq.cli", "--server", "127.0.0.1:1", "topic", "delete", "orders"]
    process_id, terminal = pty.fork()
    if not process_id:
        os.execv(sys.executable, [sys.executable, *command])
    shown = b""
    while b"[y/N]" not in shown:
        shown += os.read(terminal, 1024)
    status = 0, 0
    while status[0] == 0:  # Python notes a signal that comes just before it reads only when the read returns
        os.write(terminal, key)
        time.sleep(0.1)
        status = os.waitpid(process_id, os.WNOHANG)
    assert os.waitstatus_to_exitcode(status[1]) == code
    os.close(terminal)


def test_a_body_that_is_too_large_names_its_line(broker: BrokerProcess) -> None:
    large = b"x" * (5 << 20)
    for line, begin in ((("send", "orders", "-"), b""), (("produce", "orders"), b"small\n")):
        process = started(broker.address, *line)
        _, err = process.communicate(begin + large, timeout=240)
        shown = err.decode().splitlines()
        assert (process.returncode, len(shown)) == (1, 2), err
        assert "MESSAGE_SIZE_EXCEEDED" in shown[0]
        assert (": line" in shown[0]) == (line[0] == "produce")
