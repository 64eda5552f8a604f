"""A producer's cost of the whole record's CRC: two brokers, with it and without, take rounds in turn.

The figures are medians over pairs of rounds that follow one another, so that a machine whose speed drifts,
or that others use as well, says the same of both.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

from bench import measure
from bench.report import Report, median_ratio
from trovemq.testing import BrokerProcess

ROUNDS = 16
MESSAGES = 50_000
"""The figures of one round, in a new topic."""
SLOWDOWN_MAX = 0.05


async def measure_crc_cost(
    report: Report, directory: Path, settings: dict[str, Any], *, rounds: int = ROUNDS
) -> None:
    """Throughput and the broker's processor time; the client's part of the work is in the throughput."""
    brokers = {
        with_crc: BrokerProcess(
            store=directory / ("crc" if with_crc else "plain"),
            flushDiskType="ASYNC_FLUSH",
            enabledAppendPropCRC=str(with_crc).lower(),
            **settings,
        )
        for with_crc in (True, False)
    }
    with brokers[True], brokers[False]:
        throughput: dict[bool, list[float]] = {True: [], False: []}
        cpu_us: dict[bool, list[float]] = {True: [], False: []}
        for number in range(-1, rounds):
            for with_crc in (True, False) if number % 2 else (False, True):
                broker = brokers[with_crc]
                before = measure.scheduled_seconds(broker.pid)
                produced = await measure.produce(broker, MESSAGES, f"round{number + 1}")
                spent = measure.scheduled_seconds(broker.pid) - before
                if number >= 0:  # the first round warms both
                    throughput[with_crc].append(produced.per_second)
                    cpu_us[with_crc].append(spent / MESSAGES * 1e6)
    report.add("produce with the whole record's CRC: throughput", median(throughput[True]), "msg/s")
    report.add("produce without it: throughput", median(throughput[False]), "msg/s")
    report.add(
        "produce with the CRC / without: throughput",
        median_ratio(throughput[True], throughput[False]),
        "x",
        at_least=1 - SLOWDOWN_MAX,
    )
    report.add(
        "produce with the CRC / without: broker CPU a message", median_ratio(cpu_us[True], cpu_us[False]), "x"
    )
