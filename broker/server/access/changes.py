"""Users and rules changed as a service: on disk before the reply, off the event loop, one change at a time.

Secrets are made and proofs of them computed in a thread, too: each takes a millisecond or two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from broker.security.changes import SecurityState
from broker.security.table import SecurityTable
from trovemq_daemon.threads import run_in_thread

Made = TypeVar("Made")


class SecurityChanges:
    """The only one that changes the table while the broker runs."""

    def __init__(self, table: SecurityTable) -> None:
        self.table = table
        self._changing = asyncio.Lock()

    async def apply(self, make: Callable[[SecurityState], SecurityState]) -> None:
        """The state that `make` makes of the present one counts, on disk, when this returns. Raises what
        `make` raises; TroveError DISK_FULL, STORE_FAILED: nothing has changed."""

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
        """Returns when no change is under way."""
        async with self._changing:
            pass
