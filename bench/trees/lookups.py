"""Look-ups over gRPC in the large store, by the SDK, one at a time."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import trovemq
from bench import limits
from bench.report import Report
from bench.trees.engine import FIRST_PAGE_MS_MAX, PAGE
from bench.trees.filling import STORE_SETTINGS, TOPICS, Filled
from trovemq.testing import BrokerProcess

COUNT = 3_000
WARM = 300
PREFIX_SIZE = 4
LOOKUP_P99_MS_MAX = 1.0
SETTINGS: dict[str, Any] = {
    "mappedFileSizeCommitLog": STORE_SETTINGS["commit_log_file_size"],
    "mappedFileSizeConsumeQueue": STORE_SETTINGS["consume_queue_file_size"],
    "maxHashSlotNum": STORE_SETTINGS["index_slot_count"],
    "maxIndexNum": STORE_SETTINGS["index_item_count"],
    "messageIndexEnable": "false",
}


async def measure_lookups(report: Report, store: Path, filled: Filled) -> None:
    """In turn over both topics; an echo on an open stream measures the network, an empty call gRPC's cost
    of a call."""
    started = time.perf_counter()
    with BrokerProcess(store=store, flushDiskType="ASYNC_FLUSH", ready_timeout=120.0, **SETTINGS) as broker:
        report.add("start with the large store", time.perf_counter() - started, "s")
        async with limits.echo_server() as address, trovemq.connect(broker.address) as client:
            report.add_latency("empty echo on an open stream", await limits.echo_latencies(address, WARM))
            calls = (await limits.call_latencies(address, COUNT + WARM))[WARM:]
            report.add_latency("empty call, answered by a stream of one frame", calls)
            for topic in TOPICS:
                ids = random.Random(8).choices(filled.ids[topic], k=COUNT + WARM)
                times = (await look_up(client, topic, ids))[WARM:]
                report.add_latency(
                    f"exact look-up by id over gRPC, {topic}", times, p99_max_ms=LOOKUP_P99_MS_MAX
                )
            times = await search_prefixes(client, TOPICS[1], random.Random(9).choices(ids, k=COUNT // 10))
            report.add_latency("prefix search over gRPC, random ids", times, p99_max_ms=FIRST_PAGE_MS_MAX)


async def look_up(client: trovemq.Client, topic: str, ids: Sequence[str]) -> list[float]:
    times = []
    for text in ids:
        started = time.perf_counter()
        answer = await client.search(topic, message_id=text, max=PAGE)
        times.append(time.perf_counter() - started)
        assert [message.unique_key for message in answer.messages] == [text], text
    return times


async def search_prefixes(client: trovemq.Client, topic: str, ids: Sequence[str]) -> list[float]:
    times = []
    for text in ids:
        started = time.perf_counter()
        answer = await client.search(topic, message_id_prefix=text[:PREFIX_SIZE], max=PAGE)
        times.append(time.perf_counter() - started)
        assert answer.messages, text
    return times
