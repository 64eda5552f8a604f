"""Damaged and missing files: the store starts, keeps every other message in its place, and reports them."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.engine import (
    NOW_MS,
    SMALL,
    SMALL_SYNC,
    append,
    flush,
    open_store,
    read_queue,
    record,
    scan_bodies,
    send,
)
from trovemq_broker.fetch.pull import Puller, PullRequest, PullSettings
from trovemq_broker.query.get_message import get_message_at
from trovemq_broker.query.offsets_by_time import search_offset
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueId, QueueOffset
from trovemq_proto.records.layout import QUEUE_OFFSET_AT
from trovemq_store.engine.message_store import AppendResult, MessageStore
from trovemq_store.files.faulty import FaultyFileSystem, fail_always
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.files.real import RealFileSystem
from trovemq_store.log import checkpoint


def filled(files: MemoryFileSystem, count: int = 40, queues: int = 2) -> list[AppendResult]:
    """A store with `count` messages; message i is the (i // queues)th of queue i % queues. Stays open."""
    store = open_store(files)
    results = [
        send(store, bytes([i]) * 600, NOW_MS + i, queue_id=i % queues, keys=f"k{i}") for i in range(count)
    ]
    flush(store)
    store.flush_projections(index=True)
    return results


def overwrite(files: MemoryFileSystem, physical_offset: int, data: bytes) -> None:
    start = physical_offset // SMALL.commit_log_file_size * SMALL.commit_log_file_size
    files.open(f"commitlog/{start:020d}").write(physical_offset - start, data)


def remove_tree(files: MemoryFileSystem, directory: str) -> None:
    for path in [path for path in files._files if path.startswith(f"{directory}/")]:
        files.remove(path)


def queue_of(store: MessageStore, queue_id: QueueId) -> dict[int, bytes]:
    """First body byte by queue offset, of all that can be read."""
    queue = store.consume_queues.get("orders", queue_id)
    assert queue is not None
    found = {}
    for offset in range(queue.min_offset, queue.max_offset):
        record_at = store.record_at(queue.unit(QueueOffset(offset))[0])
        if record_at is not None:
            found[offset] = (
                get_message_at(store, "orders", queue_id, QueueOffset(offset)).records[0][88:89].tobytes()
            )
    return found


def expected_queue(queue_id: QueueId, lost: set[int], count: int = 40) -> dict[int, bytes]:
    return {i // 2: bytes([i]) for i in range(queue_id, count, 2) if i not in lost}


@pytest.mark.parametrize("removed", ["consumequeue", "consumequeue/orders/0"])
@pytest.mark.parametrize("stop", ["clean", "kill"])
@pytest.mark.parametrize("damage", ["body", "header", "zeros"])
def test_a_damaged_record_and_lost_queues_leave_other_messages_offsets(
    damage: str, stop: str, removed: str
) -> None:
    files = MemoryFileSystem()
    results = filled(files)
    if stop == "clean":
        files = files.after_process_kill()
        MessageStore.open(files, SMALL, NOW_MS).close(NOW_MS)
    else:
        files = files.after_process_kill()
    lost = {4, 6, 11, 30}
    for i in lost:
        at, size = results[i].physical_offset, results[i].bytes_written
        if damage == "body":
            overwrite(files, at + 100, b"?")
        else:
            overwrite(files, at, b"????????" if damage == "header" else bytes(size))
    remove_tree(files, removed)
    for _ in range(3):
        store = MessageStore.open(files, SMALL, NOW_MS)
        for queue_id in (0, 1):
            assert queue_of(store, QueueId(queue_id)) == expected_queue(QueueId(queue_id), lost)
        files = files.after_process_kill()
    store = MessageStore.open(files, SMALL, NOW_MS)
    assert send(store, b"next", NOW_MS + 99, queue_id=0).first_queue_offset == 20
    store.close(NOW_MS)
    again = MessageStore.open(files, SMALL, NOW_MS)
    assert again.recovery.clean
    assert queue_of(again, QueueId(1)) == expected_queue(QueueId(1), lost)


def test_what_was_damaged_is_reported_and_readers_skip_the_blanks() -> None:
    files = MemoryFileSystem()
    results = filled(files)
    files = files.after_process_kill()
    for i in (4, 6, 8):
        overwrite(files, results[i].physical_offset + 100, b"?")
    remove_tree(files, "consumequeue")
    store = MessageStore.open(files, SMALL, NOW_MS)
    assert [d.physical_offset for d in store.recovery.damages] == [
        results[i].physical_offset for i in (4, 6, 8)
    ]
    assert [(gap.queue_id, gap.offset, gap.count) for gap in store.recovery.gaps] == [(0, 2, 3)]
    with pytest.raises(TroveError, match="MESSAGE_NOT_FOUND"):
        get_message_at(store, "orders", QueueId(0), QueueOffset(3))
    pulled = Puller(store, PullSettings()).pull(PullRequest("orders", QueueId(0), QueueOffset(1)))
    assert (pulled.message_count, pulled.next_offset, pulled.damaged_offsets) == (17 - 1, 20, ())
    for i in range(0, 40, 2):
        lower = search_offset(store, "orders", QueueId(0), NOW_MS + i)
        upper = search_offset(store, "orders", QueueId(0), NOW_MS + i, upper=True)
        assert lower == (5 if i in (4, 6, 8) else i // 2)
        assert upper == (1 if i in (4, 6, 8) else i // 2)


@pytest.mark.parametrize("wrong", [0, 3, 1 << 19, 1 << 40, (1 << 64) - 1])
def test_a_damaged_queue_offset_costs_no_other_message(wrong: int) -> None:
    files = MemoryFileSystem()
    results = filled(files)
    files = files.after_process_kill()
    overwrite(files, results[20].physical_offset + QUEUE_OFFSET_AT, wrong.to_bytes(8))
    remove_tree(files, "consumequeue")
    store = MessageStore.open(files, SMALL, NOW_MS)
    for queue_id in (0, 1):
        assert queue_of(store, QueueId(queue_id)) == expected_queue(QueueId(queue_id), {20})


def test_a_record_within_a_damaged_records_body_is_not_a_record() -> None:
    files = MemoryFileSystem()
    store = open_store(files)
    inner_at = store.end_offset + 88
    inner = bytearray(record(b"inner", topic="orders"))
    inner[28:36] = inner_at.to_bytes(8)
    outer = send(store, bytes(inner))
    send(store, b"behind")
    flush(store)
    store.flush_projections()
    files = files.after_process_kill()
    overwrite(files, outer.physical_offset + 8, b"????")  # its CRC
    remove_tree(files, "consumequeue")
    store = MessageStore.open(files, SMALL, NOW_MS)
    assert [m.body for m in read_queue(store)] == [b"behind"]
    assert store.recovery.records_scanned == 1


@pytest.mark.parametrize("stop", ["clean", "kill"])
@pytest.mark.parametrize("removed", ["consumequeue", "consumequeue/orders", "consumequeue/orders/1", "index"])
def test_projections_that_are_gone_are_rebuilt_after_any_stop(removed: str, stop: str) -> None:
    files = MemoryFileSystem()
    filled(files)
    files = files.after_process_kill()
    if stop == "clean":
        MessageStore.open(files, SMALL, NOW_MS).close(NOW_MS)
    remove_tree(files, removed)
    for _ in range(2):  # a rebuild that was interrupted begins again
        store = MessageStore.open(files, SMALL, NOW_MS)
        for queue_id in (0, 1):
            assert queue_of(store, QueueId(queue_id)) == expected_queue(QueueId(queue_id), set())
        while store.catch_up(1 << 20):
            pass
        assert store.key_index is not None
        assert store.key_index.last_update()[0] == NOW_MS + 39
        assert sum(file.count - 1 for file in store.key_index._index_files) == 40
        files = files.after_power_cut()


def test_a_store_whose_commit_log_is_gone_does_not_start_empty() -> None:
    files = MemoryFileSystem()
    filled(files)
    files = files.after_process_kill()
    remove_tree(files, "commitlog")
    with pytest.raises(TroveError, match="is empty") as caught:
        MessageStore.open(files, SMALL, NOW_MS)
    assert caught.value.spec is errors.STORE_FAILED
    assert files.list("consumequeue/orders") == ["0", "1"]


@pytest.mark.parametrize("stop", ["clean", "kill"])
def test_a_store_whose_last_segment_is_gone_does_not_reuse_its_offsets(stop: str) -> None:
    files = MemoryFileSystem()
    filled(files)
    files = files.after_process_kill()
    store = MessageStore.open(files, SMALL, NOW_MS)
    if stop == "clean":
        store.close(NOW_MS)
    files = files.after_process_kill()
    files.remove(f"commitlog/{files.list('commitlog')[-1]}")
    with pytest.raises(TroveError, match="put the missing ones back") as caught:
        MessageStore.open(files, SMALL, NOW_MS)
    assert caught.value.spec is errors.STORE_FAILED
    files.remove("trovemq/state.json")
    MessageStore.open(files, SMALL, NOW_MS)


def test_queues_of_a_log_without_its_first_segments_begin_with_the_log() -> None:
    files = MemoryFileSystem()
    filled(files)
    files = files.after_process_kill()
    MessageStore.open(files, SMALL, NOW_MS).close(NOW_MS)
    files.remove("commitlog/00000000000000000000")
    store = MessageStore.open(files, SMALL, NOW_MS)
    for queue_id in (0, 1):
        queue = store.consume_queues.get("orders", QueueId(queue_id))
        assert queue is not None
        assert queue.min_offset > 0
        assert list(queue_of(store, QueueId(queue_id))) == list(range(queue.min_offset, 20))


def test_no_short_file_can_be_left_in_the_commit_log() -> None:
    files = FaultyFileSystem(MemoryFileSystem())
    store = open_store(files)
    for _ in range(12):
        send(store, bytes(3000))
    made = [path for operation, path in files.calls if operation == "create" and "consumequeue" not in path]
    assert made
    assert all(path.startswith("trovemq/") for path in made)


def test_an_index_switched_off_after_a_power_cut_is_not_believed_later() -> None:
    files = MemoryFileSystem()
    filled(files, 10)
    store = MessageStore.open(files.after_process_kill(), SMALL, NOW_MS)
    for i in range(5):
        send(store, b"lost", keys=f"lost{i}")
    assert store.key_index is not None
    store.key_index.flush()  # the disk has the items, and not the records
    files = store.files.inner.after_power_cut()  # type: ignore[attr-defined]
    off = MessageStore.open(files, replace(SMALL, message_index_enable=False), NOW_MS)
    for i in range(5):
        send(off, b"other", keys=f"other{i}")
    off.close(NOW_MS)
    on = MessageStore.open(files, SMALL, NOW_MS)
    while on.catch_up(1 << 20):
        pass
    assert on.key_index is not None
    assert sum(file.count - 1 for file in on.key_index._index_files) == 15


def test_a_deletion_that_the_disk_refuses_loses_nothing() -> None:
    memory = MemoryFileSystem()
    files = FaultyFileSystem(memory)
    store = open_store(files, SMALL_SYNC)
    send(store, b"first")
    flush(store)
    send(store, b"second")
    files.decide = fail_always("write_atomic", errno.ENOSPC, "topics.json")
    with pytest.raises(TroveError) as caught:
        store.delete_topic("orders", NOW_MS)
    assert caught.value.spec is errors.DISK_FULL
    flush(store)
    assert send(store, b"third").first_queue_offset == 2
    flush(store)
    assert [m.body for m in read_queue(store)] == [b"first", b"second", b"third"]
    again = MessageStore.open(memory.after_process_kill(), SMALL_SYNC, NOW_MS)
    assert [m.body for m in read_queue(again)] == [b"first", b"second", b"third"]


def test_the_checkpoint_does_not_pass_what_the_queues_lack() -> None:
    memory = MemoryFileSystem()
    files = FaultyFileSystem(memory)
    store = open_store(files, SMALL_SYNC)
    send(store, b"first", NOW_MS + 10_000)
    flush(store)
    files.decide = fail_always("write", errno.ENOSPC, "consumequeue")
    send(store, b"second", NOW_MS + 20_000)
    flush(store)
    store.flush_projections()
    assert checkpoint.load(memory).logics_msg_timestamp == NOW_MS + 10_000


def test_consumer_offsets_are_stored_only_as_far_as_the_log_is_synced() -> None:
    files = MemoryFileSystem()
    store = open_store(files)
    send(store, b"synced")
    flush(store)
    send(store, b"not synced")
    store.offsets.commit("billing", "orders", QueueId(0), QueueOffset(2), durable=True)
    assert (
        MessageStore.open(files.after_power_cut(), SMALL, NOW_MS).offsets.get("billing", "orders", QueueId(0))
        == 1
    )
    flush(store)
    store.offsets.persist()
    assert (
        MessageStore.open(files.after_power_cut(), SMALL, NOW_MS).offsets.get("billing", "orders", QueueId(0))
        == 2
    )


@pytest.mark.parametrize("value", ["x\0", "x" + "\0" * 600 + "x"])
def test_properties_that_look_like_a_lost_sector_are_refused(value: str) -> None:
    store = open_store(MemoryFileSystem())
    good = record(b"body", properties={"a": "b"})
    bad = bytearray(record(b"body", properties={"a": value}))
    if value.endswith("\0"):
        del bad[-1]  # without the separator at its end: properties are a, 0x01, x, 0
        bad[:4], bad[-6:-4] = len(bad).to_bytes(4), (4).to_bytes(2)
    end = store.end_offset
    for records in ([bytes(bad)], [good, bytes(bad), good]):
        with pytest.raises(TroveError, match="BATCH_ILLEGAL"):
            append(store, *records)
    assert store.end_offset == end
    assert append(store, good).first_queue_offset == 0


def test_a_hole_of_a_file_is_not_read(tmp_path: Path) -> None:
    files = RealFileSystem(tmp_path)
    file = files.create("sparse", 1 << 20, preallocate=False)
    assert list(file.written_ranges(0)) == []
    file.write(500_000, b"here")
    ranges = list(file.written_ranges(0))
    assert all(begin <= 500_000 < 500_004 <= end for begin, end in ranges)
    assert len(ranges) == 1
    assert list(file.written_ranges(1 << 19)) == [] or ranges[0][1] > 1 << 19
    file.close()


def test_a_store_that_cannot_be_opened_leaves_nothing_open() -> None:
    memory = MemoryFileSystem()
    filled(memory)
    files = FaultyFileSystem(memory.after_process_kill(), fail_always("write_atomic", errno.ENOSPC))
    with pytest.raises(TroveError) as caught:
        MessageStore.open(files, SMALL, NOW_MS)
    assert caught.value.spec is errors.DISK_FULL
    assert files.open_count == 0
    files.decide = lambda operation, path: None
    assert len(scan_bodies(MessageStore.open(files, SMALL, NOW_MS))) == 40


def test_files_of_a_deleted_topic_that_come_back_do_not_mix_with_new_ones() -> None:
    files = MemoryFileSystem()
    store = open_store(files)
    for _ in range(25):  # two files of 20 units
        send(store, b"old")
    flush(store)
    store.flush_projections()
    store.delete_topic("orders", NOW_MS)
    store.topics.create("orders", queue_count=4)
    for i in range(5):
        send(store, bytes([i]))
    killed = files.after_process_kill()
    second = f"consumequeue/orders/0/{400:020d}"
    killed._files[second] = files._synced_names[second]  # its removal was not on disk
    store = MessageStore.open(killed, SMALL, NOW_MS)
    assert [m.body for m in read_queue(store)] == [bytes([i]) for i in range(5)]
    assert killed.list("consumequeue/orders/0") == [f"{0:020d}"]
