"""Old segments go; pending messages do not; and no crash meanwhile loses anything else."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.engine import NOW_MS, SMALL, append, flush, open_store, record, scan_bodies
from tests.support.retention import (
    AT_ONCE,
    HOUR_MS,
    LEASE_MS,
    PRESSED,
    STEPS,
    WORKERS,
    Broker,
    bodies,
)
from tests.support.trials import SOAK
from trovemq_broker.fetch.pull import Puller, PullRequest, PullSettings
from trovemq_broker.query.get_message import get_message, get_message_at
from trovemq_broker.query.key_query import KeyQuery, KeyType
from trovemq_broker.query.offsets_by_time import search_offset
from trovemq_broker.query.query_by_key import query_pages
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import LOG_ORIGIN, PhysicalOffset, QueueId, QueueOffset
from trovemq_proto.records import decode_message
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.trim import hide_now, trim_now
from trovemq_store.files.faulty import FaultyFileSystem, fail_at
from trovemq_store.files.files import StorageError
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.files.real import RealFileSystem
from trovemq_store.log.retention import DiskUse
from trovemq_store.topics.subscription_groups import SubscriptionGroup

OLD_STORE = replace(SMALL, index_item_count=128)
Restart = Callable[[Broker], Broker]


def stopped(broker: Broker) -> Broker:
    return broker.stop()


def killed(broker: Broker) -> Broker:
    assert isinstance(broker.files, MemoryFileSystem)
    return Broker(broker.files.after_process_kill(), now_ms=broker.now_ms)


def cut_off(broker: Broker) -> Broker:
    assert isinstance(broker.files, MemoryFileSystem)
    return Broker(broker.files.after_power_cut(), now_ms=broker.now_ms)


RESTARTS = pytest.mark.parametrize("restart", [stopped, killed, cut_off])


def filled(files: MemoryFileSystem | RealFileSystem, count: int = 400) -> MessageStore:
    """Messages of two topics, one of which has none in the later segments."""
    store = open_store(files, OLD_STORE, topics=("orders", "idle"))
    for number in range(count):
        topic = "idle" if number < 60 else "orders"
        body = f"{number:04d}".encode() + bytes(40)
        append(
            store,
            record(body, topic=topic, keys=f"k{number} all", unique_key=f"u{number}"),
            topic=topic,
            now_ms=NOW_MS + number,
        )
        store.dispatch()
    flush(store)
    store.flush_projections(index=True)
    return store


# --- readers ------------------------------------------------------------------------------------------
def test_a_pull_below_the_minimum_gets_the_queues_beginning() -> None:
    store = filled(MemoryFileSystem())
    trim_now(store.trim(store.closed_segments()[2].end))
    queue = store.consume_queues.get("orders", QueueId(0))
    assert queue is not None
    low = queue.min_offset
    assert low > 40
    puller = Puller(store, PullSettings())
    with pytest.raises(TroveError, match="OFFSET_OUT_OF_RANGE") as caught:
        puller.pull(PullRequest("orders", QueueId(0), QueueOffset(low - 1)))
    assert caught.value.fields["min_offset"] == str(low)
    found = puller.pull(PullRequest("orders", QueueId(0), low, bytes_max=4 << 20))
    assert found.min_offset == low
    assert found.message_count == queue.max_offset - low
    assert found.damaged_offsets == ()
    with pytest.raises(TroveError, match="OFFSET_OUT_OF_RANGE") as caught:
        get_message_at(store, "orders", QueueId(0), QueueOffset(low - 1))
    assert caught.value.fields["min_offset"] == str(low)


def test_queries_skip_what_is_gone() -> None:
    store = filled(MemoryFileSystem())
    (before,) = query_pages(store, KeyQuery("orders", "all", KeyType.KEY), messages_max=64)
    gone = get_message(store, "u70")
    trim_now(store.trim(store.closed_segments()[2].end))
    pages = list(query_pages(store, KeyQuery("orders", "all", KeyType.KEY), messages_max=10_000))
    assert sum(len(page.records) for page in pages) == len(scan_bodies(store))
    assert [note for page in pages for note in page.notes] == []
    assert pages[0].records[:5] == before.records[:5]
    for identifier in ("u70", "0A0000010000" + f"{8081:04X}" + f"{gone.physical_offsets[0]:016X}"):
        with pytest.raises(TroveError, match="MESSAGE_NOT_FOUND"):
            get_message(store, identifier)
    queue = store.consume_queues.get("orders", QueueId(0))
    assert queue is not None
    assert search_offset(store, "orders", QueueId(0), NOW_MS) == queue.min_offset
    assert search_offset(store, "idle", QueueId(0), NOW_MS) == 60, (
        "the queue is empty and continues at its end"
    )


def test_a_page_of_a_query_that_began_before_continues_after_what_is_gone() -> None:
    store = filled(MemoryFileSystem())
    pages = query_pages(store, KeyQuery("orders", "all", KeyType.KEY), messages_max=10_000)
    first = next(pages)
    assert not first.complete
    trim_now(store.trim(store.closed_segments()[-1].end))
    rest = list(pages)
    assert rest[-1].complete
    left = min(first.physical_offsets[-1], store.min_offset)
    assert all(at >= left for page in rest for at in page.physical_offsets)
    assert [note for page in rest for note in page.notes] == []


def test_a_scan_that_is_under_way_continues_where_the_log_begins_now() -> None:
    store = filled(MemoryFileSystem())
    scan = store.scan(LOG_ORIGIN, store.visible_offset, bytes_max=1_000)
    next(scan)
    trim_now(store.trim(store.closed_segments()[1].end))
    found = [message.body for _, records, _ in scan for message in records.messages()]
    assert found == scan_bodies(store)


def test_views_of_a_removed_segment_stay_valid(tmp_path: Path) -> None:
    store = filled(RealFileSystem(tmp_path))
    slices = Puller(store, PullSettings()).pull(PullRequest("idle", QueueId(0), QueueOffset(0))).slices
    segment = store.closed_segments()[0]
    content = b"".join(bytes(piece) for piece in slices)
    trim_now(store.trim(segment.end))
    assert not (tmp_path / segment.file.path).exists()
    assert b"".join(bytes(piece) for piece in slices) == content
    assert decode_message(content[: int.from_bytes(content[:4])]).topic == "idle"
    with pytest.raises(StorageError, match="EBADF"):
        segment.file.view()
    store.close(NOW_MS)


# --- the files ------------------------------------------------------------------------------------------
def test_files_go_oldest_first_and_each_segment_leaves_before_the_next() -> None:
    files = FaultyFileSystem(MemoryFileSystem())
    store = filled(files)  # type: ignore[arg-type]
    files.calls.clear()
    opened = files.open_count
    trim = store.trim(store.closed_segments()[2].end)
    trim_now(trim)
    calls = [call for call in files.calls if call[0] in ("remove", "sync_directory")]
    segment_paths = [f"commitlog/{n * 12_288:020d}" for n in range(3)]
    expected = [
        call for path in segment_paths for call in (("remove", path), ("sync_directory", "commitlog"))
    ]
    assert calls[:6] == expected
    removed = [path for operation, path in calls if operation == "remove"]
    assert removed == sorted(removed), "segments, then queues, then the index; and the oldest first"
    for topic in ("idle", "orders"):
        queue = store.consume_queues.get(topic, QueueId(0))
        assert queue is not None
        directory = f"consumequeue/{topic}/0"
        gone = [path for path in removed if path.startswith(directory)]
        assert len(gone) >= 2
        assert queue.file_offsets[0] == 20 * len(gone) <= queue.min_offset
        assert files.list(directory) == [f"{20 * offset:020d}" for offset in queue.file_offsets]
        assert calls.count(("sync_directory", directory)) == len(gone)
    assert removed[-1].startswith("index/")
    assert files.open_count <= opened - 4, "the segments and the index file are closed"
    store.close(NOW_MS)
    assert files.open_count == 0


def test_index_files_stay_while_they_name_a_record_that_is_there() -> None:
    store = filled(MemoryFileSystem())
    index = store.key_index
    assert index is not None
    names = index.file_names
    assert len(names) > 4
    for segment in store.closed_segments():
        trim_now(store.trim(segment.end))
        ends = [file.end_physical for file in index._index_files]
        assert all(end >= store.min_offset for end in ends)
        assert index.file_names == names[-len(ends) :]
        assert store.files.list("index") == index.file_names
    assert len(index.file_names) >= 1


def test_the_last_segment_and_what_is_not_on_disk_stay() -> None:
    store = open_store(MemoryFileSystem(), OLD_STORE)
    assert store.closed_segments() == []
    append(store, record(bytes(8_000)))
    append(store, record(bytes(8_000)))
    store.dispatch()
    assert store.closed_segments() == [], "not synced"
    flush(store)
    assert store.closed_segments() == [], "a restart would look for it"
    store.flush_projections()
    assert [segment.start for segment in store.closed_segments()] == [0]
    with pytest.raises(AssertionError):
        store.trim(PhysicalOffset(2 * 12_288))


@pytest.mark.parametrize("nth", range(1, 9))
def test_a_removal_that_fails_continues_at_the_next_call(nth: int) -> None:
    files = FaultyFileSystem(MemoryFileSystem())
    store = filled(files)  # type: ignore[arg-type]
    trim = store.trim(store.closed_segments()[2].end)
    hide_now(trim)
    failing = "remove" if nth % 2 else "sync_directory"
    files.decide = fail_at(failing, 1 + nth // 2, errno.EIO)
    with pytest.raises(StorageError):
        trim.remove()
    assert scan_bodies(store), "the store continues meanwhile"
    trim.remove()
    assert files.list("commitlog")[0] == f"{trim.physical_offset:020d}"
    after = MessageStore.open(files.inner.after_process_kill(), OLD_STORE, NOW_MS)  # type: ignore[attr-defined]
    assert scan_bodies(after) == scan_bodies(store)


@pytest.mark.untraced
@settings(max_examples=300 if SOAK else 60, deadline=None, derandomize=True)
@given(step=st.integers(0, 40), seed=st.integers(0, 999), odds=st.sampled_from([None, 0.0, 0.3, 0.7]))
def test_a_crash_anywhere_in_a_removal_leaves_a_store_that_opens(
    step: int, seed: int, odds: float | None
) -> None:
    """odds None: a kill. Else a power cut that keeps unsynced names and pages with these odds."""
    source = random.Random(seed)
    files = FaultyFileSystem(MemoryFileSystem())
    store = filled(files, 200)  # type: ignore[arg-type]
    everything = scan_bodies(store)
    ends = {topic: store.consume_queues.next_offset(topic, QueueId(0)) for topic in ("orders", "idle")}
    trim = store.trim(source.choice(store.closed_segments()).end)
    hide_now(trim)
    left = scan_bodies(store)
    calls = step

    def stop_at(_operation: str, _path: str) -> int | None:
        nonlocal calls
        calls -= 1
        return errno.EIO if calls < 0 else None

    files.decide = stop_at
    try:
        trim.remove()
    except StorageError:
        pass
    inner = files.inner
    assert isinstance(inner, MemoryFileSystem)
    if odds is None:
        survivor = inner.after_process_kill()
    else:
        survivor = inner.after_power_cut(lambda: source.random() < odds)
    after = MessageStore.open(survivor, OLD_STORE, NOW_MS)
    found = scan_bodies(after)
    assert found[-len(left) :] == left
    assert found == everything[-len(found) :]
    for topic, end in ends.items():
        assert after.consume_queues.next_offset(topic, QueueId(0)) == end, "no queue offset is given twice"
        queue = after.consume_queues.get(topic, QueueId(0))
        assert queue is not None
        for offset in range(queue.min_offset, queue.max_offset):
            assert get_message_at(after, topic, QueueId(0), QueueOffset(offset)).queue_offsets == [offset]
    queries = [KeyQuery(topic, "all", KeyType.KEY) for topic in ends]
    pages = [page for query in queries for page in query_pages(after, query, messages_max=10_000)]
    assert sum(len(page.records) for page in pages) == len(found)


# --- pending messages ------------------------------------------------------------------------------------
@RESTARTS
@pytest.mark.parametrize("when", ["before", "after"])
def test_what_is_pending_is_delivered_once_after_its_segment_went(restart: Restart, when: str) -> None:
    """A pending timer, a half message, messages in flight of both kinds of group, one at its last attempt."""
    broker = Broker(MemoryFileSystem())
    broker.send("last")
    for _ in range(2):
        assert bodies(broker.receive()) == ["last"]
        broker.now_ms += LEASE_MS
    assert bodies(broker.receive()) == ["last"], "its third and last attempt"
    for body in ("acked", "standard"):
        broker.send(body)
    got = broker.receive()
    assert bodies(got) == ["acked", "standard"]
    broker.ack(got[:1])
    for body, key in (("a1", "a"), ("a2", "a"), ("b1", "b")):
        broker.send(body, "lines", key=key)
    assert bodies(broker.receive(STEPS, "lines", count=1)) == ["a1"]
    assert bodies(broker.receive(STEPS, "lines", count=1)) == ["b1"], "a2 is held"
    due_ms = broker.now_ms + 3 * HOUR_MS
    broker.schedule("timer", due_ms)
    broker.prepare("half")
    broker.fill(2)
    assert broker.receive(count=1) == []
    if when == "before":
        broker = restart(broker)
        broker.fill()
    broker.now_ms += 2 * HOUR_MS
    assert broker.clean() >= 2
    assert broker.task.counters.carried_messages >= 5
    assert broker.task.counters.dropped_messages == 0
    if when == "after":
        broker = restart(broker)
    broker.fill(2)
    broker.now_ms += 2 * HOUR_MS
    assert broker.clean() >= 2, "and carried messages are carried again"

    assert broker.deliver_timers() >= 1
    broker.commit("half")
    seen: list[str] = []
    for _ in range(3):
        got = broker.receive()
        seen += bodies(got)
        broker.ack(got)
    assert sorted(seen) == ["half", "standard", "timer"]
    letters = [message.body for message in broker.messages("%DLQ%workers")]
    assert letters == [b"last"]
    steps: list[str] = []
    for _ in range(4):
        got = broker.receive(STEPS, "lines", count=1)
        steps += bodies(got)
        broker.ack(got, STEPS, "lines")
    assert sorted(steps) == ["a1", "a2", "b1"]
    assert steps.index("a1") < steps.index("a2")
    broker.now_ms += HOUR_MS
    assert broker.receive() == []
    assert broker.receive(STEPS, "lines") == []
    assert broker.deliver_timers() == 0
    assert broker.model.transactions.open_count == 0


def test_a_retry_that_nobody_has_read_yet_is_pending_too() -> None:
    broker = Broker(MemoryFileSystem())
    broker.send("retried")
    assert bodies(broker.receive()) == ["retried"]
    broker.now_ms += LEASE_MS
    broker = broker.stop()  # a copy of it waits in the retry topic
    assert broker.messages("%RETRY%workers_orders")
    broker.fill()
    broker.now_ms += 2 * HOUR_MS
    assert broker.clean() >= 1
    broker = killed(broker)
    got = broker.receive()
    assert bodies(got) == ["retried"]
    assert got[0].attempt == 2
    broker.ack(got)
    broker.now_ms += HOUR_MS
    assert broker.receive() == []


def test_what_was_handed_out_while_it_was_removed_is_carried_as_well() -> None:
    broker = Broker(MemoryFileSystem())
    broker.send("first")
    broker.send("second")
    broker.receive(count=1)
    broker.fill()
    broker.now_ms += HOUR_MS * 2
    late: list[str] = []

    def receive_once() -> None:
        broker.before_durable = lambda: None
        late.extend(bodies(broker.receive()))

    broker.before_durable = receive_once  # the first ones were carried, and their sync is under way
    assert broker.clean() >= 1
    assert sorted(late) == ["first", "second"]
    broker = killed(broker)
    broker.now_ms += LEASE_MS
    assert sorted(bodies(broker.receive())) == ["first", "second"]


def test_nothing_goes_that_a_start_would_read_from_the_old_snapshot() -> None:
    broker = Broker(MemoryFileSystem())
    broker.fill(2)
    broker.model.saved_log_end = 0
    broker.now_ms += 2 * HOUR_MS
    assert broker.clean() == 0
    work = broker.model.begin_snapshot(broker.now_ms)
    assert work is not None, "it is asked for"
    work.run()
    assert broker.model.begin_snapshot(broker.now_ms) is None
    assert broker.clean() == 2


@pytest.mark.parametrize("group", [WORKERS, STEPS], ids=["standard", "orderly"])
def test_a_group_whose_offset_is_gone_continues_at_the_minimum(group: SubscriptionGroup) -> None:
    broker = Broker(MemoryFileSystem())
    for number in range(3):
        broker.send(f"m{number}")
    got = broker.receive(group, count=1)
    broker.ack(got, group)
    broker.fill()
    broker.send("later")
    broker.now_ms += 2 * HOUR_MS
    assert broker.clean() >= 1
    assert broker.task.counters.carried_messages == 0, "nobody was handed the others"
    assert bodies(broker.receive(group)) == ["later"]
    assert broker.model.delivery.context.damaged_count == 0
    assert broker.store.consume_queues.get("orders", QueueId(0)).min_offset == 3  # type: ignore[union-attr]


def test_young_segments_stay_and_old_ones_wait_for_their_hour() -> None:
    broker = Broker(MemoryFileSystem(), policy=replace(AT_ONCE, hours=frozenset()))
    broker.fill(2)
    broker.now_ms += 2 * HOUR_MS
    assert broker.clean() == 0
    assert broker.clean(DiskUse(1_000, 240)) == 2
    broker.fill(2)
    assert broker.clean(DiskUse(1_000, 240)) == 0


def test_a_removal_that_failed_is_ended_by_the_next_run() -> None:
    files = FaultyFileSystem(MemoryFileSystem())
    broker = Broker(files)
    broker.fill(2)
    broker.now_ms += 2 * HOUR_MS
    files.decide = fail_at("remove", 1, errno.EIO, "commitlog/")
    with pytest.raises(StorageError):
        broker.clean()
    assert files.exists("commitlog/00000000000000000000")
    assert broker.clean() == 0
    assert not files.exists("commitlog/00000000000000000000")
    assert broker.task.counters.removed_segments == 2


def test_no_topic_is_deleted_while_files_of_queues_go() -> None:
    broker = Broker(MemoryFileSystem())
    broker.fill(2)
    broker.now_ms += 2 * HOUR_MS
    held: list[bool] = []
    broker.before_durable = lambda: held.append(broker.topic_changes.changing.locked())
    assert broker.clean() == 2
    assert held == [True]


# --- a disk that is full --------------------------------------------------------------------------------
@pytest.mark.parametrize("lines_max", [100, 3])
def test_a_full_disk_takes_even_what_is_pending_and_says_what(lines_max: int) -> None:
    broker = Broker(MemoryFileSystem())
    first = broker.send("lost-1")
    broker.send("lost-2")
    broker.receive()
    broker.schedule("timer", broker.now_ms + HOUR_MS)
    broker.prepare("half")
    broker.fill(3)
    assert isinstance(broker.files, MemoryFileSystem)
    while broker.store.segment_count and (spare := broker.store.spare_work()) is not None:
        broker.store.finish_spare(spare)
    broker.store.early_removal.note(broker.now_ms, broker.now_ms + HOUR_MS)  # a full disk would refuse it
    broker.files.capacity = 0
    logged: list[dict[str, object]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trovemq_broker.maintenance.retention_report.get_logger", lambda: Recorder(logged))
        patch.setattr("trovemq_broker.maintenance.retention_report.DROPPED_LINES_MAX", lines_max)
        while broker.store.end_offset % 32_768 < 27_000:  # no space is left in the last segment
            broker.send("y" * 2_000, "filler")
        assert broker.clean(PRESSED) >= 1
    counters = broker.task.counters
    assert counters.forced_segments >= 1
    assert counters.dropped_messages == 4
    dropped = [line for line in logged if line["event"] == "retention.dropped"]
    lost = ["id-lost-1", "id-lost-2", "id-timer", "id-half"]
    assert [line["unique_key"] for line in dropped] == lost[:lines_max]
    assert [line["messages"] for line in logged if line["event"] == "retention.dropped_in_all"] == [4]
    assert dropped[0]["offset_msg_id"] == first
    assert {line["topic"] for line in dropped} == {"orders"}
    broker.files.capacity = None
    broker = killed(broker)
    broker.now_ms += 2 * HOUR_MS
    assert broker.receive() == []
    broker.deliver_timers()
    assert broker.receive() == []
    broker.send("new")
    assert bodies(broker.receive()) == ["new"]


def test_a_full_disk_takes_first_what_nobody_is_pending() -> None:
    broker = Broker(MemoryFileSystem(), policy=replace(AT_ONCE, hours=frozenset()))
    broker.fill(2)
    broker.send("outstanding")
    assert bodies(broker.receive()) == ["outstanding"]
    broker.fill(2)
    assert isinstance(broker.files, MemoryFileSystem)
    broker.files.capacity = broker.files.used_bytes() + 4_096  # for small files
    while broker.store.end_offset % 32_768 < 32_500:  # no space is left in the last segment
        broker.send("y" * 50, "filler")
    assert broker.clean(PRESSED) == 2
    assert broker.task.counters.dropped_messages == 0
    broker.files.capacity = None
    assert broker.clean(PRESSED) == 2, "there is space again to carry it"
    assert broker.task.counters.carried_messages == 1
    assert broker.task.counters.dropped_messages == 0
    assert broker.task.counters.forced_segments == 4
    broker.now_ms += LEASE_MS
    assert bodies(killed(broker).receive()) == ["outstanding"]


def test_a_wholly_outstanding_segment_is_not_carried_round_and_round() -> None:
    broker = Broker(MemoryFileSystem(), policy=replace(AT_ONCE, hours=frozenset()))
    for _ in range(40):
        broker.send("z" * 2_000)
    broker.receive(count=40)
    broker.fill(1)
    end = broker.store.end_offset
    assert broker.clean(PRESSED) == 1
    assert broker.store.end_offset - end < 2_000, "events only"
    assert broker.task.counters.dropped_messages == 5, "of the oldest segment alone"
    again = DiskUse(10_000_000, 1_500_000)
    assert broker.clean(again) == 0, "the disk has space now: the rest stays"


class Recorder:
    def __init__(self, lines: list[dict[str, object]]) -> None:
        self._lines = lines

    def warning(self, event: str, **fields: object) -> None:
        self._lines.append({"event": event, **fields})

    info = warning


def test_new_messages_are_refused_while_the_disk_is_over_its_level() -> None:
    files = MemoryFileSystem()
    broker = Broker(files)
    broker.fill(2)
    refusals = [broker.refusal]
    everything = sum(files.file_size(path) for path in every_path(files))
    files.capacity = int(everything / 0.95)
    asyncio.run(broker.task.check_disk())
    refusals.append(broker.refusal)
    full = broker.task.counters.disk_full
    assert full
    assert broker.task.counters.disk_used_percent == pytest.approx(95, abs=0.1)
    files.capacity = int(everything / 0.85)
    asyncio.run(broker.task.check_disk())
    refusals.append(broker.refusal)
    assert [refusal and refusal.symbol for refusal in refusals] == [None, "DISK_FULL", None]
    assert not broker.task.counters.disk_full


def every_path(files: MemoryFileSystem, directory: str = "") -> list[str]:
    found = []
    for name in files.list(directory):
        path = f"{directory}/{name}" if directory else name
        found += every_path(files, path) if files.is_directory(path) else [path]
    return found


def test_the_disk_forces_only_what_brings_it_below_its_level() -> None:
    broker = Broker(MemoryFileSystem(), policy=replace(AT_ONCE, hours=frozenset()))
    broker.fill(5)
    total = 100 * 32_768
    assert broker.clean(DiskUse(total, total * 15 // 100 - 32_768)) == 1
    assert broker.clean(DiskUse(total, total * 15 // 100 - 32_769)) == 2
    assert broker.task.counters.forced_segments == 3


@pytest.mark.asyncio
async def test_the_task_continues_after_a_failure_and_ends_with_the_store() -> None:
    broker = Broker(MemoryFileSystem(), interval_ms=1)
    failures: list[Exception] = [
        StorageError("statvfs", "", errno.EIO),
        TroveError(errors.FLUSH_DISK_TIMEOUT),
        TroveError(errors.STORE_FAILED),
    ]

    async def check_disk() -> DiskUse:
        raise failures.pop(0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(broker.task, "check_disk", check_disk)
        with pytest.raises(TroveError, match="STORE_FAILED"):
            await broker.task.run()
    assert broker.task.counters.failures == 2
    assert failures == []
