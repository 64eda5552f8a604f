"""A producer's cost of deduplication and the trees: with and without in turn, so that a machine whose speed
drifts, or that others use as well, affects both alike."""

from __future__ import annotations

from pathlib import Path
from statistics import median, quantiles
from typing import Any

import trovemq
from bench import measure
from bench.report import Report, median_ratio
from trovemq.testing import BrokerProcess

ROUNDS = 6
MESSAGES = 50_000
"""The figures of one round, in a new topic."""
SINGLE_SENDS = 150
DEDUPLICATE = {"deduplicate": "1h"}
DEDUPLICATED_MIN = 0.6
WITH_TREES_MIN = 0.9


async def compare_deduplication(
    report: Report, directory: Path, settings: dict[str, Any], *, rounds: int, messages: int
) -> None:
    """One broker; each round a topic with the option and one without it."""
    rates: dict[bool, list[float]] = {True: [], False: []}
    with BrokerProcess(store=directory, flushDiskType="ASYNC_FLUSH", **settings) as broker:
        for number in range(-1, rounds):
            for chosen in (True, False) if number % 2 else (False, True):
                topic = f"round{number + 1}-{'deduplicated' if chosen else 'plain'}"
                produced = await measure.produce(broker, messages, topic, DEDUPLICATE if chosen else None)
                if number >= 0:  # the first round warms both
                    rates[chosen].append(produced.per_second)
    report.add("produce, deduplicated", median(rates[True]), "msg/s")
    report.add("produce, not deduplicated", median(rates[False]), "msg/s")
    report.add(
        "produce, deduplicated / not", median_ratio(rates[True], rates[False]), "x", at_least=DEDUPLICATED_MIN
    )


async def compare_trees(
    report: Report, directory: Path, settings: dict[str, Any], *, rounds: int, messages: int
) -> None:
    """Two brokers, with trees and without. Single sends follow each round, while the trees still lag."""
    brokers = {
        with_trees: BrokerProcess(
            store=directory / ("trees" if with_trees else "plain"),
            flushDiskType="ASYNC_FLUSH",
            tree_index_enable=str(with_trees).lower(),
            **settings,
        )
        for with_trees in (True, False)
    }
    rates: dict[bool, list[float]] = {True: [], False: []}
    singles: dict[bool, list[float]] = {True: [], False: []}
    with brokers[True], brokers[False]:
        for broker in brokers.values():
            async with trovemq.connect(broker.address) as client:
                await client.admin.create_topic(measure.TOPIC, queue_count=measure.QUEUES)
        for number in range(-1, rounds):
            for with_trees in (True, False) if number % 2 else (False, True):
                broker = brokers[with_trees]
                produced = await measure.produce(broker, messages, f"round{number + 1}")
                async with trovemq.connect(broker.address) as client:
                    times = await measure.send_latencies(client, SINGLE_SENDS)
                if number >= 0:
                    rates[with_trees].append(produced.per_second)
                    singles[with_trees] += times
    report.add("produce with the trees", median(rates[True]), "msg/s")
    report.add("produce without trees", median(rates[False]), "msg/s")
    report.add(
        "produce with the trees / without",
        median_ratio(rates[True], rates[False]),
        "x",
        at_least=WITH_TREES_MIN,
    )
    for with_trees, name in ((True, "while the trees catch up"), (False, "without trees")):
        report.add(f"single send {name}: median", median(singles[with_trees]) * 1e3, "ms")
        report.add(f"single send {name}: p99", quantiles(singles[with_trees], n=100)[98] * 1e3, "ms")
