"""The clocks of a daemon: the machine's clock, its boot time, and the clock without its steps.

The machine's clock is set by a time service, by hand, or by a host that moves a virtual machine. It may be
wrong for a moment. Work that waits for a time (delayed messages, leases, checks) should not run because of
that. So it uses SettledClock: after a step that continues at the old rate, by boot time, until the new time
has stood for SETTLE_MS.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

SETTLE_MS: Final = 60_000
STEP_MIN_MS: Final = 1_000
"""A smaller difference is followed at once."""
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_BOOT_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def wall_ms() -> int:
    """The machine's clock, epoch ms."""
    return time.time_ns() // 1_000_000


def boot_ms() -> int:
    """Milliseconds since the machine was started; runs on evenly, also while it sleeps."""
    return time.clock_gettime_ns(_BOOT_CLOCK) // 1_000_000


def boot_id() -> str:
    """Another text after each start of the machine; empty where the system has none."""
    try:
        return BOOT_ID.read_text("ascii").strip()
    except OSError:
        return ""


class SettledClock:
    """Epoch ms without the steps of the machine's clock, by the rule above. To be called at least every few
    seconds."""

    def __init__(self, wall: Callable[[], int] = wall_ms, boot: Callable[[], int] = boot_ms) -> None:
        self._wall = wall
        self._boot = boot
        self._difference = wall() - boot()
        self._next = self._difference
        self._next_from: int | None = None

    def __call__(self) -> int:
        now, boot = self._wall(), self._boot()
        difference = now - boot
        if abs(difference - self._difference) <= STEP_MIN_MS:
            self._difference, self._next_from = difference, None
        elif self._next_from is None or abs(difference - self._next) > STEP_MIN_MS:
            self._next, self._next_from = difference, boot
        elif boot - self._next_from >= SETTLE_MS:
            self._difference, self._next_from = difference, None
        return boot + self._difference
