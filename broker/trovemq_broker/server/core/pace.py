"""Limits background work on the event loop and on the disk: requests come first."""

from __future__ import annotations

import asyncio
import time
from typing import Final

WORK_S: Final = 0.001
"""The length of one slice of work; after it the loop is free for as long as the slice took."""
REPORT_S: Final = 0.5
"""The interval of the reports to the caller."""


class Pace:
    """The pace of one piece of work. `bytes_per_second` bounds the reads; the work never takes more than half
    of the loop's time."""

    def __init__(self, bytes_per_second: int) -> None:
        self.bytes_per_second: Final = bytes_per_second
        self._free_at = time.monotonic()
        self._worked = 0.0

    async def worked(self, seconds: float) -> None:
        """Notes for how long the loop was held, and pauses."""
        self._worked += seconds
        if self._worked >= WORK_S:
            pause, self._worked = self._worked, 0.0
            await asyncio.sleep(pause)

    def read(self, size: int) -> None:
        """Counts the bytes that were read."""
        self._free_at = max(self._free_at, time.monotonic()) + size / self.bytes_per_second

    @property
    def wait_s(self) -> float:
        """The time to wait before the next read."""
        return max(0.0, self._free_at - time.monotonic())
