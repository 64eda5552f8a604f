"""Changes of users and rules: on disk before the reply, written off the event loop, one change at a time.

Secrets and their verifiers are computed in a thread, too: each takes a millisecond or two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from trovemq_broker.security.changes import SecurityState
from trovemq_broker.security.table import SecurityTable
from trovemq_daemon.threads import run_in_thread

Made = TypeVar("Made")


class SecurityChanges:
    """Makes all changes of the table while the broker runs."""

    def __init__(self, table: SecurityTable) -> None:
        self.table = table
        self._changing = asyncio.Lock()

    async def apply(self, make: Callable[[SecurityState], SecurityState]) -> None:
        """Replaces the present state by the one that `make` returns for it, which is on disk when this
        returns. Raises the errors of `make`, and TroveError DISK_FULL, STORE_FAILED: then nothing has
        changed."""

        async with self._changing:
            after = await run_in_thread(lambda: make(self.table.state))
            if after is self.table.state:
                return
            change = self.table.begin(after)
            try:
                await run_in_thread(change.run)
            finally:
                self.table.finish(change)

    async def settle(self) -> None:
        """Returns when no change is running."""
        async with self._changing:
            pass
