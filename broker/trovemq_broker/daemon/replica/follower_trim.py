"""A follower's retention: it removes the segments that the leader's log does not have any more.

Invariants
- The log of a follower begins nowhere after its leader's. So whatever a leader keeps for a member that lags
  (replication/kept_log.py), all its followers keep, too.
- The files of tables have the changes whose records are removed, before they are.
- While files of queues are removed, no record becomes visible: the record of a topic's deletion would remove
  files of that topic, and a new topic of its name would make others of the same names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from trovemq_broker.maintenance.background import log_failure
from trovemq_broker.maintenance.retention_task import in_steps
from trovemq_broker.maintenance.table_files import TableFiles
from trovemq_broker.produce.group_commit import Grown
from trovemq_broker.replication.frames import Offset
from trovemq_daemon.logging import get_logger
from trovemq_daemon.threads import run_in_thread, until_done
from trovemq_daemon.ticks import sleep_to_tick
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.trim import StoreTrim
from trovemq_store.files.files import StorageError

TRIM_S: Final = 2.0
SEGMENTS_MAX: Final = 10
"""In one removal."""


class FollowerTrim:
    """`run()` as long as the store is open. trim_to: segments before it may be removed. durable(end) returns
    when the log is on disk up to `end`. `grown`: these queues have new messages, which came meanwhile."""

    def __init__(
        self,
        store: MessageStore,
        trim_to: Callable[[], Offset],
        durable: Callable[[Offset], Awaitable[None]],
        grown: Callable[[Grown], None] = lambda _queues: None,
    ) -> None:
        self._store = store
        self._trim_to = trim_to
        self._grown = grown
        self._tables = TableFiles(store, durable)
        self._leaving: StoreTrim | None = None
        """Hidden from readers; its files are not all removed."""

    async def run(self) -> None:
        """Until it is cancelled, after a removal that has begun. TroveError STORE_FAILED."""
        while True:
            await sleep_to_tick(TRIM_S)
            work = asyncio.create_task(self.trim(), name="follower-trim-step")
            await until_done(work)
            try:
                work.result()
            except StorageError as error:
                log_failure("replica.trim_failed", error)
            except TroveError as error:
                if error.spec is errors.STORE_FAILED:
                    raise
                get_logger().warning("replica.trim_failed", reason=str(error))

    async def trim(self) -> int:
        """One removal. Returns how many segments it takes. TroveError; StorageError: the next call tries
        again."""
        try:
            return await self._trim()
        finally:
            # Perhaps no records follow those that came meanwhile.
            if not self._store.failed and (queues := self._store.dispatch()):
                self._grown(queues)

    async def _trim(self) -> int:
        store = self._store
        if self._leaving is None:
            end = self._end()
            if end is None or not await self._has_tables(end):
                return 0
            self._leaving = store.trim(end)
            try:
                await self._hide(self._leaving)
            except BaseException:
                self._leaving = None
                raise
        trim = self._leaving
        with store.dispatch_held():
            await in_steps(trim.follow())
            await run_in_thread(trim.remove)
        self._leaving = None
        count = (trim.physical_offset - trim.begin) // store.settings.commit_log_file_size
        get_logger().info("replica.trimmed", segments=count, log_begins=trim.physical_offset)
        return count

    def _end(self) -> Offset | None:
        """The end of the last segment that is removed next; None: there is none."""
        to = self._trim_to()
        ends = [one.end for one in self._store.closed_segments()[:SEGMENTS_MAX] if one.end <= to]
        return ends[-1] if ends else None

    async def _has_tables(self, end: Offset) -> bool:
        """Whether the files of tables have all changes below `end`; writes them where they have not."""
        tables = self._store.tables
        if tables is None or not tables.lack_below(end):
            return True
        await self._tables.write()
        return not tables.lack_below(end)

    async def _hide(self, trim: StoreTrim) -> None:
        with self._store.dispatch_held():
            await in_steps(trim.prepare())
            await run_in_thread(trim.measure)
            trim.hide()
