"""Group commit: who waits is answered once, after the sync, the dispatch and the announcement."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import threading
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from tests.support.engine import NOW_MS, SMALL_SYNC, append, flush, open_store, record
from tests.support.fake_loop import turns
from tests.unit.storage.test_kernel_sync import Kernel, ended, sync_of
from trovemq_broker.produce.flush_settings import FlushSettings
from trovemq_broker.produce.group_commit import FlushStore, GroupCommit
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import LOG_ORIGIN, PhysicalOffset, QueueId
from trovemq_store.files.files import StorageError
from trovemq_store.files.kernel_sync import KernelSync
from trovemq_store.files.real import RealFileSystem
from trovemq_store.settings import FlushMode

END: Final = PhysicalOffset(100)
LATER: Final = PhysicalOffset(200)


@dataclass
class Work:
    store: Store
    end: PhysicalOffset

    def run(self) -> None:
        self.store.syncs += 1
        assert self.store.gate.wait(10)
        if self.store.sync_error is not None:
            raise self.store.sync_error

    def begin_in_kernel(self, kernel: KernelSync) -> bool:
        return self.store.descriptor >= 0 and kernel.begin(self.store.descriptor)

    def end_in_kernel(self, kernel: KernelSync) -> bool:
        ended = kernel.end() is not None
        if ended and self.store.sync_error is not None:
            raise self.store.sync_error
        return ended


@dataclass
class Store:
    """A log of which only the ends exist; its sync waits for the gate."""

    end_offset: PhysicalOffset = LOG_ORIGIN
    flushed_offset: PhysicalOffset = LOG_ORIGIN
    syncs: int = 0
    descriptor: int = -1
    """Of a file that the kernel syncs without a thread."""
    failed: bool = False
    sync_error: StorageError | None = None
    gate: threading.Event = field(default_factory=threading.Event)
    events: list[str] = field(default_factory=list)

    def begin_flush(self) -> Work | None:
        return Work(self, self.end_offset) if self.end_offset > self.flushed_offset else None

    def finish_flush(self, work: Work) -> list[tuple[str, QueueId]]:
        self.flushed_offset = work.end
        self.events.append(f"flushed {work.end}")
        return [("orders", QueueId(0))]

    def mark_failed(self) -> None:
        self.failed = True


@asynccontextmanager
async def committing(
    store: Store, settings: FlushSettings, kernel: KernelSync | None = None
) -> AsyncIterator[GroupCommit]:
    commit = GroupCommit(store, settings, lambda grown: store.events.append(f"grown {grown}"), kernel)
    task = asyncio.create_task(commit.run())
    try:
        yield commit
    finally:
        store.gate.set()
        commit.stop()
        await asyncio.wait([task])
        commit.close()
        if not store.failed:
            task.result()


@asynccontextmanager
async def working(
    store: FlushStore, settings: FlushSettings, kernel: KernelSync | None = None
) -> AsyncIterator[tuple[GroupCommit, asyncio.Task[None]]]:
    """A worker that a test stops or cancels separately."""
    with closing(GroupCommit(store, settings, lambda _grown: None, kernel)) as commit:
        worker = asyncio.create_task(commit.run())
        await turns()
        try:
            yield commit, worker
        finally:
            worker.cancel()
            await asyncio.wait([worker])


def note(store: Store, name: str) -> Callable[[TroveError | None], None]:
    return lambda error: store.events.append(f"{name} {error.symbol if error else 'durable'}")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(240):
        while not condition():
            await asyncio.sleep(0)


@pytest.mark.asyncio
async def test_acknowledges_after_sync_dispatch_and_announcement() -> None:
    store = Store(end_offset=END)
    store.gate.set()
    async with committing(store, FlushSettings()) as commit:
        commit.when_durable(END, note(store, "a"))
        await until(lambda: len(store.events) == 3)
    assert store.events == ["flushed 100", "grown [('orders', 0)]", "a durable"]


@pytest.mark.asyncio
async def test_appends_that_come_during_a_sync_share_the_next_one() -> None:
    store = Store(end_offset=END)
    async with committing(store, FlushSettings()) as commit:
        first = asyncio.create_task(commit.durable(END))
        await until(lambda: store.syncs == 1)
        later = []
        for end in range(200, 1200, 100):
            store.end_offset = PhysicalOffset(end)
            later.append(asyncio.create_task(commit.durable(PhysicalOffset(end))))
        await asyncio.sleep(0)
        assert not first.done()
        store.gate.set()
        await asyncio.gather(first, *later)
        assert store.syncs == 2
        assert store.flushed_offset == 1100


@pytest.mark.asyncio
async def test_a_waiter_of_an_earlier_append_may_come_later() -> None:
    """A coalesced send waits one iteration of the loop after its append; a frame may overtake it there."""
    store = Store(end_offset=PhysicalOffset(300))
    async with committing(store, FlushSettings()) as commit:
        for end in (200, 100, 300, 250):
            commit.when_durable(PhysicalOffset(end), note(store, str(end)))
        store.gate.set()
        await until(lambda: len(store.events) == 6)
    assert store.events[2:] == ["100 durable", "200 durable", "250 durable", "300 durable"]


@pytest.mark.asyncio
async def test_an_earlier_waiter_does_not_hold_up_the_time_outs_of_others() -> None:
    store = Store(end_offset=LATER)
    async with committing(store, FlushSettings(sync_flush_timeout_ms=1)) as commit:
        commit.when_durable(LATER, note(store, "b"))
        commit.when_durable(END, note(store, "a"))
        await until(lambda: len(store.events) == 2)
        assert store.events == ["a FLUSH_DISK_TIMEOUT", "b FLUSH_DISK_TIMEOUT"]
        store.gate.set()


@pytest.mark.asyncio
async def test_time_outs_came_late_after_their_limit_was_lowered() -> None:
    store = Store(end_offset=LATER)
    async with committing(store, FlushSettings(sync_flush_timeout_ms=3_600_000)) as commit:
        commit.when_durable(END, note(store, "a"))
        commit.apply(FlushSettings(sync_flush_timeout_ms=1))
        commit.when_durable(LATER, note(store, "b"))
        await until(lambda: len(store.events) == 2)
        assert store.events == ["a FLUSH_DISK_TIMEOUT", "b FLUSH_DISK_TIMEOUT"]
        store.gate.set()


@pytest.mark.asyncio
async def test_stopping_during_a_sync_still_syncs_what_came_meanwhile() -> None:
    store = Store(end_offset=END)
    async with committing(store, FlushSettings()) as commit:
        commit.when_durable(END, note(store, "a"))
        await until(lambda: store.syncs == 1)
        store.end_offset = LATER
        commit.when_durable(LATER, note(store, "b"))
        commit.stop()
        store.gate.set()
        await until(lambda: "b durable" in store.events)
    assert store.events.count("b durable") == 1


@pytest.mark.asyncio
async def test_what_is_durable_already_is_answered_at_once() -> None:
    store = Store(end_offset=END, flushed_offset=END)
    async with committing(store, FlushSettings()) as commit:
        commit.when_durable(END, note(store, "a"))
        assert store.events == ["a durable"]


@pytest.mark.asyncio
async def test_a_slow_sync_answers_flush_disk_timeout_once() -> None:
    store = Store(end_offset=END)
    async with committing(store, FlushSettings(sync_flush_timeout_ms=1)) as commit:
        with pytest.raises(TroveError) as caught:
            await commit.durable(END)
        assert caught.value.spec is errors.FLUSH_DISK_TIMEOUT
        assert commit.timeout_count == 1
        store.gate.set()
        await until(lambda: store.flushed_offset == 100)


@pytest.mark.asyncio
async def test_a_failed_sync_fails_everybody_and_ends_the_worker() -> None:
    store = Store(end_offset=END, sync_error=StorageError("fdatasync", "commitlog/0", errno.EIO))
    commit = GroupCommit(store, FlushSettings(), lambda _grown: None)
    task = asyncio.create_task(commit.run())
    waits = [asyncio.create_task(commit.durable(PhysicalOffset(end))) for end in (50, 100)]
    store.gate.set()
    results = await asyncio.gather(*waits, return_exceptions=True)
    assert [getattr(result, "symbol", None) for result in results] == ["STORE_FAILED"] * 2
    with pytest.raises(TroveError, match="STORE_FAILED"):
        await task
    assert store.failed
    assert store.flushed_offset == 0
    with pytest.raises(TroveError, match="STORE_FAILED"):
        await commit.durable(END)
    commit.close()


@pytest.mark.asyncio
async def test_space_comes_with_the_sync_and_is_refused_where_it_does_not() -> None:
    store = Store(end_offset=END)
    settings = FlushSettings(unsynced_bytes_max=100, append_wait_max_ms=1)
    async with committing(store, settings) as commit:
        assert commit.full
        with pytest.raises(TroveError, match="OS_PAGE_CACHE_BUSY"):
            await commit.wait_for_capacity()
        store.gate.set()
        await commit_capacity(commit)
        assert not commit.full


@pytest.mark.asyncio
async def test_who_waited_for_space_went_on_waiting_after_the_store_had_failed() -> None:
    store = Store(end_offset=END)
    settings = FlushSettings(unsynced_bytes_max=100, append_wait_max_ms=600_000)
    commit = GroupCommit(store, settings, lambda _grown: None)
    waiting = asyncio.create_task(commit.wait_for_capacity())
    await turns()
    commit.fail(OSError(errno.EIO, "planted"))
    await turns()
    assert waiting.done()
    await waiting
    commit.close()


async def commit_capacity(commit: GroupCommit) -> None:
    """Space, however often the short wait has to be repeated."""
    async with asyncio.timeout(240):
        while True:
            try:
                return await commit.wait_for_capacity()
            except TroveError:
                continue


@pytest.mark.asyncio
async def test_async_mode_leaves_few_pages_for_the_thorough_flush() -> None:
    store = Store(end_offset=PhysicalOffset(4096))
    store.gate.set()
    settings = FlushSettings(flush_mode="async", flush_interval_ms=1, flush_thorough_interval_ms=60_000)
    async with committing(store, settings) as commit:
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert store.syncs == 0
        store.end_offset = PhysicalOffset(4 * 4096)
        await until(lambda: commit.flush_count == 1)
        store.end_offset = PhysicalOffset(store.end_offset + 1)
    assert store.flushed_offset == store.end_offset, "the last sync takes the rest"


@pytest.mark.asyncio
async def test_async_mode_syncs_whatever_is_dirty_after_the_thorough_interval() -> None:
    store = Store(end_offset=PhysicalOffset(1))
    store.gate.set()
    settings = FlushSettings(flush_mode="async", flush_interval_ms=1, flush_thorough_interval_ms=5)
    async with committing(store, settings):
        await until(lambda: store.flushed_offset == 1)


@pytest.mark.asyncio
async def test_async_mode_syncs_at_once_for_somebody_who_waits() -> None:
    store = Store(end_offset=PhysicalOffset(1))
    store.gate.set()
    settings = FlushSettings(flush_mode="async", flush_interval_ms=60_000, flush_thorough_interval_ms=60_000)
    async with committing(store, settings) as commit:
        await commit.durable(PhysicalOffset(1))


@pytest.mark.asyncio
async def test_a_send_after_a_cancelled_sync_is_not_kept_for_the_next_one() -> None:
    store, actions = Store(end_offset=END), list[str]()
    async with working(store, FlushSettings()) as (commit, worker):
        commit.appended()
        await until(lambda: store.syncs == 1)
        assert commit.before_next_sync(lambda: actions.append("during the sync"))
        worker.cancel()
        await asyncio.wait([worker])
        kept = commit.before_next_sync(lambda: actions.append("after the end"))
        store.gate.set()
        assert not kept


LONG_MS: Final = 3_600_000


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.asyncio
async def test_a_stop_before_anybody_wants_a_sync_ends_after_it(mode: FlushMode) -> None:
    store, settings = Store(), FlushSettings(flush_mode=mode, flush_interval_ms=LONG_MS)
    async with working(store, settings) as (commit, worker):
        store.end_offset = END
        commit.stop()
        await until(lambda: store.syncs == 1)
        store.gate.set()
        await until(lambda: store.flushed_offset == END)
        await turns()
        assert worker.done()
        worker.result()


# --- syncs by the kernel itself -------------------------------------------------------------------------
@pytest.fixture
def file(tmp_path: Path) -> Generator[int]:
    descriptor = os.open(tmp_path / "log", os.O_RDWR | os.O_CREAT)
    yield descriptor
    os.close(descriptor)


@pytest.mark.asyncio
async def test_the_kernel_syncs_for_one_send_after_the_other(kernel_sync: KernelSync, file: int) -> None:
    store = Store(end_offset=END, descriptor=file)
    async with committing(store, FlushSettings(), kernel_sync) as commit:
        for number in range(1, 20):
            store.end_offset = PhysicalOffset(100 * number)
            await commit.durable(store.end_offset)
        commit.when_durable(END, note(store, "a"))
    assert store.events[:3] == ["flushed 100", "grown [('orders', 0)]", "flushed 200"]
    assert store.events[-1] == "a durable"
    assert (store.syncs, commit.flush_count) == (0, 19), "none by the thread"


@pytest.mark.asyncio
async def test_the_thread_syncs_what_the_kernel_does_not_take(kernel_sync: KernelSync) -> None:
    reader, writer = os.pipe()
    store = Store(end_offset=END, descriptor=writer)
    store.gate.set()
    async with committing(store, FlushSettings(), kernel_sync) as commit:
        await commit.durable(END)
    assert store.syncs == 1
    os.close(reader)
    os.close(writer)


@pytest.mark.asyncio
async def test_a_sync_of_the_kernel_that_fails_ends_the_worker(kernel_sync: KernelSync, file: int) -> None:
    error = StorageError("sync", "commitlog/0", errno.EIO)
    store = Store(end_offset=END, descriptor=file, sync_error=error)
    commit = GroupCommit(store, FlushSettings(), lambda _grown: None, kernel_sync)
    task = asyncio.create_task(commit.run())
    for end in (END, LATER):
        with pytest.raises(TroveError, match="STORE_FAILED"):
            await commit.durable(end)
    with pytest.raises(TroveError, match="STORE_FAILED"):
        await task
    assert store.failed
    assert store.flushed_offset == 0
    commit.close()


@pytest.mark.asyncio
async def test_a_sync_of_the_kernel_that_stands_still_stops_nobody(file: int) -> None:
    calls: list[int] = []

    def still(number: ctypes.c_long, *_arguments: object) -> int:
        calls.append(number.value)
        return 1

    kernel = KernelSync(still, (0, 1, 2, 3), 0, os.eventfd(0, os.EFD_NONBLOCK))
    store = Store(end_offset=END, descriptor=file)
    commit = GroupCommit(store, FlushSettings(sync_flush_timeout_ms=1), lambda _grown: None, kernel)
    task = asyncio.create_task(commit.run())
    commit.appended()
    await until(lambda: kernel.running)
    with pytest.raises(TroveError, match="FLUSH_DISK_TIMEOUT"):
        await commit.durable(END)
    assert calls == [3], "it was submitted, and nothing else"
    os.eventfd_write(kernel.fileno(), 1)
    await until(lambda: store.flushed_offset == END)
    commit.stop()
    await task
    commit.close()
    assert calls == [3, 2, 1]


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.asyncio
async def test_a_stop_ends_after_a_sync_of_the_kernel_that_follows(mode: FlushMode, file: int) -> None:
    store, kernel = Store(descriptor=file), sync_of(Kernel())
    settings = FlushSettings(flush_mode=mode, flush_interval_ms=LONG_MS)
    async with working(store, settings, kernel) as (commit, worker):
        store.end_offset = END
        commit.stop()
        await until(lambda: kernel.running)
        ended(kernel)
        await until(lambda: store.flushed_offset == END)
        await turns()
        assert worker.done()
        worker.result()


@pytest.mark.asyncio
async def test_a_sync_that_fails_after_the_worker_was_cancelled_is_known(tmp_path: Path) -> None:
    """Another task of the daemon failed during the sync; nothing may be marked clean then."""
    (tmp_path / "store").mkdir()
    store = open_store(RealFileSystem(tmp_path / "store"), SMALL_SYNC)
    kernel = sync_of(Kernel(result=errno.EIO))
    append(store, record(b"first"))
    flush(store)  # with the new file's directory: that is not for the kernel
    append(store, record(b"perhaps not on the disk"))
    closes = threading.Event()

    def end() -> None:
        assert closes.wait(10)
        ended(kernel)

    thread = threading.Thread(target=end)
    thread.start()
    async with working(store, FlushSettings(), kernel) as (commit, worker):
        commit.appended()
        await until(lambda: kernel.running)
        worker.cancel()
        await asyncio.wait([worker])
        closes.set()
    thread.join()
    assert store.failed
    store.close(NOW_MS)
    assert (tmp_path / "store" / "abort").exists()
