"""The calendar against a sorted list."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trovemq_broker.timers.calendar import (
    ENDED,
    HOUR_SLOTS,
    ROW_DTYPE,
    RUNS_MAX,
    SLOT_MS,
    WAITS,
    Calendar,
    Rows,
    slot_of,
)
from trovemq_proto.positions import EpochMs

HOUR_MS = HOUR_SLOTS * SLOT_MS
BASE_MS = EpochMs(470_000 * HOUR_MS)

delays = st.one_of(
    st.integers(-2_000, 3_000),
    st.integers(0, 3 * HOUR_MS),
    st.sampled_from([0, 1, SLOT_MS, SLOT_MS + 1, HOUR_MS, HOUR_MS + 1, 400 * 24 * HOUR_MS]),
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(delays, min_size=1, max_size=12)),
        st.tuples(st.just("end"), st.integers(0, 10_000)),
        st.tuples(st.just("move clock"), st.integers(-2 * HOUR_MS, 2 * HOUR_MS)),
        st.tuples(st.just("tick"), st.integers(0, 1_500)),
        st.tuples(st.just("take"), st.integers(1, 10)),
        st.tuples(st.just("take, put back"), st.integers(1, 10)),
    ),
    max_size=60,
)


def rows_of(times: list[int], first: int) -> Rows:
    return np.array([(time, first + i, 0, 0, 0, WAITS) for i, time in enumerate(times)], ROW_DTYPE)


@given(steps)
@example([("add", [1, 2]), ("tick", 1), ("take", 2), ("tick", 1), ("take", 2)])
@settings(max_examples=60, deadline=None)
def test_it_gives_what_a_sorted_list_gives(steps: list[tuple[str, object]]) -> None:
    calendar = Calendar()
    waiting: dict[int, int] = {}
    now_ms, offset = BASE_MS, 0
    for name, value in steps:
        if name == "add":
            assert isinstance(value, list)
            times = [now_ms + delay for delay in value]
            calendar.add(rows_of(times, offset))
            waiting |= {offset + i: time for i, time in enumerate(times)}
            offset += len(times)
            continue
        assert isinstance(value, int)
        if name == "end" and waiting:
            chosen = sorted(waiting)[value % len(waiting)]
            ended = [
                calendar.end(block, block["offset"] == chosen)
                for block in calendar.blocks_at(slot_of(EpochMs(waiting[chosen])))
            ]
            assert sum(map(len, ended)) == 1
            del waiting[chosen]
        elif name in ("move clock", "tick"):
            now_ms += value
        elif name.startswith("take"):
            taken = calendar.take_due(now_ms, value)
            due = sorted((time, place) for place, time in waiting.items() if time <= now_ms)
            assert len(taken) == min(value, len(due))
            assert [(int(row["deliver_ms"]), int(row["offset"])) for row in taken] == due[:value]
            if name == "take":
                for row in taken:
                    del waiting[int(row["offset"])]
            else:
                calendar.put_back(taken)
        assert calendar.waiting_count == len(waiting)
        next_ms = calendar.next_ms
        assert next_ms is not None or not waiting
        assert not waiting or (next_ms is not None and next_ms <= min(waiting.values()))
    assert calendar.rows()["offset"].tolist() == sorted(waiting)


def test_a_far_row_takes_no_more_than_32_bytes() -> None:
    calendar = Calendar()
    for number in range(400):
        times = (BASE_MS + 10 * HOUR_MS + np.arange(250) * 7_919 % (3 * HOUR_MS)).tolist()
        calendar.add(rows_of([int(time) for time in times], number * 250))
    held = sum((block.base if block.base is not None else block).nbytes for block in calendar.blocks())
    assert calendar.waiting_count == 100_000
    assert held <= 32 * 100_000


def test_ended_rows_are_not_kept_beyond_their_time() -> None:
    calendar = Calendar()
    calendar.add(rows_of([BASE_MS + 10] * 20, 0))
    for block in calendar.blocks():
        calendar.end(block, np.ones(len(block), np.bool_))
    assert len(calendar.take_due(BASE_MS + 5_000, 8)) == 0
    assert calendar.next_ms is None
    assert not any((block["state"] == ENDED).any() for block in calendar.blocks())


def test_rows_that_come_into_the_second_that_runs_are_merged() -> None:
    calendar = Calendar()
    for number in range(40):
        calendar.add(rows_of([BASE_MS + 940 - number], number))
        assert len(calendar.take_due(BASE_MS + 1, 8)) == 0
        assert len(list(calendar.blocks())) <= RUNS_MAX
    assert calendar.take_due(BASE_MS + 1_000, 100)["offset"].tolist() == list(range(39, -1, -1))


def test_many_small_backlogs_are_merged() -> None:
    calendar = Calendar()
    for number in range(40):
        calendar.add(rows_of([BASE_MS + 100 * number + 5, BASE_MS + 100 * number + 1], 2 * number))
        calendar.put_back(calendar.take_due(BASE_MS + 100 * number + 50, 100))
    assert len(list(calendar.blocks())) < 10
    times = calendar.take_due(BASE_MS + 10_000, 100)["deliver_ms"].tolist()
    assert times == sorted(times)
    assert len(times) == 80
