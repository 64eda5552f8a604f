"""Ends a worker whose test hangs, as pytest-timeout does, by one thread for all tests.

pytest-timeout starts a thread for each test and joins it at the end: 0.6 ms, as long as everything else that
pytest does for a small test, and there are ten thousand. Its hooks let another timer take that place.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

import pytest
from pytest_timeout import Settings, timeout_timer

LOOK_S: Final = 1.0


class HangGuard:
    """Knows the test that runs, and its deadline."""

    def __init__(self, end: Callable[[pytest.Item, Settings], None] = timeout_timer) -> None:
        self._end = end
        self._running: tuple[float, pytest.Item, Settings] | None = None
        self._thread: threading.Thread | None = None

    def begin(self, item: pytest.Item, settings: Settings) -> None:
        """From now on the test has its timeout."""
        self._running = time.monotonic() + settings.timeout, item, settings
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="hang guard", daemon=True)
            self._thread.start()

    def done(self) -> None:
        """The test has ended."""
        self._running = None

    def look(self, now_s: float) -> None:
        """Ends the process where the test's deadline is over."""
        running = self._running
        if running is not None and now_s > running[0]:
            self._end(*running[1:])

    def _watch(self) -> None:
        while True:
            time.sleep(LOOK_S)
            self.look(time.monotonic())
