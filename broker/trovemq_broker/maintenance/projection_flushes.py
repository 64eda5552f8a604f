"""Flushes consume queues, index and checkpoint while something changes.

The kernel takes 130 us to sync a file that got one unit. So where many consume queues have new units, their
sync waits for more of them; a restart makes the units of that part of the log again. How far the log itself
is on disk is noted at each tick.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from trovemq_broker.maintenance.background import log_failure
from trovemq_daemon.threads import run_in_thread
from trovemq_daemon.ticks import sleep_to_tick
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.files import StorageError

QUIET_FLUSHES: Final = 10  # flushes after the last change: the store syncs its index in one of this many only
FEW_FILES_MAX: Final = 32
"""Files that are synced at each tick, at 130 us each (no benchmark has a case for it). It bounds the load of
the disk, and chooses no code."""
UNSYNCED_LOG_BYTES_MAX: Final = 512 << 20
"""Of the log, since the last sync of many consume queues: read again in about a second."""


class ProjectionFlushes:
    """The task of one store, which ticks every interval_ms. many_queues_interval_ms: between two syncs of
    consume queues while many of them have new units; may be set at any time."""

    def __init__(self, store: MessageStore, interval_ms: int, many_queues_interval_ms: int) -> None:
        self._store = store
        self._interval_ms = interval_ms
        self.many_queues_interval_ms = many_queues_interval_ms
        self.flushing: Final = asyncio.Lock()
        """Held while the projections are flushed: one call at a time."""
        self._synced_s = 0.0  # by the loop's clock: the last sync of the consume queues
        self._seen: tuple[int, ...] = ()
        self._quiet = 0

    async def run(self) -> None:
        """Runs until it is cancelled. A failed call is repeated; raises TroveError STORE_FAILED if a sync
        failed."""
        loop = asyncio.get_running_loop()
        self._synced_s = loop.time()
        while True:
            await sleep_to_tick(self._interval_ms / 1000)
            await self._tick(loop.time())

    async def _tick(self, now_s: float) -> None:
        store = self._store
        now = (store.flushed_offset, store.visible_offset, len(store.lagging))
        self._quiet = self._quiet + 1 if now == self._seen else 0
        self._seen = now
        many, due = store.consume_queues.unsynced_count > FEW_FILES_MAX, self._is_due(now_s)
        if self._quiet > QUIET_FLUSHES and not (many and due):
            return
        queues = due or not many
        try:
            async with self.flushing:
                await run_in_thread(partial(store.flush_projections, queues=queues))
        except StorageError as error:
            log_failure("store.projection_flush_failed", error)
        else:
            self._synced_s = now_s if queues else self._synced_s

    def _is_due(self, now_s: float) -> bool:
        """Whether many consume queues are synced now, too."""
        unsynced_bytes = self._store.flushed_offset - self._store.marked_offset
        return (
            now_s - self._synced_s >= self.many_queues_interval_ms / 1000
            or unsynced_bytes >= UNSYNCED_LOG_BYTES_MAX
        )
