"""Group commit: one sync makes many appends durable.

In sync mode an append is acknowledged after the sync that covers it. While a sync runs (in the kernel, or in
one thread) further appends gather; the next sync covers them all. In async mode no append waits, and the
worker syncs at intervals: when 4 pages are dirty, or every 10 s if any page is (docs/store-format.md,
"Flush").

Invariants
- Waiters are resolved in the order of their ends, which is the order of the appends.
- A waiter is resolved without an error only after `finish_flush` moved the store's flushed offset past its
  end and the records were dispatched and announced: a read after the acknowledgement finds the message.
- Each waiter is resolved exactly once: after a timeout its sync does not resolve it again.
- After a failed sync nothing is acknowledged any more: the state of the pages is unknown until a restart.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Protocol

from trovemq_broker.produce.sync_thread import SyncThread
from trovemq_daemon.settings import DAY_MS, GIB, setting
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset, QueueId
from trovemq_store.files.files import StorageError
from trovemq_store.files.kernel_sync import KernelSync
from trovemq_store.settings import FlushMode

PAGE_SIZE: Final = 4096
GATHER_ITERATIONS: Final = 16  # of the event loop
RETRY_PAUSE_S: Final = 0.05  # after a sync that could not begin

Grown = list[tuple[str, QueueId]]
Resolve = Callable[[TroveError | None], None]


class Flushable(Protocol):
    """A sync that was prepared: see trovemq_store.log.commit_log.FlushWork."""

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


def _flush_disk_type(text: str, _current: object) -> str:
    modes = {"SYNC_FLUSH": "sync", "ASYNC_FLUSH": "async"}
    try:
        return modes[text.strip().upper()]
    except KeyError:
        raise ValueError("must be SYNC_FLUSH or ASYNC_FLUSH") from None


@dataclass(frozen=True, kw_only=True)
class FlushSettings:
    """Times in milliseconds, sizes in bytes."""

    flush_mode: Annotated[FlushMode, setting(rocketmq="flushDiskType", convert=_flush_disk_type)] = "sync"
    """sync: an acknowledgement waits for the sync that covers it; async: syncs by interval and number of
    pages."""
    flush_in_kernel_enable: Annotated[bool, setting()] = True
    """The kernel syncs the log by a request (io_submit) where it can; otherwise a thread of the broker
    does."""
    flush_interval_ms: Annotated[
        int, setting("ms", 1, 60_000, rocketmq="flushIntervalCommitLog", restart=False)
    ] = 500
    """Async flush: how often the broker checks whether the log needs a sync."""
    flush_least_pages: Annotated[
        int, setting("pages", 0, 1_000_000, rocketmq="flushCommitLogLeastPages", restart=False)
    ] = 4
    """Async flush: the least number of dirty 4-KiB pages for a sync."""
    flush_thorough_interval_ms: Annotated[
        int, setting("ms", 1, DAY_MS, rocketmq="flushCommitLogThoroughInterval", restart=False)
    ] = 10_000
    """Async flush: how often everything is synced, at least."""
    sync_flush_timeout_ms: Annotated[
        int, setting("ms", 1, 600_000, rocketmq="syncFlushTimeout", restart=False)
    ] = 5_000
    """Sync flush: an acknowledgement that waits longer becomes FLUSH_DISK_TIMEOUT."""
    unsynced_bytes_max: Annotated[int, setting("bytes", 65_536, 64 * GIB, restart=False)] = 2_147_483_648
    """Appended bytes that may wait for their sync; beyond it sends wait for space."""
    append_wait_max_ms: Annotated[
        int, setting("ms", 1, 600_000, rocketmq="osPageCacheBusyTimeOutMills", restart=False)
    ] = 1_000
    """A send that found no space for this long is refused as OS_PAGE_CACHE_BUSY."""
    gather_max_ms: int = 5
    """How long a send waits for a running sync before it is appended."""


@dataclass(slots=True)
class _Waiter:
    end: PhysicalOffset
    deadline: float
    resolve: Resolve


class GroupCommit:
    """The flush worker and its waiters. Everything but the sync itself runs on the event loop."""

    def __init__(
        self,
        store: FlushStore,
        settings: FlushSettings,
        on_messages_available: Callable[[Grown], None],
        kernel: KernelSync | None = None,
    ) -> None:
        """`kernel`: syncs where it can, in place of the thread; it is closed by close()."""
        self._store = store
        self._settings = settings
        self._on_messages_available = on_messages_available
        self._waiters: deque[_Waiter] = deque()
        self._capacity = asyncio.Event()
        self._thread = SyncThread()
        self._kernel = kernel
        self._timer: asyncio.TimerHandle | None = None
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
        self.failure: Exception | None = None
        self.flush_count = 0
        self.timeout_count = 0

    def apply(self, settings: FlushSettings) -> None:
        """Sets the settings from now on, also for appends that wait; the flush mode cannot change."""
        self._settings = replace(settings, flush_mode=self._settings.flush_mode)
        latest = asyncio.get_running_loop().time() + settings.sync_flush_timeout_ms / 1000
        for waiter in self._waiters:  # else they would hold up the time-outs of those after them
            waiter.deadline = min(waiter.deadline, latest)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._arm_timer()
        self._capacity.set()
        self._want()

    # --- for producers ------------------------------------------------------------------------------
    @property
    def unsynced_bytes(self) -> int:
        return self._store.end_offset - self._store.flushed_offset

    @property
    def waiting(self) -> int:
        """How many appends wait for the sync that covers them."""
        return len(self._waiters)

    @property
    def full(self) -> bool:
        """Whether the bytes that wait for the disk exceed their limit."""
        store = self._store
        return store.end_offset - store.flushed_offset >= self._settings.unsynced_bytes_max

    def appended(self) -> None:
        """Notifies the worker that the log grew."""
        if self._settings.flush_mode == "sync" or self.full:
            self._want()

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

    def when_durable(self, end: PhysicalOffset, resolve: Resolve) -> None:
        """Calls `resolve` once: with None when the log is on disk up to `end`, else with the error.

        Errors: FLUSH_DISK_TIMEOUT (the message is in the log), STORE_FAILED.
        """
        if self.failure is not None:
            resolve(_store_failed(self.failure))
            return
        if end <= self._store.flushed_offset:
            resolve(None)
            return
        deadline = asyncio.get_running_loop().time() + self._settings.sync_flush_timeout_ms / 1000
        self._add(_Waiter(end, deadline, resolve))
        self._want()
        self._arm_timer()

    def _add(self, waiter: _Waiter) -> None:
        """Adds the waiter in the order of ends: nearly always last, but a later append's waiter may come an
        iteration of the loop earlier."""
        at = len(self._waiters)
        while at and self._waiters[at - 1].end > waiter.end:
            at -= 1
            waiter.deadline = self._waiters[at].deadline
        self._waiters.insert(at, waiter)

    async def wait_for_capacity(self) -> None:
        """Returns when the unsynced bytes are below their limit, or when the store failed.

        Raises TroveError OS_PAGE_CACHE_BUSY if that takes longer than `append_wait_max_ms`.
        """
        try:
            async with asyncio.timeout(self._settings.append_wait_max_ms / 1000):
                while self.full and self.failure is None:
                    self._capacity.clear()
                    self._want()
                    await self._capacity.wait()
        except TimeoutError:
            raise TroveError(
                errors.OS_PAGE_CACHE_BUSY, f"{self.unsynced_bytes} bytes are waiting for the disk"
            ) from None

    async def durable(self, end: PhysicalOffset) -> None:
        """Waits until the log is on disk up to `end`. Raises the error that when_durable reports."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def resolve(error: TroveError | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

        self.when_durable(end, resolve)
        await future

    async def acknowledgeable(self, end: PhysicalOffset) -> None:
        """Waits until the log up to `end` is as durable as an acknowledged message: in sync mode on disk."""
        if self._settings.flush_mode == "sync":
            await self.durable(end)

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
                raise _store_failed(self.failure) from self.failure
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
            raise _store_failed(error) from error
        finally:
            self._syncing = False
        self.flush_count += 1
        self._on_messages_available(grown)
        self._resolve_up_to(self._store.flushed_offset)
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

    def _resolve_up_to(self, flushed_offset: PhysicalOffset) -> None:
        while self._waiters and self._waiters[0].end <= flushed_offset:
            self._waiters.popleft().resolve(None)

    # --- time-outs, failure, end --------------------------------------------------------------------
    def _arm_timer(self) -> None:
        """Sets one timer, for the oldest waiter: the deadlines have the order of the waiters."""
        if self._timer is None and self._waiters:
            self._timer = asyncio.get_running_loop().call_at(self._waiters[0].deadline, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        while self._waiters and self._waiters[0].deadline <= now:
            self.timeout_count += 1
            waited_ms = self._settings.sync_flush_timeout_ms
            self._waiters.popleft().resolve(
                TroveError(errors.FLUSH_DISK_TIMEOUT, f"the sync did not end within {waited_ms} ms")
            )
        self._arm_timer()

    def fail(self, error: Exception) -> None:
        """The store failed: every waiter gets the error, and the worker ends with STORE_FAILED."""
        if self.failure is None:
            self.failure = error
            self._store.mark_failed()
        self._run_before_sync()  # each gets the error from the store
        while self._waiters:
            self._waiters.popleft().resolve(_store_failed(self.failure))
        self._want()
        self._capacity.set()

    def stop(self) -> None:
        """Asks the worker to end after a last sync of whatever is dirty."""
        self._closing = True
        self._want()

    def close(self) -> None:
        """Ends the thread; call when the worker has ended. Waits for a sync that runs."""
        if self._timer is not None:
            self._timer.cancel()
        self._thread.close()
        if self._kernel is not None:
            if self._kernel.running and self._work is not None:  # the worker was cancelled
                self._kernel.wait()
                with suppress(StorageError):  # the store has noted it: nothing is marked clean
                    self._work.end_in_kernel(self._kernel)
            self._kernel.close()
            self._kernel = None


def _store_failed(failure: Exception) -> TroveError:
    return TroveError(errors.STORE_FAILED, f"the store failed: {failure}")
