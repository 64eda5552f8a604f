"""Group commit: one sync makes many appends durable.

In sync mode an append is acknowledged after the sync that covers it. While a sync runs (in the kernel, or in
one thread) further appends gather; the next sync covers them all. In async mode no append waits, and the
worker syncs at intervals: when 4 pages are dirty, or every 10 s if any page is (docs/store-format.md,
"Flush"). In a replica group appends may wait for the copies, too (replica_acks.py).

Invariants
- A waiter is resolved without an error only after `finish_flush` moved the store's flushed offset past its
  end and the records were dispatched and announced: a read after the acknowledgement finds the message.
- After a failed sync nothing is acknowledged any more: the state of the pages is unknown until a restart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, Protocol

from trovemq_broker.produce.flush_settings import FlushSettings
from trovemq_broker.produce.replica_acks import CommitStore, Grown, LocalCommit, ReplicaAcks
from trovemq_broker.produce.replicated_commit import ReplicaAckSettings, ReplicatedCommit
from trovemq_broker.produce.sync_thread import SyncThread
from trovemq_broker.produce.waiters import Resolve, SyncWaiters, When, store_failed, until
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset
from trovemq_store.files.files import StorageError
from trovemq_store.files.kernel_sync import KernelSync

PAGE_SIZE: Final = 4096
GATHER_ITERATIONS: Final = 16  # of the event loop
RETRY_PAUSE_S: Final = 0.05  # after a sync that could not begin

__all__ = ["GroupCommit", "Grown"]


class Flushable(Protocol):
    """A sync that was prepared: when run() returns, which blocks, the log is on disk up to `end`.
    StorageError: nothing may be acknowledged."""

    end: PhysicalOffset

    def run(self) -> None: ...
    def begin_in_kernel(self, kernel: KernelSync, /) -> bool: ...
    def end_in_kernel(self, kernel: KernelSync, /) -> bool: ...


class FlushStore(Protocol):
    """The store, as group commit uses it."""

    @property
    def end_offset(self) -> PhysicalOffset: ...
    @property
    def flushed_offset(self) -> PhysicalOffset: ...
    def begin_flush(self) -> Flushable | None: ...
    def finish_flush(self, work: Any, /) -> Grown: ...
    def mark_failed(self) -> None: ...


class GroupCommit(SyncWaiters):
    """The flush worker and its waiters. Everything but the sync itself runs on the event loop."""

    def __init__(
        self,
        store: FlushStore,
        settings: FlushSettings,
        on_messages_available: Callable[[Grown], None],
        kernel: KernelSync | None = None,
    ) -> None:
        """`kernel`: syncs where it can, in place of the thread; it is closed by close()."""
        super().__init__(settings)
        self._store = store
        self._on_messages_available = on_messages_available
        self.copies: ReplicaAcks | None = None
        """Of a replica group."""
        self.acks_wait = settings.flush_mode == "sync"
        """Whether acknowledgements of messages may wait."""
        self.when_durable: When = self.wait
        """(end, resolve): calls `resolve` once, with None when the log is on disk up to `end`, and committed
        in a group whose `ack` is replicated; else with the error: FLUSH_DISK_TIMEOUT, REPLICA_TIMEOUT (the
        message is in the log), STORE_FAILED."""
        self._when_local: When = self.wait if self.acks_wait else _at_once
        self.when_acknowledged = self._when_local
        """The same for the log being as durable as an acknowledged message."""
        self._capacity = asyncio.Event()
        self._thread = SyncThread()
        self._kernel = kernel
        # The worker. It rests, or gathers, or a sync runs, or it waits to repeat one.
        self._loop: asyncio.AbstractEventLoop
        self._ended: asyncio.Future[None]
        self._wanted = False
        self._resting = False
        self._interval: asyncio.TimerHandle | None = None
        self._thorough_at = 0.0
        self._work: Flushable | None = None  # the sync that began last
        self._closing = False
        self._syncing = False
        self._before_sync: list[Callable[[], None]] = []
        self._gather_timer: asyncio.TimerHandle | None = None
        self.flush_count = 0

    def add_copies(
        self, store: CommitStore, replicated: ReplicatedCommit, settings: ReplicaAckSettings
    ) -> None:
        """From now on, which is before the first append, the log is that of a replica group."""
        self.copies = ReplicaAcks(
            store,
            replicated,
            settings,
            LocalCommit(
                sync=self._settings.flush_mode == "sync",
                when_synced=self.wait,
                announce=self._on_messages_available,
                moved=self._capacity.set,
                fail=self.fail,
                late_sync=self._late_sync,
            ),
        )
        self.acks_wait = True
        if settings.ack == "replicated":
            self.when_durable = self.copies.when_durable
            self.when_acknowledged = self.copies.wait

    def apply(self, settings: FlushSettings) -> None:
        """Sets the settings from now on, also for appends that wait; the flush mode cannot change."""
        self._settings = replace(settings, flush_mode=self._settings.flush_mode)
        if self.copies is not None:
            self.copies.apply(uncommitted_bytes_max=settings.uncommitted_bytes_max)
        self._set_wait(settings.sync_flush_timeout_ms)
        self._capacity.set()
        self._want()

    # --- for producers ------------------------------------------------------------------------------
    @property
    def unsynced_bytes(self) -> int:
        return self._store.end_offset - self._store.flushed_offset

    @property
    def waiting(self) -> int:
        """How many appends wait for a sync, or for the copies."""
        return len(self._waiters) + (0 if self.copies is None else self.copies.waiting)

    @property
    def _safe_offset(self) -> PhysicalOffset:
        return self._store.flushed_offset

    @property
    def full(self) -> bool:
        """Whether the bytes that wait for the disk, or for the copies, exceed their limit."""
        store = self._store
        if store.end_offset - store.flushed_offset >= self._settings.unsynced_bytes_max:
            return True
        return self.copies is not None and self.copies.full

    def appended(self) -> None:
        """Notifies the worker, and the copies, that the log grew."""
        if self.copies is not None:
            self.copies.appended()
        if self._settings.flush_mode == "sync" or self.full:
            self._want()

    @property
    def replica_timeout_count(self) -> int:
        """How many acknowledgements became REPLICA_TIMEOUT."""
        return 0 if self.copies is None else self.copies.timeout_count

    def is_replicated(self, acknowledge: str) -> bool:
        """Whether messages of a topic with that option (TopicOptions.acknowledge) wait for the copies."""
        if self.copies is None:
            return False
        return (self.copies.settings.ack if acknowledge == "group" else acknowledge) == "replicated"

    def when_acknowledged_as(self, acknowledge: str) -> When:
        """when_acknowledged of a topic with that option."""
        if self.copies is not None and self.is_replicated(acknowledge):
            return self.copies.wait
        return self._when_local

    def copies_as(self, acknowledge: str) -> int:
        """How many copies hold a message of a topic with that option when it is acknowledged."""
        if self.copies is not None and self.is_replicated(acknowledge):
            return self.copies.copies
        return 1

    async def durable(self, end: PhysicalOffset) -> None:
        """Waits until when_durable resolves. Raises its error."""
        await until(self.when_durable, end)

    async def acknowledgeable(self, end: PhysicalOffset) -> None:
        """Waits until the log up to `end` is as durable as an acknowledged message. Raises the error of
        when_acknowledged."""
        if self.acks_wait:
            await until(self.when_acknowledged, end)

    async def committed(self, end: PhysicalOffset) -> None:
        """Waits until the log up to `end` is on disk and committed, whatever `ack` is: for changes that must
        not be ahead of the commit. Raises the error of when_durable."""
        await until(self.wait if self.copies is None else self.copies.when_durable, end)

    @property
    def syncing(self) -> bool:
        """Whether a sync runs for which acknowledgements wait."""
        return self._syncing

    def before_next_sync(self, action: Callable[[], None]) -> bool:
        """Runs `action` once, before the next sync begins or when the running one takes longer than
        gather_max_ms. False, without a call, if no sync runs for which acknowledgements wait."""
        if not self._syncing:
            return False
        if not self._before_sync:
            loop = asyncio.get_running_loop()
            self._gather_timer = loop.call_later(self._settings.gather_max_ms / 1000, self._run_before_sync)
        self._before_sync.append(action)
        self._want()
        return True

    async def wait_for_capacity(self) -> None:
        """Returns when the unsynced and the uncommitted bytes are below their limits, or when the store
        failed.

        Raises TroveError OS_PAGE_CACHE_BUSY if that takes longer than `append_wait_max_ms`; in a group also
        the error with which appends are refused.
        """
        if self.copies is not None:
            self.copies.check_append()
        try:
            async with asyncio.timeout(self._settings.append_wait_max_ms / 1000):
                while self.full and self.failure is None:
                    self._capacity.clear()
                    self._want()
                    await self._capacity.wait()
        except TimeoutError:
            raise self._busy() from None

    def _busy(self) -> TroveError:
        text = f"{self.unsynced_bytes} bytes are waiting for the disk"
        if self.copies is not None and self.copies.full:
            text = f"{self.copies.uncommitted_bytes} bytes are waiting for the copies"
        return TroveError(errors.OS_PAGE_CACHE_BUSY, text)

    # --- the worker ---------------------------------------------------------------------------------
    async def run(self) -> None:
        """Serves until `stop`. Raises TroveError STORE_FAILED when a sync failed or `fail` was called."""
        self._loop = asyncio.get_running_loop()
        self._ended = self._loop.create_future()
        self._put_off_thorough()
        self._rest()
        if self._kernel is not None:
            self._loop.add_reader(self._kernel.fileno(), self._synced_by_kernel)
        try:
            await self._ended
        finally:
            if self._kernel is not None:
                self._loop.remove_reader(self._kernel.fileno())
            self._resting = False
            self._syncing = False
            self._cancel_interval()

    def _want(self) -> None:
        """Something is to be done: in the next iteration of the loop, so that one sync covers all appends of
        this one, or after the running sync."""
        self._wanted = True
        if self._resting:
            self._resting = False
            self._cancel_interval()
            self._loop.call_soon(self._look)

    def _rest(self) -> None:
        """Waits until something is wanted; in async mode for an interval at most."""
        self._resting = True
        if self._wanted or self._closing:
            self._want()
        elif self._settings.flush_mode == "async":
            self._interval = self._loop.call_later(self._settings.flush_interval_ms / 1000, self._want)

    def _cancel_interval(self) -> None:
        if self._interval is not None:
            self._interval.cancel()
            self._interval = None

    def _look(self) -> None:
        self._wanted = False
        if self._before_sync:
            self._gather(GATHER_ITERATIONS)
        else:
            self._proceed()

    def _gather(self, iterations: int) -> None:
        """Lets the loop answer callers and read calls that have arrived before the next sync begins: the more
        appends one sync covers, the fewer syncs there are. With nothing to do this takes a fraction of a
        sync."""
        if iterations:
            self._loop.call_soon(self._gather, iterations - 1)
        else:
            self._proceed()

    def _proceed(self) -> None:
        """Begins a sync if one is worth it."""
        if self._ended.done():  # cancelled
            return
        try:
            if self.failure is not None:
                raise store_failed(self.failure) from self.failure
            self._run_before_sync()
            if self._worth_a_sync():
                self._begin_sync()
            elif self._closing:
                self._ended.set_result(None)
            else:
                self._rest()
        except BaseException as error:
            self._ended.set_exception(error)

    def _worth_a_sync(self) -> bool:
        dirty = self.unsynced_bytes
        if self._settings.flush_mode == "sync" or self._closing:
            return dirty > 0
        thorough = self._loop.time() >= self._thorough_at
        if thorough:
            self._put_off_thorough()
        return dirty > 0 and (
            thorough or bool(self._waiters) or dirty >= self._settings.flush_least_pages * PAGE_SIZE
        )

    def _put_off_thorough(self) -> None:
        self._thorough_at = self._loop.time() + self._settings.flush_thorough_interval_ms / 1000

    def _begin_sync(self) -> None:
        assert not self._resting, "nothing else begins meanwhile"
        self._work = self._store.begin_flush()
        assert self._work is not None, "unsynced bytes are dirty"
        self._syncing = self._settings.flush_mode == "sync" and not self._closing
        if self._kernel is None or not self._work.begin_in_kernel(self._kernel):
            self._thread.start(self._work.run, self._synced)

    def _synced_by_kernel(self) -> None:
        assert self._kernel is not None, "its end was reported"
        assert self._work is not None, "it began"
        try:
            if not self._work.end_in_kernel(self._kernel):
                return
        except BaseException as error:  # as from the thread
            self._synced(error)
        else:
            self._synced(None)

    def _synced(self, failure: BaseException | None) -> None:
        """A sync is over: its messages are published and acknowledged in this callback."""
        if self._ended.done():  # cancelled
            return
        try:
            if self._finish(failure):
                self._capacity.set()
                self._rest()
        except BaseException as error:
            self._ended.set_exception(error)

    def _finish(self, failure: BaseException | None) -> bool:
        """False if the sync is repeated in a moment."""
        try:
            if failure is not None:
                raise failure
            grown = self._store.finish_flush(self._work)
        except StorageError as error:
            if error.scarce:  # a directory could not be opened for its sync: nothing is lost
                self._loop.call_later(RETRY_PAUSE_S, self._repeat)
                return False
            self.fail(error)
            raise store_failed(error) from error
        finally:
            self._syncing = False
        self.flush_count += 1
        self._on_messages_available(grown)
        self._resolve_up_to(self._store.flushed_offset)
        if self.copies is not None:
            self.copies.flushed()
        return True

    def _repeat(self) -> None:
        self._wanted = True
        self._rest()

    def _run_before_sync(self) -> None:
        if self._gather_timer is not None:
            self._gather_timer.cancel()
            self._gather_timer = None
        actions, self._before_sync = self._before_sync, []
        for action in actions:
            action()

    # --- time-outs, failure, end --------------------------------------------------------------------
    def fail(self, error: Exception) -> None:
        """The store failed: every waiter gets the error, and the worker ends with STORE_FAILED."""
        if self.failure is None:
            self.failure = error
            self._store.mark_failed()
        self._run_before_sync()  # each gets the error from the store
        self._fail_waiters(store_failed(self.failure))
        if self.copies is not None:
            self.copies.fail(self.failure)
        self._want()
        self._capacity.set()

    def stop(self) -> None:
        """Asks the worker to end after a last sync of whatever is dirty."""
        self._closing = True
        if self.copies is not None:
            self.copies.stop()
        self._want()

    def close(self) -> None:
        """Ends the thread; call when the worker has ended. Waits for a sync that runs."""
        if self._timer is not None:
            self._timer.cancel()
        if self.copies is not None:
            self.copies.close()
        self._thread.close()
        if self._kernel is not None:
            if self._kernel.running and self._work is not None:  # the worker was cancelled
                self._kernel.wait()
                with suppress(StorageError):  # the store has noted it: nothing is marked clean
                    self._work.end_in_kernel(self._kernel)
            self._kernel.close()
            self._kernel = None


def _at_once(_end: PhysicalOffset, resolve: Resolve) -> None:
    """An acknowledgement that waits for nothing."""
    resolve(None)
