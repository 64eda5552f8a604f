"""Consume queues, index files and the search by time with records and bytes that are out of order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.support.engine import NOW_MS, SMALL, flush, open_store, send
from tests.support.projections import batch_of, stored, tree
from tests.unit.index.test_key_index import ITEMS, SLOTS, Names, opened
from trovemq_proto.positions import LOG_ORIGIN, PhysicalOffset, QueueId, QueueOffset
from trovemq_store.engine.trim import trim_now
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.files.real import RealFileSystem
from trovemq_store.index import consume_queues, index_file
from trovemq_store.index.consume_queue import BLANK_SIZE, UNIT_SIZE, ConsumeQueue
from trovemq_store.index.consume_queues import ConsumeQueues
from trovemq_store.index.index_file import file_size, make_index_file, place_index_file
from trovemq_store.index.key_index import KeyIndex
from trovemq_store.index.open_files import OpenFiles
from trovemq_store.index.time_search import search_offset
from trovemq_store.settings import StoreSettings

SETTINGS = StoreSettings(consume_queue_file_size=5 * UNIT_SIZE)


def queues_with(*offsets: int) -> tuple[ConsumeQueues, int]:
    """Queues to which one run of records with these queue offsets was applied; and where the run ends."""
    queues = ConsumeQueues(MemoryFileSystem(), SETTINGS)
    queues.load(None)
    return queues, put(queues, 0, *offsets)


def put(queues: ConsumeQueues, at: int, *offsets: int) -> int:
    data = b""
    for offset in offsets:
        data += stored(at + len(data), offset, NOW_MS)
    queues.apply(batch_of(data, at))
    return at + len(data)


def units(queues: ConsumeQueues) -> list[int]:
    """Where each unit's record begins, in records from the log's beginning; -1: a blank."""
    queue = queues.get("orders", QueueId(0))
    assert queue is not None
    size = len(stored(0, 0, NOW_MS))
    found = queue.units(queue.min_offset, queue.max_offset - queue.min_offset)
    return [-1 if unit["size"] == BLANK_SIZE else int(unit["physical_offset"]) // size for unit in found]


# --- consume queues ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("offsets", "expected"),
    [
        ((0, 0, 1), [0, 2]),  # the same number twice: the first record has it
        ((0, 9, 1, 2), [0, 2, 3]),  # later records continue before it: its number is damaged
        ((0, 1, 4, 5), [0, 1, -1, -1, 2, 3]),  # two are lost
    ],
)
def test_a_run_whose_numbers_are_out_of_order(offsets: tuple[int, ...], expected: list[int]) -> None:
    queues = ConsumeQueues(MemoryFileSystem(), SETTINGS)
    queues.load(None)
    queues.allow_gaps(3)
    put(queues, 0, *offsets)
    assert units(queues) == expected
    assert (len(queues.misplaced), sum(gap.count for gap in queues.gaps)) == (
        9 in offsets,
        expected.count(-1),
    )


def test_numbers_far_ahead_are_left_out_where_the_whole_log_is_read() -> None:
    queues, end = queues_with(0, 1)
    queues.allow_gaps(3, rebuilding=True)
    end = put(queues, end, 2, 99)
    put(queues, end, 3)
    assert units(queues) == [0, 1, 2, 4]
    assert len(queues.misplaced) == 1


@pytest.mark.parametrize("offsets", [(1,), (0, 1), (1, 1), (0, 0)])
def test_records_that_have_units_get_no_others(offsets: tuple[int, ...]) -> None:
    queues, end = queues_with(0, 1)
    end = put(queues, end, *offsets)
    assert units(queues) == [0, 1]
    assert queues.position == end


def test_what_was_applied_is_skipped() -> None:
    queues, end = queues_with(0, 1)
    put(queues, 0, 7, 8)
    assert units(queues) == [0, 1]
    assert queues.position == end


def test_gaps_and_misplaced_records_are_noted_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consume_queues, "_NOTED_MAX", 2)
    queues, end = queues_with(0)
    queues.allow_gaps(3)
    for offset in (2, 4, 6):
        end = put(queues, end, offset)
    for offset in (7, 9, 11):
        end = put(queues, end, 50, offset, offset + 1)
    queues.place_lost("orders", QueueId(0), QueueOffset(15), LOG_ORIGIN, 100)
    assert (len(queues.gaps), len(queues.misplaced)) == (2, 2)
    queue = queues.get("orders", QueueId(0))
    assert queue is not None
    assert queue.max_offset == 15


def test_a_queue_directory_without_files_does_not_hinder_retention(tmp_path: Path) -> None:
    store = open_store(RealFileSystem(tmp_path))
    for _ in range(30):
        send(store, b"x" * 1_000)
    flush(store)
    store.flush_projections()
    store.close(NOW_MS)
    (tmp_path / "consumequeue/orders/3").mkdir()
    store = open_store(RealFileSystem(tmp_path))
    trim_now(store.trim(store.closed_segments()[0].end))
    assert store.consume_queues.queues("orders")[0].min_offset > 0
    empty = store.consume_queues.get("orders", QueueId(3))
    assert empty is not None
    assert (empty.min_offset, empty.max_offset) == (0, 0)
    store.close(NOW_MS)


def test_a_file_that_is_not_open_can_be_removed() -> None:
    files = MemoryFileSystem()
    files.create("consumequeue/f", 100, preallocate=False).close()
    OpenFiles(files, limit=1).remove("consumequeue/f")
    assert not files.exists("consumequeue/f")


# --- index files ------------------------------------------------------------------------------------------
def put_items(count: int) -> tuple[MemoryFileSystem, index_file.IndexFile]:
    files = MemoryFileSystem()
    make_index_file(files, "index/new", file_size(SLOTS, ITEMS))
    file = place_index_file(files, "index/1", "index/new", SLOTS, ITEMS)
    numbers = np.arange(count, dtype=np.int64)
    assert file.put(numbers.astype(np.int32) + 1, 100 * numbers + 50, NOW_MS + numbers) == count
    return files, file


def test_a_cut_below_the_first_item_leaves_an_empty_file() -> None:
    _, file = put_items(5)
    file.truncate_to(PhysicalOffset(10), None)
    assert (file.count, file.begin_timestamp, file.end_timestamp, file.end_physical) == (1, 0, 0, 0)
    assert file.put(np.array([4], np.int32), np.array([60]), np.array([NOW_MS])) == 1
    assert (file.begin_timestamp, file.begin_physical, file.newest_item(4)) == (NOW_MS, 60, 1)


def test_items_that_never_reached_the_disk_are_no_items() -> None:
    """The header says that they are there; they read as zeros."""
    files, file = put_items(8)
    open_file = files.open("index/1")
    items_at = 40 + 4 * SLOTS
    open_file.write(items_at + 20 * 1, bytes(20 * 8))
    assert file.valid_count(PhysicalOffset(10_000)) == 2, "one may be real: hash 0 of the record at 0"


@pytest.mark.parametrize("scanned", [2, 3, 64])
def test_a_cut_zeroes_all_that_was_counted_also_behind_zeros(
    scanned: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_file, "_SCANNED_ITEMS", scanned)
    files, file = put_items(11)
    items_at = 40 + 4 * SLOTS
    files.open("index/1").write(items_at + 20 * 3, bytes(20 * 6))  # lost; the last ones are there
    file.truncate_to(PhysicalOffset(250), None)
    assert file.count == 3
    assert not any(files.read_bytes("index/1")[items_at + 20 * 3 :])


def test_an_index_that_was_not_loaded_leaves_its_note_alone() -> None:
    files = MemoryFileSystem()
    index = opened(files)
    index.apply(batch_of(stored(0, 0, NOW_MS, keys="k"), 0))
    index.close()
    before = tree(files, "trovemq")
    KeyIndex(files, StoreSettings(index_slot_count=SLOTS, index_item_count=ITEMS), Names()).close()
    assert tree(files, "trovemq") == before


# --- the search by time -----------------------------------------------------------------------------------
def searched(upper: bool, time_at: Callable[[int], int | None], min_physical: int = 0) -> int:
    """The offset for NOW_MS + 2 in a queue of eight messages, whose file is of forty units."""
    queues = ConsumeQueues(MemoryFileSystem(), SMALL)
    queues.load(None)
    put(queues, 0, *range(8))
    queue = queues.get("orders", QueueId(0))
    assert isinstance(queue, ConsumeQueue)
    size = len(stored(0, 0, NOW_MS))
    return search_offset(
        queue, NOW_MS + 2, upper, lambda at: time_at(at // size), PhysicalOffset(min_physical * size)
    )


def test_records_below_the_beginning_of_the_log_count_as_older() -> None:
    """Their units are not trimmed from the queue yet."""
    assert searched(False, lambda number: NOW_MS + number, min_physical=5) == 5
    assert searched(True, lambda number: NOW_MS + number, min_physical=5) in (2, 4)


@pytest.mark.parametrize("upper", [True, False])
def test_a_record_without_a_time_ends_the_search_at_the_beginning(upper: bool) -> None:
    """As in RocketMQ."""
    times = {0: NOW_MS, 7: NOW_MS + 7}
    assert searched(upper, times.get) == 0
