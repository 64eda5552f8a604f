"""Notifies the task that waits for the next due time of deliveries when something is due earlier.

Invariant: while a watcher waits until a time, whatever becomes due before it calls the watcher, once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

NOW: Final = -(1 << 63)
"""As a due time in epoch ms: due whatever the clock says, also before 1970."""


class DueWatch:
    """Of one watcher. Times are epoch ms, as leases have them."""

    def __init__(self) -> None:
        self._until_ms = NOW  # without a watcher nothing is earlier
        self._call: Callable[[], object] | None = None

    def wait(self, until_ms: int, call: Callable[[], object]) -> None:
        """`call` is called when something is due before until_ms."""
        self._until_ms = until_ms
        self._call = call

    def due(self, at_ms: int) -> None:
        """Something is due at that time."""
        assert at_ms >= NOW, "a time has 64 bits"
        if at_ms < self._until_ms:
            self._until_ms = NOW
            assert self._call is not None, "a watcher waits"
            self._call()
