"""Bad places at the end of the log, each of another kind: which records after them are kept, and which are
cut."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.engine import NOW_MS, SMALL, SMALL_SYNC, flush, open_store, read_queue, send
from tests.unit.engine.test_log_tail import SEGMENT, crashed, firsts, flip, overwrite, reopened
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset
from trovemq_proto.records import Message
from trovemq_proto.records.check import RecordState
from trovemq_proto.records.layout import BLANK_SIZE, MAGIC_BLANK
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.faulty import FaultyFileSystem
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.log import damage_counts, segment_age, state
from trovemq_store.log.damage_counts import DamageCounts
from trovemq_store.log.reader import Damage
from trovemq_store.log.sectors import SECTOR_SIZE

LOG = f"commitlog/{0:020d}"


def last_of_segment(places: list[PhysicalOffset]) -> int:
    """The number of the last message in the first segment."""
    return max(number for number, place in enumerate(places[:-1]) if place < SEGMENT)


def rest(files: MemoryFileSystem, place: int) -> bytes:
    start = place // SEGMENT * SEGMENT
    return bytes(files.open(f"commitlog/{start:020d}").view()[place - start :])


# --- the end of a log that was killed ---------------------------------------------------------------------
def test_noise_up_to_the_segments_end_is_cut() -> None:
    files, places = crashed(6)
    overwrite(files, places[-1], b"\xff" * (SEGMENT - places[-1]))
    store = reopened(files)
    assert store.end_offset == places[-1]
    assert firsts(store) == list(range(1, 7))
    assert not any(rest(files, places[-1]))


def test_messages_behind_many_bad_bytes_are_kept() -> None:
    """More than are searched at once."""
    files, places = crashed(25)
    overwrite(files, places[3], b"\xff" * (places[18] - places[3]))
    assert places[18] - places[3] > 4_096
    store = reopened(files)
    assert firsts(store) == [1, 2, 3, *range(19, 26)]
    assert store.end_offset == places[-1]


def test_a_bad_head_right_before_the_blank_does_not_hide_the_next_segment() -> None:
    files, places = crashed(40)
    last = last_of_segment(places)
    # Bytes within the record that look like a blank are not one: they do not reach to the segment's end.
    overwrite(files, places[last] + 100, b"\0\0\0\x63" + MAGIC_BLANK.to_bytes(4))
    overwrite(files, places[last], b"\xff" * 8)
    store = reopened(files)
    assert firsts(store) == [*range(1, last + 1), *range(last + 2, 41)]
    assert store.end_offset == places[-1]


def test_a_lost_blank_is_the_end() -> None:
    """Zeros where it was: a power cut may have lost them, and all that was written later with them."""
    files, places = crashed(40)
    last = last_of_segment(places)
    end = places[last] + (places[1] - places[0])
    overwrite(files, end, bytes(SEGMENT - end))
    store = reopened(files)
    assert store.end_offset == end
    assert firsts(store) == list(range(1, last + 2))


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["first", "second"])
def test_a_blank_that_lost_a_sector_was_reported_as_damage(lost: str) -> None:
    """A power cut kept one of its two sectors and later ones: the log ends, and nothing is damaged."""
    for size in range(300, 450):
        files, places = crashed(30, size)
        end = places[last_of_segment(places)] + (places[1] - places[0])
        in_first = -end % SECTOR_SIZE
        if 4 <= in_first < BLANK_SIZE:
            break
    begin, count = (end, in_first) if lost == "first" else (end + in_first, BLANK_SIZE - in_first)
    overwrite(files, begin, bytes(count))
    store = reopened(files)
    assert (store.end_offset, list(store.recovery.damages)) == (end, [])


def test_a_bad_blank_with_bytes_after_it_is_not_a_blank() -> None:
    files, places = crashed(40)
    last = last_of_segment(places)
    end = places[last] + (places[1] - places[0])
    overwrite(files, end, b"\1" * 8 + bytes(20) + b"\7")
    store = reopened(files)
    assert store.end_offset == end
    assert firsts(store) == list(range(1, last + 2))


def test_a_next_segment_that_cannot_be_read_stops_the_start() -> None:
    """It may well hold good records, so it is not cut."""
    files, places = crashed(40)
    last = last_of_segment(places)
    flip(files, places[last] + (places[1] - places[0]) + 6)  # the blank
    faulty = FaultyFileSystem(files)
    faulty.unreadable[f"commitlog/{SEGMENT:020d}"] = (0, SEGMENT)
    with pytest.raises(TroveError, match="STORE_FAILED"):
        MessageStore.open(faulty, SMALL_SYNC, NOW_MS + 1_000)
    assert firsts(reopened(files)) == list(range(1, 41))


def test_messages_after_a_record_that_cannot_be_read_are_found() -> None:
    """Its head can be read, and bytes within it that look like a record cannot."""
    memory = MemoryFileSystem()
    settings = replace(SMALL_SYNC, commit_log_file_size=65_536, append_property_crc=False)
    store = open_store(memory, settings)
    places = [
        send(store, bytes([number + 1]) * 1_500, NOW_MS + number).physical_offset for number in range(12)
    ]
    flush(store)
    store.flush_projections(index=True)
    crossing = max(number for number, place in enumerate(places) if place < 8_192)
    files = FaultyFileSystem(memory.after_process_kill())
    files.unreadable[LOG] = (8_192, 12_288)
    store = MessageStore.open(files, settings, NOW_MS + 1_000)
    good = [number + 1 for number, place in enumerate(places) if place + 1_700 <= 8_192 or place >= 12_288]
    assert [message.body[0] for message in scan(store)] == good
    assert crossing + 1 not in good


def scan(store: MessageStore) -> list[Message]:
    return [
        message
        for _, records, _ in store.scan(store.min_offset, store.visible_offset)
        for message in records.messages()
    ]


# --- segments ---------------------------------------------------------------------------------------------
def test_an_empty_file_after_the_last_segment_goes() -> None:
    files, places = crashed(6)
    files.create(f"commitlog/{SEGMENT:020d}", 0, preallocate=False).close()
    store = reopened(files)
    assert firsts(store) == list(range(1, 7))
    assert store.end_offset == places[-1]
    assert not files.exists(f"commitlog/{SEGMENT:020d}")


def test_a_file_that_is_not_a_segment_is_named() -> None:
    files, _ = crashed(6)
    files.create("commitlog/notes.txt", SEGMENT, preallocate=False).close()
    with pytest.raises(TroveError, match=r"commitlog/notes\.txt is not a segment") as caught:
        reopened(files)
    assert caught.value.symbol == "STORE_SETTINGS_MISMATCH"


def test_the_age_of_a_segment_that_is_read_in_many_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_age, "RUN_BYTES_MAX", 500)
    files, places = crashed(40)
    store = reopened(files)
    segment = store.closed_segments()[0]
    assert segment_age.last_store_timestamp(segment) == NOW_MS + last_of_segment(places)


@pytest.mark.parametrize("back", [0, 1, 5])
def test_the_age_of_a_segment_was_read_from_an_unreadable_page(back: int) -> None:
    """That would have ended the process; now the last record beside that page counts."""
    files = FaultyFileSystem(MemoryFileSystem())
    store = open_store(files, replace(SMALL_SYNC, commit_log_file_size=65_536))
    sent = [send(store, bytes(1_500), NOW_MS + number) for number in range(60)]
    flush(store)
    store.flush_projections(index=True)
    segment = store.closed_segments()[0]
    inside = [result for result in sent if result.end <= segment.end]
    page = inside[-1 - back].physical_offset // 4_096 * 4_096
    files.unreadable[LOG] = (page, page + 4_096)
    readable = [one for one in inside if one.end <= page or one.physical_offset >= page + 4_096]
    assert segment_age.last_store_timestamp(segment) == readable[-1].store_timestamp
    assert readable[-1] is not inside[-1] or back == 5


# --- counts and saved state ------------------------------------------------------------------------------
def test_more_damaged_places_than_are_kept_are_counted_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(damage_counts, "PLACES_MAX", 2)
    counts = DamageCounts(
        [Damage(PhysicalOffset(at), PhysicalOffset(at + 10), RecordState.DAMAGED) for at in (0, 20, 40)]
    )
    state = RecordState.DAMAGED.value
    assert (counts.ranges[state], counts.bytes[state]) == (3, 30)
    counts.met(PhysicalOffset(60), 10, state)
    assert counts.ranges[state] == 3, "whether it was counted before is not known any more"


def test_places_beyond_the_known_ones_never_counted_as_repaired(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(damage_counts, "PLACES_MAX", 2)
    state, offsets = RecordState.DAMAGED.value, (0, 20, 40)
    counts = DamageCounts(
        [Damage(PhysicalOffset(at), PhysicalOffset(at + 10), RecordState.DAMAGED) for at in offsets]
    )
    counts.repaired(PhysicalOffset(0), PhysicalOffset(10))
    assert counts.present == (2, 20)
    counts.met(PhysicalOffset(40), 10, state)  # by a scrub
    assert counts.present == (2, 20), "it was counted when the store was opened"
    for at in (20, 40):
        counts.repaired(PhysicalOffset(at), PhysicalOffset(at + 10))
    assert counts.present == (0, 0)
    assert counts.repaired_ranges == 3
    counts.met(PhysicalOffset(60), 10, state)
    assert counts.present == (1, 10)


def test_a_state_in_which_a_projection_is_ahead_of_the_log_is_not_believed() -> None:
    files, _ = crashed(12)
    store = reopened(files)
    store.close(NOW_MS + 2_000)
    text = files.read_bytes(state.PATH).decode()
    saved = state.load(files)
    assert saved is not None
    wrong = text.replace(f'"logEnd": {saved.log_end}', f'"logEnd": {saved.log_end - 1}')
    assert wrong != text
    files.write_atomic(state.PATH, wrong.encode())
    assert state.load(files) is None
    assert firsts(reopened(files)) == list(range(1, 13))


def test_a_killed_store_of_rocketmq_is_read_from_where_its_checkpoint_says(tmp_path: Path) -> None:
    """From the last segment that begins before that time, not from the log's beginning."""
    files = MemoryFileSystem()
    store = open_store(files, SMALL)
    for number in range(60):
        send(store, b"x" * 800, NOW_MS + 10_000 * number)
    store.close(NOW_MS + 700_000)
    for path in [path for path in files._files if path.startswith("trovemq/")]:
        files.remove(path)
    files.write_atomic("abort", b"1")
    again = MessageStore.open(files, SMALL, NOW_MS + 800_000)
    assert again.recovery.scan_begin > SEGMENT
    assert len(read_queue(again)) == 60
