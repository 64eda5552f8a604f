"""An event loop whose time is its own: it jumps to the next timer instead of waiting for it."""

from __future__ import annotations

import asyncio
import heapq
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

Result = TypeVar("Result")

fake_time = pytest.mark.asyncio(loop_scope="function", loop_factories=["fake"])
"""Runs an async test on a FakeLoop that no other test has (`pytest_asyncio_loop_factories` in
tests/conftest.py)."""

THREAD_WAIT_S = 240
"""How long something in another thread may take, in real time, when no timer is set."""


class _Selector(selectors.SelectSelector):
    """Reports to the loop's clock how long the loop would have slept."""

    slept_s = 0.0

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            ready = super().select(THREAD_WAIT_S)
            assert ready, "the loop waits for something that will not happen"
            return ready
        ready = super().select(0)
        if not ready:
            self.slept_s += max(0.0, timeout)
        return ready


class FakeLoop(asyncio.SelectorEventLoop):
    """`time()` starts at 0 and moves only while nothing is ready."""

    def __init__(self) -> None:
        self._own_selector = _Selector()
        super().__init__(self._own_selector)

    def time(self) -> float:
        return self._own_selector.slept_s

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Without the runner's time-out (from Python 3.12 on): threads need real time, and here it is over at
        once."""
        await super().shutdown_default_executor()


def run(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """The coroutine's result, on a separate loop."""
    with asyncio.Runner(loop_factory=FakeLoop) as runner:
        return runner.run(coroutine)


async def turns(count: int = 5) -> None:
    """Lets everything that is ready run."""
    for _ in range(count):
        await asyncio.sleep(0)


def forget_cancelled_timers() -> None:
    """Takes them out of the running loop's heap, as asyncio does when they are many."""
    loop: Any = asyncio.get_running_loop()
    for handle in loop._scheduled:
        handle._scheduled = not handle.cancelled()
    loop._scheduled = [handle for handle in loop._scheduled if not handle.cancelled()]
    loop._timer_cancelled_count = 0
    heapq.heapify(loop._scheduled)
