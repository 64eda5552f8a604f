"""How long each test took: recorded in every run, shown in docs/reports/tests.md, bounded by a budget a file.

A run of pytest writes build/durations.json: seconds of set-up, call and teardown together, by test,
slowest first; and the processor's seconds of the same, without those of daemons, whose parent is a fork
server. `make durations` makes the last whole run the recorded one: tests/durations.json (seconds by file) and
the section of docs/reports/tests.md. tests/unit/project/test_durations.py holds the recorded run within the
budgets, so that a check never depends on how busy a machine is.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
RUN_PATH: Final = Path("build/durations.json")
RECORD_PATH: Final = Path("tests/durations.json")
PAGE_PATH: Final = Path("docs/reports/tests.md")
BEGIN: Final = "<!-- durations: begin -->"
END: Final = "<!-- durations: end -->"

# Of all tests together, over all workers: eight minutes of four are 1,920 s. On two cores they wait for each
# other, so that a test takes longer than alone.
TOTAL_S_MAX: Final = 1_800.0
# Of one file; those that have to be slow have their own budgets.
FILE_S_MAX: Final = 24.0
FILES_S_MAX: Final[Mapping[str, float]] = {
    "tests/durability/test_fault_points.py": 45.0,  # the engine's whole script some hundred times
    "tests/durability/test_flipped_bits.py": 30.0,  # a store is opened and read for each of a thousand bits
    "tests/durability/test_fuzz_rocketmq_rpcs.py": 30.0,  # hundreds of inputs to each RPC
    "tests/durability/test_fuzz_rpcs.py": 30.0,  # hundreds of inputs to each RPC
    "tests/durability/test_track_record.py": 35.0,  # half a hundred tests with a fix reverted
    "tests/integration/test_access.py": 45.0,  # daemons with users, each start another set of settings
    "tests/integration/test_cli_golden.py": 40.0,  # some hundred command lines
    "tests/integration/test_conformance.py": 130.0,  # installs and runs the official clients
    "tests/integration/test_console.py": 35.0,  # a real browser, and axe on every kind of page
    "tests/integration/test_demo.py": 50.0,  # real starts of `make run`
    "tests/integration/test_restart_consumers.py": 30.0,  # waits for the end of leases
    "tests/integration/test_retention.py": 50.0,  # waits for the daemon's periodic work
    "tests/integration/test_v2_hostile.py": 50.0,  # some hundred hostile calls to a daemon
    "tests/pipeline/test_archive.py": 40.0,  # Spark
    "tests/pipeline/test_cli.py": 55.0,  # two Spark drivers
    "tests/pipeline/test_live_source.py": 40.0,  # Spark
    "tests/pipeline/test_stream_job.py": 30.0,  # Spark
    "tests/unit/delivery/test_packed_leases.py": 40.0,  # memory measured with tracemalloc
    "tests/unit/query/test_golden.py": 60.0,  # each message of five stores, looked up under coverage
}
SLOWEST_SHOWN: Final = 30
PROCESSOR_PROPERTY: Final = "processor_s"


class Recorder:
    """Collects the durations of one run, in the process that reports (not in xdist's workers)."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.processor_seconds: dict[str, float] = {}
        self._begin = time.monotonic()

    def add(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration
        for name, value in report.user_properties:
            if name == PROCESSOR_PROPERTY:
                assert isinstance(value, float)
                self.processor_seconds[report.nodeid] = value

    def write(self, *, whole: bool) -> None:
        """Writes build/durations.json, slowest first."""
        RUN_PATH.parent.mkdir(parents=True, exist_ok=True)
        document = {
            "whole": whole,
            "wall_s": round(time.monotonic() - self._begin, 1),
            "tests": _slowest_first(self.seconds),
            "processor": _slowest_first(self.processor_seconds),
        }
        RUN_PATH.write_text(json.dumps(document, indent=1), encoding="utf-8")


class ProcessorClock:
    """In the process that runs the tests: the processor's time of each, from test to test."""

    def __init__(self) -> None:
        self._last = _processor_seconds()

    def lap(self) -> tuple[str, float]:
        """The property of a test's last report."""
        before, self._last = self._last, _processor_seconds()
        return PROCESSOR_PROPERTY, round(self._last - before, 3)


def _processor_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _slowest_first(seconds: Mapping[str, float]) -> dict[str, float]:
    return dict(sorted(seconds.items(), key=lambda item: -item[1]))


def recorded() -> dict[str, float]:
    """Seconds by file of the recorded run."""
    files: dict[str, float] = json.loads((ROOT / RECORD_PATH).read_text(encoding="utf-8"))
    return files


def files_of(tests: Mapping[str, float]) -> dict[str, float]:
    """Seconds by file."""
    files: dict[str, float] = defaultdict(float)
    for node, seconds in tests.items():
        files[node.partition("::")[0]] += seconds
    return dict(files)


def folders_of(files: Mapping[str, float]) -> dict[str, float]:
    """Seconds by folder, slowest first."""
    folders: dict[str, float] = defaultdict(float)
    for path, seconds in files.items():
        folders[str(Path(path).parent)] += seconds
    return dict(sorted(folders.items(), key=lambda item: -item[1]))


def over_budget(files: Mapping[str, float]) -> list[str]:
    """A line for each file, and one for the whole, that took longer than its budget."""
    lines = [
        f"{path}: {seconds:.1f} s, its budget is {FILES_S_MAX.get(path, FILE_S_MAX):g} s"
        for path, seconds in sorted(files.items())
        if seconds > FILES_S_MAX.get(path, FILE_S_MAX)
    ]
    total = sum(files.values())
    return lines if total <= TOTAL_S_MAX else [*lines, f"together: {total:.0f} s of {TOTAL_S_MAX:g} s"]


def page(run: Mapping[str, Any]) -> str:
    """The section of docs/reports/tests.md."""
    tests: dict[str, float] = run["tests"]
    folders = folders_of(files_of(tests))
    processor = folders_of(files_of(run["processor"]))
    rows = [
        f"| `{folder}` | {seconds:.0f} | {processor[folder]:.0f} |" for folder, seconds in folders.items()
    ]
    slowest = [
        f"| {seconds:.1f} | `{node}` |"
        for node, seconds in sorted(tests.items(), key=lambda item: -item[1])[:SLOWEST_SHOWN]
    ]
    return "\n".join(
        [
            BEGIN,
            f"`make test`, commit {run['commit']}, {run['machine']}: {run['wall_s'] / 60:.1f} minutes,"
            f" {len(tests):,} tests, {sum(tests.values()):.0f} s over all workers, of the processor"
            f" {sum(run['processor'].values()):.0f} s.",
            "",
            "| folder | seconds | of the processor |",
            "|---|---|---|",
            *rows,
            "",
            "| seconds | the slowest tests |",
            "|---|---|",
            *slowest,
            END,
        ]
    )


def with_section(text: str, section: str) -> str:
    """The page with this section in the place of the old one."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    assert begin, f"{PAGE_PATH} has no section of durations"
    assert end, "the section of durations has no end"
    return head + section + tail


def main() -> None:
    """Makes the last run the recorded one."""
    run = json.loads(RUN_PATH.read_text(encoding="utf-8"))
    if not run["whole"]:
        sys.exit(f"{RUN_PATH} is of a run of some tests; run `make test` first")
    run["commit"] = _commit()
    run["machine"] = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    files = {path: round(seconds, 1) for path, seconds in sorted(files_of(run["tests"]).items())}
    RECORD_PATH.write_text(json.dumps(files, indent=1) + "\n", encoding="utf-8")
    PAGE_PATH.write_text(with_section(PAGE_PATH.read_text(encoding="utf-8"), page(run)), encoding="utf-8")
    print("recorded", *over_budget(files), sep="\n  ")


def _commit() -> str:
    return subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()


if __name__ == "__main__":
    main()
