"""Retention's decisions, by figures; and how old a closed segment is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.engine import NOW_MS, SMALL, flush, open_store, send
from trovemq_proto.positions import LOG_ORIGIN, EpochMs, PhysicalOffset
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.log.retention import (
    HOUR_MS,
    ClosedSegment,
    Decision,
    DiskUse,
    RetentionPolicy,
    decide,
    is_disk_full,
    parse_hours,
)
from trovemq_store.log.segment_age import closed_segments, last_store_timestamp

SIZE = 100
POLICY = RetentionPolicy(forcible_enable=True)
NOON, FOUR = 12, 4
OLD, YOUNG = NOW_MS - 73 * HOUR_MS, NOW_MS - 71 * HOUR_MS
FREE, USED_76, USED_86, USED_91 = (DiskUse(10_000, 10_000 - 100 * used) for used in (10, 76, 86, 91))


def segments(*stored_ms: int) -> list[ClosedSegment]:
    return [
        ClosedSegment(PhysicalOffset(SIZE * n), PhysicalOffset(SIZE * (n + 1)), EpochMs(ms))
        for n, ms in enumerate(stored_ms)
    ]


def decided(
    closed: list[ClosedSegment], disk: DiskUse, hour: int, policy: RetentionPolicy = POLICY
) -> Decision:
    return decide(closed, policy, disk, min_offset=LOG_ORIGIN, hour=hour, now_ms=NOW_MS)


@pytest.mark.parametrize(
    ("disk", "hour", "count"),
    [(FREE, NOON, 0), (FREE, FOUR, 2), (USED_76, NOON, 2), (USED_76, FOUR, 2)],
)
def test_old_segments_go_at_their_hour_or_when_the_disk_fills(disk: DiskUse, hour: int, count: int) -> None:
    found = decided(segments(OLD, OLD, YOUNG, OLD), disk, hour)
    assert found == Decision(PhysicalOffset(SIZE * count), count)


def test_a_segment_is_kept_until_its_last_record_is_of_age() -> None:
    age = POLICY.reserved_ms
    assert decided(segments(NOW_MS - age), FREE, FOUR).count == 1
    assert decided(segments(NOW_MS - age + 1), FREE, FOUR).count == 0


def test_a_filling_disk_takes_young_segments_and_no_more_than_needed() -> None:
    # 86 % of 10,000 bytes: 100 bytes above the level, which one segment frees
    assert decided(segments(YOUNG, YOUNG, YOUNG), USED_86, NOON) == Decision(
        PhysicalOffset(SIZE), 1, 1, pressed=True, newest_early_ms=EpochMs(YOUNG)
    )
    assert decided(segments(YOUNG, YOUNG), DiskUse(10_000, 1_399), NOON).count == 2
    # old ones free it already
    assert decided(segments(OLD, OLD, YOUNG), USED_86, NOON) == Decision(
        PhysicalOffset(2 * SIZE), 2, 0, pressed=True
    )
    assert decided(segments(OLD, YOUNG, YOUNG), USED_86, NOON) == Decision(
        PhysicalOffset(SIZE), 1, 0, pressed=True
    )


def test_at_the_level_itself_nothing_is_forced() -> None:
    assert decided(segments(YOUNG), DiskUse(10_000, 1_500), NOON).count == 0
    assert decided(segments(OLD), DiskUse(10_000, 2_500), NOON).count == 0


def test_nothing_young_goes_where_that_is_switched_off() -> None:
    policy = replace(POLICY, forcible_enable=False)
    assert decided(segments(YOUNG), USED_91, NOON, policy).count == 0
    assert decided(segments(OLD, YOUNG), USED_91, NOON, policy) == Decision(PhysicalOffset(SIZE), 1)


def test_a_run_takes_no_more_than_its_batch() -> None:
    assert decided(segments(*[OLD] * 30), FREE, FOUR).count == 10
    assert decided(segments(*[YOUNG] * 30), DiskUse(10_000, 0), NOON, replace(POLICY, files_max=3)).count == 3


def test_segments_after_the_first_that_stays_are_not_looked_at() -> None:
    looked: list[int] = []

    def watched() -> Iterator[ClosedSegment]:
        for segment in segments(OLD, YOUNG, OLD):
            looked.append(segment.start)
            yield segment

    decide(watched(), POLICY, FREE, min_offset=LOG_ORIGIN, hour=FOUR, now_ms=NOW_MS)
    assert looked == [0, SIZE]
    looked.clear()
    decide(watched(), POLICY, FREE, min_offset=LOG_ORIGIN, hour=NOON, now_ms=NOW_MS)
    assert looked == []


@given(
    ages=st.lists(st.sampled_from([OLD, YOUNG]), max_size=15),
    free=st.integers(0, 10_000),
    hour=st.integers(0, 23),
    files_max=st.integers(1, 12),
    enable=st.booleans(),
)
def test_what_goes_is_a_bounded_beginning(
    ages: list[int], free: int, hour: int, files_max: int, enable: bool
) -> None:
    policy = replace(POLICY, files_max=files_max, forcible_enable=enable)
    disk = DiskUse(10_000, free)
    found = decided(segments(*ages), disk, hour, policy)
    assert found.count <= min(files_max, len(ages))
    assert found.end == SIZE * found.count
    assert found.forced <= found.count
    if not (enable and disk.used_percent > policy.forcible_percent):
        assert found.forced == 0
        assert all(age == OLD for age in ages[: found.count])
    if hour == FOUR and found.count < min(files_max, len(ages)):
        assert ages[found.count] == YOUNG


def test_new_messages_are_refused_above_the_warning_level_only() -> None:
    assert not is_disk_full(POLICY, DiskUse(1_000, 100))
    assert is_disk_full(POLICY, DiskUse(1_000, 99))
    assert not is_disk_full(replace(POLICY, warning_percent=100), DiskUse(1_000, 0))
    assert not is_disk_full(POLICY, DiskUse(0, 0)), "a disk that does not say its size"


@pytest.mark.parametrize(
    ("text", "hours"), [("04", {4}), ("4;16", {4, 16}), (" 00 ; 23 ;", {0, 23}), ("7;7", {7})]
)
def test_hours_of_delete_when(text: str, hours: set[int]) -> None:
    assert parse_hours(text) == hours


@pytest.mark.parametrize("text", ["", ";", "24", "-1", "4,5", "four", "4.5", "٤"])
def test_what_is_not_an_hour_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not an hour"):
        parse_hours(text)


# --- ages -----------------------------------------------------------------------------------------------
def ages(
    files: MemoryFileSystem, sizes: list[int], *, file_size: int = 1 << 20, damaged: int = -1
) -> tuple[list[EpochMs], list[int]]:
    """The ages found in a log with bodies of these sizes, stored a second apart; and the right ones. The head
    of record `damaged` is overwritten."""
    store = open_store(files, replace(SMALL, commit_log_file_size=file_size, body_size_max=file_size))
    last: dict[int, int] = {}
    places: list[int] = []
    for number, size in enumerate(sizes):
        result = send(store, bytes(size), NOW_MS + 1_000 * number)
        last[result.physical_offset // file_size] = result.store_timestamp
        places.append(result.physical_offset)
    flush(store)
    store.flush_projections()
    closed = store.closed_segments()
    if damaged >= 0:
        closed[0].file.write(places[damaged], bytes([0xFF]) * 40)
    found = [segment.last_stored_ms for segment in closed_segments(files, closed)]
    return found, [last[segment.start // file_size] for segment in closed]


@pytest.mark.parametrize(
    ("size", "file_size"), [(10, 1 << 16), (4_000, 1 << 19), (200_000, 1 << 20), (1_000_000, 1 << 20)]
)
def test_a_segment_is_as_old_as_its_last_record(size: int, file_size: int) -> None:
    found, right = ages(MemoryFileSystem(), [size] * (4 * file_size // (size + 150)), file_size=file_size)
    assert len(found) >= 2
    assert found == right


def test_a_large_unused_rest_of_a_segment_does_not_hide_its_last_record() -> None:
    found, right = ages(MemoryFileSystem(), [10, 20, 1_048_300, 1_048_300])
    assert found == right == [NOW_MS + 1_000, NOW_MS + 2_000]


def test_a_damaged_record_at_the_end_leaves_the_age_of_the_one_before() -> None:
    found, _ = ages(MemoryFileSystem(), [500_000, 200_000, 200_000, 900_000], damaged=2)
    assert found == [NOW_MS + 1_000]


def test_a_damaged_record_in_the_middle_does_not_hide_the_one_behind() -> None:
    found, _ = ages(MemoryFileSystem(), [500_000, 10, 10, 500_000, 900_000], damaged=2)
    assert found == [NOW_MS + 3_000]


def test_a_segment_without_a_good_record_is_as_old_as_its_files_last_write() -> None:
    files = MemoryFileSystem()
    files.modified["commitlog/00000000000000000000"] = 77
    found, _ = ages(files, [900_000, 900_000], damaged=0)
    assert found == [77]


def test_an_age_is_looked_up_once() -> None:
    files = MemoryFileSystem()
    store = open_store(files, SMALL)
    for _ in range(4):
        send(store, bytes(8_000))
    flush(store)
    store.flush_projections()
    first = store.closed_segments()[0]
    assert next(closed_segments(files, [first])).last_stored_ms == last_store_timestamp(first) == NOW_MS
    first.file.write(0, bytes(first.file.size))
    assert next(closed_segments(files, [first])).last_stored_ms == NOW_MS
