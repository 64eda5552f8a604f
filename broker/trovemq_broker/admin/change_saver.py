"""Saves one change of a table: as records of the log and one group commit, or as a file written in a thread.

Invariants
- A change is complete even if its caller is cancelled.
- A change whose records were appended is made when they are on disk, also if its caller's wait timed out:
  meanwhile every other change of the table is refused with SERVICE_NOT_AVAILABLE. After a failed sync it is
  never made; the broker ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

from trovemq_broker.produce.put_status import STORED
from trovemq_daemon.threads import run_in_thread, until_done
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset

Durable = Callable[[PhysicalOffset], Awaitable[None]]
Finish = Callable[[], None]
Late = Callable[[], Awaitable[None]]


async def until_durable(durable: Durable, end: PhysicalOffset, late: Callable[[TroveError], None]) -> None:
    """Returns when the log is safe up to `end`, which makes the change. `late` is called with each time-out,
    after which this continues. STORE_FAILED, SERVICE_NOT_AVAILABLE."""
    while True:
        try:
            await durable(end)
            return
        except TroveError as error:
            if error.spec not in STORED:
                raise
            late(error)


async def never_logged(_end: PhysicalOffset) -> None:
    """For tables that are kept in files alone."""
    raise AssertionError("no change is logged")


class SavedChange(Protocol):
    """A prepared change of a table. run() makes it and may block, except if it is `logged`: then it appends
    records, at `places` and up to `end`."""

    @property
    def logged(self) -> bool: ...
    @property
    def places(self) -> Sequence[PhysicalOffset]: ...
    @property
    def end(self) -> PhysicalOffset: ...
    @property
    def run(self) -> Callable[[], None]: ...


class ChangeSaver:
    """Of one table. durable(end) returns when the log is on disk, and in a replica group committed, up to
    `end`; TroveError FLUSH_DISK_TIMEOUT, REPLICA_TIMEOUT, STORE_FAILED. `changing`: the callers hold it."""

    def __init__(self, durable: Durable, changing: asyncio.Lock) -> None:
        self._durable = durable
        self._changing: Final = changing
        self._late: dict[asyncio.Task[None], tuple[PhysicalOffset, Finish] | None] = {}
        """Changes whose outcome is not known yet; None: the last steps of one that is made."""

    async def save(self, change: SavedChange, finish: Finish, late: Late | None = None) -> None:
        """Runs the change. `finish` is called once, when its outcome is known, perhaps after an error. `late`
        is called after it, with the lock held, where the caller's wait has timed out: it makes the caller's
        next steps. The errors of Change.run(), FLUSH_DISK_TIMEOUT, REPLICA_TIMEOUT: the change is in the log;
        STORE_FAILED."""
        if not change.logged:
            try:
                await run_in_thread(change.run)
            finally:
                finish()
            return
        failure: Exception | None = None
        try:
            change.run()
        except Exception as error:
            failure = error  # the first parts may be in the log, and are made when they are on disk
        if change.places:
            await self._made(change.end, finish, late)
        else:
            finish()
        if failure is not None:
            raise failure

    async def _made(self, end: PhysicalOffset, finish: Finish, late: Late | None) -> None:
        """Returns when the log is on disk up to `end`, and `finish` was called. The errors of save()."""
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[None] = loop.create_future()
        task = loop.create_task(self._complete(end, finish, late, reply))
        self._late[task] = end, finish
        task.add_done_callback(lambda done: self._late.pop(done, None))
        try:
            await asyncio.shield(reply)
        except asyncio.CancelledError:
            await until_done(reply)
            raise

    async def _complete(
        self, end: PhysicalOffset, finish: Finish, late: Late | None, reply: asyncio.Future[None]
    ) -> None:
        try:
            await self._await_log(end, reply)
            if reply.done():
                async with self._changing:
                    self._note_made()
                    finish()
                    if late is not None:
                        await late()
            else:
                finish()
                reply.set_result(None)
        except Exception as error:
            if not reply.done():
                reply.set_exception(error)

    def _note_made(self) -> None:
        """settle() does not make the change of this task any more."""
        task = asyncio.current_task()
        assert task is not None, "it is called in a task"
        self._late[task] = None

    async def _await_log(self, end: PhysicalOffset, reply: asyncio.Future[None]) -> None:
        """Returns when the log is on disk up to `end`; the caller gets the first time-out. STORE_FAILED."""

        def late(error: TroveError) -> None:
            if not reply.done():
                reply.set_exception(error)

        await until_durable(self._durable, end, late)

    def settle(self, commit_limit: PhysicalOffset) -> None:
        """Makes the changes that still wait for the log. Call when no sync runs any more and the store is
        about to be closed, which syncs them; not if it has failed. A change beyond the commit limit is not
        made: a later leader may cut it."""
        late, self._late = self._late, {}
        for task, waiting in late.items():
            if waiting is not None and not task.done():
                end, finish = waiting
                task.cancel()
                if end <= commit_limit:
                    finish()
