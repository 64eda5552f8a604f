"""`trovemq verify` against a real broker: a kill loses nothing, and changes on disk are seen."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.fork_server import popen, run
from trovemq._verify.content import RunContent
from trovemq._verify.ledger import ACKNOWLEDGED, LedgerEntry, LedgerReader
from trovemq.testing import BrokerProcess

pytestmark = pytest.mark.slow

RUN_SECONDS_MAX = 240


def small_broker() -> BrokerProcess:
    """Its files are so small that a run fills several."""
    return BrokerProcess(mappedFileSizeCommitLog=1 << 20, maxHashSlotNum=1_000, maxIndexNum=4_000)


def command(broker: BrokerProcess, *arguments: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "trovemq.cli",
        "--server",
        broker.address,
        "--json",
        "verify",
        *arguments,
    ]


@contextmanager
def a_run(
    broker: BrokerProcess, ledger: Path, rate: int, seconds: float
) -> Iterator[subprocess.Popen[bytes]]:
    """`verify produce` as a separate process, gone at the end of the block."""
    arguments = ("--rate", str(rate), "--seconds", str(seconds), "--size", "600", "--keys", "20")
    started = command(
        broker, "produce", "orders", "--ledger", str(ledger), "--producers", "4", "--seed", "5", *arguments
    )
    with popen(started, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        try:
            yield running
        finally:
            running.kill()


def finished(running: subprocess.Popen[bytes]) -> dict[str, Any]:
    out, err = running.communicate(timeout=RUN_SECONDS_MAX)
    assert running.returncode == 0, err.decode()
    summary = json.loads(out)
    assert isinstance(summary, dict)
    return summary


def check(broker: BrokerProcess, ledger: Path, *arguments: str) -> dict[str, Any]:
    """The report; its exit code must agree with it."""
    ran = run(command(broker, "check", "--ledger", str(ledger), *arguments), timeout=RUN_SECONDS_MAX)
    assert ran.stderr == b""
    report = json.loads(ran.stdout)
    assert isinstance(report, dict)
    assert ran.returncode == (1 if report["wrong"] else 0)
    return report


def line_count(ledger: Path) -> int:
    return ledger.read_bytes().count(b"\n") if ledger.exists() else 0


def wait_for_lines(ledger: Path, count: int) -> None:
    deadline = time.monotonic() + RUN_SECONDS_MAX
    while line_count(ledger) < count:
        assert time.monotonic() < deadline, "the run does not get on"
        time.sleep(0.01)


def acknowledged(ledger: Path) -> list[LedgerEntry]:
    with LedgerReader(ledger) as reader:
        return [entry for entry in reader.entries() if entry.outcome == ACKNOWLEDGED]


def test_a_broker_that_is_killed_in_a_run_has_lost_nothing(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    with small_broker() as broker:
        with a_run(broker, ledger, rate=600, seconds=4) as running:
            wait_for_lines(ledger, 200)
            lines_at_first_kill = len(acknowledged(ledger))
            broker.restart(kill=True)
            wait_for_lines(ledger, line_count(ledger) + 1)  # sends under way are being repeated
            broker.restart(kill=True)
            summary = finished(running)
        assert summary["acknowledged"] == summary["sent"] > lines_at_first_kill, "it continued"
        report = check(broker, ledger)
        assert report["faults"] == []
        assert report["ended"]
        assert report["acknowledged"] == report["lookedUp"] == summary["acknowledged"]
        assert report["read"] == report["acknowledged"] + report["unknownStored"]
        assert report["askedByKey"] == 20


def test_a_verifier_that_is_killed_leaves_a_ledger_that_can_be_checked(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    with small_broker() as broker:
        with a_run(broker, ledger, rate=2_000, seconds=30):
            wait_for_lines(ledger, 500)
        report = check(broker, ledger, "--sample", "50")
        assert (report["faults"], report["ended"]) == ([], False)
        assert report["acknowledged"] >= 400
        assert report["lookedUp"] == 50


def flip_in_body(log: bytearray, content: RunContent, number: int) -> None:
    log[log.index(content.body(0, number)) + 7] ^= 0x10


def flip_in_keys(log: bytearray, content: RunContent, number: int) -> None:
    body = log.index(content.body(0, number))
    log[log.index(b"KEYS\x01", body) + 6] ^= 0x01


def wipe_record(log: bytearray, content: RunContent, number: int) -> None:
    body = log.index(content.body(0, number))
    log[body - 80 : body + 600] = bytes(680)


@pytest.mark.parametrize(
    "damage", [flip_in_body, flip_in_keys, wipe_record], ids=lambda damage: damage.__name__
)
def test_a_message_that_was_altered_on_disk_is_reported(
    damage: Callable[[bytearray, RunContent, int], None], tmp_path: Path
) -> None:
    ledger, content = tmp_path / "ledger", RunContent(seed=5, size=600, key_count=20)
    with BrokerProcess(mappedFileSizeCommitLog=4 << 20) as broker:
        with a_run(broker, ledger, rate=200, seconds=1) as running:
            finished(running)
        assert check(broker, ledger, "--sample", "10")["faults"] == []
        broker.stop()
        (segment,) = sorted((broker.store / "commitlog").iterdir())[:1]
        log = bytearray(segment.read_bytes())
        own = [entry for entry in acknowledged(ledger) if entry.producer == 0]
        victim = own[len(own) // 2]
        damage(log, content, victim.sequence)  # nothing was sent again: the message has that number
        segment.write_bytes(log)
        broker.start()
        report = check(broker, ledger)
    (fault,) = report["faults"]
    assert fault["kind"] in ("altered", "lost")
    assert fault["messageId"] == victim.message_id
    assert (fault["queueId"], fault["queueOffset"]) == (victim.queue_id, victim.queue_offset)
