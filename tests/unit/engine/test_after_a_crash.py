"""The states after a crash, one each: bytes that are not a message must not become one, and messages stay."""

from __future__ import annotations

import errno
from dataclasses import replace

import msgspec
import pytest

from tests.support.engine import (
    NOW_MS,
    SMALL,
    SMALL_SYNC,
    append,
    flush,
    open_store,
    record,
    scan_bodies,
    send,
)
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, QueueId
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.trim import trim_now
from trovemq_store.files.faulty import FaultyFileSystem, fail_at
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.index import dirty_files
from trovemq_store.log import state

FIRST = "commitlog/00000000000000000000"


def test_a_record_of_an_older_generation_after_the_end_is_not_a_message() -> None:
    """It is whole, its CRC is right, and it says that it lies elsewhere."""
    files = MemoryFileSystem()
    store = open_store(files)
    old = send(store, b"old" * 100)
    send(store, b"last")
    flush(store)
    killed = files.after_process_kill()
    segment = killed.open(FIRST)
    segment.write(store.end_offset, segment.view()[: old.bytes_written])
    again = MessageStore.open(killed, SMALL, NOW_MS)
    assert again.end_offset == store.end_offset
    assert scan_bodies(again) == [b"old" * 100, b"last"]


def test_a_record_without_a_body_that_lost_a_sector_is_cut() -> None:
    """A power cut kept the sectors around it; without the whole record's CRC there is no other sign."""
    files = MemoryFileSystem()
    store = open_store(files, replace(SMALL, append_property_crc=False))
    send(store, b"synced")
    flush(store)
    send(store, b"", keys="k" * 3_000)
    cut = files.after_process_kill()
    cut.open(FIRST).write(1024, bytes(512))
    again = MessageStore.open(cut, SMALL, NOW_MS)
    assert scan_bodies(again) == [b"synced"]


def test_segments_whose_names_outlived_the_one_before_them_go() -> None:
    """Three were made since the last sync; the disk has the name of the last of them."""
    files = MemoryFileSystem()
    store = open_store(files)
    send(store, b"synced")
    flush(store)
    store.flush_projections()
    for _ in range(3):
        send(store, bytes(8_000))
    assert store.segment_count == 3
    killed = files.after_process_kill()
    killed.remove(f"commitlog/{SMALL.commit_log_file_size:020d}")
    again = MessageStore.open(killed, SMALL, NOW_MS)
    assert scan_bodies(again) == [b"synced", bytes(8_000)]
    assert again.end_offset <= SMALL.commit_log_file_size


def test_the_saved_state_names_nothing_that_no_sync_has_covered() -> None:
    files = MemoryFileSystem()
    store = open_store(files)
    send(store, b"synced")
    flush(store)
    send(store, b"not synced")
    store.flush_projections(index=True)
    saved = state.load(files)
    assert saved is not None
    assert max(saved.log_end, saved.consume_queue_position, saved.key_index_position) <= store.flushed_offset


def test_the_saved_state_names_nothing_of_the_index_that_was_not_synced() -> None:
    """The log is synced often, the index seldom: the records in between are read again at the next start."""
    files = MemoryFileSystem()
    store = open_store(files)
    for i in range(5):
        send(store, b"synced", keys=f"k{i}")
        flush(store)
        store.flush_projections()
    saved = state.load(files)
    assert saved is not None
    assert store.key_index is not None
    assert store.key_index.synced_position < store.flushed_offset
    assert saved.key_index_position <= store.key_index.synced_position
    assert saved.consume_queue_position == store.flushed_offset


def test_items_of_records_that_a_power_cut_took_are_not_believed() -> None:
    """The index was synced, the log was not; other messages come to stand where the lost ones stood."""
    files = MemoryFileSystem()
    store = open_store(files)
    send(store, b"synced", keys="k")
    flush(store)
    store.flush_projections(index=True)
    for i in range(5):
        send(store, b"lost", keys=f"lost{i}")
    assert store.key_index is not None
    store.key_index.flush()
    again = MessageStore.open(files.after_power_cut(), SMALL, NOW_MS)
    for i in range(5):
        send(again, b"other", keys=f"other{i}")
    assert scan_bodies(again) == [b"synced", *[b"other"] * 5]
    assert again.key_index is not None
    assert sum(file.count - 1 for file in again.key_index._index_files) == 6


def test_what_a_start_after_a_kill_found_survives_a_power_cut() -> None:
    """It was in the page cache alone, and consumers have seen it since the start."""
    files = MemoryFileSystem()
    store = open_store(files, SMALL_SYNC)
    for i in range(20):
        send(store, bytes([i]) * 1500)  # written, and killed before the sync
    killed = files.after_process_kill()
    again = MessageStore.open(killed, SMALL_SYNC, NOW_MS)
    found = scan_bodies(again)
    assert len(found) == 20
    assert scan_bodies(MessageStore.open(killed.after_power_cut(), SMALL_SYNC, NOW_MS)) == found


def test_a_queue_of_expired_records_continues_its_offsets_when_rebuilt() -> None:
    files = MemoryFileSystem()
    store = open_store(files, topics=("orders", "idle"))
    for _ in range(5):
        send(store, b"expires", topic="idle")
    for _ in range(6):
        send(store, bytes(8_000))
    flush(store)
    store.flush_projections()
    trim_now(store.trim(store.closed_segments()[1].end))
    killed = files.after_process_kill()
    saved = state.load(killed)
    assert saved is not None
    # A start that makes all queues again notes this first, and was killed then.
    state.save(killed, msgspec.structs.replace(saved, consume_queue_position=0, queue_ends={}))
    again = MessageStore.open(killed, SMALL, NOW_MS)
    assert again.consume_queues.next_offset("idle", QueueId(0)) == 5
    assert send(again, b"next", topic="idle").first_queue_offset == 5


def test_of_a_batch_whose_write_failed_half_way_nothing_comes_back() -> None:
    """The disk has its first record, whole."""
    memory = MemoryFileSystem()
    files = FaultyFileSystem(memory, tear=True)
    store = open_store(files)
    send(store, b"kept")
    files.decide = fail_at("write", 1, errno.EIO, "commitlog")
    with pytest.raises(TroveError, match="the append failed"):
        append(store, record(b"refused"), record(b"refused"))
    assert scan_bodies(MessageStore.open(memory.after_process_kill(), SMALL, NOW_MS)) == [b"kept"]


def test_a_start_waited_until_thousands_of_files_were_on_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dirty_files, "MANY", 8)
    files = MemoryFileSystem()
    store = open_store(files, SMALL_SYNC, topics=[f"topic-{number}" for number in range(10)])
    for number in range(10):
        send(store, b"%d" % number, topic=f"topic-{number}")
        flush(store)
    faulty = FaultyFileSystem(files.after_process_kill())
    again = MessageStore.open(faulty, SMALL_SYNC, NOW_MS)
    assert not [call for call in faulty.calls if call[0] == "sync" and call[1].startswith("consumequeue")]
    bodies = scan_bodies(again)
    assert len(bodies) == 10
    inner = faulty.inner
    assert isinstance(inner, MemoryFileSystem)
    assert scan_bodies(MessageStore.open(inner.after_power_cut(), SMALL_SYNC, NOW_MS)) == bodies
    again.flush_projections(queues=False)
    assert again.marked_offset == again.end_offset, "the first flush syncs them in any case"
    cut = inner.after_power_cut()
    assert cut.exists("consumequeue/topic-0/0"), "no mark counts unsynced files"
    assert scan_bodies(MessageStore.open(cut, SMALL_SYNC, NOW_MS)) == bodies


def test_offsets_by_time_were_too_early_after_a_kill_before_the_first_sync() -> None:
    """The start had no last time that is on disk, so the highest time of records above the saved end was
    saved, and records that came after these were lost were earlier."""
    files = MemoryFileSystem()
    store = MessageStore.open(files, SMALL, NOW_MS)
    send(store, b"first")
    store.close(NOW_MS)
    store = MessageStore.open(files, SMALL, NOW_MS)
    send(store, b"lost", EpochMs(NOW_MS + 3_000))
    store.flush_projections()
    again = MessageStore.open(files.after_power_cut(), SMALL, NOW_MS)
    send(again, b"second", EpochMs(NOW_MS + 1))
    assert scan_bodies(again) == [b"first", b"second"]
    assert [run.slack_ms for run in again.time_runs.runs] == [0]
