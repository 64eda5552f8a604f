"""The task that keeps the trees up with the log, on a separate clock."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from tests.support.engine import SMALL, append, flush, open_store, record
from tests.support.fake_loop import fake_time, run
from tests.support.metrics_bench import Bench
from trovemq_broker.maintenance.tree_task import POLL_S, STEP_BYTES_BUSY, STEP_BYTES_QUIET, TreeTask
from trovemq_proto.errors import TroveError
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.faulty import FaultyFileSystem, fail_always
from trovemq_store.files.files import StorageError
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.index.trees.tree_index import TreeStep

SETTINGS = replace(SMALL, tree_index_enable=True, commit_log_file_size=1 << 22, batch_size_max=1 << 22)


@pytest.fixture(autouse=True)
def steps_in_this_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop's time does not run ahead of a thread that works."""

    async def here(work: Callable[[], Any]) -> Any:
        return work()

    monkeypatch.setattr("trovemq_broker.maintenance.tree_task.run_in_thread", here)


def filled(files: FaultyFileSystem | MemoryFileSystem, messages: int = 20) -> MessageStore:
    store = open_store(files, SETTINGS)
    append(store, *(record(bytes(100), unique_key=f"{n:08}") for n in range(messages)))
    store.dispatch()
    flush(store)
    return store


async def _until_current(store: MessageStore, task: TreeTask, *, within_s: float = 60) -> None:
    assert store.trees is not None
    running = asyncio.get_running_loop().create_task(task.run())
    async with asyncio.timeout(within_s):
        while store.trees.lag_bytes and not running.done():
            await asyncio.sleep(0.01)
    if running.done():
        running.result()
    running.cancel()
    await asyncio.wait([running])


@fake_time
async def test_the_trees_catch_up_and_removals_are_held_only_while_a_step_runs() -> None:
    store = filled(MemoryFileSystem())
    await _until_current(store, TreeTask(store, 20))
    assert store.trees is not None
    assert (store.trees.lag_bytes, store.trees.search.record_count) == (0, 20)
    assert not store.removals_held()


@fake_time
async def test_a_full_disk_is_waited_out_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    files = FaultyFileSystem(MemoryFileSystem())
    store = filled(files)
    commits = 0

    def full_for_a_while(operation: str, _path: str) -> int | None:
        nonlocal commits
        commits += operation == "commit"
        return errno.ENOSPC if operation == "commit" and commits <= 3 else None

    files.decide = full_for_a_while
    task = TreeTask(store, 20)
    await _until_current(store, task)
    assert (commits, task.failure) == (4, "")
    assert not store.removals_held()


def test_a_failed_sync_of_the_trees_ends_the_broker() -> None:
    store = filled(FaultyFileSystem(MemoryFileSystem(), lambda _operation, _path: None))
    assert store.trees is not None

    def failing() -> None:
        raise StorageError("sync", "trovemq/trees", errno.EIO)

    async def scenario() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store.trees.trees, "commit", lambda _changes: failing())  # type: ignore[union-attr]
            await TreeTask(store, 20).run()

    with pytest.raises(TroveError, match="STORE_FAILED"):
        run(scenario())
    assert not store.removals_held()


@fake_time
async def test_a_store_without_trees_has_nothing_to_do() -> None:
    await TreeTask(open_store(MemoryFileSystem()), 20).run()


def pauses_while_messages_come(messages: int) -> list[float]:
    """Of a task that works for 0.01 s a step, and may use a quarter of a processor. `messages`: of 4 KiB,
    that come in each pause."""
    store = filled(MemoryFileSystem())
    pauses: list[float] = []
    times = count(step=0.01)

    async def scenario() -> None:
        task = TreeTask(store, 25, lambda: next(times))
        real_sleep = asyncio.sleep

        async def sleeping(delay: float) -> None:
            pauses.append(delay)
            append(store, *(record(bytes(1 << 12), unique_key=f"{len(pauses)}-{n}") for n in range(messages)))
            store.dispatch()
            flush(store)
            if len(pauses) == 5:
                raise asyncio.CancelledError
            await real_sleep(0)

        def step_bytes(_busy: bool) -> int:
            return 1 << 13

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("trovemq_broker.maintenance.tree_task.asyncio.sleep", sleeping)
            patch.setattr(task, "_step_bytes", step_bytes)
            with pytest.raises(asyncio.CancelledError):
                await task.run()

    run(scenario())
    return pauses


def test_while_messages_come_in_the_trees_take_only_their_share() -> None:
    assert pauses_while_messages_come(100) == [POLL_S] + [pytest.approx(0.03)] * 4


def test_a_few_messages_are_not_worth_a_step() -> None:
    """Each message that was sent alone and synced had a thread and a commit of the trees beside it."""
    assert pauses_while_messages_come(1) == [POLL_S] * 5


def test_a_trickle_of_messages_kept_the_trees_from_being_swept() -> None:
    """There always was a step to make, and entries of removed records stayed."""
    store = filled(MemoryFileSystem())
    trees = store.trees
    assert trees is not None
    looks: list[int] = []
    sweep = trees.sweep

    def looked(entries_max: int) -> bool:
        looks.append(entries_max)
        return sweep(entries_max)

    async def scenario() -> None:
        task = asyncio.get_running_loop().create_task(TreeTask(store, 20).run())
        for number in range(20):
            append(store, record(b"x", unique_key=f"{number}"))
            store.dispatch()
            flush(store)
            await asyncio.sleep(POLL_S / 2)
        task.cancel()
        await asyncio.wait([task])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trees, "sweep", looked)
        run(scenario())
    assert 8 <= len(looks) <= 12


@fake_time
async def test_at_rest_the_thread_wakes_once_a_second_or_for_new_messages() -> None:
    store = filled(MemoryFileSystem())
    trees = store.trees
    assert trees is not None
    looks: list[float] = []
    loop = asyncio.get_running_loop()
    sweep = trees.sweep

    def looked(entries_max: int) -> bool:
        looks.append(loop.time())
        return sweep(entries_max)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trees, "sweep", looked)
        task = loop.create_task(TreeTask(store, 20).run())
        await asyncio.sleep(10)
        assert 9 <= len(looks) <= 12
        append(store, record(b"one more", unique_key="new"))
        store.dispatch()
        flush(store)
        await asyncio.sleep(2 * POLL_S)
        assert trees.lag_bytes == 0
        task.cancel()
        await asyncio.wait([task])


@fake_time
async def test_look_ups_waited_for_long_steps_of_trees_that_were_behind() -> None:
    """A million messages had just come: key queries had a p99 of 5 ms until the trees had caught up."""
    store = filled(MemoryFileSystem(), 3_000)
    steps: list[int] = []
    pauses: list[float] = []
    times = count(step=0.01)
    begin_trees = store.begin_trees

    def begin(bytes_max: int) -> TreeStep | None:
        steps.append(bytes_max)
        return begin_trees(1 << 13)

    task = TreeTask(store, 20, lambda: next(times), looked_up=lambda: min(len(steps), 3))

    async def sleeping(delay: float) -> None:
        pauses.append(delay)
        if delay == POLL_S:
            raise asyncio.CancelledError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trovemq_broker.maintenance.tree_task.asyncio.sleep", sleeping)
        patch.setattr(store, "begin_trees", begin)
        with pytest.raises(asyncio.CancelledError):
            await task.run()

    quiet, *while_looked_up = steps[:4]
    assert (quiet, while_looked_up) == (STEP_BYTES_QUIET, [STEP_BYTES_BUSY] * 3)
    assert set(steps[4:]) == {STEP_BYTES_QUIET}
    assert pauses == [*[pytest.approx(0.04)] * 3, POLL_S]


@pytest.mark.asyncio
async def test_the_figures_of_the_trees_are_reported() -> None:
    bench = Bench()
    store = bench.store
    bench.statistics.store = open_store(MemoryFileSystem())  # type: ignore[misc]
    assert bench.statistics.tree_counters() == {}
    with_trees = filled(MemoryFileSystem())
    bench.statistics.store = with_trees  # type: ignore[misc]
    behind = bench.statistics.tree_counters()
    assert behind["tree_lag_bytes"] == with_trees.end_offset
    with_trees.catch_up_trees()
    assert bench.value("trovemq_tree_lag_bytes") == 0
    assert bench.value("trovemq_tree_records_total") == 20
    assert bench.value("trovemq_tree_bytes") > 0
    assert bench.value("trovemq_trees_quarantined") == 0
    bench.statistics.store = store  # type: ignore[misc]
    bench.close()


@fake_time
async def test_a_commit_that_always_fails_leaves_the_searches_to_scan() -> None:
    files = FaultyFileSystem(MemoryFileSystem())
    store = filled(files)
    files.decide = fail_always("commit", errno.ENOSPC)
    task = TreeTask(store, 20)
    with pytest.raises(TimeoutError):
        await _until_current(store, task, within_s=5)
    assert "ENOSPC" in task.failure or "injected" in task.failure
