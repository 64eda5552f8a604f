"""A rebuild that is killed leaves the result that was there, or its own, never a part of one."""

from __future__ import annotations

import random
import shutil
import signal
import sys
from pathlib import Path

import pytest

from tests.support.fork_server import run
from tests.support.golden import unpack
from tests.support.pipeline_size import PIPELINE_LONG
from tests.support.rebuilt import files_of, rebuild_here

pytestmark = pytest.mark.slow

KILLS = 20 if PIPELINE_LONG else 4
PUBLISHING = 16
"""The number of last events that have the renames, which make the result visible."""
PARTS = ("consumequeue", "index")


def kill_at(store: Path, out: Path, event: int | None) -> int:
    """Runs it, killed before that event; else gives how many there are."""
    command = [sys.executable, "-m", "tests.pipeline.rebuild_kill", str(store), str(out)]
    done = run(command if event is None else [*command, str(event)])
    assert done.returncode == (0 if event is None else -signal.SIGKILL), done.stderr
    return int(done.stdout) if event is None else event


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(one with a shorter log, the whole one)"""
    root = tmp_path_factory.mktemp("stores")
    whole = unpack("rollover", root)
    shorter = root / "shorter"
    shutil.copytree(whole, shorter, ignore=shutil.ignore_patterns("timerwheel"))
    for segment in sorted((shorter / "commitlog").iterdir())[-3:]:
        segment.unlink()
    return shorter, whole


def test_killed_anywhere_the_result_is_whole_and_the_next_run_is_right(
    stores: tuple[Path, Path], tmp_path: Path
) -> None:
    shorter, whole = stores
    old, new = tmp_path / "old", tmp_path / "new"
    rebuild_here(shorter, old)
    shutil.copytree(old, new)
    events = kill_at(whole, new, None)
    results = {part: (files_of(old / part), files_of(new / part)) for part in PARTS}
    assert all(before != after for before, after in results.values())
    source = random.Random(11)
    for kill in range(KILLS):
        out = tmp_path / f"out{kill}"
        shutil.copytree(old, out)
        # Every other one where the result becomes visible.
        first = events - PUBLISHING if kill % 2 else kill * (events - PUBLISHING) // KILLS
        last = events if kill % 2 else (kill + 2) * (events - PUBLISHING) // KILLS
        kill_at(whole, out, source.randrange(first, last))
        for part, whole_results in results.items():
            assert files_of(out / part) in ({}, *whole_results)
        rebuild_here(whole, out)
        assert all(files_of(out / part) == after for part, (_, after) in results.items())
        assert sorted(path.name for path in out.iterdir()) == sorted(PARTS)
