"""Waits of background work fall together, and none is longer than its interval."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.fake_loop import fake_time, run
from trovemq_daemon.ticks import EARLY_S, sleep_to_tick


@given(st.lists(st.floats(0, 0.3), max_size=8), st.sampled_from([0.05, 0.1, 1.0, 0.001]))
def test_a_wait_ends_at_a_multiple_of_its_interval(works_s: list[float], interval_s: float) -> None:
    async def scene() -> None:
        loop = asyncio.get_running_loop()
        for work_s in works_s:
            await asyncio.sleep(work_s)
            before = loop.time()
            await sleep_to_tick(interval_s)
            assert 0 < loop.time() - before <= interval_s + EARLY_S + 1e-9
            assert loop.time() / interval_s == pytest.approx(round(loop.time() / interval_s), abs=1e-6)

    run(scene())


@fake_time
async def test_tasks_that_began_at_different_times_wake_together() -> None:
    loop, woken = asyncio.get_running_loop(), set()

    async def work(begin_s: float, interval_s: float) -> None:
        await asyncio.sleep(begin_s)
        while loop.time() < 2:
            await sleep_to_tick(interval_s)
            woken.add(round(loop.time(), 3))

    await asyncio.gather(*(work(begin / 70, (0.05, 0.1, 0.5)[begin % 3]) for begin in range(9)))
    assert woken == {round(number * 0.05, 3) for number in range(1, 41)}
