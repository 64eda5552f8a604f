"""Keeps an event loop awake for a moment after a request, because its answer is often near.

A processor that sleeps takes long to wake: on a virtual machine 30 us and more, which the server waits, too,
while it writes the answer. So after a request that is the only one under way, the loop does not sleep for up
to `duration_us`. It runs everything else meanwhile, and yields its processor to other programs that want it.
If no answer came in that time, this was in vain: after the second time in a row the next request goes without
it, then 3 requests, then 7, up to SKIPPED_MAX. So a server that is distant, busy or syncs its disk costs
hardly more than without this.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from contextvars import Context
from typing import Final

DURATION_MAX_US: Final = 10_000  # of a longer wait, the time to wake is a small part
SKIPPED_MAX: Final = 1023  # then it takes a thousandth of the requests to notice that answers are near again

_yield_processor: Callable[[], None] = getattr(os, "sched_yield", lambda: None)  # Windows has none


class Polling:
    """Of one connection. `clock` is in seconds."""

    __slots__ = (
        "_clock",
        "_context",
        "_duration_s",
        "_failures",
        "_loop",
        "_scheduled",
        "_skipped",
        "_until",
        "_yield",
        "waits",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        duration_us: int,
        clock: Callable[[], float] = time.perf_counter,
        yield_processor: Callable[[], None] = _yield_processor,
    ) -> None:
        self._loop = loop
        self._duration_s = min(duration_us, DURATION_MAX_US) / 1e6
        self._clock = clock
        self._yield = yield_processor
        self._context = Context()  # not the caller's, which would be kept
        self._scheduled = False  # the loop will call `_look`
        self._until = 0.0
        self._failures = 0  # in a row
        self._skipped = 0  # requests since the last failure
        self.waits = False
        """Whether an answer is expected; receiving one sets it to False."""

    def begin(self) -> None:
        """A request was sent."""
        if self._scheduled:
            if not self.waits:
                self._failures = 0
        elif self._skips():
            return
        else:
            self._scheduled = True
            self._loop.call_soon(self._look, context=self._context)
        self.waits = True
        self._until = self._clock() + self._duration_s

    def _skips(self) -> bool:
        if self._failures < 2:
            return False
        self._skipped += 1
        return self._skipped < min(1 << (self._failures - 1), SKIPPED_MAX + 1)

    def _look(self) -> None:
        if not self.waits:
            self._scheduled = False
            self._failures = 0
        elif self._clock() < self._until:
            self._yield()
            self._loop.call_soon(self._look, context=self._context)
        else:
            self._scheduled = self.waits = False
            self._failures += 1
            self._skipped = 0
