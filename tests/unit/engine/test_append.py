"""Appending: the places of records, their fields, and that a refused append leaves no trace."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from tests.support.engine import (
    NOW_MS,
    SMALL,
    append,
    flush,
    open_store,
    read_queue,
    record,
    scan_bodies,
    send,
    with_crc_property,
)
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset
from trovemq_proto.records.message import decode_message
from trovemq_store.files.faulty import FaultyFileSystem, fail_always, fail_at
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.log.commit_log import AppendStatus


def test_the_three_orders_agree_and_times_never_go_back() -> None:
    store = open_store(MemoryFileSystem())
    clock = [5, 9, 7, 7, 20, 1]
    results = [send(store, b"x", now_ms=NOW_MS + step) for step in clock]
    messages = read_queue(store)
    assert [m.queue_offset for m in messages] == list(range(6))
    assert [m.store_timestamp - NOW_MS for m in messages] == [5, 9, 9, 9, 20, 20]
    offsets = [m.physical_offset for m in messages]
    assert offsets == sorted(offsets) == [r.physical_offset for r in results]
    assert messages[0].store_host == "10.0.0.1:8081"
    assert messages[0].born_host == "10.0.0.2:50123"


def test_a_batch_is_one_run_with_one_time_and_dense_offsets() -> None:
    store = open_store(MemoryFileSystem())
    send(store, b"before")
    result = append(store, *[record(bytes([i]) * (i + 1)) for i in range(5)])
    store.dispatch()
    assert result.status is AppendStatus.PUT_OK
    assert (result.first_queue_offset, result.record_count) == (1, 5)
    messages = read_queue(store)[1:]
    assert [m.offset_msg_id for m in messages] == result.offset_msg_ids()
    assert {m.store_timestamp for m in messages} == {result.store_timestamp}
    assert sum(m.store_size for m in messages) == result.bytes_written == result.end - result.physical_offset


def test_a_segment_ends_in_an_eight_byte_blank_and_the_append_is_retried() -> None:
    files = MemoryFileSystem()
    store = open_store(files)
    first = send(store, bytes(8000))
    space = SMALL.commit_log_file_size - first.end
    result = send(store, bytes(8000))
    assert result.physical_offset == SMALL.commit_log_file_size
    segment = files.read_bytes("commitlog/00000000000000000000")
    assert segment[first.end : first.end + 8] == space.to_bytes(4, "big") + bytes.fromhex("cbd43194")
    assert not any(segment[first.end + 8 :]), "the rest stays as it is"
    assert [len(body) for body in scan_bodies(store)] == [8000, 8000]


def test_eight_bytes_are_always_left_for_the_blank() -> None:
    overhead = len(with_crc_property(record(b"")))
    for spare, fits in ((8, True), (7, False)):
        store = open_store(MemoryFileSystem())
        first = send(store, bytes(8000))
        result = send(store, bytes(SMALL.commit_log_file_size - first.end - overhead - spare))
        assert (result.physical_offset == first.end) is fits, spare


def test_a_batch_that_does_not_fit_moves_as_a_whole() -> None:
    store = open_store(MemoryFileSystem())
    send(store, bytes(8000))
    result = append(store, *[record(bytes(3000)) for _ in range(3)])
    assert result.physical_offset == SMALL.commit_log_file_size


def test_a_batch_larger_than_a_segment_is_refused_and_uses_no_offset() -> None:
    store = open_store(MemoryFileSystem(), replace(SMALL, batch_size_max=1 << 20))
    before = store.end_offset
    with pytest.raises(TroveError) as caught:
        append(store, *[record(bytes(5000)) for _ in range(4)])
    assert caught.value.spec is errors.BATCH_SIZE_EXCEEDED
    assert store.end_offset == before
    assert send(store, b"next").first_queue_offset == 0


@pytest.mark.parametrize(
    ("error_number", "spec"),
    [(errno.EIO, errors.CREATE_MAPPED_FILE_FAILED), (errno.ENOSPC, errors.DISK_FULL)],
)
def test_without_a_new_segment_nothing_is_written_and_no_offset_is_used_up(
    error_number: int, spec: errors.ErrorSpec
) -> None:
    memory = MemoryFileSystem()
    files = FaultyFileSystem(memory)
    store = open_store(files)
    send(store, bytes(8000))
    before = memory.read_bytes("commitlog/00000000000000000000"), store.end_offset
    files.decide = fail_always("create", error_number, "segment")
    for _ in range(2):
        with pytest.raises(TroveError) as caught:
            send(store, bytes(8000))
        assert caught.value.spec is spec
    assert (memory.read_bytes("commitlog/00000000000000000000"), store.end_offset) == before
    assert read_queue(store)[0].queue_offset == 0, "reads continue"
    assert store.segment_create_failures == 2
    files.decide = lambda operation, path: None
    assert send(store, bytes(8000)).first_queue_offset == 1


def test_making_a_segment_is_tried_three_times() -> None:
    files = FaultyFileSystem(MemoryFileSystem())
    store = open_store(files)
    send(store, bytes(8000))
    tries = 0

    def twice(operation: str, path: str) -> int | None:
        nonlocal tries
        if operation != "create":
            return None
        tries += 1
        return errno.EIO if tries <= 2 else None

    files.decide = twice
    assert send(store, bytes(8000)).physical_offset == SMALL.commit_log_file_size


@pytest.mark.parametrize("nth", [1, 2])
def test_a_failed_write_leaves_the_log_as_it_was(nth: int) -> None:
    files = FaultyFileSystem(MemoryFileSystem())
    store = open_store(files)
    send(store, bytes(8000))
    files.decide = fail_at("write", nth, errno.EIO, "commitlog")
    with pytest.raises(TroveError) as caught:
        send(store, bytes(8000))  # the first write is the blank, the second the record
    assert caught.value.spec is errors.UNKNOWN_ERROR
    result = send(store, bytes(8000))
    assert result.first_queue_offset == 1
    assert [m.queue_offset for m in read_queue(store)] == [0, 1]
    assert len(scan_bodies(store)) == 2


def test_a_spare_segment_made_ahead_is_used_by_the_roll() -> None:
    files = FaultyFileSystem(MemoryFileSystem())
    store = open_store(files)
    assert store.spare_work() is None, "not before the segment is half full"
    send(store, bytes(8000))
    work = store.spare_work()
    assert work is not None
    assert store.spare_work() is None, "one at a time"
    work.run()
    store.finish_spare(work)
    files.decide = fail_always("create", errno.EIO)
    assert send(store, bytes(8000)).physical_offset == SMALL.commit_log_file_size
    assert "spare-segment" not in files.list("trovemq")


def test_a_spare_that_could_not_be_made_does_not_hinder_the_roll() -> None:
    files = FaultyFileSystem(MemoryFileSystem())
    store = open_store(files)
    send(store, bytes(8000))
    work = store.spare_work()
    assert work is not None
    files.decide = fail_always("create", errno.EIO, "spare")
    work.run()
    store.finish_spare(work)
    assert send(store, bytes(8000)).physical_offset == SMALL.commit_log_file_size


def test_in_sync_mode_nothing_is_visible_before_the_sync_that_covers_it() -> None:
    store = open_store(MemoryFileSystem(), replace(SMALL, flush_mode="sync"))
    result = send(store, b"first")
    assert read_queue(store) == []
    assert store.record_at(result.physical_offset) is None
    work = store.begin_flush()
    assert work is not None
    second = send(store, b"second")  # appended while the sync runs: not covered by it
    work.run()
    assert store.finish_flush(work) == [("orders", 0)]
    assert [m.body for m in read_queue(store)] == [b"first"]
    assert store.record_at(second.physical_offset) is None
    flush(store)
    assert [m.body for m in read_queue(store)] == [b"first", b"second"]
    assert store.begin_flush() is None


def test_one_sync_covers_every_segment_that_was_written() -> None:
    files = FaultyFileSystem(MemoryFileSystem())
    store = open_store(files)
    flush(store)
    for _ in range(3):
        send(store, bytes(8000))
    files.calls.clear()
    flush(store)
    synced = [call for call in files.calls if call[0].startswith("sync")]
    assert synced == [
        ("sync_directory", "commitlog"),
        ("sync", "commitlog/00000000000000000000"),
        ("sync", "commitlog/00000000000000012288"),
        ("sync", "commitlog/00000000000000024576"),
    ]


def test_after_a_failed_sync_no_append_and_the_store_counts_as_crashed() -> None:
    memory = MemoryFileSystem()
    files = FaultyFileSystem(memory)
    store = open_store(files)
    send(store, b"x")
    store.mark_failed()
    with pytest.raises(TroveError) as caught:
        send(store, b"y")
    assert caught.value.spec is errors.STORE_FAILED
    store.close(NOW_MS)
    assert memory.exists("abort")


def test_too_much_waiting_for_the_disk_is_refused() -> None:
    store = open_store(MemoryFileSystem(), replace(SMALL, flush_mode="sync", undispatched_bytes_max=5000))
    send(store, bytes(6000))
    with pytest.raises(TroveError) as caught:
        send(store, b"x")
    assert caught.value.spec is errors.OS_PAGE_CACHE_BUSY
    flush(store)
    assert send(store, b"x").first_queue_offset == 1


def test_an_offset_inside_a_record_or_beyond_the_end_is_not_a_message() -> None:
    store = open_store(MemoryFileSystem())
    inner = record(b"fake", physical_offset=0)
    result = send(store, b"....." + inner)
    found = store.record_at(result.physical_offset)
    assert found is not None
    assert decode_message(found).body.endswith(inner)
    for physical_offset in range(1, result.end + 10):
        assert store.record_at(PhysicalOffset(physical_offset)) is None
    assert store.record_at(PhysicalOffset(-1)) is None


def test_an_unwritable_consume_queue_delays_visibility_and_loses_nothing() -> None:
    files = FaultyFileSystem(MemoryFileSystem())
    store = open_store(files)
    send(store, b"a")
    files.decide = fail_always("write", errno.ENOSPC, "consumequeue")
    send(store, b"b")
    assert [m.body for m in read_queue(store)] == [b"a"]
    assert store.projection_failures > 0
    files.decide = lambda operation, path: None
    store.dispatch()
    assert [m.body for m in read_queue(store)] == [b"a", b"b"]
