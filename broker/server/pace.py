"""How fast background work may continue the event loop and on the disk: requests come first."""

from __future__ import annotations

import asyncio
import time
from typing import Final

WORK_S: Final = 0.001
"""The length of one stretch of work; after it the loop is left alone for as long as it took."""
REPORT_S: Final = 0.5
"""The interval of the reports to the caller."""


class Pace:
    """For one piece of work. `bytes_per_second` bounds the reads; it never takes more than half of the loop's
    time."""

    def __init__(self, bytes_per_second: int) -> None:
        self.bytes_per_second: Final = bytes_per_second
        self._free_at = time.monotonic()
        self._worked = 0.0

    async def worked(self, seconds: float) -> None:
        """So long the loop was held."""
        self._worked += seconds
        if self._worked >= WORK_S:
            pause, self._worked = self._worked, 0.0
            await asyncio.sleep(pause)

    def read(self, size: int) -> None:
        """This many bytes were read."""
        self._free_at = max(self._free_at, time.monotonic()) + size / self.bytes_per_second

    @property
    def wait_s(self) -> float:
        """How long to wait before more is read."""
        return max(0.0, self._free_at - time.monotonic())
