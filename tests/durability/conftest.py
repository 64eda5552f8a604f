"""Trials go the same ways many times: they are not part of the engine's coverage, and run at full speed."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def untraced() -> Iterator[None]:
    """(pytest-cov's own mark does not stop the tracing in a worker of pytest-xdist.)"""
    trace = sys.gettrace()
    sys.settrace(None)
    yield
    sys.settrace(trace)
