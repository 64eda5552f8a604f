"""Changes of users and rules: on disk before the reply, as records of the log, one change at a time.

Secrets and their verifiers are computed in a thread, too: each takes a millisecond or two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from trovemq_broker.admin.change_saver import ChangeSaver, Durable, never_logged
from trovemq_broker.security.changes import SecurityState
from trovemq_broker.security.table import SecurityTable
from trovemq_daemon.threads import run_in_thread
from trovemq_proto.positions import PhysicalOffset

Made = TypeVar("Made")


class SecurityChanges:
    """Makes all changes of the table while the broker runs."""

    def __init__(self, table: SecurityTable) -> None:
        self.table = table
        self.durable: Durable = never_logged
        """durable(end) returns when the log is on disk, and in a replica group committed, up to `end`;
        TroveError. The broker sets it before it serves."""
        self._changing = asyncio.Lock()
        self._saver = ChangeSaver(self._when_durable, self._changing)

    async def apply(self, make: Callable[[SecurityState], SecurityState]) -> None:
        """Replaces the present state by the one that `make` returns for it, which is on disk when this
        returns. Raises the errors of `make`, and those of ChangeSaver.save(), SERVICE_NOT_AVAILABLE."""

        async with self._changing:
            after = await run_in_thread(lambda: make(self.table.state))
            if after is self.table.state:
                return
            change = self.table.begin(after)
            await self._saver.save(change, partial(self.table.finish, change))

    async def _when_durable(self, end: PhysicalOffset) -> None:
        await self.durable(end)

    async def settle(self, commit_limit: PhysicalOffset) -> None:
        """Returns when no change is running; changes that wait for the log are made, up to the commit limit.
        The store is closed next, which syncs its log."""
        async with self._changing:
            pass
        self._saver.settle(commit_limit)
