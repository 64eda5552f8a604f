"""Sync flush: the cost of the thread that syncs, and sends with one to 1,000 in flight.

The hand-over is that of the broker's own group commit in this process: from the append that waits to its
acknowledgement, by a sync that takes no time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

import trovemq
from bench import limits
from bench import measure as measuring
from bench.report import Report
from trovemq.testing import BrokerProcess
from trovemq_broker.produce.flush_settings import FlushSettings
from trovemq_broker.produce.group_commit import GroupCommit, Grown
from trovemq_proto.positions import LOG_ORIGIN, PhysicalOffset
from trovemq_store.files.kernel_sync import KernelSync

IN_FLIGHT: Final = (1, 8, 64, 1_000)
SECONDS: Final = 2.0
HAND_OVERS: Final = 2_000
HAND_OVERS_WARM: Final = 200
HAND_OVER_US_MAX: Final = 60.0


async def measure(report: Report, directory: Path, *, quick: bool) -> None:
    times_us = await hand_overs(HAND_OVERS)
    name = "sync flush: hand-over to the thread that syncs, and back"
    report.add(f"{name}: median", median(times_us), "us", at_most=HAND_OVER_US_MAX)
    report.add(f"{name}: p99", _p99(times_us), "us")
    report.add("sync flush: 4 KiB write + fdatasync", limits.fdatasync_seconds(directory) * 1e6, "us")
    seconds = SECONDS / (4 if quick else 1)
    with BrokerProcess(store=directory / "sync", flushDiskType="SYNC_FLUSH") as broker:
        async with trovemq.connect(broker.address) as client:
            await client.admin.create_topic(measuring.TOPIC, queue_count=measuring.QUEUES)
            await measuring.send_latencies(client, HAND_OVERS_WARM)
            for in_flight in IN_FLIGHT:
                await _sends(report, client, broker.pid, in_flight, seconds)


async def _sends(report: Report, client: trovemq.Client, pid: int, in_flight: int, seconds: float) -> None:
    times_us: list[float] = []
    body, spent, started = bytes(measuring.BODY_SIZE), measuring.scheduled_seconds(pid), time.perf_counter()

    async def work() -> None:
        while (began := time.perf_counter()) < started + seconds:
            await client.send(measuring.TOPIC, body)
            times_us.append((time.perf_counter() - began) * 1e6)

    await asyncio.gather(*(work() for _ in range(in_flight)))
    took, spent = time.perf_counter() - started, measuring.scheduled_seconds(pid) - spent
    name = f"sync flush, {in_flight:,} in flight"
    report.add(name, len(times_us) / took, "msg/s")
    report.add(f"{name}: median", median(times_us), "us")
    report.add(f"{name}: p99", _p99(times_us), "us")
    report.add(f"{name}: server's processor", spent / len(times_us) * 1e6, "us")


def _p99(times_us: Sequence[float]) -> float:
    return sorted(times_us)[len(times_us) * 99 // 100]


# --- the hand-over --------------------------------------------------------------------------------------
@dataclass(slots=True)
class _NoSync:
    """A sync that is done at once."""

    end: PhysicalOffset

    def run(self) -> None:
        pass

    def begin_in_kernel(self, _kernel: KernelSync) -> bool:
        return False

    def end_in_kernel(self, _kernel: KernelSync) -> bool:
        raise AssertionError("nothing begins in the kernel")


@dataclass(slots=True)
class _Log:
    """A log of which only the ends exist."""

    end_offset: PhysicalOffset = LOG_ORIGIN
    flushed_offset: PhysicalOffset = LOG_ORIGIN

    def begin_flush(self) -> _NoSync | None:
        return _NoSync(self.end_offset) if self.end_offset > self.flushed_offset else None

    def finish_flush(self, work: _NoSync) -> Grown:
        self.flushed_offset = work.end
        return []

    def mark_failed(self) -> None:
        raise AssertionError("nothing fails here")


async def hand_overs(count: int) -> list[float]:
    """Microseconds of one append after the other, from its end to its acknowledgement."""
    log, times_us = _Log(), list[float]()
    commit = GroupCommit(log, FlushSettings(), lambda _grown: None)
    working = asyncio.create_task(commit.run())
    for _ in range(HAND_OVERS_WARM + count):
        log.end_offset = PhysicalOffset(log.end_offset + measuring.BODY_SIZE)
        began = time.perf_counter()
        commit.appended()
        await commit.durable(log.end_offset)
        times_us.append((time.perf_counter() - began) * 1e6)
    commit.stop()
    await working
    commit.close()
    return times_us[HAND_OVERS_WARM:]
