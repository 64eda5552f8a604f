"""A timer that is set again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Alarm:
    """Calls a function, once each time that it was set. Used on the event loop."""

    def __init__(self, ring: Callable[[], object]) -> None:
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None

    def set(self, seconds: float | None) -> None:
        """Rings after this time, unless it is set already; None: it stays as it is."""
        if self._timer is None and seconds is not None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        self._ring()

    def cancel(self) -> None:
        """It does not ring."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
