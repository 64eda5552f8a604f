"""How soon a killed broker acknowledges again: from the start of the process to the reply to a first send.

    checkpoint recent      everything was flushed, as some seconds after the last message
    past the checkpoint    consume queues and key index were not flushed for 1 GB: all of that is read again

The goal is 2 s, and 1 s more for each GB past the checkpoint. The store has 2 GB (a tenth with --quick) and
is written with sync flush. Its pages are in the cache, as after a kill of the process alone.
"""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import trovemq
from bench import measure
from bench.report import Report
from trovemq.testing import BrokerProcess

MESSAGES = 850_000
"""Of 1,024 bytes, with their keys; about a GB."""
MORE_TOPIC = "more"
CHECKPOINT_WAIT_MAX_S = 60.0
GOAL_S = 2.0
GOAL_S_PER_GB = 1.0
FLUSH_INTERVAL_MAX_MS = 600_000
ABOUT = (
    "From the start of the process to the first acknowledgement, after a kill; the store is written with\n"
    "sync flush, and its pages are in the cache.\n\n"
)


def broker_of(store: Path, **settings: Any) -> BrokerProcess:
    return BrokerProcess(
        store=store,
        flushDiskType="SYNC_FLUSH",
        ready_timeout=120.0,
        **{
            "mappedFileSizeCommitLog": 1 << 28,
            "mappedFileSizeConsumeQueue": 6_000_000,
            "maxHashSlotNum": 5_000_000,
            "maxIndexNum": 20_000_000,
            **settings,
        },
    )


def marks(store: Path) -> dict[str, Any]:
    """How far everything was on disk, by the store's own word."""
    found = json.loads((store / "trovemq/state.json").read_text())
    assert isinstance(found, dict)
    return found


async def wait_for_checkpoint(store: Path, end: int) -> None:
    """Returns when log, consume queues and index are marked as on disk up to `end`."""
    deadline = time.monotonic() + CHECKPOINT_WAIT_MAX_S
    while True:
        found = marks(store)
        if min(found["logEnd"], found["consumeQueuePosition"], found["keyIndexPosition"]) >= end:
            return
        assert time.monotonic() < deadline, f"no checkpoint at {end}: {found}"
        await asyncio.sleep(0.1)


async def recover(report: Report, broker: BrokerProcess, name: str, goal_s: float) -> float:
    """Starts the broker that was killed, and sends. Returns the processor time that it took."""
    started = time.perf_counter()
    broker.start()
    async with trovemq.connect(broker.address) as client:
        await client.send(measure.TOPIC, b"first", keys=["first"])
    taken = time.perf_counter() - started
    report.add(f"recovery, {name}: to the first acknowledgement", taken, "s", at_most=goal_s)
    spent = measure.scheduled_seconds(broker.pid)
    report.add(f"recovery, {name}: broker CPU", spent, "s")
    return spent


async def measure_recovery(report: Report, directory: Path, *, quick: bool) -> None:
    """Two brokers one after another fill the store; the second one flushes the log alone."""
    store, messages = directory / "recovery", MESSAGES // (10 if quick else 1)
    with broker_of(store) as broker:
        produced = await measure.produce(broker, messages)
        await wait_for_checkpoint(store, produced.stored_bytes)
        broker.kill()
    with broker_of(store, projection_flush_interval_ms=FLUSH_INTERVAL_MAX_MS) as broker:
        produced = await measure.produce(broker, messages, MORE_TOPIC)
        broker.kill()
    past = (produced.stored_bytes - marks(store)["consumeQueuePosition"]) / 1e9
    broker = broker_of(store)
    try:
        report.add("recovery: size of the log", produced.stored_bytes / 1e9, "GB")
        report.add("recovery: of it past the checkpoint", past, "GB")
        read_again = await recover(report, broker, "past the checkpoint", GOAL_S + GOAL_S_PER_GB * past)
        await wait_for_checkpoint(store, produced.stored_bytes)
        broker.kill()
        started = await recover(report, broker, "checkpoint recent", GOAL_S)
        report.add("recovery: broker CPU a GB past the checkpoint", (read_again - started) / past, "s")
    finally:
        broker.kill()
        broker.close()
