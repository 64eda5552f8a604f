"""How many trials the tests of durability run, how one of them is run again, and what was run.

A trial is one kill, one crash state, one flipped bit, one hostile input: numbered, and made from its number
alone. By default a test runs a fixed part of its trials, at least a fifth; the environment chooses others:

    SOAK=1        all of them (`make soak`, which also writes what was run into docs/soak.md)
    TRIAL=n       that one alone: what the note of a failure says

Each test counts what it did under a goal of GOALS; the counts stand at the end of pytest's output.
"""

from __future__ import annotations

import os
import random
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, cast

import pytest

SOAK: Final = os.environ.get("SOAK") == "1"
ONLY: Final = int(os.environ["TRIAL"]) if "TRIAL" in os.environ else None
_PROPERTY: Final = "trials"


@dataclass(frozen=True)
class Goal:
    """`total`: how many a soak runs; 0: as many as the store at hand has (bits, lengths, calls)."""

    identifier: str
    what: str
    total: int = 0


GOALS: Final = (
    Goal("R1", "kills of a process that has the engine alone", 180),
    Goal("R1", "kills of the daemon", 20),
    Goal("R2", "crash states", 10_000),
    Goal("R3", "power cuts of a mounted file system", 100),
    Goal("R4", "fault points, each killed, failed and paused", 180),
    Goal("R5", "flipped bits"),
    Goal("R6", "truncations and tails"),
    Goal("R7", "failing calls of the seam"),
    Goal("R7", "failing system calls of the daemon"),
    Goal("R8", "file systems that are really full", 20),
    Goal("R9", "walks of 60 steps against the model", 400),
    Goal("R10", "messages whose index answers equal the scan", 100_000),
    Goal("R13", "clock scenarios", 20),
    Goal("R15", "failed allocations", 2_000),
    Goal("R15", "runs within 256 MiB", 1),
    Goal("R23", "truncations of golden stores"),
    Goal("S2", "inputs, to each RPC", 20_000),
    Goal("S2", "inputs, to each decoder of files", 20_000),
    Goal("S3", "bombs", 12),
    Goal("S4", "hostile names", 500),
    Goal("planted", "planted bugs found", 12),
    Goal("R22", "old faults found again", 12),
)


class Trials:
    """One test's trials; the fixture `trials` gives it."""

    def __init__(self, node: pytest.Item) -> None:
        self._node = node

    def numbers(self, total: int, *, usual: int, part: int = 0, parts: int = 1) -> Iterator[int]:
        """The numbers of this test's trials, below `total`: every one in a soak, otherwise `usual` of them,
        spread evenly. A test that is split takes every `parts`-th from `part` on."""
        assert usual * 5 >= total, "a fifth of the trials runs always"
        if ONLY is not None:
            yield ONLY
            return
        count = total if SOAK else usual
        for index in range(part, count, parts):
            yield index * total // count

    @contextmanager
    def one(self, number: int) -> Iterator[random.Random]:
        """Runs trial `number`, with its own source of chance. A failure says how to run it again."""
        path, _, name = self._node.nodeid.partition("::")
        try:
            yield random.Random(f"{name.partition('[')[0]} {number}")
        except BaseException as error:
            error.add_note(f'trial {number}; again: TRIAL={number} make test ARGS="{path}::{name}"')
            raise

    def count(self, identifier: str, what: str, done: int = 1) -> None:
        """So many more were run, of a goal of GOALS."""
        self._add(identifier, what, "", done)

    def count_each(self, identifier: str, what: str, subject: str, done: int) -> None:
        """The same where each of several subjects (RPCs) has its trials: the smallest count is the goal's."""
        self._add(identifier, what, subject, done)

    def _add(self, identifier: str, what: str, subject: str, done: int) -> None:
        assert any((goal.identifier, goal.what) == (identifier, what) for goal in GOALS), (identifier, what)
        self._node.user_properties.append((_PROPERTY, [identifier, what, subject, done]))


@pytest.fixture
def trials(request: pytest.FixtureRequest) -> Trials:
    return Trials(request.node)


class Tally:
    """What the tests of one run counted."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, str], dict[str, int]] = defaultdict(lambda: defaultdict(int))
        self.seconds: dict[tuple[str, str], float] = defaultdict(float)
        self.skipped: list[tuple[str, str]] = []

    def add(self, report: pytest.TestReport) -> None:
        if report.skipped and "durability" in report.nodeid and isinstance(report.longrepr, tuple):
            self.skipped.append((report.nodeid, str(report.longrepr[2])))
        if report.when != "call" or not report.passed:
            return
        goals = set()
        for name, value in report.user_properties:
            if name == _PROPERTY:
                identifier, what, subject, done = cast("tuple[str, str, str, int]", value)
                self.counts[identifier, what][subject] += done
                goals.add((identifier, what))
        for goal in goals:
            self.seconds[goal] += report.duration / len(goals)

    def done(self, goal: Goal) -> int:
        subjects = self.counts.get((goal.identifier, goal.what), {"": 0})
        return min(subjects.values())

    def rows(self) -> list[tuple[str, str, str, str, str]]:
        """identifier, what, how many were to run, how many passed, seconds; of each goal."""
        rows = []
        for goal in GOALS:
            subjects = self.counts.get((goal.identifier, goal.what), {})
            of = f" x {len(subjects)}" if "" not in subjects and subjects else ""
            wanted = f"{goal.total:,}" if goal.total else "all"
            seconds = self.seconds.get((goal.identifier, goal.what), 0.0)
            rows.append((goal.identifier, goal.what, wanted, f"{self.done(goal):,}{of}", f"{seconds:.0f}"))
        return rows

    def short(self) -> list[Goal]:
        """The goals that a run of everything has missed: in a soak the whole, else a fifth of it."""
        share = 1 if SOAK else 5
        return [goal for goal in GOALS if self.done(goal) * share < max(1, goal.total)]


TALLY: Final = Tally()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    TALLY.add(report)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if not TALLY.counts:
        return
    terminalreporter.section("trials of durability" + (" (soak)" if SOAK else ""))
    terminalreporter.write_line(f"{'goal':8} {'wanted':>10} {'passed':>14} {'seconds':>8}  what")
    for identifier, what, wanted, done, seconds in TALLY.rows():
        if (identifier, what) in TALLY.counts:
            terminalreporter.write_line(f"{identifier:8} {wanted:>10} {done:>14} {seconds:>8}  {what}")
