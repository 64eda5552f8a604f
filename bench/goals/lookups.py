"""Key queries and look-ups by id by the SDK, one at a time, of messages that exist, among a million.

When the first key queries come, the trees still index the messages. The figures that have a goal are of a
broker without other work: they begin when the trees have caught up.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import trovemq
from bench import measure as measuring
from bench.report import Report
from trovemq.testing import BrokerProcess

MESSAGES: Final = 1_000_000
LOOKUPS: Final = 2_000
IDS: Final = 1_000
WARM: Final = 100
CATCH_UP_POLL_S: Final = 0.1
KEY_QUERY_P99_MS_MAX: Final = 1.0
BY_ID_P50_MS_MAX: Final = 0.5
SETTINGS: Final[dict[str, Any]] = {
    "mappedFileSizeCommitLog": 1 << 30,
    "mappedFileSizeConsumeQueue": 6_000_000,
    "maxHashSlotNum": 5_000_000,
    "maxIndexNum": 20_000_000,
}


async def measure(report: Report, directory: Path, *, quick: bool) -> None:
    divisor = 10 if quick else 1
    messages, count = MESSAGES // divisor, LOOKUPS // divisor
    store = directory / "lookups"
    with BrokerProcess(store=store, flushDiskType="ASYNC_FLUSH", **SETTINGS) as broker:
        await measuring.produce(broker, messages)
        os.sync()  # look-ups are not to wait for unwritten pages
        generator = random.Random(3)
        early, keys = ([f"k{generator.randrange(messages)}" for _ in range(WARM + count)] for _ in range(2))
        async with trovemq.connect(broker.address) as client:
            name = f"key query, {messages:,} keys"
            times = await measuring.query_latencies(broker, early)
            report.add_latency(f"{name}, while the trees catch up", times[WARM:])
            found = [await _first(client, key) for key in keys[: IDS // divisor]]
            while (await client.search(measuring.TOPIC, message_id=found[0].unique_key)).lag_bytes:
                await asyncio.sleep(CATCH_UP_POLL_S)
            times = await measuring.query_latencies(broker, keys)
            report.add_latency(name, times[WARM:], p99_max_ms=KEY_QUERY_P99_MS_MAX)
            for name, ids in (
                ("offsetMsgId", [message.offset_msg_id for message in found]),
                ("unique id", [message.unique_key or "" for message in found]),
            ):
                _add(report, f"look-up by {name}, {messages:,} messages", await _by_id(client, ids))


async def _first(client: trovemq.Client, key: str) -> trovemq.Message:
    (message,) = (await client.query(measuring.TOPIC, key)).messages
    return message


async def _by_id(client: trovemq.Client, ids: Sequence[str]) -> list[float]:
    times = []
    for one in [*ids[:WARM], *ids]:
        started = time.perf_counter()
        answer = await client.get(one, topic=measuring.TOPIC)
        times.append(time.perf_counter() - started)
        assert len(answer.messages) == 1, one
    return times[WARM:]


def _add(report: Report, name: str, times: Sequence[float]) -> None:
    rising = sorted(times)
    report.add(f"{name}: median", rising[len(rising) // 2] * 1e3, "ms", at_most=BY_ID_P50_MS_MAX)
    report.add(f"{name}: p99", rising[len(rising) * 99 // 100] * 1e3, "ms")
