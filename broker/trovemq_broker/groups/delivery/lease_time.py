"""The time by which leases end: the clock, except for a while after a pause of the broker itself.

While the process is stopped (SIGSTOP, a sleeping laptop, a frozen virtual machine) no client can renew a
lease or acknowledge a message. When it continues, all leases would end before the first waiting request is
read. So the first call after such a pause stops the time of leases at the start of the pause. After the
duration of the pause it continues at the clock's time: until then clients can renew and acknowledge.

A pause is detected by the clock: `tick` is called regularly while the process runs, and the time since the
last call was too long. A clock that was set forward looks the same, and is treated the same: clients can
renew and acknowledge. But it counts as a pause only if the boot time, which no one sets, says so, too.

Invariants
- `at(now)` is never above `now`, and is `now` outside of the time after a pause.
- Without a first `tick` there are no pauses: a caller that does not call it passes its own clock's times.
"""

from __future__ import annotations

from typing import Final

from trovemq_proto.positions import EpochMs

PAUSE_MIN_MS: Final = 2_000
"""A busy event loop is late by less."""
GRACE_MAX_MS: Final = 60_000
"""The time of leases stands still for as long as the pause, but at most for this time after it."""


class LeaseTime:
    """The time by which leases of one store's deliveries end."""

    __slots__ = (
        "_frozen_ms",
        "_pause_min_ms",
        "_seen_boot_ms",
        "_seen_ms",
        "_thaw_ms",
        "pause_count",
        "paused_ms",
    )

    def __init__(self, tick_interval_ms: int = 0) -> None:
        self._pause_min_ms = PAUSE_MIN_MS + tick_interval_ms
        self._seen_ms: EpochMs | None = None
        self._seen_boot_ms: int | None = None
        self._frozen_ms = EpochMs(0)
        self._thaw_ms = EpochMs(0)
        self.pause_count = 0
        self.paused_ms = 0
        """The longest pause."""

    def tick(self, now_ms: EpochMs, boot_ms: int) -> None:
        """Reports that the process runs; to be called every tick_interval_ms, at most PAUSE_MIN_MS late."""
        paused_ms = 0 if self._seen_boot_ms is None else boot_ms - self._seen_boot_ms
        if paused_ms > self._pause_min_ms:
            self.pause_count += 1
            self.paused_ms = max(self.paused_ms, paused_ms)
        self._seen_boot_ms = boot_ms
        self._notice_pause(now_ms if self._seen_ms is None else self._seen_ms, now_ms)

    def at(self, now_ms: EpochMs) -> EpochMs:
        """The time by which leases end, at now_ms."""
        if self._seen_ms is not None:
            self._notice_pause(self._seen_ms, now_ms)
        return min(now_ms, self._frozen_ms) if now_ms < self._thaw_ms else now_ms

    def _notice_pause(self, seen_ms: EpochMs, now_ms: EpochMs) -> None:
        paused_ms = now_ms - seen_ms
        if paused_ms > self._pause_min_ms:
            if seen_ms >= self._thaw_ms:  # otherwise it paused again before all clients could renew
                self._frozen_ms = seen_ms
            self._thaw_ms = now_ms + min(paused_ms, GRACE_MAX_MS)
        self._seen_ms = now_ms
