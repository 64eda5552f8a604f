"""Runs long work on the event loop in time slices (`Turns`).

A look-up may read megabytes, a broker may register 60,000 topics. Such work has steps or pages, each of which
takes at most a few milliseconds. All long work shares one `Turns`: in each iteration of the loop one piece
of long work runs for one time slice, however many are running. So a small request waits for one slice, not
for every look-up.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, TypeAlias, TypeVar

TURN_S: Final = 0.001
"""A time slice ends with the first step that ends after this time."""

Page = TypeVar("Page")
Result = TypeVar("Result")
Steps: TypeAlias = Generator[None, None, Result]
"""A generator that yields where others may run (trovemq_store.engine.steps)."""

_worked: Final[ContextVar[Callable[[float], None] | None]] = ContextVar("worked", default=None)


def count_work(worked: Callable[[float], None]) -> None:
    """Calls `worked(seconds)` after each time slice of the present task's request."""
    _worked.set(worked)


class Turns:
    """Gives time slices to all long work of a daemon."""

    def __init__(self) -> None:
        self._one_at_a_time = asyncio.Lock()
        self.turn_count = 0

    async def run(self, steps: Steps[Result]) -> Result:
        """Runs the steps, and returns their result. Raises their errors."""
        while True:
            async with self._one_at_a_time:
                try:
                    with self._turn():
                        _take(steps)
                except StopIteration as stop:
                    result: Result = stop.value
                    return result
                await asyncio.sleep(0)

    async def run_from_now(self, steps: Steps[Result]) -> Result:
        """Runs work that is nearly always short; its first step begins at once."""
        try:
            _take(steps)
        except StopIteration as stop:
            result: Result = stop.value
            return result
        await asyncio.sleep(0)
        return await self.run(steps)

    async def each(self, pages: Iterator[Page]) -> AsyncGenerator[Page]:
        """Yields the pages; each is made in a separate time slice. Raises their errors. To be closed
        (aclosing): a call may end before the last page."""
        while True:
            async with self._one_at_a_time:
                with self._turn():
                    page = next(pages, None)
                if page is None:
                    return
                await asyncio.sleep(0)
            yield page

    @contextmanager
    def _turn(self) -> Iterator[None]:
        self.turn_count += 1
        began, worked = time.perf_counter(), _worked.get()
        try:
            yield
        finally:
            if worked is not None:
                worked(time.perf_counter() - began)


def _take(steps: Steps[Result]) -> None:
    """Runs one time slice. Raises StopIteration at the end of the steps."""
    ends = time.perf_counter() + TURN_S
    while True:
        next(steps)
        if time.perf_counter() >= ends:
            return
