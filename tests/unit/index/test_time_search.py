"""Search by time against its plain meaning, over several files and with a log that has lost its head."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.engine import NOW_MS
from tests.support.projections import batch_of, stored
from trovemq_proto.positions import LOG_ORIGIN, PhysicalOffset, QueueId
from trovemq_proto.records import RecordBatch
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.index.consume_queue import UNIT_DTYPE, UNIT_SIZE
from trovemq_store.index.consume_queues import ConsumeQueues
from trovemq_store.index.time_search import search_offset
from trovemq_store.log.projection import DispatchBatch
from trovemq_store.settings import StoreSettings

SETTINGS = StoreSettings(consume_queue_file_size=4 * UNIT_SIZE)


def _queues(count: int, first_offset: int) -> tuple[ConsumeQueues, int]:
    """A queue of records of one size, with that size."""
    data = b"".join(stored(0, first_offset + index, NOW_MS) for index in range(count))
    queues = ConsumeQueues(MemoryFileSystem(), SETTINGS)
    queues.load(None)
    queues.apply(batch_of(data, 0))
    return queues, len(data) // max(1, count)


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=20),
    st.integers(-2, 40),
    st.integers(0, 20),
    st.sampled_from([0, 0, 5]),
)
def test_boundaries_mean_what_they_say(steps: list[int], ask: int, lost: int, first_offset: int) -> None:
    times = [NOW_MS + int(step) for step in np.cumsum(steps)]
    queues, size = _queues(len(times), first_offset)
    queue = queues.get("orders", QueueId(0))
    assert queue is not None
    lost = min(lost, len(times))
    queues.trim_before(PhysicalOffset(lost * size))

    def store_timestamp_at(physical_offset: int) -> int | None:
        index = physical_offset // size
        return times[index] if index >= lost else None

    readable = range(queue.min_offset - first_offset, len(times))
    timestamp = NOW_MS + ask
    lower = [n for n in readable if times[n] >= timestamp]
    upper = [n for n in readable if times[n] <= timestamp]
    found_lower = search_offset(queue, timestamp, False, store_timestamp_at, PhysicalOffset(lost * size))
    assert found_lower == (lower[0] + first_offset if lower else queue.max_offset)
    found_upper = search_offset(queue, timestamp, True, store_timestamp_at, PhysicalOffset(lost * size))
    assert found_upper == (upper[-1] + first_offset if upper else queue.min_offset)


def test_an_empty_queue_has_one_answer() -> None:
    queues, _ = _queues(1, 3)
    queue = queues.get("orders", QueueId(0))
    assert queue is not None
    queues.truncate_to(LOG_ORIGIN)
    assert not queue.has_units
    assert search_offset(queue, NOW_MS, False, lambda _: None, LOG_ORIGIN) == queue.min_offset


def test_units_are_twenty_bytes_and_positions_follow() -> None:
    assert UNIT_DTYPE.itemsize == UNIT_SIZE == 20
    queues, size = _queues(3, 0)
    nothing = RecordBatch(b"", np.empty(0, np.int64), np.empty(0, np.int64))
    queues.apply(DispatchBatch(nothing, PhysicalOffset(3 * size), PhysicalOffset(4 * size)))
    assert queues.position == 4 * size


@pytest.mark.parametrize("upper", [False, True])
def test_a_search_by_time_looked_at_every_message_of_one_millisecond(upper: bool) -> None:
    count = 20_000
    data = b"".join(stored(0, index, NOW_MS) for index in range(count))
    queues = ConsumeQueues(MemoryFileSystem(), replace(SETTINGS, consume_queue_file_size=count * UNIT_SIZE))
    queues.load(None)
    queues.apply(batch_of(data, 0))
    queue, size, looks = queues.get("orders", QueueId(0)), len(data) // count, 0
    assert queue is not None

    def store_timestamp_at(physical_offset: int) -> int:
        nonlocal looks
        looks += 1
        return NOW_MS + (physical_offset // size + 10_000) // count  # one time up to 10,000, then the next

    assert search_offset(queue, NOW_MS + 1, upper, store_timestamp_at, LOG_ORIGIN) == (
        count - 1 if upper else 10_000
    )
    assert search_offset(queue, NOW_MS, upper, store_timestamp_at, LOG_ORIGIN) == (9_999 if upper else 0)
    assert looks < 200
