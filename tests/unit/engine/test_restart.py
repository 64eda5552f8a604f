"""Stopping and starting: clean, killed, and after a power cut."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

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
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueId, QueueOffset
from trovemq_store.files.faulty import FaultyFileSystem, fail_always
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.files.real import RealFileSystem


def test_a_clean_stop_and_start_finds_everything_and_continues(tmp_path: Path) -> None:
    files = RealFileSystem(tmp_path)
    store = open_store(files)
    for i in range(30):
        send(store, bytes([i]) * 2000, queue_id=i % 4, keys=f"k{i}")
    store.close(NOW_MS)
    assert not (tmp_path / "abort").exists()
    assert (tmp_path / "checkpoint").stat().st_size == 4096
    again = open_store(files)
    assert again.recovery.clean
    assert again.recovery.records_scanned == 0, "a clean tail is only verified"
    assert len(scan_bodies(again)) == 30
    assert again.last_store_timestamp == NOW_MS
    assert send(again, b"next", queue_id=1).first_queue_offset == 8
    again.close(NOW_MS)


def test_abort_names_the_process_while_the_store_is_open() -> None:
    files = MemoryFileSystem()
    open_store(files)
    assert files.read_bytes("abort") == b"42"


@pytest.mark.parametrize("flushed", [0, 7, 20])
def test_a_killed_store_finds_everything_that_was_written(flushed: int) -> None:
    files = MemoryFileSystem()
    store = open_store(files)
    for i in range(20):
        send(store, bytes([i]) * 1500, queue_id=i % 4)
        if i == flushed:
            flush(store)
            store.flush_projections()
    again = open_store(files.after_process_kill())
    assert not again.recovery.clean
    assert [body[:1] for body in scan_bodies(again)] == [bytes([i]) for i in range(20)]
    assert [len(read_queue(again, queue_id=QueueId(q))) for q in range(4)] == [5, 5, 5, 5]
    assert again.flushed_offset == again.end_offset == store.end_offset


@pytest.mark.parametrize("acknowledged", range(0, 24, 3))
def test_a_power_cut_keeps_everything_that_was_acknowledged(acknowledged: int) -> None:
    files = MemoryFileSystem()
    store = open_store(files, SMALL_SYNC)
    for i in range(24):
        send(store, bytes([i]) * 1500, queue_id=i % 4, keys=f"k{i}")
        if i < acknowledged:
            flush(store)
            if i % 5 == 0:
                store.flush_projections(index=True)
    again = open_store(files.after_power_cut(), SMALL_SYNC)
    bodies = [body[:1] for body in scan_bodies(again)]
    assert bodies == [bytes([i]) for i in range(len(bodies))]
    assert len(bodies) >= acknowledged
    queued = [m.body[:1] for q in range(4) for m in read_queue(again, queue_id=QueueId(q))]
    assert sorted(queued) == bodies
    for q in range(4):
        assert [m.queue_offset for m in read_queue(again, queue_id=QueueId(q))] == list(
            range(len(read_queue(again, queue_id=QueueId(q))))
        )


def test_recovering_twice_is_recovering_once() -> None:
    files = MemoryFileSystem()
    store = open_store(files)
    for i in range(10):
        send(store, bytes([i]) * 1500)
    killed = files.after_process_kill()
    once = open_store(killed)
    twice = open_store(killed.after_process_kill())
    assert twice.end_offset == once.end_offset
    assert scan_bodies(twice) == scan_bodies(once)


@pytest.mark.parametrize("keep", [0, 1, 4, 50, 90, 150, 1590])
def test_a_torn_record_at_the_end_is_cut_and_its_bytes_are_zeroed(keep: int) -> None:
    files = MemoryFileSystem()
    store = open_store(files)
    for i in range(3):
        send(store, bytes([i + 1]) * 1500)
    flush(store)
    last = send(store, b"\xff" * 1500)
    killed = files.after_process_kill()
    segment = killed.open("commitlog/00000000000000000000")
    segment.write(last.physical_offset + keep, bytes(last.bytes_written - keep))
    segment.write(last.end + 100, b"stale bytes of another time")
    again = open_store(killed)
    assert again.end_offset == last.physical_offset
    assert len(scan_bodies(again)) == 3
    assert not any(killed.read_bytes("commitlog/00000000000000000000")[again.end_offset :])
    assert send(again, b"new").first_queue_offset == 3


def test_a_record_damaged_in_the_middle_is_not_answered_but_neighbours_are() -> None:
    files = MemoryFileSystem()
    store = open_store(files)
    results = [send(store, bytes([i]) * 1000) for i in range(8)]
    flush(store)
    store.flush_projections()
    killed = files.after_process_kill()
    segment = killed.open("commitlog/00000000000000000000")
    segment.write(results[2].physical_offset + 200, b"?")  # its body's CRC is wrong
    segment.write(results[4].physical_offset + 4, b"????")  # no magic: not even a size can be trusted
    again = open_store(killed)
    assert again.end_offset == store.end_offset
    with pytest.raises(TroveError) as caught:
        again.record_at(results[2].physical_offset)
    assert caught.value.spec is errors.RECORD_DAMAGED
    assert again.record_at(results[4].physical_offset) is None
    good = [i for i, r in enumerate(results) if i not in (2, 4) and again.record_at(r.physical_offset)]
    assert good == [0, 1, 3, 5, 6, 7]


@pytest.mark.parametrize("directory", ["consumequeue", "index"])
def test_a_projection_that_was_deleted_is_rebuilt_from_the_log(directory: str) -> None:
    files = MemoryFileSystem()
    store = open_store(files)
    for i in range(40):
        send(store, bytes([i]) * 500, queue_id=i % 4, keys=f"k{i} shared")
    store.close(NOW_MS)
    before = content(files, directory)
    for path in before:
        files.remove(path)
    again = open_store(files)
    while again.catch_up(1 << 20):
        pass
    again.close(NOW_MS)
    after = content(files, directory)
    if directory == "consumequeue":
        assert after == before
    else:
        assert len(after) == len(before)
        assert again.lagging == []


def content(files: MemoryFileSystem, directory: str) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for name in files.list(directory):
        path = f"{directory}/{name}"
        if files.is_directory(path):
            found |= content(files, path)
        else:
            found[path] = files.read_bytes(path)
    return found


def test_other_sizes_than_the_store_was_written_with_are_refused_by_name() -> None:
    files = MemoryFileSystem()
    open_store(files).close(NOW_MS)
    changes: list[tuple[dict[str, Any], str]] = [
        ({"commit_log_file_size": 32_768}, "mappedFileSizeCommitLog"),
        ({"consume_queue_file_size": 800}, "mappedFileSizeConsumeQueue"),
        ({"index_slot_count": 65}, "maxHashSlotNum"),
        ({"index_item_count": 257}, "maxIndexNum"),
    ]
    for change, name in changes:
        with pytest.raises(TroveError, match=name) as caught:
            open_store(files, replace(SMALL, **change))
        assert caught.value.spec is errors.STORE_SETTINGS_MISMATCH
    open_store(files).close(NOW_MS)


def test_a_store_of_a_newer_format_is_refused_and_left_alone() -> None:
    files = MemoryFileSystem()
    open_store(files).close(NOW_MS)
    files.write_atomic("trovemq/state.json", b'{"format": 2, "surprise": []}')
    with pytest.raises(TroveError) as caught:
        open_store(files)
    assert caught.value.spec is errors.STORE_NEWER
    assert files.read_bytes("trovemq/state.json") == b'{"format": 2, "surprise": []}'


def test_a_store_that_is_open_is_locked() -> None:
    files = MemoryFileSystem()
    store = open_store(files)
    with pytest.raises(TroveError) as caught:
        open_store(files)
    assert caught.value.spec is errors.STORE_LOCKED
    store.close(NOW_MS)
    open_store(files)


def test_no_consumer_offset_passes_the_end_of_its_queue_after_a_crash() -> None:
    files = MemoryFileSystem()
    store = open_store(files, SMALL_SYNC)
    for _ in range(3):
        send(store, b"kept")
    flush(store)
    store.offsets.commit("billing", "orders", QueueId(0), QueueOffset(3), durable=True)
    cut = files.after_power_cut()
    again = open_store(cut, SMALL_SYNC)
    assert again.offsets.get("billing", "orders", QueueId(0)) == 3
    assert len(read_queue(again)) == 3


def test_a_deleted_topic_stays_deleted_and_starts_again_at_zero() -> None:
    files = MemoryFileSystem()
    store = open_store(files, topics=("orders", "other"))
    for i in range(6):
        send(store, b"old", keys="k")
        send(store, bytes([i]), topic="other")
    deleted_at = store.delete_topic("orders", NOW_MS)
    assert deleted_at == store.end_offset
    assert read_queue(store) == []
    assert scan_bodies(store) == [bytes([i]) for i in range(6)]
    store.topics.create("orders", queue_count=4)
    assert send(store, b"new").first_queue_offset == 0
    for kind in ("kill", "clean"):
        if kind == "clean":
            store.close(NOW_MS)
        store = open_store(files.after_process_kill(), topics=())
        assert [(m.body, m.queue_offset) for m in read_queue(store)] == [(b"new", 0)]
        assert len(read_queue(store, "other")) == 6
        files = store.files.inner  # type: ignore[assignment]


def test_a_topic_deleted_just_before_a_kill_has_no_messages() -> None:
    files = MemoryFileSystem()
    store = open_store(files)
    send(store, b"old")
    store._deletions.add("orders", store.end_offset)  # killed right after the deletion was recorded
    again = open_store(files.after_process_kill())
    assert read_queue(again) == []
    assert send(again, b"new").first_queue_offset == 0


def test_a_switched_off_index_is_rebuilt_from_the_log_when_switched_on() -> None:
    files = MemoryFileSystem()
    store = open_store(files, replace(SMALL, message_index_enable=False))
    assert store.key_index is None
    for i in range(50):
        send(store, bytes(300), keys=f"k{i}")
    store.close(NOW_MS)
    assert files.list("index") == []
    again = open_store(files)
    assert again.lagging == ["key_index"]
    steps = 0
    while again.catch_up(4096):
        steps += 1
    assert steps > 1, "in small steps"
    assert again.lagging == []
    assert again.key_index is not None
    assert again.key_index.position == again.end_offset


def test_a_batch_of_one_topic_lies_in_one_segment_after_a_restart() -> None:
    files = MemoryFileSystem()
    store = open_store(files)
    append(store, *[record(bytes(2000)) for _ in range(5)])
    store.dispatch()
    append(store, *[record(bytes(2000)) for _ in range(5)])
    store.dispatch()
    again = open_store(files.after_process_kill())
    assert [m.queue_offset for m in read_queue(again)] == list(range(10))


@pytest.mark.parametrize("safe", [True, False])
def test_message_index_safe_completes_the_index_before_the_store_is_open(safe: bool) -> None:
    files = MemoryFileSystem()
    store = open_store(files, replace(SMALL, message_index_enable=False))
    for i in range(50):
        send(store, bytes(300), keys=f"k{i}")
    store.close(NOW_MS)
    again = open_store(files, replace(SMALL, message_index_safe=safe))
    assert again.lagging == ([] if safe else ["key_index"])


def test_message_index_safe_gives_up_when_no_index_file_can_be_made() -> None:
    memory = MemoryFileSystem()
    store = open_store(memory, replace(SMALL, message_index_enable=False))
    send(store, b"x", keys="k")
    store.close(NOW_MS)
    files = FaultyFileSystem(memory, fail_always("open_writable_map", errno.ENOSPC))
    again = open_store(files, replace(SMALL, message_index_safe=True))
    assert again.lagging == ["key_index"]
    files.decide = lambda operation, path: None
    assert not again.catch_up(1 << 20)


SEGMENT = "commitlog/00000000000000000000"
LARGE = replace(SMALL, commit_log_file_size=1 << 20, batch_size_max=16 << 10)


def test_a_start_after_a_clean_stop_read_a_quarter_of_an_empty_segment() -> None:
    """256 MiB, of which a next leader's clients wait."""
    files = FaultyFileSystem(MemoryFileSystem())
    store = open_store(files, LARGE)
    send(store, b"kept")
    store.close(NOW_MS)
    files.unreadable[SEGMENT] = (100 << 10, 104 << 10)
    assert len(scan_bodies(open_store(files, LARGE))) == 1


def test_bytes_of_a_failed_append_are_zeroed_after_a_clean_stop() -> None:
    memory = MemoryFileSystem()
    files = FaultyFileSystem(memory, tear=True)
    store = open_store(files, LARGE)
    send(store, b"kept")
    files.decide = fail_always("write", errno.EIO, SEGMENT)
    with pytest.raises(TroveError):
        send(store, b"x" * 1500)
    files.decide = lambda _operation, _path: None
    store.close(NOW_MS)
    memory.open(SEGMENT).write(200 << 10, b"of a large transaction")
    again = open_store(files, LARGE)
    assert again.recovery.clean
    assert not any(files.read_bytes(SEGMENT)[again.end_offset :])
