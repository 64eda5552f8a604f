"""Servers that fork lives of an engine, and of one with a bug planted, for all trials of a worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.durability.killed_engine import KilledEngine
from tests.durability.planted import Planting


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
