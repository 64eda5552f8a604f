"""A thousand connected clients that wait for messages: the broker's processor and its memory. By gRPC, and by
remoting with four waiting pulls each (`python -m bench.goals.idle`: these alone)."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from subprocess import PIPE
from tempfile import TemporaryDirectory
from typing import Final

import trovemq
from bench import measure as measuring
from bench.goals.idle_clients import HEARTBEAT_S
from bench.goals.idle_remoting_clients import PULLS
from bench.report import Report
from bench.rocketmq_raw import IDLE_TOPIC
from trovemq.testing import BrokerProcess

CLIENTS: Final = 1_000
FILES_BESIDE: Final = 200
READY_S_MAX: Final = 60.0
WATCHED_S: Final = 6.0
ROOT: Final = Path(__file__).resolve().parents[2]
PROCESSOR_PERCENT_MAX: Final = 2.0
MEMORY_MIB_MAX: Final = 150.0
REMOTING_PERCENT_MAX: Final = 3.0
CONNECTION_KIB_MAX: Final = 25.0
REMOTING_NAME: Final = f"idle, {CLIENTS:,} connections of remoting with {CLIENTS * PULLS:,} waiting pulls"
NAME: Final = f"idle, {CLIENTS:,} connected clients that long-poll"


async def measure(report: Report, directory: Path, *, quick: bool) -> None:
    if not measuring.allow_open_files(CLIENTS + FILES_BESIDE):
        reason = f"{CLIENTS + FILES_BESIDE:,} open files are not allowed here"
        report.not_shown(f"{NAME}: of a processor", "%", reason, at_most=PROCESSOR_PERCENT_MAX)
        report.not_shown(f"{NAME}: resident memory", "MiB", reason, at_most=MEMORY_MIB_MAX)
        return
    seconds = WATCHED_S / (2 if quick else 1)
    used, memory = await remoting(directory, seconds)
    report.add(f"{REMOTING_NAME}: of a processor", used, "%", at_most=REMOTING_PERCENT_MAX)
    report.add(f"{REMOTING_NAME}: memory of each", memory, "KiB", at_most=CONNECTION_KIB_MAX)
    with BrokerProcess(store=directory / "idle", flushDiskType="ASYNC_FLUSH") as broker:
        async with trovemq.connect(broker.address) as client:
            await client.admin.create_topic(IDLE_TOPIC, queue_count=measuring.QUEUES)
        report.add("idle, no client: of a processor", await percent(broker.pid, seconds / 2), "%")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bench.goals.idle_clients", broker.address, str(CLIENTS)),
            cwd=ROOT,
            stdin=PIPE,
            stdout=PIPE,
        )
        try:
            await _all_wait(process)
            used = await percent(broker.pid, seconds)
            report.add(f"{NAME}: of a processor", used, "%", at_most=PROCESSOR_PERCENT_MAX)
            memory = measuring.resident_bytes(broker.pid) / (1 << 20)
            report.add(f"{NAME}: resident memory", memory, "MiB", at_most=MEMORY_MIB_MAX)
            await _begin_heartbeats(process)
            with_heartbeats = await percent(broker.pid, seconds)
            name = f"{NAME}, a heartbeat of each every {HEARTBEAT_S:.0f} s: of a processor"
            report.add(name, with_heartbeats, "%")
        finally:
            assert process.stdin is not None
            process.stdin.close()
            await process.wait()


async def remoting(directory: Path, seconds: float) -> tuple[float, float]:
    """The percent of a processor, and the KiB of memory of each connection."""
    with BrokerProcess(
        store=directory / "idle-remoting",
        flushDiskType="ASYNC_FLUSH",
        remoting_enable="true",
        auto_create_group="true",
    ) as broker:
        async with trovemq.connect(broker.address) as client:
            await client.admin.create_topic(IDLE_TOPIC, queue_count=PULLS)
        before = measuring.resident_bytes(broker.pid)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bench.goals.idle_remoting_clients", broker.address, str(CLIENTS)),
            cwd=ROOT,
            stdin=PIPE,
            stdout=PIPE,
        )
        try:
            await _all_wait(process, CLIENTS * PULLS)
            used = await percent(broker.pid, seconds)
            return used, (measuring.resident_bytes(broker.pid) - before) / CLIENTS / 1_024
        finally:
            assert process.stdin is not None
            process.stdin.close()
            await process.wait()


async def percent(pid: int, seconds: float) -> float:
    """The share of one processor that a process took over that time."""
    before, started = measuring.scheduled_seconds(pid), time.perf_counter()
    await asyncio.sleep(seconds)
    spent = measuring.scheduled_seconds(pid) - before
    return spent / (time.perf_counter() - started) * 100


async def _begin_heartbeats(process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None
    process.stdin.write(b"heartbeats\n")
    await _all_wait(process)


async def _all_wait(process: asyncio.subprocess.Process, count: int = CLIENTS) -> None:
    assert process.stdout is not None
    line = await asyncio.wait_for(process.stdout.readline(), READY_S_MAX)
    assert int(line or 0) == count, f"{line!r} of {count} wait"


async def _main() -> None:
    with TemporaryDirectory() as directory:
        assert measuring.allow_open_files(CLIENTS + FILES_BESIDE), "too few open files are allowed"
        used, memory = await remoting(Path(directory), 10.0)
    print(f"{REMOTING_NAME}: {used:.2f} % of a processor, {memory:.1f} KiB each")


if __name__ == "__main__":
    asyncio.run(_main())
