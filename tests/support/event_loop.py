"""The event loop of tests: uvloop, whose `close` names connections that are open, in place of a hang."""

from __future__ import annotations

import warnings
from typing import Final

import uvloop

EARLY_S: Final = 0.002
"""A timer may fire this long before its time by the loop's clock: both count in milliseconds."""


class EventLoop(uvloop.Loop):
    """uvloop warns of open connections within its `close`. Where the warning is an error, as in tests, it
    is lost, and `close` waits for ever: a failing test with an open client stopped the whole run."""

    def close(self) -> None:
        """Closes, then warns: ResourceWarning, an error in tests."""
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always", ResourceWarning)
            super().close()
        for one in found:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
