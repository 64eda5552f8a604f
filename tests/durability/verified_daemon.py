"""A broker under the producers of `trovemq verify`, whose ledger then names the messages that it must
have."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.support.fork_server import popen
from trovemq.testing import BrokerProcess

RATE: Final = 800
WAIT_MAX_S: Final = 240
SMALL_FILES: Final[dict[str, Any]] = {
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 20_000,
    "maxHashSlotNum": 1_000,
    "maxIndexNum": 4_000,
}


def verify(broker: BrokerProcess, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "trovemq.cli", "--server", broker.address, "--json", "verify"]
    return popen([*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@contextmanager
def producers(broker: BrokerProcess, ledger: Path) -> Iterator[None]:
    """Four, who repeat unanswered sends, until the end of the block."""
    arguments = (
        "--rate",
        str(RATE),
        "--seconds",
        "10000",
        "--producers",
        "4",
        "--keys",
        "20",
        "--size",
        "600",
    )
    with verify(broker, "produce", "orders", "--ledger", str(ledger), *arguments) as running:
        try:
            yield
        finally:
            running.kill()


def line_count(ledger: Path) -> int:
    return ledger.read_bytes().count(b"\n") if ledger.exists() else 0


def wait_for_lines(ledger: Path, count: int) -> None:
    """Returns when `count` more outcomes are known."""
    count += line_count(ledger)
    deadline = time.monotonic() + WAIT_MAX_S
    while line_count(ledger) < count:
        assert time.monotonic() < deadline, "the producers do not get on"
        time.sleep(0.002)


def check(broker: BrokerProcess, ledger: Path) -> int:
    """Reads everything back; how many messages were acknowledged."""
    with verify(broker, "check", "--ledger", str(ledger)) as checking:
        out, err = checking.communicate(timeout=WAIT_MAX_S)
    assert err == b"", err.decode()
    report = json.loads(out)
    assert report["faults"] == [], report["faults"][:5]
    return int(report["acknowledged"])
