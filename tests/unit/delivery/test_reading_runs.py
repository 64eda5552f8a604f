"""Records of a run that are compared together are those that are compared one by one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from tests.support.delivery import LEASE_MS, Engine
from tests.support.engine import SMALL
from trovemq_broker.groups.delivery import records as record_reader
from trovemq_broker.groups.delivery.records import (
    AdjacentRecords,
    _columns,
    _rows,
)
from trovemq_broker.groups.delivery.request import RECEIVE_BYTES_MAX, DeliveredRun
from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueId, QueueOffset
from trovemq_proto.records import encode_record
from trovemq_proto.records.fields import ROWS_MAX
from trovemq_store.files.faulty import FaultyFileSystem
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.index.consume_queue import Unit

FIRST = 4_096


def stored(body_sizes: list[int], gaps: list[int]) -> tuple[bytearray, list[int], list[int]]:
    """Records with gaps after them, where other queues have theirs; their places and sizes."""
    data, offsets, sizes = bytearray(), list[int](), list[int]()
    for number, body_size in enumerate(body_sizes):
        at = FIRST + len(data)
        record = encode_record(
            "orders", b"x" * body_size, queue_id=0, queue_offset=number, physical_offset=at
        )
        offsets.append(at)
        sizes.append(len(record))
        data += record
        if number < len(body_sizes) - 1:
            data += bytes(gaps[number % len(gaps)] if gaps else 0)
    return data, offsets, sizes


def units_of(offsets: list[int], sizes: list[int]) -> list[Unit]:
    return [(PhysicalOffset(at), size, 0) for at, size in zip(offsets, sizes, strict=True)]


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=9),
    st.lists(st.integers(0, 3), max_size=3),
    st.none()
    | st.tuples(st.sampled_from(["byte", "offset", "size"]), st.integers(0, 8), st.integers(-99, 99)),
)
@example([1, 1], [], ("size", 0, -99))
@example([1, 1], [], ("offset", 1, -99))
def test_together_is_as_one_by_one(
    body_sizes: list[int], gaps: list[int], fault: tuple[str, int, int] | None
) -> None:
    data, offsets, sizes = stored(body_sizes, gaps)
    if fault is not None:
        kind, index, change = fault
        index %= len(offsets)
        if kind == "byte":
            data[offsets[index] - FIRST + abs(change) % sizes[index]] ^= 1
        else:
            (offsets if kind == "offset" else sizes)[index] += change
    view = memoryview(data)
    expected = _rows(view, FIRST, units_of(offsets, sizes))
    columns = np.array(offsets, np.int64), np.array(sizes, np.int64)
    found = _columns(view, columns[0] - FIRST, *columns)
    assert (None if found is None else list(found)) == expected
    if fault is None:
        assert found is not None
        assert isinstance(found, AdjacentRecords) == (sum(sizes) == len(data))


@pytest.mark.parametrize("index", [0, 1, 2])
@pytest.mark.parametrize("offset", [2**63 - 1, -(2**63)])
def test_a_unit_near_the_largest_offset_broke_the_reading_of_its_run(offset: int, index: int) -> None:
    """The end of its record is too large for an int64."""
    data, offsets, sizes = stored([FIRST + 1_000] * 3, [])
    offsets[index] = offset
    assert _rows(memoryview(data), FIRST, units_of(offsets, sizes)) is None
    columns = np.array(offsets, np.int64), np.array(sizes, np.int64)
    assert _columns(memoryview(data), columns[0] - FIRST, *columns) is None


def test_adjacent_records_are_a_sequence_of_one_piece() -> None:
    data, offsets, sizes = stored([3, 1, 2], [])
    columns: Any = np.array(offsets, np.int64), np.array(sizes, np.int64)
    found = _columns(memoryview(data), columns[0] - FIRST, *columns)
    assert found is not None
    each = _rows(memoryview(data), FIRST, units_of(offsets, sizes))
    assert each is not None
    assert (len(found), found[1], found[-1], found[1:]) == (3, each[1], each[2], each[1:])
    runs = [
        DeliveredRun(records, len(data), "t", QueueId(0), QueueOffset(7), 1, "0.0.1.2.1.3", EpochMs(9))
        for records in (found, each)
    ]
    assert b"".join(runs[0].pieces) == b"".join(runs[1].pieces) == data
    assert len(runs[0].pieces) == 1
    assert runs[0].messages() == runs[1].messages()
    assert list(runs[0].offsets) == [7, 8, 9]


class Received(NamedTuple):
    """The outcome of some receives."""

    messages: list[list[tuple[bytes, QueueOffset, int]]]  # of each receive: record, queue offset, attempt
    damaged_count: int
    next_offset: int


def receive_all(
    few: int, sizes: list[int], bad: tuple[str, int, int] | None, requests: list[tuple[int, int]]
) -> Received:
    """Of a store with messages of these sizes. few: up to this many are read without columns. bad: bytes of
    a file that the disk does not return. requests: (count_max, bytes_max) of receives, in order."""
    files = FaultyFileSystem(MemoryFileSystem())
    engine = Engine(files=files, store_settings=SMALL)  # type: ignore[arg-type]
    for size in sizes:
        engine.send("x" * size)
    if bad is not None:
        path, at, size = bad
        files.unreadable[path] = (at, at + size)
    messages = []
    with patch.object(record_reader, "ROWS_MAX", few):
        for count_max, bytes_max in requests:
            request = engine._request("workers", "orders", count_max, LEASE_MS)
            got = engine.delivery.receive(replace(request, bytes_max=bytes_max))
            messages.append([(bytes(one.record), one.queue_offset, one.attempt) for one in got])
    progress = engine.delivery.progress("workers", "orders", engine.now_ms)
    return Received(messages, engine.delivery.damaged_count, progress[0].next_offset)


LOG = "commitlog/"
PATHS = [
    *(f"consumequeue/orders/0/{begin:020d}" for begin in (0, 400)),
    *(f"{LOG}{begin:020d}" for begin in (0, 12_288)),
]


@given(
    st.lists(st.integers(0, 3_000), min_size=1, max_size=40),
    st.none() | st.tuples(st.sampled_from(PATHS), st.integers(0, 12_000), st.integers(1, 900)),
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 9_000)), min_size=1, max_size=9),
)
def test_few_messages_are_received_as_many_are(
    sizes: list[int], bad: tuple[str, int, int] | None, requests: list[tuple[int, int]]
) -> None:
    """But for two things that may be either way where the disk fails: the last unit, which is known without
    its file, and how far a receive exceeds bytes_max."""
    if bad is not None:
        begin = int(bad[0][-20:]) + bad[1]
        assume(bad[0].startswith(LOG) or not begin - 20 < 20 * (len(sizes) - 1) < begin + bad[2])
        requests = [(count_max, RECEIVE_BYTES_MAX) for count_max, _ in requests]
    assert receive_all(ROWS_MAX, sizes, bad, requests) == receive_all(0, sizes, bad, requests)
