"""The broker's task that reports the clock: its warnings, and store times that step back beside flushes."""

from __future__ import annotations

import asyncio

from structlog.testing import capture_logs

from tests.world.stepping_clock import World
from trovemq_broker.maintenance.clock_task import ClockTask
from trovemq_broker.maintenance.projection_flushes import ProjectionFlushes


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


def test_a_full_disk_made_the_broker_warn_ten_times_a_second() -> None:
    """Store times cannot step back while the checkpoint cannot be written."""
    world = World()
    flushes = ProjectionFlushes(world.store, 1_000, 60_000)
    task = ClockTask(world.store, world.trust, flushes, lambda: world.now_ms, lambda: world.boot_ms)

    async def passing(seconds: int) -> None:
        for _ in range(10 * seconds):
            world.boot_ms += 100
            await task.tick()

    world.set_clock(7_200_000)
    world.send("m0")
    world.set_clock(120_000)
    world.files.capacity = 0
    with capture_logs() as lines:
        asyncio.run(passing(5))
        world.set_clock(0)
        asyncio.run(passing(125))
    unsaved = [line["event"] for line in lines].count("clock.not_saved")
    assert unsaved <= 7, "a note of each step, and store times, once a minute"
    assert world.trust.unsaved
    world.files.capacity = None
    asyncio.run(passing(61))
    world.send("m1")
    assert world.sent[-1].store_ms == world.right_ms
