"""A few records at a time are left to the key index: it gets many at once, and is the same afterwards."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.engine import NOW_MS, SMALL, append, open_store, record, send
from trovemq_proto.positions import LOG_ORIGIN, PhysicalOffset
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.unique_key_lookup import records_with_unique_key
from trovemq_store.files.faulty import FaultyFileSystem
from trovemq_store.files.files import StorageError
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.index.dispatcher import DEFERRED_BATCH_MAX, DEFERRED_BYTES_MAX, DEFERRED_RECORDS_MAX

ROOMY: Final = replace(
    SMALL, commit_log_file_size=4 * DEFERRED_BYTES_MAX, body_size_max=2 * DEFERRED_BYTES_MAX
)


def index_of(files: MemoryFileSystem) -> dict[str, bytes]:
    return {name: files.read_bytes(f"index/{name}") for name in files.list("index")}


def indexed(store: MessageStore) -> PhysicalOffset:
    assert store.key_index is not None
    return store.key_index.position


def found(store: MessageStore, key: str) -> int:
    return len(list(records_with_unique_key(store, "orders", key, LOG_ORIGIN)))


@given(
    steps=st.lists(
        st.sampled_from([1, 1, 2, DEFERRED_BATCH_MAX, DEFERRED_BATCH_MAX + 1, 9, "catch up"]), max_size=25
    )
)
def test_look_ups_are_exact_meanwhile_and_the_files_the_same(steps: list[int | str]) -> None:
    now, later = MemoryFileSystem(), MemoryFileSystem()
    stores = [open_store(now, ROOMY), open_store(later, ROOMY)]
    stores[1].index_later()
    sent = 0
    for step in steps:
        if isinstance(step, str):
            stores[1].catch_up(1 << 20)
            continue
        for store in stores:
            append(store, *(record(b"x", unique_key=f"u{sent + n}", keys="all") for n in range(step)))
            store.dispatch()
        sent += step
        assert [found(store, f"u{sent - 1}") for store in stores] == [1, 1]
        assert stores[1].lagging == []
    for store in stores:
        store.close(NOW_MS)
    assert index_of(now) == index_of(later)


@given(steps=st.lists(st.sampled_from(["orders", "bills", "bills", "delete bills", "catch up"]), max_size=40))
def test_left_records_of_several_topics_and_segments_give_the_same_files(steps: list[str]) -> None:
    now, later = MemoryFileSystem(), MemoryFileSystem()
    stores = [open_store(files, topics=("orders", "bills")) for files in (now, later)]
    stores[1].index_later()
    for number, step in enumerate(steps):
        if step in ("catch up", "delete bills"):
            stores[1].catch_up(1 << 20)
        for store in stores:
            if step == "delete bills":
                store.delete_topic("bills", NOW_MS)
                store.topics.create("bills", queue_count=4)
            elif step != "catch up":
                count = 1 + number % 4
                sent = [record(bytes(400), topic=step, unique_key=f"u{number}", tag="t")] * count
                append(store, *sent, topic=step)
                store.dispatch()
        assert stores[1].lagging == []
    for store in stores:
        store.close(NOW_MS)
    assert index_of(now) == index_of(later)


def test_left_records_of_a_deleted_topic_get_no_keys() -> None:
    files = MemoryFileSystem()
    store = open_store(files, topics=("orders", "bills"))
    store.index_later()
    for number in range(3):
        send(store, b"x", topic="bills", unique_key=f"u{number}")
    store.delete_topic("bills", NOW_MS)
    store.catch_up(1 << 20)
    assert (indexed(store), index_of(files)) == (store.end_offset, {})


def test_a_kill_while_records_are_left_loses_no_key() -> None:
    files = MemoryFileSystem()
    store = open_store(files)
    store.index_later()
    for number in range(30):
        send(store, b"x", unique_key=f"u{number}")
    assert indexed(store) == LOG_ORIGIN
    again = open_store(files.after_process_kill())
    again.catch_up(1 << 20)
    assert indexed(again) == again.end_offset
    assert [found(again, f"u{number}") for number in range(30)] == [1] * 30


def test_deferred_bytes_are_bounded() -> None:
    store = open_store(MemoryFileSystem())
    store.index_later()
    for _ in range(DEFERRED_BYTES_MAX // 4_000 * 2):
        send(store, bytes(4_000))
        assert store.end_offset - indexed(store) <= DEFERRED_BYTES_MAX * 3 // 2, (
            "with the blanks at segments' ends"
        )
    assert indexed(store) > LOG_ORIGIN


def test_deferred_records_are_bounded() -> None:
    store = open_store(MemoryFileSystem(), ROOMY)
    store.index_later()
    left = []
    for _ in range(DEFERRED_RECORDS_MAX // 100 + 2):
        append(store, *(record(b"") for _ in range(100)))
        store.dispatch()
        left.append(store.end_offset - indexed(store))
    assert max(left) < DEFERRED_BYTES_MAX
    assert left[-2] == 0, "all at once, after the record that was one too many"
    assert left[-1] > 0


def test_acknowledgements_waited_for_the_index_of_many_messages() -> None:
    """Every seventh synced batch of 64 was acknowledged when the records of all seven were indexed."""
    store = open_store(MemoryFileSystem(), ROOMY)
    calls: list[Callable[[], None]] = []
    store.index_later(calls.append)
    step = DEFERRED_BYTES_MAX // 4
    for _ in range(5):
        send(store, bytes(step))
    assert (indexed(store), len(calls)) == (LOG_ORIGIN, 1)
    for _ in range(2):
        send(store, bytes(step))
    assert (indexed(store), len(calls)) == (LOG_ORIGIN, 1), "one call is enough"
    calls.pop()()
    assert indexed(store) == store.end_offset
    for _ in range(5):
        send(store, bytes(step))
    assert len(calls) == 1, "and again"


def test_a_stop_and_a_late_call_indexed_in_two_threads() -> None:
    """The call of a loop came while another thread closed the store: keys were lost."""
    store = open_store(MemoryFileSystem(), ROOMY)
    calls: list[Callable[[], None]] = []
    store.index_later(calls.append)
    for _ in range(5):
        send(store, bytes(DEFERRED_BYTES_MAX // 4))
    store.index_later()
    before = indexed(store)
    calls.pop()()
    assert indexed(store) == before, "a late call does nothing"
    send(store, bytes(DEFERRED_BYTES_MAX // 4))
    assert (indexed(store), calls) == (store.end_offset, [])


def test_twice_as_much_is_indexed_at_once() -> None:
    store = open_store(MemoryFileSystem(), ROOMY)
    calls: list[Callable[[], None]] = []
    store.index_later(calls.append)
    for _ in range(8):
        send(store, bytes(DEFERRED_BYTES_MAX // 4))
    assert indexed(store) == store.end_offset
    calls.pop()()
    assert (indexed(store), calls) == (store.end_offset, [])


def test_frames_of_many_sizes_reach_the_index_together() -> None:
    """A frame that was indexed at once, between deferred ones, made the index read on each time."""
    store = open_store(MemoryFileSystem(), ROOMY)
    store.index_later()
    positions = [indexed(store)]
    for count in (20, DEFERRED_BATCH_MAX, 33, 1) * 25:
        append(store, *(record(bytes(100)) for _ in range(count)))
        store.dispatch()
        assert indexed(store) in (positions[-1], store.end_offset), "all deferred records, or nothing yet"
        positions.append(indexed(store))
    assert store.end_offset > 2 * DEFERRED_BYTES_MAX
    assert 0 < len(set(positions)) - 1 <= (20 + DEFERRED_BATCH_MAX + 33 + 1) * 25 // DEFERRED_RECORDS_MAX


def test_a_frame_larger_than_all_that_may_be_left_is_indexed_at_once() -> None:
    store = open_store(MemoryFileSystem(), ROOMY)
    store.index_later()
    append(store, record(bytes(DEFERRED_BYTES_MAX)), record(b"x"))
    store.dispatch()
    assert indexed(store) == store.end_offset


def test_records_that_were_left_and_cannot_be_indexed_lag() -> None:
    files = FaultyFileSystem(MemoryFileSystem())
    store = open_store(files, ROOMY)
    store.index_later()
    send(store, b"left", unique_key="u0")
    tries: list[str] = []

    def full(operation: str, path: str) -> int | None:
        if operation == "create" and "index" in path:
            tries.append(path)
            return errno.ENOSPC
        return None

    files.decide = full
    many = DEFERRED_BATCH_MAX + 2
    append(store, *(record(b"x", unique_key=f"u{n}") for n in range(1, many)))
    store.dispatch()
    assert store.lagging == ["key_index"]
    tried = len(tries)
    for number in range(many, many + 33):
        send(store, b"x", unique_key=f"u{number}")
    assert len(tries) == tried, "who lags is left to catch_up()"
    assert [found(store, f"u{number}") for number in range(many + 33)] == [1] * (many + 33)
    files.decide = lambda _operation, _path: None
    while store.catch_up(1 << 20):
        pass
    assert (store.lagging, indexed(store)) == ([], store.end_offset)
    send(store, b"x", unique_key="last")
    assert (store.lagging, found(store, "last")) == ([], 1)


def test_to_make_an_index_file_held_up_everybody() -> None:
    """An append, or its dispatch, made and synced the next file: the loop waited for the disk."""
    by_work, at_once = MemoryFileSystem(), MemoryFileSystem()
    files = FaultyFileSystem(by_work)
    store, now = open_store(files), open_store(at_once)
    made: list[str] = []

    def watch(operation: str, path: str) -> int | None:
        if operation in ("create", "sync") and "index" in path:
            made.append(operation)
        return None

    files.decide = watch
    store.index_later()
    store.index_files_by_work()
    works = 0
    for number in range(2 * SMALL.index_item_count):
        for one in (store, now):
            send(one, b"x", unique_key=f"u{number}")
        if number % 100 == 99:
            while store.catch_up(1 << 20):
                pass
            assert made == [], "only by the work"
            assert found(store, f"u{number}") == 1
            work = store.index_file_work()
            if work is not None:
                work.run()
                store.finish_index_file(work)
                works += 1
                assert made == ["create", "sync"]
                made.clear()
    assert works == 2
    for one in (store, now):
        one.close(NOW_MS)
    assert [*index_of(by_work).values()] == [*index_of(at_once).values()]


@pytest.mark.parametrize("count", [1, SMALL.index_item_count + 50])
def test_a_stop_while_an_index_file_was_wanted_left_its_keys_out(count: int) -> None:
    """And RocketMQ, which reads the stopped store, never adds them."""
    by_work, at_once = MemoryFileSystem(), MemoryFileSystem()
    store, now = open_store(by_work), open_store(at_once)
    store.index_later()
    store.index_files_by_work()
    for number in range(count):
        for one in (store, now):
            send(one, b"x", unique_key=f"u{number}")
    while store.catch_up(1 << 20):
        pass
    assert store.lagging == ["key_index"]
    for one in (store, now):
        one.close(NOW_MS)
    assert [*index_of(by_work).values()] == [*index_of(at_once).values()] != []


def test_messages_without_keys_took_the_space_of_an_index_file() -> None:
    files = MemoryFileSystem()
    store = open_store(files)
    store.index_later()
    store.index_files_by_work()
    send(store, b"x")
    assert store.index_file_work() is None
    while store.catch_up(1 << 20):
        pass
    assert (indexed(store), store.index_file_work()) == (store.end_offset, None)
    send(store, b"x", unique_key="u")
    store.catch_up(1 << 20)
    assert store.index_file_work() is not None


def test_an_index_file_that_cannot_be_made_is_tried_again() -> None:
    files = FaultyFileSystem(MemoryFileSystem())
    store = open_store(files)
    store.index_files_by_work()
    send(store, b"x", unique_key="u0")
    assert store.lagging == ["key_index"]
    files.decide = lambda operation, path: errno.ENOSPC if "index-file" in path else None
    work = store.index_file_work()
    assert work is not None
    with pytest.raises(StorageError):
        work.run()
    store.finish_index_file(work)
    assert store.key_index is not None
    assert (work.ready, work.failures, store.key_index.create_failures) == (False, 3, 3)
    assert not store.catch_up(1 << 20)
    files.decide = lambda _operation, _path: None
    again = store.index_file_work()
    assert again is not None
    again.run()
    store.finish_index_file(again)
    assert not store.catch_up(1 << 20)
    assert (store.lagging, found(store, "u0"), store.index_file_work()) == ([], 1, None)
