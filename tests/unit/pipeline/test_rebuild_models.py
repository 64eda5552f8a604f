"""Rebuilding against the broker's own sequential code, over logs whose queue offsets are anything."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.engine import NOW_MS, SMALL
from tests.support.pipeline_size import PIPELINE_LONG
from tests.support.projections import stored, tree
from tests.support.rebuilt import files_of, rebuild_here
from trovemq_proto.positions import LOG_ORIGIN, PhysicalOffset
from trovemq_proto.records import RecordBatch
from trovemq_proto.records.layout import MAGIC_BLANK_BYTES, SYS_FLAG_TRANSACTION_ROLLBACK
from trovemq_spark.job import Report
from trovemq_spark.rebuild.index import file_names, plan_files
from trovemq_spark.tasks import deal
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.index.consume_queues import GAP_UNITS_MAX, ConsumeQueues
from trovemq_store.index.key_index import ROLLED_FILES_MAX, KeyIndex
from trovemq_store.log.projection import DispatchBatch

SIZES = replace(SMALL, consume_queue_file_size=400, index_slot_count=5, index_item_count=7)
SEGMENT_SIZE = 4096
EXAMPLES = 400 if PIPELINE_LONG else 40

_CORE_COUNTS = st.sampled_from([1, 3])
_TOPICS = st.sampled_from(["a", "bb"])
_STEPS = st.one_of(
    st.just(1),  # the next offset
    st.sampled_from([0, 2, 3, 9, -1, -4]),
    st.just(4 * GAP_UNITS_MAX),  # not believed, wherever the queue ends
)


@st.composite
def _logs(draw: st.DrawFn) -> list[dict[str, object]]:
    """Records' fields; `offset` by steps that mostly continue."""
    ends: dict[tuple[str, int], int] = {}
    records = []
    for number in range(draw(st.integers(0, 40))):
        topic, queue_id = draw(_TOPICS), draw(st.integers(0, 1))
        first = draw(st.integers(0, 12)) if (topic, queue_id) not in ends else None
        offset = first if first is not None else max(0, ends[topic, queue_id] + draw(_STEPS) - 1)
        ends[topic, queue_id] = offset + 1 if offset < GAP_UNITS_MAX else ends.get((topic, queue_id), 0)
        records.append(
            {
                "topic": topic,
                "queue_id": queue_id,
                "offset": offset,
                "time": NOW_MS + draw(st.sampled_from([0, 999, 1_000, 70_000, -5_000])) + number,
                "keys": draw(st.sampled_from(["", "k", "k  l", "ü"])),
                "tag": draw(st.sampled_from(["", "t"])),
                "unique_key": draw(st.sampled_from(["", f"u{number}"])),
                "sys_flag": draw(st.sampled_from([0, 0, 0, 4, 8, SYS_FLAG_TRANSACTION_ROLLBACK])),
            }
        )
    return records


def _write_log(records: list[dict[str, object]]) -> tuple[bytes, list[int], list[int]]:
    """The log's bytes, where each record lies, and its size; blanks end the segments."""
    log, positions, sizes = bytearray(), list[int](), list[int]()
    for fields in records:
        one = dict(fields)
        offset, time = int(str(one.pop("offset"))), int(str(one.pop("time")))
        data = stored(len(log), offset, time, **one)  # type: ignore[arg-type]
        space = SEGMENT_SIZE - len(log) % SEGMENT_SIZE
        if len(data) + 8 > space:
            log += (space.to_bytes(4) + MAGIC_BLANK_BYTES).ljust(space, b"\0")
            data = stored(len(log), offset, time, **one)  # type: ignore[arg-type]
        positions.append(len(log))
        sizes.append(len(data))
        log += data
    return bytes(log), positions, sizes


def _save(log: bytes, store: Path) -> None:
    (store / "commitlog").mkdir(parents=True)
    for start in range(0, max(len(log), 1), SEGMENT_SIZE):
        content = log[start : start + SEGMENT_SIZE].ljust(SEGMENT_SIZE, b"\0")
        (store / "commitlog" / f"{start:020d}").write_bytes(content)


def _rebuild(store: Path, out: Path, core_count: int) -> Report:
    with patch.object(os, "fsync"):  # the disk is not tested here
        return rebuild_here(
            store,
            out,
            consume_queue_file_size=SIZES.consume_queue_file_size,
            index_slot_count=SIZES.index_slot_count,
            index_item_count=SIZES.index_item_count,
            core_count=core_count,
        )


@pytest.mark.slow
@given(_logs(), _CORE_COUNTS)
@settings(max_examples=EXAMPLES, deadline=None)
def test_rebuilt_queues_are_those_of_the_broker_that_reads_the_whole_log(
    records: list[dict[str, object]], core_count: int
) -> None:
    log, positions, sizes = _write_log(records)
    files = MemoryFileSystem()
    queues = ConsumeQueues(files, SIZES)
    queues.load(None)
    queues.allow_gaps(GAP_UNITS_MAX, rebuilding=True)
    queues.apply(
        DispatchBatch(
            RecordBatch(log, np.array(positions, np.int64), np.array(sizes, np.int64)),
            LOG_ORIGIN,
            PhysicalOffset(len(log)),
        )
    )
    with tempfile.TemporaryDirectory() as directory:
        _save(log, Path(directory) / "store")
        report = _rebuild(Path(directory) / "store", Path(directory) / "out", core_count)
        built = {
            f"consumequeue/{path}": data
            for path, data in files_of(Path(directory) / "out" / "consumequeue").items()
        }
    assert built == tree(files, "consumequeue")
    clean = not queues.gaps and not queues.misplaced and not _has_twice_or_late_begin(records)
    assert (report.finding_count == 0) == clean


def _has_twice_or_late_begin(records: list[dict[str, object]]) -> bool:
    """Whether some offset of a queue does not continue from the ones before, from 0 on."""
    ends: dict[tuple[object, object], int] = {}
    for one in records:
        if one["sys_flag"] in (4, SYS_FLAG_TRANSACTION_ROLLBACK):
            continue
        queue = one["topic"], one["queue_id"]
        if one["offset"] != ends.get(queue, 0):
            return True
        ends[queue] = ends.get(queue, 0) + 1
    return False


@pytest.mark.slow
@given(_logs(), _CORE_COUNTS)
@settings(max_examples=EXAMPLES, deadline=None)
def test_rebuilt_index_files_are_those_of_putting_one_record_after_another(
    records: list[dict[str, object]], core_count: int
) -> None:
    check_index(records, core_count)


@pytest.mark.parametrize("core_count", [1, 3])
def test_a_rebuilt_index_used_one_file_across_steps_of_store_times(core_count: int) -> None:
    """Its items after the step had 0 seconds. There are more steps than files that may end early."""
    ahead_ms = [0, 0, *[3_600_000 if number // 3 % 2 else 0 for number in range(118)]]
    records = [
        {"topic": "a", "queue_id": 0, "offset": number, "time": NOW_MS + ahead + number, "keys": "k"}
        for number, ahead in enumerate(ahead_ms)
    ]
    check_index(records, core_count)


def check_index(records: list[dict[str, object]], core_count: int) -> None:
    log, positions, sizes = _write_log(records)
    files, names = MemoryFileSystem(), iter(f"{number:017d}" for number in range(1, 1 << 20))
    index = KeyIndex(files, SIZES, lambda: next(names))
    index.load(None)
    for position, size in zip(positions, sizes, strict=True):
        one = RecordBatch(log, np.array([position]), np.array([size]))
        index.apply(DispatchBatch(one, LOG_ORIGIN, PhysicalOffset(position + size)))
    expected = list(tree(files, "index").values())
    index.close()
    with tempfile.TemporaryDirectory() as directory:
        _save(log, Path(directory) / "store")
        _rebuild(Path(directory) / "store", Path(directory) / "out", core_count)
        built = list(files_of(Path(directory) / "out" / "index").values())
    assert built == expected


@given(
    st.lists(st.tuples(st.integers(0, 40), st.sets(st.integers(0, 39), max_size=9)), max_size=12),
    st.integers(2, 20),
)
def test_index_files_end_full_or_where_store_times_step_back(
    counts: list[tuple[int, set[int]]], item_count: int
) -> None:
    """A rebuilt index used the same file after store times stepped back: its items had 0 seconds."""
    blocks = [
        (block, count, sorted(step for step in steps if step < count))
        for block, (count, steps) in enumerate(counts)
    ]
    files = plan_files(blocks, item_count)
    spread = [
        [
            (entries.block, entries.begin + number)
            for entries in file.ranges
            for number in range(entries.count)
        ]
        for file in files
    ]
    assert [entry for one in spread for entry in one] == [
        (block, number) for block, count, _ in blocks for number in range(count)
    ]
    assert [file.is_full for file in files] == [len(one) == item_count - 1 for one in spread]
    steps = {(block, step) for block, _, own in blocks for step in own}
    for file, following in pairwise(range(len(files))):
        assert files[file].is_full or spread[following][0] in steps
    rolled = sum(not file.is_full for file in files)
    assert all(0 < len(one) < item_count for one in spread)
    assert rolled <= ROLLED_FILES_MAX
    if rolled < ROLLED_FILES_MAX - 1:
        assert all(steps.isdisjoint(one[1:]) for one in spread)


@given(st.lists(st.integers(-5, 1 << 62), max_size=20))
def test_names_of_index_files_rise_whatever_the_times(timestamps: list[int]) -> None:
    names = file_names(timestamps)
    assert len(names) == len(timestamps)
    assert all(len(name) == 17 and name.isdigit() for name in names)
    assert [int(name) for name in names] == sorted({int(name) for name in names})


@given(st.lists(st.integers(0, 100), max_size=30), st.integers(1, 8))
def test_every_task_is_dealt_once_and_no_bin_is_too_heavy(weights: list[int], bin_count: int) -> None:
    bins = deal(weights, bin_count)
    assert sorted(index for indexes in bins for index in indexes) == list(range(len(weights)))
    assert len(bins) <= bin_count
    if bins:
        loads = [sum(weights[index] + 1 for index in indexes) for indexes in bins]
        assert max(loads) <= sum(loads) / len(bins) + max(weights) + 1
