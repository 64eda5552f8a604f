"""A test that hangs is ended after its timeout, and no other."""

from __future__ import annotations

import time

import pytest
from pytest_timeout import Settings

from tests.support.hang_guard import HangGuard

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


def test_this_run_is_guarded(request: pytest.FixtureRequest) -> None:
    """By the one thread, and not by a thread of its own for each test."""
    assert request.config.getini("timeout") == "600"
    assert not hasattr(request.node, "cancel_timeout")
