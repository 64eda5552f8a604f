"""The rate cap of a replay, against its promise: never more in any window than rate, time and one part."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trovemq_spark.replay.pace import BURST_SECONDS, Pace

RATES = st.floats(0.5, 10_000)
STEPS = st.lists(st.tuples(st.integers(1, 500), st.floats(0, 3)), min_size=1, max_size=30)


@given(rate=RATES, steps=STEPS)
def test_no_window_has_more_than_its_share_and_one_part(rate: float, steps: list[tuple[int, float]]) -> None:
    pace, now = Pace(rate), 100.0
    sent: list[tuple[float, int]] = []
    for wished, idle in steps:
        count = pace.part_max(wished)
        assert 1 <= count <= max(1, rate * BURST_SECONDS)
        pace, wait = pace.take(count, now)
        assert wait >= 0
        now += wait
        sent.append((now, count))
        now += idle
    for i, (begin, _) in enumerate(sent):
        total = 0
        for end, count in sent[i:]:
            total += count
            assert total <= rate * (end - begin) * (1 + 1e-9) + count + 1e-6


@given(rate=RATES, steps=STEPS)
def test_a_task_that_follows_another_after_its_rest_keeps_the_cap(
    rate: float, steps: list[tuple[int, float]]
) -> None:
    begin = now = 5.0
    total = 0
    for wished, _ in steps:
        pace = Pace(rate)
        count = pace.part_max(wished)
        pace, wait = pace.take(count, now)
        assert wait == 0
        total += count
        now += pace.rest(now)
        assert total <= rate * (now - begin) * (1 + 1e-9) + 1e-6


@given(steps=STEPS)
def test_without_a_cap_nothing_waits(steps: list[tuple[int, float]]) -> None:
    pace = Pace(0)
    for count, now in steps:
        assert pace.part_max(count) == count
        pace, wait = pace.take(count, now)
        assert wait == pace.rest(now) == 0


@given(rate=RATES, count=st.integers(1, 500))
def test_who_comes_late_does_not_wait_and_saves_nothing_up(rate: float, count: int) -> None:
    pace, _ = Pace(rate).take(count, 0.0)
    late = count / rate + 1000
    pace, wait = pace.take(count, late)
    assert wait == 0
    assert pace.free_at == late + count / rate
