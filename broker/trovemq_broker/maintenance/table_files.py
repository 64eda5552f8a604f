"""Writes the files of topics, groups and offsets after their records, and keeps their records in the log.

Invariants
- One write at a time, in a thread, when the log is on disk up to the changes that the files get.
- Before the log's beginning is removed, the entries whose records lie there are appended again, and then the
  files are written: their notes name records that are still there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from trovemq_daemon.logging import get_logger
from trovemq_daemon.threads import run_in_thread
from trovemq_daemon.ticks import sleep_to_tick
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.table_log import TableLog
from trovemq_store.files.failures import raise_failed_sync
from trovemq_store.files.files import StorageError

WRITE_S: Final = 3.0
"""Seconds between two writes of files whose tables change."""


NO_SPACE: Final = (errors.DISK_FULL, errors.CREATE_MAPPED_FILE_FAILED)


class TableFiles:
    """Of one store. durable(end) returns when the log is on disk up to `end`."""

    def __init__(self, store: MessageStore, durable: Callable[[PhysicalOffset], Awaitable[None]]) -> None:
        self._store = store
        self._durable = durable
        self._writing = asyncio.Lock()
        self.failures = 0
        """Writes that failed since the start; each is repeated."""
        self._failing = False

    async def run(self) -> None:
        """Runs until it is cancelled. TroveError STORE_FAILED."""
        while True:
            await sleep_to_tick(WRITE_S)
            try:
                await self.write(offsets=False)
            except (StorageError, TroveError) as error:
                self._note(error)

    def _note(self, error: StorageError | TroveError) -> None:
        if isinstance(error, StorageError):
            raise_failed_sync(error)
        elif error.spec is errors.STORE_FAILED:
            raise error
        self.failures += 1
        if not self._failing:
            get_logger().warning("store.tables_not_written", reason=str(error))
        self._failing = True

    async def write(self, *, offsets: bool = True) -> None:
        """Writes the files of tables that have changed. `offsets`: also theirs, which change all the time.
        TroveError DISK_FULL, STORE_FAILED, UNKNOWN_ERROR, FLUSH_DISK_TIMEOUT, REPLICA_TIMEOUT;
        StorageError."""
        tables = self._store.tables
        async with self._writing:
            if tables is None or (work := tables.begin_write(offsets=offsets)) is None:
                return
            await self._durable(work.end)
            await run_in_thread(work.run)
            tables.finish_write(work)
            self._failing = False

    async def carry(self, end: PhysicalOffset) -> None:
        """Appends the entries again whose records lie below `end`; the log may begin there when it returns.
        TroveError DISK_FULL, CREATE_MAPPED_FILE_FAILED: the files have them; SERVICE_NOT_AVAILABLE: there is
        no space to write the files, or a topic is being deleted; STORE_FAILED, UNKNOWN_ERROR,
        FLUSH_DISK_TIMEOUT; StorageError."""
        tables = self._store.tables
        if tables is None:
            return
        try:
            await self._carry(tables, end)
        except TroveError as error:
            if error.spec in NO_SPACE:
                with suppress(TroveError):
                    await self.write()
                _check_files(tables, end, str(error))
            raise

    async def _carry(self, tables: TableLog, end: PhysicalOffset) -> None:
        carried = 0
        while count := tables.reappend_before(end):
            carried += count
            await self._durable(self._store.end_offset)
        if carried or tables.lack_below(end):
            await self.write()
            if tables.lack_below(end):
                await self.write()  # a change was made during the first write
            _check_files(tables, end, "a topic is being deleted")


def _check_files(tables: TableLog, end: PhysicalOffset, reason: str) -> None:
    """TroveError SERVICE_NOT_AVAILABLE."""
    if tables.lack_below(end):
        what = f"files of tables lack changes whose records lie below {end}: {reason}"
        raise TroveError(errors.SERVICE_NOT_AVAILABLE, what)
