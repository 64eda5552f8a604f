"""The whole suite many times, in random order: `python -m tests.support.repeat` (`make repeat`).

Run n has seed n, which orders modules and tests (pytest-randomly); every second run has two busy loops
beside it. Each result is added to tests/repeat.jsonl at once, and docs/reports/repeat.md is written from it.
A later call continues: it does the runs that are missing, and those that failed, again. So the runs may
spread over days and commits; each row names its own. Exit code 1: some run had a failure.

    --runs 20        how many
    --first 1        the seed of the first
    --fresh          begin again, without the results so far

"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

LEDGER: Final = Path("tests/repeat.jsonl")
LOGS: Final = Path("build")
PAGE: Final = Path("docs/reports/repeat.md")
BUSY_LOOPS: Final = 2
RUN_S_MAX: Final = 3600
_COUNT: Final = re.compile(r"(\d+) (passed|failed|errors?|skipped)")
_FAILED: Final = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
_BUSY: Final = "import os\np = os.getppid()\nwhile os.getppid() == p:\n    for _ in range(100000): pass\n"


def main(arguments: Sequence[str]) -> int:
    """Does the missing runs; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--fresh", action="store_true")
    options = parser.parse_args(arguments)
    if options.fresh:
        LEDGER.unlink(missing_ok=True)
    seeds = range(options.first, options.first + options.runs)
    done = _ledger()
    for seed in seeds:
        if seed not in done or done[seed]["failed"]:
            _add(_run(seed))
            PAGE.write_text(_page(_ledger()), encoding="utf-8")
    results = _ledger()
    return 1 if any(results[seed]["failed"] for seed in seeds) else 0


def _run(seed: int) -> dict[str, Any]:
    """One run of everything; a line of the ledger."""
    busy = BUSY_LOOPS if seed % 2 == 0 else 0
    command = ["make", "test-random", f"SEED={seed}"]
    begin = time.monotonic()
    with _busy_loops(busy):
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=RUN_S_MAX,
            env={**os.environ, "ARGS": ""},
        )
    log = LOGS / f"repeat-{seed}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(done.stdout + done.stderr, encoding="utf-8")
    counts = {kind.removesuffix("s"): int(count) for count, kind in _COUNT.findall(done.stdout[-2000:])}
    failed = sorted(set(_FAILED.findall(done.stdout)))
    if done.returncode != 0 and not failed:
        failed = [f"exit code {done.returncode}, see {log}"]
    result = {
        "seed": seed,
        "busy_loops": busy,
        "commit": _commit(),
        "seconds": round(time.monotonic() - begin),
        "passed": counts.get("passed", 0),
        "skipped": counts.get("skipped", 0),
        "failed": failed,
    }
    print(json.dumps(result), flush=True)
    return result


@contextmanager
def _busy_loops(count: int) -> Iterator[None]:
    """`count` processes that do nothing but take a core; they end with this one."""
    loops = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def _ledger() -> dict[int, dict[str, Any]]:
    """The last result of each seed."""
    if not LEDGER.exists():
        return {}
    lines = LEDGER.read_text(encoding="utf-8").splitlines()
    return {row["seed"]: row for row in map(json.loads, lines)}


def _add(result: dict[str, Any]) -> None:
    with LEDGER.open("a", encoding="utf-8") as file:
        file.write(json.dumps(result) + "\n")


def _page(by_seed: dict[int, dict[str, Any]]) -> str:
    results = [by_seed[seed] for seed in sorted(by_seed)]
    failures = sum(len(row["failed"]) for row in results)
    lines = [
        "# The suite in random order",
        "",
        f"`make repeat` until {datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores ({platform.machine()},"
        f" Python {platform.python_version()}): {len(results)} runs of 20, {failures} failures."
        " One of them again: `make test-random SEED=n`.",
        "",
        "| seed | busy loops beside | commit | seconds | passed | skipped | failed |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in results:
        failed = "<br>".join(f"`{name}`" for name in row["failed"]) or "0"
        lines.append(
            f"| {row['seed']} | {row['busy_loops']} | {row['commit']} | {row['seconds']} | {row['passed']:,}"
            f" | {row['skipped']} | {failed} |"
        )
    return "\n".join(lines) + "\n"


def _commit() -> str:
    return subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
