"""Trials go the same ways many times: they are not part of the engine's coverage, and run at full speed."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from broker.groups.timers import rocketmq_files
from tests.durability.killed_engine import KilledEngine
from tests.durability.planted import Planting


@pytest.fixture(autouse=True)
def untraced() -> Iterator[None]:
    """(pytest-cov's own mark does not stop the tracing in a worker of pytest-xdist.)"""
    trace = sys.gettrace()
    sys.settrace(None)
    yield
    sys.settrace(trace)


@pytest.fixture
def small_timer_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    """RocketMQ's has 38 MB, which each clean stop would write."""
    monkeypatch.setattr(rocketmq_files, "WHEEL_SLOTS", 600)


@pytest.fixture(scope="session")
def engines() -> Iterator[list[KilledEngine]]:
    """The server that forks lives of an engine, once one was needed: it takes a second to start."""
    running: list[KilledEngine] = []
    yield running
    for engine in running:
        engine.close()


@pytest.fixture
def engine(engines: list[KilledEngine]) -> Iterator[KilledEngine]:
    """The same for all tests of this worker, until one leaves a life that has not ended."""
    if not engines:
        engines.append(KilledEngine())
    yield engines[0]
    if engines[0].is_busy:
        engines.pop().close()


@pytest.fixture(scope="session")
def planting() -> Iterator[Planting]:
    """One server for all planted bugs of this worker."""
    server = Planting()
    yield server
    server.close()
