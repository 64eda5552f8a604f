"""Yields to the event loop between messages, and measures how long the loop stood still.

A handler that does not await, and finds the next message ready, would never yield to the loop: no
acknowledgement would leave, and nothing that arrives would be read. So a subscription yields before the
program gets a message, if the loop did no other work for TURN_AFTER_S.

Invariant: the callers of `give` continue in their order, at least one after each STEPS iterations.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from time import monotonic
from typing import Final
from weakref import WeakKeyDictionary

_log = logging.getLogger(__name__)

TURN_AFTER_S: Final = 0.01
STEPS: Final = 3
"""Iterations of the loop for which a caller yields: bytes that arrived are read, the tasks that waited for
them run, and their output is sent."""
LOOK_INTERVAL_S: Final = 0.25
STANDSTILL_MIN_S: Final = 1.0
"""A loop that did no other work for this long stood still. Brokers are patient for 15 s
(grpc_keepalive_time_ms and grpc_keepalive_timeout_ms)."""
WARNING_INTERVAL_S: Final = 60.0
LATELY_S: Final = 60.0


class LoopTurns:
    """Yields to one event loop; `loop_turns` returns the object of the running one.

    Attributes:
        due_at: From when on a caller yields, by `clock` (seconds).
        clock: The clock, which does not stand still with the loop, as uvloop's `time` does.
        standstills: How often it stood still while it was watched.
        longest_s: The longest standstill.
        lately_until: The end of the minute after the last standstill, by `clock`.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.clock = monotonic
        self.due_at = 0.0
        self.standstills = 0
        self.longest_s = 0.0
        self._had_one_at = 0.0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._stepping = False
        self.lately_until = 0.0
        self._watchers = 0
        self._look: asyncio.TimerHandle | None = None
        self._warn_at = 0.0
        self._unreported_s = 0.0

    # --- turns ----------------------------------------------------------------------------------------
    def is_due(self) -> bool:
        """Whether a caller must yield, or the loop stood still in the last minute."""
        now = self.clock()
        return now >= self.due_at or now < self.lately_until

    async def give(self) -> None:
        """Yields if it is due: returns after STEPS iterations of the loop, and after earlier callers have
        continued."""
        if self.clock() < self.due_at:
            return
        had: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(had)
        if not self._stepping:
            self._stepping = True
            self._loop.call_soon(self._step, STEPS)
        await had

    def note(self) -> None:
        """The loop does its other work: something arrived."""
        self.due_at = self.clock() + TURN_AFTER_S

    def _step(self, remaining: int) -> None:
        if remaining:
            self._loop.call_soon(self._step, remaining - 1)
            return
        self._see()
        self.note()
        self._continue()

    def _continue(self) -> None:
        """One caller continues; the next ones after it, and after STEPS more iterations if it blocked the
        loop."""
        while self._waiting:
            had = self._waiting.popleft()
            if not had.done():
                had.set_result(None)
                self._loop.call_soon(self._after_caller)
                return
        self._stepping = False

    def _after_caller(self) -> None:
        if self.clock() < self.due_at or not self._waiting:
            self._continue()
        else:
            self._step(STEPS)

    # --- standstills ----------------------------------------------------------------------------------
    def watch(self) -> None:
        """Measures standstills from now on, until `unwatch` was called as often."""
        self._watchers += 1
        if self._look is None:
            self._had_one_at = self.clock()
            self._look = self._loop.call_later(LOOK_INTERVAL_S, self._look_again)

    @property
    def stood_still_lately(self) -> bool:
        """Whether it stood still in the last minute."""
        return self.clock() < self.lately_until

    def unwatch(self) -> None:
        """Ends a `watch`."""
        self._watchers -= 1
        if not self._watchers and self._look is not None:
            self._look.cancel()
            self._look = None

    def _look_again(self) -> None:
        self._look = self._loop.call_later(LOOK_INTERVAL_S, self._look_again)
        self._see()

    def _see(self) -> None:
        """The loop runs: for how long did it not?"""
        now = self.clock()
        stood_still_s, self._had_one_at = now - self._had_one_at, now
        if stood_still_s < STANDSTILL_MIN_S or self._look is None:
            return
        self.standstills += 1
        self.lately_until = now + LATELY_S
        self.longest_s = max(self.longest_s, stood_still_s)
        self._unreported_s = max(self._unreported_s, stood_still_s)
        if now >= self._warn_at:
            _log.warning(
                "the event loop stood still for %.1f s, because a call in it does not await: in that time"
                " nothing is acknowledged or received, and after 15 s a broker declares this client dead;"
                " make a handler that blocks a plain function, which runs in a thread",
                self._unreported_s,
            )
            self._warn_at, self._unreported_s = now + WARNING_INTERVAL_S, 0.0


_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopTurns] = WeakKeyDictionary()


def loop_turns() -> LoopTurns:
    """The object of the running event loop."""
    loop = asyncio.get_running_loop()
    turns = _turns.get(loop)
    if turns is None:
        turns = _turns[loop] = LoopTurns(loop)
    return turns
