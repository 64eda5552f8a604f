"""A full disk: the reserve for the broker's own records, which users' messages never take, and how it
ends."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from tests.support.engine import NOW_MS, SMALL, flush, open_store, scan_bodies, send
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueId
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.record_writer import NewRecord, RecordWriter
from trovemq_store.files.faulty import FaultyFileSystem, fail_at
from trovemq_store.files.files import StorageError
from trovemq_store.files.guarded import RESERVE_COUNT, GuardedFileSystem
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.log.segments import KEPT_PATH

SETTINGS = replace(SMALL, commit_log_file_size=32_768)


def keep_reserve(store: MessageStore) -> StorageError | None:
    work = store.reserve.work()
    if work is None:
        return None
    work.run()
    store.reserve.finish(work)
    return work.failure


def write_own(store: MessageStore, body: bytes) -> None:
    """As the broker writes its own records."""
    RecordWriter(store, store.dispatch).append([NewRecord("orders", QueueId(0), body)], NOW_MS)


def fill_up(files: MemoryFileSystem) -> None:
    """Not a byte is free."""
    files.capacity = 1 << 30
    files.capacity -= files.free_bytes()


def filled(files: MemoryFileSystem) -> MessageStore:
    """A store that keeps space, whose disk is full, with little left in its segment."""
    store = open_store(files, SETTINGS)
    assert keep_reserve(store) is None
    send(store, bytes(7_000))
    fill_up(files)
    for _ in range(3):
        send(store, bytes(7_000))
    return store


def test_users_messages_never_take_the_kept_segment() -> None:
    files = MemoryFileSystem()
    store = filled(files)
    for _ in range(3):
        with pytest.raises(TroveError, match="DISK_FULL"):
            send(store, bytes(7_000))
    assert files.exists(KEPT_PATH)
    assert len(scan_bodies(store)) == 4


def test_the_brokers_records_take_the_kept_segment_and_users_are_refused() -> None:
    files = MemoryFileSystem()
    store = filled(files)
    write_own(store, bytes(7_000))
    assert not files.exists(KEPT_PATH)
    assert keep_reserve(store) is not None
    assert store.reserve.refuses
    with pytest.raises(TroveError, match="DISK_FULL"):
        send(store, b"small")
    write_own(store, b"small")
    assert len(scan_bodies(store)) == 6


def test_messages_are_taken_again_once_there_is_space() -> None:
    files = MemoryFileSystem()
    store = filled(files)
    write_own(store, bytes(7_000))
    keep_reserve(store)
    files.capacity = None
    assert keep_reserve(store) is None
    send(store, b"again")
    assert store.reserve.work() is None


def test_the_kept_segment_outlives_a_stop_and_a_full_disk_start_may_use_it() -> None:
    files = MemoryFileSystem()
    store = filled(files)
    store.flush_projections()
    store.close(NOW_MS)
    assert files.exists(KEPT_PATH)
    store = MessageStore.open(files, SETTINGS, NOW_MS)
    assert len(scan_bodies(store)) == 4
    with pytest.raises(TroveError, match="DISK_FULL"):
        send(store, bytes(7_000))
    write_own(store, bytes(7_000))


def test_a_kept_segment_of_another_size_is_rebuilt() -> None:
    files = MemoryFileSystem()
    files.create(KEPT_PATH, 4_096, preallocate=True)
    store = open_store(files, SETTINGS)
    assert keep_reserve(store) is None
    assert files.file_size(KEPT_PATH) == 32_768


def test_nothing_is_kept_where_the_setting_says_so_and_what_was_kept_goes() -> None:
    files = MemoryFileSystem()
    before = open_store(files, SETTINGS)
    assert keep_reserve(before) is None
    before.close(NOW_MS)
    assert files.exists(KEPT_PATH)
    store = open_store(files, replace(SETTINGS, spare_segment_enable=False))
    assert keep_reserve(store) is None
    assert not files.exists(KEPT_PATH)
    assert not files.exists("trovemq/reserve-0")


def test_small_files_are_replaced_from_the_reserve() -> None:
    memory = MemoryFileSystem()
    files = GuardedFileSystem(memory, 4_096)
    files.refill()
    assert files.is_whole()
    fill_up(memory)
    files.write_atomic("config/a.json", bytes(4_000))
    assert files.short
    assert not files.is_whole()
    files.write_atomic("config/b.json", bytes(9_000))
    left = [path for path in memory.list("trovemq") if path.startswith("reserve")]
    assert len(left) == RESERVE_COUNT - 4
    with pytest.raises(StorageError) as caught:
        files.write_atomic("config/c.json", bytes(64_000))
    assert caught.value.disk_full
    memory.capacity = None
    files.refill()
    assert files.is_whole()


def test_a_failed_sync_of_any_file_ends_all_acknowledgements() -> None:
    memory = FaultyFileSystem(MemoryFileSystem())
    store = open_store(memory, SETTINGS)
    send(store, b"x")
    work = store.begin_flush()
    assert work is not None
    memory.decide = lambda operation, path: errno.EIO if operation == "sync_directory" else None
    with pytest.raises(StorageError):
        store.files.sync_directory("consumequeue")
    memory.decide = lambda operation, path: None
    assert store.failed
    work.run()
    with pytest.raises(StorageError):
        store.finish_flush(work)
    assert store.flushed_offset == 0
    with pytest.raises(TroveError, match="STORE_FAILED"):
        send(store, b"y")


def test_a_directory_that_could_not_be_opened_is_unsynced_and_not_lost() -> None:
    memory = FaultyFileSystem(MemoryFileSystem())
    store = open_store(memory, SETTINGS)
    memory.decide = lambda operation, path: errno.EMFILE if operation == "open" else None
    with pytest.raises(StorageError):
        store.files.sync_directory("consumequeue")
    assert not store.failed


@pytest.mark.parametrize("error_number", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_a_queue_sync_that_failed_for_space_was_believed_when_tried_again(error_number: int) -> None:
    """Pages that a sync could not write may be gone from the page cache, whatever the reason: the next one
    lies."""
    files = FaultyFileSystem(MemoryFileSystem())
    store = open_store(files, SETTINGS)
    send(store, b"one")
    files.decide = fail_at("sync", 1, error_number, "consumequeue")
    with pytest.raises(StorageError):
        store.flush_projections()
    assert store.failed
    with pytest.raises(TroveError, match="STORE_FAILED"):
        send(store, b"two")


def test_an_index_that_no_file_can_be_had_for_was_tried_again_all_the_time() -> None:
    files = FaultyFileSystem(MemoryFileSystem())
    store = open_store(files, SETTINGS)
    files.decide = lambda operation, path: errno.ENOSPC if "index-file" in path else None
    send(store, b"x", keys="k")
    flush(store)
    assert store.lagging
    assert not store.catch_up(1 << 20), "a caller that repeats at once while there is more would never rest"
    files.decide = lambda operation, path: None
    assert not store.catch_up(1 << 20)
    assert not store.lagging


def test_a_segment_that_cannot_be_had_is_a_full_disk_until_there_is_space() -> None:
    files = MemoryFileSystem()
    store = filled(files)
    with pytest.raises(TroveError, match="no new segment of 32768 bytes"):
        send(store, bytes(7_000))
    assert store.reserve.is_full()
    assert not store.reserve.refuses, "a message that fits into the last segment is accepted"
    files.capacity = None
    assert not store.reserve.is_full()
