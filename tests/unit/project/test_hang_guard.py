"""A test that hangs is ended after its timeout, and no other."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pytest_timeout import Settings

from tests.support.hang_guard import ROOT, HangGuard

SETTINGS = Settings(60.0, "thread", False, False)


def test_only_the_running_test_is_ended_and_after_its_timeout(request: pytest.FixtureRequest) -> None:
    ended: list[tuple[pytest.Item, Settings]] = []
    guard, item, now_s = HangGuard(lambda item, settings: ended.append((item, settings))), request.node, 0.0
    guard.begin(item, SETTINGS)
    now_s = time.monotonic()
    guard.look(now_s + 59)
    assert ended == []
    guard.look(now_s + 61)
    assert ended == [(item, SETTINGS)]
    guard.done()
    guard.look(now_s + 120)
    assert len(ended) == 1


HANGS = """
import asyncio
import pytest
@pytest.mark.asyncio
async def test_hangs():
    await waits_for_nothing()
async def waits_for_nothing():
    await asyncio.Event().wait()
"""


@pytest.mark.slow
def test_the_failure_said_only_that_the_worker_crashed(tmp_path: Path) -> None:
    """In a worker of xdist, whose output is lost."""
    (tmp_path / "test_hanging.py").write_text(HANGS)
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "-p", "tests.conftest"]
    options = ["-n1", "--max-worker-restart=0", "--timeout=1"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "WHOLE": "", "SOAK": ""}
    run = subprocess.run(
        [*command, *options, "."],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert run.returncode == 1, run.stdout
    assert "crashed while running" in run.stdout
    assert "in waits_for_nothing" in run.stdout


def test_no_test_is_ended_sooner_than_all() -> None:
    """A test with a limit of 120 s was ended at a load of 15. In a soak, tests with 900 s had the least."""
    marked = [path for path in (ROOT / "tests").rglob("*.py") if "mark.timeout(" in path.read_text("utf-8")]
    assert marked == [Path(__file__)]


def test_this_run_is_guarded(request: pytest.FixtureRequest) -> None:
    """By the one thread, and not by a separate thread for each test."""
    assert request.config.getini("timeout") == "600"
    assert not hasattr(request.node, "cancel_timeout")
