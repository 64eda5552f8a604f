"""The broker's task that reports the clock: its warnings, and store times that step back beside flushes."""

from __future__ import annotations

import asyncio

from structlog.testing import capture_logs

from broker.maintenance.clock_task import ClockTask
from broker.maintenance.projection_flushes import ProjectionFlushes
from tests.world.stepping_clock import World


def test_a_clock_that_had_been_ahead_left_no_line_in_the_log() -> None:
    world = World()
    flushes = ProjectionFlushes(world.store, 1_000, 60_000)
    task = ClockTask(world.store, world.trust, flushes, lambda: world.now_ms, lambda: world.boot_ms)
    world.set_clock(7_200_000)

    async def passing() -> None:
        await task.tick()
        world.send("m0")
        world.set_clock(0)
        for _ in range(70):
            world.boot_ms += 1_000
            await task.tick()

    with capture_logs() as lines:
        asyncio.run(passing())
    events = [line["event"] for line in lines]
    assert events == ["clock.stepped", "clock.stepped", "store.times_in_future", "store.times_stepped_back"]
    assert all("chrony" in line["what_to_do"] for line in lines)
    world.send("m1")
    assert world.sent[-1].store_ms == world.right_ms
