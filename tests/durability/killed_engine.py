"""Starts lives of engine_process.py and ends them at a moment that is drawn from a seed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from tests.durability.engine_process import Life

ROOT: Final = Path(__file__).resolve().parents[2]
SPIN_MAX: Final = 40_000
"""Turns of an empty loop, some milliseconds in all: finer than the steps of a life."""


@dataclass(frozen=True, slots=True)
class Moment:
    """After `steps` steps of the load (0: while the store is opened), and a spin."""

    steps: int
    spin: int

    @classmethod
    def draw(cls, source: random.Random, steps_max: int) -> Moment:
        if source.random() < 0.1:
            return cls(0, source.randrange(20 * SPIN_MAX))
        return cls(source.randrange(1, steps_max), source.randrange(SPIN_MAX))


@dataclass(slots=True)
class LifeReport:
    """acknowledged: in this life; checked: in all lives before, -1 where it did not come to the check."""

    acknowledged: int = 0
    checked: int = -1
    failure: str = ""
    killed: bool = False
    done: bool = False
    """It ended without a kill."""


class KilledEngine:
    """The server that forks; one life at a time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.durability.engine_process"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # numpy starts no thread: they do not fork
        )
        self._pid = 0

    @property
    def is_busy(self) -> bool:
        """A life has begun and not ended."""
        return self._pid != 0

    def live(self, life: Life, moment: Moment | None, end: Callable[[int], None] | None = None) -> LifeReport:
        """One life; at the moment `end(pid)` ends it (default: kill -9). Without a moment it ends itself.
        A check that failed is raised as AssertionError."""
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(life).decode() + "\n")
        self._process.stdin.flush()
        report = LifeReport()
        steps = 0
        for what, rest in self._lines():
            if what == "step":
                steps += 1
                report.acknowledged = int(rest)
            elif what == "checked":
                report.checked = int(rest)
            elif what == "done":
                report.done = True
            elif what == "failed" and not report.killed:
                report.failure = json.loads(rest)
            due = moment is not None and steps >= moment.steps and what in ("open", "step")
            if due and moment is not None and not report.killed:
                for _ in range(moment.spin):
                    pass
                report.killed = True
                (end or kill)(self._pid)
        assert not report.failure, report.failure
        return report

    def _lines(self) -> Iterator[tuple[str, str]]:
        """Until the child is gone."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            what, _, rest = line.strip().partition(" ")
            if what == "pid":
                self._pid = int(rest)
            elif what == "ended":
                self._pid = 0
                return
            yield what, rest
        raise AssertionError("the server of lives has ended")

    def close(self) -> None:
        if self._pid:
            kill(self._pid)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.read()
        self._process.stdout.close()
        self._process.wait(10)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
