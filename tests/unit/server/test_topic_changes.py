"""Topics are changed one at a time, on disk before the call returns, and never half."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable

import pytest

from tests.support.engine import NOW_MS, append, open_store, record, send
from trovemq_broker.admin.topic_changes import TopicChanges
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.faulty import FaultyFileSystem
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.topics.topics import TopicTable

pytestmark = pytest.mark.asyncio


class Bench:
    """A store whose writes of topics wait for `may_write`, and fail with `fault` if that is set."""

    def __init__(self) -> None:
        self.may_write = threading.Event()
        self.may_write.set()
        self.fault: int | None = None
        self.writing = threading.Event()
        self.files = FaultyFileSystem(MemoryFileSystem(), self._decide)
        self.store: MessageStore = open_store(self.files)
        self.persisted = 0
        self.changes = TopicChanges(self.store, lambda: NOW_MS, self._persist)

    def _decide(self, operation: str, path: str) -> int | None:
        if operation != "write_atomic" or path != "config/topics.json":
            return None
        self.writing.set()
        self.may_write.wait(10)
        return self.fault

    async def _persist(self) -> None:
        self.persisted += 1

    def hold(self) -> None:
        self.may_write.clear()
        self.writing.clear()

    async def until_writing(self) -> None:
        async with asyncio.timeout(240):
            while not self.writing.is_set():
                await asyncio.sleep(0)

    def on_disk(self) -> list[str]:
        return TopicTable.load(self.files).names()


async def refusal(change: Callable[[], object]) -> str:
    with pytest.raises(TroveError) as caught:
        change()
    return caught.value.symbol


async def test_a_topic_is_there_when_it_is_on_disk_and_not_before() -> None:
    bench = Bench()
    bench.hold()
    creating = asyncio.create_task(bench.changes.create("made", 2, "FIFO"))
    await bench.until_writing()
    assert bench.store.topics.get("made") is None
    other = asyncio.create_task(bench.changes.create("other", 1, "NORMAL"))
    same = asyncio.create_task(bench.changes.create("made", 2, "FIFO"))
    assert await refusal(lambda: bench.store.topics.create("sent_to")) == "SERVICE_NOT_AVAILABLE"
    bench.may_write.set()
    assert (await creating).message_type == "FIFO"
    assert (await other).queue_count == 1
    with pytest.raises(TroveError, match="exists already"):
        await same
    assert bench.on_disk() == bench.store.topics.names() == ["made", "orders", "other"]
    altered = await bench.changes.alter("made", queue_count=5, message_type=None)
    assert altered.queue_count == 5
    assert await bench.changes.alter("made", queue_count=5, message_type=None) == altered


async def test_each_of_many_topics_made_at_once_waited_for_a_sync_of_its_own() -> None:
    bench = Bench()
    writes: list[str] = []
    decide = bench.files.decide

    def noted(operation: str, path: str) -> int | None:
        writes.append(f"{operation} {path}")
        return decide(operation, path)

    bench.files.decide = noted
    bench.hold()
    creating = [asyncio.create_task(bench.changes.create(f"t{n % 60}", 1, "NORMAL")) for n in range(64)]
    await bench.until_writing()
    creating[40].cancel()
    bench.may_write.set()
    results = await asyncio.gather(*creating, return_exceptions=True)
    refused = [error.symbol for error in results if isinstance(error, TroveError)]
    assert refused == ["TOPIC_EXISTS"] * 4
    assert (
        bench.on_disk()
        == bench.store.topics.names()
        == sorted([*{f"t{n}" for n in range(60)} - {"t40"}, "orders"])
    )
    assert writes.count("write_atomic config/topics.json") <= 2


async def test_nothing_is_sent_to_a_topic_that_is_being_deleted() -> None:
    bench = Bench()
    send(bench.store, b"old")
    bench.hold()
    deleting = asyncio.create_task(bench.changes.delete("orders"))
    await bench.until_writing()
    assert bench.store.topics.get("orders") is None
    bench.may_write.set()
    assert await deleting == bench.store.end_offset
    assert bench.persisted == 1
    assert bench.on_disk() == []
    await bench.changes.create("orders", 4, "NORMAL")
    assert append(bench.store, record(b"new")).first_queue_offset == 0


@pytest.mark.parametrize("deletes", [False, True])
async def test_a_full_disk_leaves_everything_as_it_was(deletes: bool) -> None:
    bench = Bench()
    bench.fault = errno.ENOSPC
    changing = bench.changes.delete("orders") if deletes else bench.changes.create("made", 1, "NORMAL")
    with pytest.raises(TroveError) as caught:
        await changing
    assert caught.value.symbol == "DISK_FULL"
    assert bench.on_disk() == bench.store.topics.names() == ["orders"]
    bench.fault = None
    await bench.changes.create("made", 1, "NORMAL")


async def test_a_caller_that_goes_away_leaves_no_half_change() -> None:
    bench = Bench()
    bench.hold()
    creating = asyncio.create_task(bench.changes.create("made", 1, "NORMAL"))
    await bench.until_writing()
    creating.cancel()
    settled = asyncio.create_task(bench.changes.settle())
    await asyncio.sleep(0)
    assert not settled.done()
    bench.may_write.set()
    with pytest.raises(asyncio.CancelledError):
        await creating
    await settled
    assert bench.on_disk() == bench.store.topics.names() == ["made", "orders"]


async def test_groups_began_a_recreated_topic_late_after_a_cancelled_delete() -> None:
    """The topic was gone, and the groups' progress in it was not forgotten."""
    bench = Bench()
    deleted: list[str] = []
    bench.changes = TopicChanges(bench.store, lambda: NOW_MS, bench._persist, deleted.append)
    bench.hold()
    deleting = asyncio.create_task(bench.changes.delete("orders"))
    await bench.until_writing()
    deleting.cancel()
    await asyncio.sleep(0)
    bench.may_write.set()
    await asyncio.wait({deleting})
    assert deleting.cancelled()
    assert (bench.on_disk(), deleted) == ([], ["orders"])


async def test_a_topic_was_recreated_before_the_groups_offsets_were_off_the_disk() -> None:
    """A kill then brought them back as offsets in the new topic."""
    bench = Bench()
    may_persist = asyncio.Event()
    written: list[bool] = []

    async def persist() -> None:
        await may_persist.wait()
        written.append(bench.store.topics.get("orders") is not None)

    bench.changes = TopicChanges(bench.store, lambda: NOW_MS, persist)
    deleting = asyncio.create_task(bench.changes.delete("orders"))
    while bench.store.topics.get("orders") is not None:
        await asyncio.sleep(0)
    assert bench.changes.changing.locked(), "until the offsets are saved"
    deleting.cancel()
    await asyncio.wait({deleting})
    creating = asyncio.create_task(bench.changes.create("orders", 1, "NORMAL"))
    may_persist.set()
    await creating
    assert written == [False]


async def test_no_topic_is_created_before_a_deleted_ones_offsets_are_saved() -> None:
    bench = Bench()
    failures = [TroveError(errors.DISK_FULL)] * 3

    async def persist() -> None:
        if failures:
            raise failures.pop()

    bench.changes = TopicChanges(bench.store, lambda: NOW_MS, persist)
    for change in (
        bench.changes.delete("orders"),
        bench.changes.create("orders", 1, "NORMAL"),
        bench.changes.ensure_internal("%RETRY%g", 1),
    ):
        with pytest.raises(TroveError, match="DISK_FULL"):
            await change
    assert bench.store.topics.names() == []
    await bench.changes.create("orders", 1, "NORMAL")
    assert bench.on_disk() == ["orders"]
