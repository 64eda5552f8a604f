"""How many trials the tests of durability run, how one of them is repeated, and their counts.

A trial is one kill, one crash state, one flipped bit, one hostile input: numbered, and made from its number
alone. By default a test runs a fixed part of its trials, at least as many as GOALS; the environment chooses
others:

    SOAK=1        all of them (`make soak`, which also writes the counts into docs/reports/soak.md)
    TRIAL=n       that one alone: as the note of a failure says
    WHOLE=1       the run has every test (`make test` and `make soak` say so): a goal of which less than its
                  part was run is then an error
    SOAK_NAME=n   the run is `make n` and writes docs/reports/n.md: a soak of some tests alone

Each test counts its trials under a goal of GOALS; the counts are printed at the end of pytest's output.
"""

from __future__ import annotations

import os
import platform
import random
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NoReturn, cast

import pytest

SOAK: Final = os.environ.get("SOAK") == "1"
ONLY: Final = int(os.environ["TRIAL"]) if "TRIAL" in os.environ else None
WHOLE: Final = os.environ.get("WHOLE") == "1"
NAME: Final = os.environ.get("SOAK_NAME", "soak")
RESULT_PATH: Final = Path(f"docs/reports/{NAME}.md")
_PROPERTY: Final = "trials"
_SKIPPED: Final = "skipped"
_FIGURE: Final = "figure of trials"


@dataclass(frozen=True)
class Goal:
    """`default`: the least that a run of everything does. `total`: that of a soak; 0: as many as the store at
    hand has (bits, lengths, calls)."""

    identifier: str
    what: str
    default: int
    total: int = 0


GOALS: Final = (
    Goal("R1", "kills of a process that has the engine alone", 12, 180),
    Goal("R1", "kills of the daemon", 3, 20),
    Goal("R2", "crash states", 300, 10_000),
    Goal("R3", "power cuts of a mounted file system", 4, 100),
    Goal("R4", "fault points, each killed, failed and paused", 180, 180),
    Goal("R5", "flipped bits", 600),
    Goal("R6", "truncations and tails", 400),
    Goal("R7", "failing calls of the seam", 150),
    Goal("R7", "scarce reads of the seam", 36),
    Goal("R7", "failing system calls of the daemon", 15),
    Goal("R8", "file systems that are really full", 2, 20),
    Goal("R9", "walks of 60 steps against the model", 8, 400),
    Goal("R10", "messages whose index answers equal the scan", 20_000, 100_000),
    Goal("R13", "clock scenarios", 20, 20),
    Goal("R13", "worlds whose clock steps", 6, 200),
    Goal("R15", "failed allocations", 50, 2_000),
    Goal("R15", "runs within 256 MiB", 1, 1),
    Goal("R23", "truncations of golden stores", 125),
    Goal("S2", "inputs, to each RPC", 60, 20_000),
    Goal("S2", "inputs, to the reader of all RPCs", 2_000, 20_000),
    Goal("S2", "inputs, to the reader of remoting frames", 500, 20_000),
    Goal("S2", "inputs, to each decoder of files", 500, 20_000),
    Goal("S3", "bombs", 12, 12),
    Goal("S4", "hostile names", 125, 500),
    Goal("config", "walks of the cluster's configuration", 60, 4_000),
    Goal("replication", "walks of a replica group", 80, 4_000),
    Goal("replication", "walks of a group that elects its leaders", 100, 4_000),
    Goal("replication", "walks of a group that grows from one node", 40, 1_000),
    Goal("replication", "walks of three real logs and their streams", 6, 250),
    Goal("replication", "walks of a log and its commit limit", 150, 2_000),
    Goal("replication", "stores of leaders removed under verify", 1, 24),
    Goal("failover", "faults of a group that elects its leaders, under a ledger", 4, 48),
    Goal("failover", "leaders that are killed one after the other, under a ledger", 2, 100),
    Goal("atomic", "crash states of atomic transactions", 100, 1_000),
    Goal("atomic", "kills of a daemon under atomic transactions", 3, 100),
    Goal("unique", "kills of a daemon that deduplicates", 3, 100),
    Goal("v2", "kills of a daemon under RocketMQ's calls", 3, 60),
    Goal("leaving", "short jobs", 60, 1_000),
    Goal("leaving", "members that leave", 10, 100),
    Goal("cluster", "steps of real clusters", 8, 400),
    Goal("rpc", "mutated inputs to a connection", 750, 100_000),
    Goal("rpc", "cancels by real clients", 3_000, 100_000),
    Goal("rpc", "random streams between two cores, by seed", 90, 6_000),
    Goal("rpc", "random calls between channel and server, by seed", 30, 900),
    Goal("planted", "planted bugs found", 12, 12),
    Goal("R22", "old faults found again", 12, 12),
)


def strata(total: int, count: int, name: str) -> list[int]:
    """`count` numbers below `total`: of each equal part one by chance, the same in each run."""
    source, count = random.Random(name), min(total, count)
    return [source.randrange(n * total // count, (n + 1) * total // count) for n in range(count)]


class Trials:
    """One test's trials; the fixture `trials` gives it."""

    def __init__(self, node: pytest.Item) -> None:
        self._node = node

    def numbers(self, total: int, *, default: int, part: int = 0, parts: int = 1) -> Iterator[int]:
        """The numbers of this test's trials, below `total`: every one in a soak, otherwise `default` of them,
        spread evenly. A test that is split takes every `parts`-th from `part` on."""
        if ONLY is not None:
            yield ONLY
            return
        count = total if SOAK else default
        for index in range(part, count, parts):
            yield index * total // count

    def chosen(self, total: int, default: Sequence[int], *, part: int = 0, parts: int = 1) -> Iterator[int]:
        """The numbers of trials, where the structure of the trials chooses the default ones."""
        if ONLY is not None:
            yield ONLY
            return
        yield from (range(total) if SOAK else default)[part::parts]

    @contextmanager
    def one(self, number: int) -> Iterator[random.Random]:
        """Runs trial `number`, with its own source of chance. A failure says how to run it again."""
        path, _, name = self._node.nodeid.partition("::")
        try:
            yield random.Random(f"{name.partition('[')[0]} {number}")
        except BaseException as error:
            soak = "SOAK=1 " if SOAK else ""
            error.add_note(f'trial {number}; again: {soak}TRIAL={number} make test ARGS="{path}::{name}"')
            raise

    def count(self, identifier: str, what: str, done: int = 1) -> None:
        """`done` more were run, of a goal of GOALS."""
        self._add(identifier, what, "", done)

    def count_each(self, identifier: str, what: str, subject: str, done: int) -> None:
        """The same where each of several subjects (RPCs) has its trials: the smallest count is the goal's."""
        self._add(identifier, what, subject, done)

    def figure(self, text: str) -> None:
        """What was measured, for the end of the output and the page of a soak."""
        self._node.user_properties.append((_FIGURE, text))

    def skip(self, identifier: str, what: str, why: str) -> NoReturn:
        """Nothing of the goal can be run here."""
        self._add(identifier, what, _SKIPPED, 0)
        pytest.skip(why)

    def _add(self, identifier: str, what: str, subject: str, done: int) -> None:
        assert any((goal.identifier, goal.what) == (identifier, what) for goal in GOALS), (identifier, what)
        self._node.user_properties.append((_PROPERTY, [identifier, what, subject, done]))


@pytest.fixture
def trials(request: pytest.FixtureRequest) -> Trials:
    return Trials(request.node)


def _commit() -> str:
    return _git("rev-parse", "--short", "HEAD") + (" with changes" if _git("status", "--porcelain") else "")


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True).stdout.strip()


class Tally:
    """The counts of the tests of one run."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, str], dict[str, int]] = defaultdict(lambda: defaultdict(int))
        self.seconds: dict[tuple[str, str], float] = defaultdict(float)
        self.skipped: set[tuple[str, str]] = set()
        self.failed: list[str] = []
        self.figures: list[str] = []
        self.commit = _commit() if SOAK else ""  # at the beginning: tests may leave files while they run

    def add(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)
        if report.when == "teardown" or report.failed:
            return
        goals = set()
        for name, value in report.user_properties:
            if name == _FIGURE and report.when == "call":
                self.figures.append(str(value))
            if name != _PROPERTY:
                continue
            identifier, what, subject, done = cast("tuple[str, str, str, int]", value)
            if subject == _SKIPPED:
                self.skipped.add((identifier, what))
            elif report.when == "call":
                self.counts[identifier, what][subject] += done
                goals.add((identifier, what))
        for goal in goals:
            self.seconds[goal] += report.duration / len(goals)

    def done(self, goal: Goal) -> int:
        return min(self.counts.get((goal.identifier, goal.what), {"": 0}).values())

    def is_short(self, goal: Goal) -> bool:
        """Whether less was run than a soak or any other run of everything has to."""
        if (goal.identifier, goal.what) in self.skipped:
            return False
        return self.done(goal) < (max(1, goal.total) if SOAK else goal.default)

    def rows(self) -> list[tuple[str, str, str, str, str]]:
        """identifier, name, how many there are, how many passed, seconds; of each goal that was run."""
        rows = []
        for goal in GOALS:
            key = (goal.identifier, goal.what)
            subjects = self.counts.get(key, {})
            of = f" x {len(subjects)}" if subjects and "" not in subjects else ""
            done = f"{self.done(goal):,}{of}" if subjects else ""
            if key in self.skipped:
                done = f"{done} skipped".strip()
            if done or WHOLE:
                wanted = "all" if SOAK and not goal.total else f"{goal.total if SOAK else goal.default:,}"
                short = " SHORT" if WHOLE and self.is_short(goal) else ""
                rows.append((*key, wanted, f"{done}{short}", f"{self.seconds.get(key, 0.0):.0f}"))
        return rows


TALLY: Final = Tally()


def fail_where_short(session: pytest.Session) -> None:
    """A run of everything that ran too little has not passed."""
    if WHOLE and session.exitstatus == 0 and any(TALLY.is_short(goal) for goal in GOALS):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any) -> None:
    rows = TALLY.rows()
    if not rows:
        return
    terminalreporter.section("trials of durability" + (" (soak)" if SOAK else ""))
    is_worker = hasattr(terminalreporter.config, "workerinput")  # of xdist: it knows its own tests alone
    for row in (("goal", "what", "of", "passed", "seconds"), *rows):
        identifier, what, wanted, done, seconds = row
        terminalreporter.write_line(f"{identifier:8} {wanted:>10} {done:>18} {seconds:>8}  {what}")
    for figure in TALLY.figures:
        terminalreporter.write_line(figure)
    if SOAK and (WHOLE or NAME != "soak") and not is_worker:
        RESULT_PATH.write_text(_page(rows), encoding="utf-8")


def _page(rows: list[tuple[str, str, str, str, str]]) -> str:
    """docs/reports/soak.md."""
    linux, python = platform.release().partition("-")[0], platform.python_version()
    lines = [
        "# The last soak" + (" of the gRPC transport" if NAME == "soak-rpc" else ""),
        "",
        f"`make {NAME}` on {datetime.now(UTC):%Y-%m-%d}, commit {TALLY.commit}, {os.cpu_count()} cores"
        f" ({platform.machine()}, Linux {linux}, Python {python}).",
        "",
        f"Failed tests: {len(TALLY.failed)}.",
        *(f"- `{node}`" for node in TALLY.failed),
        "",
        "| goal | trials | of | passed | seconds |",
        "|---|---|---|---|---|",
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
        *((*(f"- {figure}" for figure in TALLY.figures), "") if TALLY.figures else ()),
        "The goals are described in [tests.md](tests.md); `SHORT` marks one of which too little was run.",
    ]
    return "\n".join(lines) + "\n"
