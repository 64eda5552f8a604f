"""When consume queues are synced: at each tick if few have new units, else when it is worth it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import pytest

from tests.support.engine import NOW_MS, SMALL_SYNC, flush, open_store, scan_bodies, send
from tests.support.fake_loop import run
from trovemq_broker.maintenance import projection_flushes
from trovemq_broker.maintenance.projection_flushes import ProjectionFlushes
from trovemq_proto.positions import QueueId
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.log import state

Result = TypeVar("Result")
TOPICS = [f"topic-{number}" for number in range(10)]
INTERVAL_MS, MANY_INTERVAL_MS = 1_000, 60_000


async def inline(work: Callable[[], Result]) -> Result:
    return work()


class FlushedStore:
    """A store whose projections the broker's task flushes, while `second` runs each second. Many queues are
    ten here."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, many: int = 8) -> None:
        monkeypatch.setattr(projection_flushes, "FEW_FILES_MAX", many)
        monkeypatch.setattr(projection_flushes, "run_in_thread", inline)
        self.files = MemoryFileSystem()
        self.store = open_store(self.files, SMALL_SYNC, topics=TOPICS)
        self.task = ProjectionFlushes(self.store, INTERVAL_MS, MANY_INTERVAL_MS)
        self.sent: list[bytes] = []
        self.send_to_all()
        self.store.flush_projections()

    def send_to_all(self) -> None:
        for topic in TOPICS:
            self.sent.append(b"%d" % len(self.sent))
            send(self.store, self.sent[-1], topic=topic)
        flush(self.store)

    def run(self, seconds: int, each_second: Callable[[], None] = lambda: None) -> list[int]:
        """After how many seconds the consume queues were synced."""
        synced: list[int] = []

        async def scenario() -> None:
            task = asyncio.create_task(self.task.run())
            await asyncio.sleep(0.5)
            for second in range(1, seconds + 1):
                each_second()
                before = self.store.marked_offset
                await asyncio.sleep(1)
                if self.store.marked_offset > before:
                    synced.append(second)
            task.cancel()
            await asyncio.wait([task])

        run(scenario())
        return synced

    def opened_again(self, files: MemoryFileSystem) -> MessageStore:
        store = MessageStore.open(files, SMALL_SYNC, NOW_MS)
        assert sorted(scan_bodies(store)) == sorted(self.sent)
        for topic in TOPICS:
            assert store.consume_queues.next_offset(topic, QueueId(0)) == len(self.sent) // len(TOPICS)
        return store


def test_each_message_to_a_queue_of_its_own_cost_a_sync(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = FlushedStore(monkeypatch)
    assert broker.run(130, broker.send_to_all) == [60, 120]
    assert broker.run(130) == [60], "also where nothing more came"
    assert broker.run(130) == []


def test_the_interval_may_be_changed_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = FlushedStore(monkeypatch)
    assert broker.run(5, broker.send_to_all) == []
    broker.task.many_queues_interval_ms = 2_000
    assert broker.run(5, broker.send_to_all) == [2, 4]


def test_few_consume_queues_are_synced_each_second(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = FlushedStore(monkeypatch, many=100)
    assert broker.run(5, broker.send_to_all) == [1, 2, 3, 4, 5]


def test_a_restart_never_has_to_read_more_than_a_part_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = FlushedStore(monkeypatch)
    before = broker.store.flushed_offset
    broker.send_to_all()
    a_second = broker.store.flushed_offset - before
    monkeypatch.setattr(projection_flushes, "UNSYNCED_LOG_BYTES_MAX", 3 * a_second)
    assert broker.run(9, broker.send_to_all) == [2, 5, 8]


@pytest.mark.parametrize("crash", ["kill", "power cut"])
def test_a_crash_before_the_sync_loses_nothing_and_reads_only_the_end(
    crash: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = FlushedStore(monkeypatch)
    marked = broker.store.marked_offset
    assert broker.run(20, broker.send_to_all) == []
    files = broker.files.after_power_cut() if crash == "power cut" else broker.files.after_process_kill()
    saved = state.load(files)
    assert saved is not None
    assert saved.log_end > marked, "the end of the log is noted each second: a missing file is found out"
    assert saved.consume_queue_position == marked
    again = broker.opened_again(files)
    assert again.recovery.scan_begin == marked


def test_a_queue_newer_than_the_sync_made_all_of_them_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a power cut it has no file yet; a missing file of an old queue still has all of them made
    again."""
    broker = FlushedStore(monkeypatch)
    marked = broker.store.marked_offset
    broker.store.topics.create("new", 4)
    send(broker.store, b"new", topic="new")
    flush(broker.store)
    broker.run(3, broker.send_to_all)
    saved = state.load(broker.files)
    assert saved is not None
    assert "new" in saved.queue_ends
    assert "new" not in saved.queue_begins
    broker.sent.append(b"new")
    cut = broker.files.after_power_cut()
    assert not cut.exists("consumequeue/new")
    again = MessageStore.open(cut, SMALL_SYNC, NOW_MS)
    assert again.recovery.scan_begin == marked
    assert again.consume_queues.next_offset("new", QueueId(0)) == 1
    lacking = broker.files.after_power_cut()
    for name in lacking.list("consumequeue/topic-3/0"):
        lacking.remove(f"consumequeue/topic-3/0/{name}")
    lacking.remove_directory("consumequeue/topic-3/0")
    again = MessageStore.open(lacking, SMALL_SYNC, NOW_MS)
    assert again.recovery.scan_begin == 0
    assert sorted(scan_bodies(again)) == sorted(broker.sent)


def test_a_topic_made_again_since_the_sync_made_all_queues_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its deletion began before a sync and ended after it."""
    broker = FlushedStore(monkeypatch)
    store = broker.store
    work = store.begin_delete_topic("topic-3", NOW_MS)
    send(store, b"more", topic="topic-4")
    flush(store)
    store.flush_projections()
    marked = store.marked_offset
    work.run()
    store.finish_delete_topic(work)
    store.topics.create("topic-3", 4)
    send(store, b"new", topic="topic-3")
    flush(store)
    store.flush_projections(queues=False)
    again = MessageStore.open(broker.files.after_power_cut(), SMALL_SYNC, NOW_MS)
    assert again.recovery.scan_begin == marked
    assert again.consume_queues.next_offset("topic-3", QueueId(0)) == 1
