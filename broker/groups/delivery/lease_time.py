"""The time by which leases end: the clock, except for a while after a pause of the broker itself.

While the process is stopped (SIGSTOP, a laptop that sleeps, a frozen virtual machine) nobody can renew a
lease or acknowledge a message. When it continues, all leases would have ended before the first of the
requests that wait is read. So the first call after such a pause stops the time of leases where the pause
began. It continues, at the clock's time, after the same duration again: clients have that long to renew and
to acknowledge.

A pause is found by the clock: `tick` is called again and again while the process runs, and the time since the
last call was too long. A clock that was set forward looks the same, and is treated the same.

Invariants
- `at(now)` is never above `now`, and is `now` outside of the time after a pause.
- Without a first `tick` there are no pauses: a caller that drives the engine by hand has a clock of its own.
"""

from __future__ import annotations

from typing import Final

from trovemq_proto.positions import EpochMs

PAUSE_MIN_MS: Final = 2_000
"""A busy loop is late by less."""
GRACE_MAX_MS: Final = 60_000


class LeaseTime:
    """The time by which leases of one store's deliveries end."""

    __slots__ = ("_frozen_ms", "_pause_min_ms", "_seen_ms", "_thaw_ms", "pause_count", "paused_ms")

    def __init__(self, tick_interval_ms: int = 0) -> None:
        self._pause_min_ms = PAUSE_MIN_MS + tick_interval_ms
        self._seen_ms: EpochMs | None = None
        self._frozen_ms = EpochMs(0)
        self._thaw_ms = EpochMs(0)
        self.pause_count = 0
        self.paused_ms = 0
        """The longest pause."""

    def tick(self, now_ms: EpochMs) -> None:
        """The process runs; to be called each tick_interval_ms, and PAUSE_MIN_MS later at the latest."""
        self._look(now_ms if self._seen_ms is None else self._seen_ms, now_ms)

    def at(self, now_ms: EpochMs) -> EpochMs:
        """The time by which leases end, at now_ms."""
        if self._seen_ms is not None:
            self._look(self._seen_ms, now_ms)
        return min(now_ms, self._frozen_ms) if now_ms < self._thaw_ms else now_ms

    def _look(self, seen_ms: EpochMs, now_ms: EpochMs) -> None:
        paused_ms = now_ms - seen_ms
        if paused_ms > self._pause_min_ms:
            if seen_ms >= self._thaw_ms:  # else it paused again before all clients could renew
                self._frozen_ms = seen_ms
            self._thaw_ms = now_ms + min(paused_ms, GRACE_MAX_MS)
            self.pause_count += 1
            self.paused_ms = max(self.paused_ms, paused_ms)
        self._seen_ms = now_ms
