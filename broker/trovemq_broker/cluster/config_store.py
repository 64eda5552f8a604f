"""The table of this broker's store, changed by one at a time, and its id."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Final, Protocol

from trovemq_broker.admin.change_saver import Durable, until_durable
from trovemq_broker.cluster.config_dropped import DroppedChanges
from trovemq_broker.cluster_config.entries import Generation
from trovemq_broker.cluster_config.logged import LoggedTable
from trovemq_broker.cluster_config.stored import StoredTable, StoredWork
from trovemq_daemon.threads import run_in_thread, until_done
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_store.files.failures import reported
from trovemq_store.files.files import FileSystem, StorageError

STORE_ID_PATH: Final = "config/trovemq-store-id"
_STORE_ID: Final = re.compile(rb"[0-9a-f]{16}\n?")


class TableWork(Protocol):
    """A change of the table that has begun: StoredWork, or that of an owner or a follower round it."""

    def run(self) -> None: ...


class Signal:
    """Wakes all coroutines that wait for a change of the state."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify(self) -> None:
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self, timeout_s: float | None = None) -> None:
        """Returns at the next notify(), or after the time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        except TimeoutError:
            pass


class ConfigStore:
    """The table, its lock, and the store's id. `draw_id`: 16 hex digits by chance."""

    def __init__(
        self,
        stored: StoredTable,
        files: FileSystem,
        draw_id: Callable[[], str],
        committed: Durable | None = None,
    ) -> None:
        """`committed(end)` returns when the log is on disk and committed up to there; of a LoggedTable."""
        self.stored: Final = stored
        self.lock: Final = asyncio.Lock()
        """Held round begin(), run() and finish() of each change."""
        self.dropped: Final = DroppedChanges(files)
        self._files = files
        self._draw_id = draw_id
        self._id = ""
        self._logged = stored if isinstance(stored, LoggedTable) else None
        assert (self._logged is None) == (committed is None), "records wait for the log"
        self._committed = committed
        self._waiting: asyncio.Task[None] | None = None
        self._is_over = False

    async def store_id(self) -> str:
        """Made when it is needed first. TroveError STORE_FAILED, DISK_FULL."""
        if not self._id:
            self._id = self.stored.store_id or await run_in_thread(self._read_id)
            self.stored.store_id = self._id
        return self._id

    def _read_id(self) -> str:
        try:
            if self._files.exists(STORE_ID_PATH):
                content = self._files.read_bytes(STORE_ID_PATH)
                if _STORE_ID.fullmatch(content):
                    return content.strip().decode()
            drawn = self._draw_id()
            self._files.write_atomic(STORE_ID_PATH, drawn.encode() + b"\n")
            return drawn
        except StorageError as error:
            what = f"{STORE_ID_PATH} cannot be read or written"
            raise reported(error, what, errors.STORE_FAILED, file=STORE_ID_PATH) from error

    async def run(self, work: TableWork) -> None:
        """Makes a change that has begun durable. The caller holds the lock, and ends the change then, also
        after an error: TroveError DISK_FULL, STORE_FAILED, UNKNOWN_ERROR, LIMIT_EXCEEDED; those of
        MessageStore.append(); SERVICE_NOT_AVAILABLE if this broker stops before it is committed.

        A caller that is cancelled continues afterwards."""
        if self._logged is None:
            await run_in_thread(work.run)
            return
        work.run()
        if (end := self._logged.appended_end) is None:
            return
        assert self._committed is not None, "its changes are records"
        committed = until_durable(self._committed, end, late=lambda _error: None)
        self._waiting = waiting = asyncio.create_task(committed, name="config-commit")
        if self._is_over:
            waiting.cancel()
        try:
            await until_done(waiting)
        finally:
            self._waiting = None
            if waiting.cancelled() or waiting.exception() is not None:
                self._logged.lose()
        if waiting.cancelled():
            what = "this broker stops, or leads its group no more; the change may or may not have been made"
            raise TroveError(errors.SERVICE_NOT_AVAILABLE, what, in_doubt="true")
        try:
            waiting.result()
        except TroveError as error:
            raise TroveError(error.spec, error.message, **{**error.fields, "in_doubt": "true"}) from error

    @property
    def must_record(self) -> bool:
        """Whether a replica group's log lacks the table of a file."""
        return self._logged is not None and self._logged.must_be_recorded

    async def record(self) -> None:
        """Makes the table of a file records of the log. TroveError: the next change does it."""
        async with self.lock:
            if self._logged is not None and self._logged.must_be_recorded:
                await self.save(self._logged.begin_recording())

    def end(self) -> None:
        """No change waits any more for its commit."""
        self._is_over = True
        if self._waiting is not None:
            self._waiting.cancel()

    async def save(self, work: StoredWork) -> None:
        """Ends a change that has begun. The caller holds the lock. TroveError DISK_FULL, STORE_FAILED; then
        nothing has changed."""
        try:
            await self.run(work)
        finally:
            self.stored.finish(work)

    async def promise(self, generation: Generation, cluster: str) -> None:
        """Stores that no older generation is obeyed. TroveError CONFIG_OTHER_CLUSTER, CONFIG_GENERATION_OLD,
        DISK_FULL, STORE_FAILED."""
        async with self.lock:
            await self.save(self.stored.begin_promise(generation, cluster))

    async def note_removal(self) -> None:
        """Stores that this broker is no member any more. TroveError DISK_FULL, STORE_FAILED."""
        async with self.lock:
            if not self.stored.removed:
                await self.save(self.stored.begin_removal())

    async def see(self, generation: Generation, cluster: str) -> None:
        """Stores a generation that was seen elsewhere, if it is a later one."""
        try:
            await self.promise(generation, cluster)
        except TroveError as error:
            if error.spec is not errors.CONFIG_GENERATION_OLD:
                raise
