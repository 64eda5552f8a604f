"""Where the log ends after a crash: torn or stale records are cut, records damaged later are not an end."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.support.engine import NOW_MS, SMALL, SMALL_SYNC, flush, open_store, read_queue, send
from trovemq_broker.daemon.recovery_log import LINES_MAX, log_recovery
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueId, QueueOffset
from trovemq_proto.records.check import RecordState
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.store_time import AHEAD_FOR_MS
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.log import state

SEGMENT = SMALL.commit_log_file_size


def overwrite(files: MemoryFileSystem, physical_offset: int, data: bytes) -> None:
    start = physical_offset // SEGMENT * SEGMENT
    files.open(f"commitlog/{start:020d}").write(physical_offset - start, data)


def flip(files: MemoryFileSystem, physical_offset: int) -> None:
    start = physical_offset // SEGMENT * SEGMENT
    byte = files.open(f"commitlog/{start:020d}").view()[physical_offset - start]
    overwrite(files, physical_offset, bytes([byte ^ 4]))


def crashed(count: int, size: int = 300) -> tuple[MemoryFileSystem, list[PhysicalOffset]]:
    """A store that was killed with `count` messages after the last saved marks, and where each begins."""
    files = MemoryFileSystem()
    store = open_store(files, SMALL_SYNC)
    places = []
    for number in range(count):
        places.append(send(store, bytes([number + 1]) * size, NOW_MS + number).physical_offset)
        flush(store)
    places.append(store.end_offset)
    return files.after_process_kill(), places


def reopened(files: MemoryFileSystem) -> MessageStore:
    return MessageStore.open(files, SMALL_SYNC, NOW_MS + 1_000)


def firsts(store: MessageStore) -> list[int]:
    """The first byte of each message that can be read."""
    queue = store.consume_queues.get("orders", QueueId(0))
    assert queue is not None
    found = []
    for offset in range(queue.min_offset, queue.max_offset):
        try:
            record = store.record_at(queue.unit(QueueOffset(offset))[0])
        except TroveError:
            record = None
        if record is not None:
            found.append(record[88])
    return found


@pytest.mark.parametrize("at", [5, 40, 130, -4])
def test_a_byte_that_went_bad_after_the_marks_takes_one_message(at: int) -> None:
    """Of the header, the store time, the body, the CRC property."""
    files, places = crashed(12)
    flip(files, (places[5] if at >= 0 else places[6]) + at)
    store = reopened(files)
    assert store.end_offset == places[-1]
    assert firsts(store) == [*range(1, 6), *range(7, 13)]
    (damage,) = store.recovery.damages
    assert (damage.physical_offset, damage.end) == (places[5], places[6])
    assert send(store, b"next").first_queue_offset == 12


def test_a_record_that_lost_a_sector_is_the_end() -> None:
    files, places = crashed(12, size=700)
    sector = -(-places[8] // 512) * 512
    overwrite(files, sector, bytes(512))
    store = reopened(files)
    assert store.end_offset == places[8]
    assert firsts(store) == list(range(1, 9))
    assert not store.recovery.damages


def test_a_damaged_record_at_the_very_end_keeps_its_place() -> None:
    files, places = crashed(6)
    flip(files, places[5] + 150)
    store = reopened(files)
    assert store.end_offset == places[-1]
    assert [damage.state for damage in store.recovery.damages] == [RecordState.DAMAGED]
    assert send(store, b"next").first_queue_offset == 6
    flush(store)
    again = reopened(files.after_process_kill())
    assert firsts(again) == [1, 2, 3, 4, 5, b"next"[0]]
    assert send(again, b"next").first_queue_offset == 7


def test_a_bad_blank_does_not_hide_the_next_segment() -> None:
    files, places = crashed(40)
    segment_end = SEGMENT
    last = max(index for index, place in enumerate(places) if place < segment_end and index < 40)
    first_behind = places[last + 1]
    assert first_behind >= segment_end, "the next message begins the next segment"
    log = files.open(f"commitlog/{0:020d}").view()
    record_size = int.from_bytes(log[places[last] : places[last] + 4])
    flip(files, places[last] + record_size + 6)  # the blank's magic
    store = reopened(files)
    assert firsts(store) == list(range(1, 41))
    assert store.end_offset == places[-1]


def last_of_the_first_segment() -> tuple[MemoryFileSystem, list[PhysicalOffset], int]:
    """`crashed`, and the index of the last message before the blank."""
    files, places = crashed(40)
    return files, places, max(index for index, place in enumerate(places) if place < SEGMENT)


@pytest.mark.parametrize("kept", [4, 5, 6, 8])
def test_the_first_bytes_of_a_lost_record_are_no_blank(kept: int) -> None:
    """A power cut took the last sectors of a segment, and the next segment is on disk."""
    files, places, last = last_of_the_first_segment()
    begin = places[last] + kept
    overwrite(files, begin, bytes(SEGMENT - begin))
    store = reopened(files)
    assert store.end_offset == places[last]
    assert firsts(store) == list(range(1, last + 1))
    assert not store.recovery.damages


@pytest.mark.parametrize("kept", [4, 6])
def test_a_blank_that_lost_a_sector_does_not_hide_the_next_segment(kept: int) -> None:
    files, places, last = last_of_the_first_segment()
    log = files.open(f"commitlog/{0:020d}").view()
    blank = places[last] + int.from_bytes(log[places[last] : places[last] + 4])
    overwrite(files, blank + kept, bytes(SEGMENT - blank - kept))
    store = reopened(files)
    assert firsts(store) == list(range(1, 41))
    assert store.end_offset == places[-1]


def test_stale_bytes_after_the_end_are_cut() -> None:
    files, places = crashed(6)
    log = files.open(f"commitlog/{0:020d}").view()
    old = bytes(log[places[1] : places[3]])
    overwrite(files, places[-1], old)
    store = reopened(files)
    assert store.end_offset == places[-1]
    assert firsts(store) == list(range(1, 7))
    again = reopened(files.after_process_kill())
    assert again.end_offset == places[-1]
    assert not any(files.open(f"commitlog/{0:020d}").view()[places[-1] :])


def test_an_older_record_after_a_foreign_end_does_not_come_back() -> None:
    """RocketMQ does not zero the bytes that it cuts: the records there name their own positions."""
    files, _ = crashed(8)
    store = reopened(files)
    store.close(NOW_MS + 2_000)
    for path in (state.PATH, "checkpoint"):
        files.remove(path)
    files.write_atomic("abort", b"1")
    log = files.open(f"commitlog/{0:020d}")
    shorter = open_store(MemoryFileSystem(), replace(SMALL, append_property_crc=False))
    for number in range(4):  # written over records 0..3, later: it ends within one of them
        send(shorter, bytes([90 + number]) * 290, NOW_MS + 5_000 + number)
    end = shorter.end_offset
    log.write(0, bytes(shorter.files.open(f"commitlog/{0:020d}").view()[:end]))
    foreign = MessageStore.open(files, SMALL_SYNC, NOW_MS + 9_000)
    assert foreign.end_offset == end
    assert firsts(foreign)[-4:] == [90, 91, 92, 93]


def stepped_back(before: int, after: int, *, later_flush: bool) -> tuple[MemoryFileSystem, list[int]]:
    """A store that was killed just after store times had stepped back by an hour: `before` messages of the
    clock that was ahead and `after` later ones follow the last saved marks; and where each begins.
    later_flush: the marks are saved once more between the step and the messages after it."""
    files = MemoryFileSystem()
    store = open_store(files, SMALL_SYNC)
    ahead_ms = NOW_MS + 3_600_000
    send(store, b"first", EpochMs(ahead_ms))
    flush(store)
    store.tick(EpochMs(NOW_MS), 0)
    assert store.tick(EpochMs(NOW_MS + AHEAD_FOR_MS), AHEAD_FOR_MS), "store times are to step back"
    now_ms = EpochMs(NOW_MS + AHEAD_FOR_MS)
    store.begin_time_step(now_ms)
    store.flush_projections()
    bodies = [bytes([number + 1]) * 300 for number in range(before + after)]
    places: list[int] = [send(store, body, EpochMs(ahead_ms)).physical_offset for body in bodies[:before]]
    assert store.finish_time_step(now_ms)
    if later_flush:
        store.flush_projections()
    places += [send(store, body, now_ms).physical_offset for body in bodies[before:]]
    flush(store)
    return files.after_process_kill(), [*places, store.end_offset]


@pytest.mark.parametrize("later_flush", [False, True])
@pytest.mark.parametrize(("before", "after"), [(4, 4), (40, 4), (20, 60)])
def test_damage_where_store_times_step_back_cut_the_messages_after_it(
    before: int, after: int, later_flush: bool
) -> None:
    files, places = stepped_back(before, after, later_flush=later_flush)
    for damaged in (before - 1, before):  # the last message before the step, the first one after it
        spoilt = files.after_process_kill()
        overwrite(spoilt, places[damaged], b"\x7f" * 8)  # the size and the magic: its end is unknown
        store = reopened(spoilt)
        assert store.end_offset == places[-1]
        assert firsts(store)[1:] == [one + 1 for one in range(before + after) if one != damaged]
        (damage,) = store.recovery.damages
        assert (damage.physical_offset, damage.end) == (places[damaged], places[damaged + 1])


def test_a_record_older_than_a_step_does_not_come_back() -> None:
    """Store times stepped back, then RocketMQ wrote: its stale bytes are older than the step, too."""
    files, places = stepped_back(2, 2, later_flush=True)
    stale, _ = crashed(8)
    log = files.open(f"commitlog/{0:020d}")
    old = bytes(stale.open(f"commitlog/{0:020d}").view()[places[-1] :][:4_000])
    log.write(places[-1], old)
    store = reopened(files)
    assert store.end_offset == places[-1]


@pytest.mark.parametrize("lost", [1, 3])
def test_offsets_of_damaged_last_records_are_not_reused_after_queue_loss(lost: int) -> None:
    files, places = crashed(10)
    store = reopened(files)
    store.close(NOW_MS + 2_000)
    for place in places[10 - lost : 10]:
        flip(files, place + 150)
    for path in [path for path in files._files if path.startswith("consumequeue/")]:
        files.remove(path)
    store = reopened(files)
    assert firsts(store) == list(range(1, 11 - lost))
    assert sum(gap.count for gap in store.recovery.gaps) >= lost
    assert send(store, b"next").first_queue_offset == 10
    flush(store)
    again = reopened(files.after_process_kill())
    assert send(again, b"next").first_queue_offset == 11


def test_a_queue_that_lost_its_newest_files_is_rebuilt_at_once() -> None:
    files = MemoryFileSystem()
    store = open_store(files, SMALL_SYNC)
    for number in range(50):
        send(store, bytes([number]), NOW_MS + number)
    flush(store)
    store.flush_projections(index=True)
    files = files.after_process_kill()
    newest = max(path for path in files._files if path.startswith("consumequeue/orders/0/"))
    files.remove(newest)
    assert [message.body[0] for message in read_queue(reopened(files))] == list(range(50))


class Lines:
    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def warning(self, event: str, **fields: Any) -> None:
        self.lines.append((event, fields))


def test_each_damage_is_logged_by_file_and_offset_up_to_a_bound() -> None:
    files, places = crashed(80)
    damaged = places[1:79:2]
    for place in damaged:
        flip(files, place + 150)
    store, lines = reopened(files), Lines()
    log_recovery(lines, store)
    assert store.damage.ranges == {"damaged": len(damaged)}
    first = lines.lines[0]
    assert first[0] == "store.damage"
    assert [first[1][name] for name in ("file", "offset", "state")] == [
        f"commitlog/{0:020}",
        places[1],
        "damaged",
    ]
    assert sum(event == "store.damage" for event, _ in lines.lines) == LINES_MAX
    assert ("store.damages_more", {"count": len(damaged) - LINES_MAX}) in lines.lines
    json.dumps([fields for _, fields in lines.lines])


def test_damage_that_a_reader_meets_is_counted_and_logged_once() -> None:
    files, places = crashed(4)
    store, lines = reopened(files), Lines()
    log_recovery(lines, store)
    flip(files, places[2] + 150)
    for _ in range(3):
        with pytest.raises(TroveError):
            store.record_at(PhysicalOffset(places[2]))
    assert store.damage.ranges == {"damaged": 1}
    assert [event for event, _ in lines.lines] == ["store.damage_met"]
