"""Work that can stop and continue: a generator that yields after each bounded piece, and returns its result.

The engine knows no event loop. The caller does other work between two steps:
`daemon/trovemq_daemon/turns.py` lets other requests go first, `finished` runs them in one go.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias, TypeVar

Result = TypeVar("Result")

Steps: TypeAlias = Generator[None, None, Result]


def finished(steps: Steps[Result]) -> Result:
    """The result, without a pause: for other threads, command lines and tests."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: Result = stop.value
            return result
