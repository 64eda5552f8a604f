"""Signals and exit codes, shown by real processes, as nothing else would show them."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from trovemq_daemon.errors import AddressInUseError, SettingsError
from trovemq_daemon.lifecycle import ExitCode, exit_code_of
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

DAEMON = """
import asyncio, sys, time
from trovemq_daemon.lifecycle import run_daemon
from trovemq_daemon.logging import configure_logging
from trovemq_proto import errors

async def main(stop):
    print("ready", flush=True)
    {body}

configure_logging("info", "json")
sys.exit(run_daemon(main, stop_time_max_s={limit}))
"""
WAIT = "await stop.wait(); print(stop.reason, flush=True)"
HANG = "await stop.wait(); print('draining', flush=True); await asyncio.sleep(60)"
BUSY = "await stop.wait(); print('draining', flush=True)\n    while True: pass"


# Passes on an ignored signal. (A preexec_fn would run Python in a fork of a process that has gRPC threads.)
LAUNCHER = """
import os, signal, sys
signal.signal(signal.SIGINT, getattr(signal, sys.argv[1]))
os.execv(sys.executable, [sys.executable, sys.argv[2]])
"""


@contextmanager
def started(
    tmp_path: Path, body: str, *, limit: float = 10.0, sigint_ignored: bool = False
) -> Iterator[subprocess.Popen[str]]:
    script = tmp_path / "daemon.py"
    script.write_text(DAEMON.format(body=body, limit=limit))

    process = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, "SIG_IGN" if sigint_ignored else "SIG_DFL", str(script)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONWARNINGS": "error"},
    )  # fmt: skip
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("sigint_ignored", [False, True])
def test_either_signal_drains_and_ends_cleanly(
    tmp_path: Path, number: signal.Signals, sigint_ignored: bool
) -> None:
    with started(tmp_path, WAIT, sigint_ignored=sigint_ignored) as process:
        process.send_signal(number)
        out, err = process.communicate(timeout=240)
        assert (process.returncode, out) == (0, f"{number.name}\n")
        assert '"event": "daemon.stopped"' in err
        assert len(err.splitlines()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("body", [HANG, BUSY])
def test_a_second_signal_ends_at_once(tmp_path: Path, body: str) -> None:
    with started(tmp_path, body) as process:
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        assert process.stdout.readline() == "draining\n"
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=240)
        assert process.returncode == 128 + signal.SIGTERM


@pytest.mark.slow
@pytest.mark.parametrize("body", [HANG, BUSY])
def test_a_shutdown_that_hangs_is_ended_by_the_clock(tmp_path: Path, body: str) -> None:
    with started(tmp_path, body, limit=0.3) as process:
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=240)
        assert process.returncode == ExitCode.UNEXPECTED
        assert "daemon.stop_timeout" in err


@pytest.mark.slow
def test_an_unexpected_error_shows_its_traceback_on_one_line(tmp_path: Path) -> None:
    with started(tmp_path, "raise ValueError('no')") as process:
        _, err = process.communicate(timeout=240)
        assert process.returncode == ExitCode.UNEXPECTED
        (line,) = err.splitlines()
        assert "Traceback" in line


@pytest.mark.slow
def test_an_expected_error_is_one_line_without_a_traceback(tmp_path: Path) -> None:
    with started(tmp_path, "raise errors.TroveError(errors.STORE_LOCKED, 'taken')") as process:
        _, err = process.communicate(timeout=240)
        assert process.returncode == ExitCode.STORE_LOCKED
        (line,) = err.splitlines()
        assert "STORE_LOCKED (E305): taken" in line
        assert "Traceback" not in line


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SettingsError("x"), 2),
        (TroveError(errors.STORE_LOCKED), 3),
        (TroveError(errors.STORE_SETTINGS_MISMATCH), 4),
        (TroveError(errors.STORE_NEWER), 4),
        (TroveError(errors.STORE_FAILED), 5),
        (TroveError(errors.DISK_FULL), 5),
        (AddressInUseError("x"), 6),
        (OSError(errno.EIO, "x"), 1),
        (KeyError("x"), 1),
        (BaseExceptionGroup("two", [KeyError("x"), TroveError(errors.STORE_FAILED)]), 5),
        (BaseExceptionGroup("one", [ValueError("x")]), 1),
    ],
)
def test_every_error_has_its_exit_code(error: BaseException, code: int) -> None:
    assert exit_code_of(error) == code
