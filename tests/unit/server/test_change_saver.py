"""A change of a table whose records are in the log: made when they are on disk, whatever its caller got."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from tests.support.engine import NOW_MS, SMALL_SYNC, flush, send
from trovemq_broker.admin.group_changes import GroupChanges
from trovemq_broker.admin.topic_changes import TopicChanges
from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.groups.delivery.delivery import Delivery
from trovemq_broker.maintenance import consumer_tasks
from trovemq_broker.maintenance.table_files import TableFiles
from trovemq_broker.state.consumer_state import ConsumerState
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset, QueueId
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.settings import StoreSettings
from trovemq_store.topics.names import retry_topics
from trovemq_store.topics.subscription_groups import SubscriptionGroup, SubscriptionGroups
from trovemq_store.topics.table_notes import NOTES_PATH
from trovemq_store.topics.topics_file import TOPICS_PATH

pytestmark = pytest.mark.asyncio
SETTINGS = replace(SMALL_SYNC, tables_in_log=True)


class Bench:
    """A store whose log is synced by sync(); until then the waits for it last, or end with `failure`."""

    def __init__(self, files: MemoryFileSystem | None = None, settings: StoreSettings = SETTINGS) -> None:
        self.files = files or MemoryFileSystem()
        self.store = MessageStore.open(self.files, settings, NOW_MS)
        self.synced = asyncio.Event()
        self.waits = 0
        self.deleted: list[str] = []
        self.failures: list[TroveError] = []
        self.changes = TopicChanges(
            self.store, lambda: NOW_MS, self._nothing, self.deleted.append, durable=self._durable
        )

    async def _nothing(self) -> None:
        """Offsets are not saved here."""

    async def _durable(self, end: PhysicalOffset) -> None:
        self.waits += 1
        if self.failures:
            raise self.failures.pop(0)
        if self.synced.is_set():
            flush(self.store)
        await self.synced.wait()
        assert self.store.flushed_offset >= end

    def sync(self) -> None:
        flush(self.store)
        self.synced.set()

    async def until_waiting(self, waits: int = 1) -> None:
        await until(lambda: self.waits >= waits)

    def after_power_cut(self) -> MessageStore:
        return MessageStore.open(self.files.after_power_cut(), SETTINGS, NOW_MS)


async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):  # a thread may have to do something before
        while not happened():
            await asyncio.sleep(0.001)


def timed_out() -> TroveError:
    return TroveError(errors.FLUSH_DISK_TIMEOUT)


async def code(awaitable: object) -> str:
    assert asyncio.isfuture(awaitable)
    with pytest.raises(TroveError) as caught:
        await awaitable
    return caught.value.spec.symbol


async def test_a_topic_exists_when_its_record_is_on_disk() -> None:
    bench = Bench()
    creating = asyncio.ensure_future(bench.changes.create("orders", 2, "NORMAL"))
    await bench.until_waiting()
    assert "orders" not in bench.store.topics
    bench.sync()
    assert (await creating).queue_count == 2
    assert "orders" in bench.after_power_cut().topics
    assert not bench.files.exists(TOPICS_PATH)


@pytest.mark.parametrize(
    ("spec", "name"),
    [(errors.FLUSH_DISK_TIMEOUT, "FLUSH_DISK_TIMEOUT"), (errors.REPLICA_TIMEOUT, "REPLICA_TIMEOUT")],
)
async def test_a_topic_whose_wait_timed_out_was_never_there(spec: errors.ErrorSpec, name: str) -> None:
    bench = Bench()
    bench.failures.append(TroveError(spec))
    creating = asyncio.ensure_future(bench.changes.create("orders", 2, "NORMAL"))
    assert await code(creating) == name
    other = asyncio.ensure_future(bench.changes.create("bills", 2, "NORMAL"))
    assert await code(other) == "SERVICE_NOT_AVAILABLE"
    bench.sync()
    await bench.until_waiting(2)
    await until(lambda: "orders" in bench.store.topics)
    await bench.changes.create("bills", 2, "NORMAL")


async def test_a_late_change_waits_until_no_other_is_under_way() -> None:
    bench = Bench()
    bench.failures.append(timed_out())
    creating = asyncio.ensure_future(bench.changes.create("orders", 2, "NORMAL"))
    assert await code(creating) == "FLUSH_DISK_TIMEOUT"
    async with bench.changes.changing:
        bench.sync()
        for _ in range(20):
            await asyncio.sleep(0)
        assert "orders" not in bench.store.topics, "retention removes files of queues, perhaps"
    await until(lambda: "orders" in bench.store.topics)


async def test_a_refused_append_changes_nothing() -> None:
    bench = Bench()
    bench.store.mark_failed()
    creating = asyncio.ensure_future(bench.changes.create("orders", 2, "NORMAL"))
    assert await code(creating) == "STORE_FAILED"
    assert "orders" not in bench.store.topics
    assert bench.store.end_offset == 0


async def test_topics_before_a_refused_one_were_made_before_a_sync() -> None:
    """A change of many topics that needs two runs: the second one was refused."""
    bench = Bench(settings=replace(SETTINGS, batch_size_max=600))
    append, runs = bench.store.append, []

    def refuse_second(*arguments: Any, **named: Any) -> Any:
        runs.append(arguments)
        if len(runs) > 1:
            raise TroveError(errors.DISK_FULL)
        return append(*arguments, **named)

    bench.store.append = refuse_second  # type: ignore[method-assign]
    names = ("orders", "bills", "late")
    async with bench.changes.changing:
        creating = [asyncio.ensure_future(bench.changes.create(name, 2, "NORMAL")) for name in names]
        await asyncio.sleep(0)
    await until(lambda: len(runs) == 2)
    for _ in range(20):
        await asyncio.sleep(0)
    early = [one.done() for one in creating]
    bench.sync()
    assert not any(early), "nothing is on disk"
    assert (await creating[0]).name == "orders"
    assert await code(creating[2]) == "DISK_FULL"
    again = bench.after_power_cut().topics
    assert again.names() == bench.store.topics.names()
    assert "orders" in again


async def test_a_failed_sync_makes_no_topic() -> None:
    bench = Bench()
    bench.failures.append(TroveError(errors.STORE_FAILED))
    creating = asyncio.ensure_future(bench.changes.create("orders", 2, "NORMAL"))
    assert await code(creating) == "STORE_FAILED"
    await bench.changes.settle()
    assert "orders" not in bench.store.topics


async def test_a_cancelled_caller_leaves_a_whole_change() -> None:
    bench = Bench()
    creating = asyncio.ensure_future(bench.changes.create("orders", 2, "NORMAL"))
    await bench.until_waiting()
    creating.cancel()
    await asyncio.sleep(0)
    creating.cancel()
    bench.sync()
    with pytest.raises(asyncio.CancelledError):
        await creating
    assert "orders" in bench.store.topics


async def test_a_deletion_removes_files_when_it_is_on_disk() -> None:
    bench = Bench()
    bench.synced.set()
    bench.store.topics.create("orders", 2)
    send(bench.store, b"one")
    flush(bench.store)
    bench.synced.clear()
    deleting = asyncio.ensure_future(bench.changes.delete("orders"))
    await bench.until_waiting()
    assert "orders" not in bench.store.topics
    assert bench.store.consume_queues.get("orders", QueueId(0)) is not None
    bench.sync()
    await deleting
    assert bench.store.consume_queues.get("orders", QueueId(0)) is None
    assert bench.deleted == ["orders"]
    assert "orders" not in bench.after_power_cut().topics


async def test_a_deletion_whose_append_was_refused_leaves_the_topic() -> None:
    bench = Bench()
    bench.synced.set()
    bench.store.topics.create("orders", 2)
    send(bench.store, b"one")
    flush(bench.store)
    refused = TroveError(errors.DISK_FULL)

    def refuse(*_arguments: object, **_named: object) -> object:
        raise refused

    bench.store.append = refuse  # type: ignore[method-assign, assignment]
    deleting = asyncio.ensure_future(bench.changes.delete("orders"))
    assert await code(deleting) == "DISK_FULL"
    assert "orders" in bench.store.topics
    again = bench.after_power_cut()
    assert again.deleted_below("orders") == 0
    assert "orders" in again.topics


async def test_a_change_that_waits_at_the_stop_is_in_the_files() -> None:
    bench = Bench()
    bench.failures += [timed_out()]
    creating = asyncio.ensure_future(bench.changes.create("orders", 2, "NORMAL"))
    assert await code(creating) == "FLUSH_DISK_TIMEOUT"
    await bench.changes.settle()
    bench.store.close(NOW_MS)
    before = MessageStore.open(bench.files, replace(SETTINGS, tables_in_log=False), NOW_MS)
    assert "orders" in before.topics


async def test_a_change_that_no_copy_had_was_made_at_the_stop() -> None:
    bench = Bench()
    bench.store.limit_commits(bench.store.visible_offset)
    bench.failures.append(TroveError(errors.REPLICA_TIMEOUT))
    creating = asyncio.ensure_future(bench.changes.create("orders", 2, "NORMAL"))
    assert await code(creating) == "REPLICA_TIMEOUT"
    await bench.changes.settle()
    bench.store.close(NOW_MS)
    assert not bench.files.exists(TOPICS_PATH), "a later leader may cut its record"


# --- files --------------------------------------------------------------------------------------------
async def test_a_file_is_written_when_the_log_has_its_changes_on_disk() -> None:
    bench = Bench()
    files = TableFiles(bench.store, bench._durable)
    bench.store.topics.create("orders", 2)
    writing = asyncio.ensure_future(files.write())
    await bench.until_waiting()
    bench.store.topics.create("bills", 2)
    assert not bench.files.exists(NOTES_PATH)
    bench.sync()
    await writing
    assert bench.files.exists(TOPICS_PATH)
    assert bench.store.tables is not None
    assert bench.store.tables.begin_write() is not None, "the file lacks the second topic"


async def test_a_topic_that_was_closed_late_stayed_open_for_streams() -> None:
    bench = Bench()
    closed: list[str] = []
    bench.changes = TopicChanges(
        bench.store, lambda: NOW_MS, bench._nothing, closed=closed.append, durable=bench._durable
    )
    bench.sync()
    config = await bench.changes.create("orders", 2, "NORMAL")
    bench.synced.clear()
    bench.failures.append(timed_out())
    found = await bench.changes.put_all({"orders": lambda _present: replace(config, perm=4)})
    assert found["orders"].spec is errors.FLUSH_DISK_TIMEOUT
    assert closed == []
    bench.sync()
    await until(lambda: bench.store.topics.require("orders").perm == 4)
    assert closed == ["orders"]


class GroupBench(Bench):
    """With one group, which has messages of `orders` in flight."""

    def __init__(self) -> None:
        super().__init__()
        self.groups = SubscriptionGroups.load(self.files)
        assert self.store.tables is not None
        self.store.tables.attach(self.groups)
        self.forgotten: list[str] = []
        self.changed: list[str] = []
        self.gone: list[str] = []
        self.group_changes = GroupChanges(
            self.groups,
            self.store,
            cast("Delivery", self),
            self.changes,
            lambda: NOW_MS,
            self._nothing,
            self.changed.append,
            self.gone.append,
            self._durable,
        )

    def pairs(self) -> list[tuple[str, str]]:
        return [] if self.forgotten else [("workers", "orders")]

    def forget_group(self, name: str, _now_ms: int) -> None:
        self.forgotten.append(name)


async def test_a_group_that_was_altered_late_kept_its_settings_for_streams() -> None:
    bench = GroupBench()
    bench.sync()
    await bench.group_changes.create(SubscriptionGroup("workers"))
    bench.synced.clear()
    bench.failures.append(timed_out())
    policy = bench.groups.require("workers").retry_policy
    altering = bench.group_changes.alter("workers", orderly=False, retry_max=3, retry_policy=policy)
    assert await code(asyncio.ensure_future(altering)) == "FLUSH_DISK_TIMEOUT"
    assert bench.changed == []
    bench.sync()
    await until(lambda: bench.groups.require("workers").retry_max == 3)
    assert bench.changed == ["workers"]


async def test_a_group_whose_deletion_timed_out_kept_its_retry_topics() -> None:
    bench = GroupBench()
    bench.sync()
    await bench.group_changes.create(SubscriptionGroup("workers"))
    (retry, *_) = retry_topics("workers", "orders")
    await bench.changes.ensure_internal(retry, 1)
    bench.synced.clear()
    bench.failures.append(timed_out())
    deleting = bench.group_changes.delete("workers")
    assert await code(asyncio.ensure_future(deleting)) == "FLUSH_DISK_TIMEOUT"
    assert bench.forgotten == []
    assert retry in bench.store.topics
    bench.sync()
    await until(lambda: retry not in bench.store.topics)
    await until(lambda: bench.gone == ["workers"])
    assert "workers" not in bench.groups
    assert bench.forgotten == ["workers"]


async def test_a_wanted_snapshot_was_forgotten_when_its_wait_timed_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    bench.sync()
    model = ConsumerState.open(bench.store, bench.files, ConsumerSettings(), NOW_MS)
    await bench.changes.create("orders", 2, "NORMAL")
    assert model.saved_log_end < bench.store.end_offset
    monkeypatch.setattr(consumer_tasks, "SNAPSHOT_POLL_S", 0)
    bench.failures.append(TroveError(errors.REPLICA_TIMEOUT))
    model.request_snapshot()
    saving = asyncio.create_task(consumer_tasks.save_snapshots(model, bench._durable, lambda: NOW_MS))
    await until(lambda: model.saved_log_end == bench.store.end_offset)
    assert model.snapshot_failures == 1
    saving.cancel()
