"""Tasks that wait for a condition, woken in the order in which they came."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import Final


class Waiters:
    """A queue of waiting tasks. A woken task checks its condition again.

    Attributes:
        waiting: Their futures, in the order of arrival; for a moment also some that were just cancelled.
        count: Tasks that wait now.
    """

    def __init__(self) -> None:
        self.waiting: Final[deque[asyncio.Future[None]]] = deque()
        self.count = 0

    async def wait(self) -> None:
        """Returns when another task has woken this one."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append(future)
        self.count += 1
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.wake(1)  # it was woken and cancelled at once: the next task gets the wake-up
            else:
                self.count -= 1
                with suppress(ValueError):  # another one's wake has passed it
                    self.waiting.remove(future)
            raise

    def wake(self, count: int) -> None:
        """Wakes the first `count` tasks, or all if fewer wait."""
        while count and self.waiting:
            future = self.waiting.popleft()
            if not future.done():
                future.set_result(None)
                self.count -= 1
                count -= 1

    def wake_all(self) -> None:
        """Wakes all tasks that wait now."""
        self.wake(len(self.waiting))
