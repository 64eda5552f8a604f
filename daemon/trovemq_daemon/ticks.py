"""Waits of background work, aligned with each other.

A daemon's wake-up costs many times as much as a short look. So tasks that look at intervals wake at multiples
of their intervals by the loop's clock: all tasks with 0.1 s wake together, and with every second wake-up of
those with 50 ms.
"""

from __future__ import annotations

import asyncio
from math import floor
from typing import Final

EARLY_S: Final = 0.0015
"""A timer may be early by the loop's rounding to milliseconds: that tick is over then."""


async def sleep_to_tick(interval_s: float) -> None:
    """Sleeps, for work that is repeated: at most EARLY_S longer than the interval, and at
    first shorter."""
    if interval_s <= 0:
        await asyncio.sleep(0)
        return
    now = asyncio.get_running_loop().time()
    early_s = min(EARLY_S, interval_s / 4)
    tick = (floor((now + early_s) / interval_s) + 1) * interval_s
    await asyncio.sleep(tick - now)
