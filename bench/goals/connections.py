"""A thousand calls in flight: over one connection, and over a thousand connections with one each."""

from __future__ import annotations

import asyncio
from pathlib import Path
from statistics import median
from typing import Any, Final

import trovemq
import trovemq_rpc as rpc
from bench import measure as measuring
from bench.goals.calls import SEND, Sender, cost_us
from bench.report import Report, median_ratio
from trovemq.testing import BrokerProcess

IN_FLIGHT: Final = 1_000
FILES_BESIDE: Final = 200
CALLS: Final = 5_000
ROUNDS: Final = 3
RATIO_MAX: Final = 3.0
NAME: Final = f"SendMessage, {IN_FLIGHT:,} in flight"
RATIO_NAME: Final = f"{NAME}: {IN_FLIGHT:,} connections / one: server's processor"


async def measure(report: Report, directory: Path, *, quick: bool) -> None:
    if not measuring.allow_open_files(IN_FLIGHT + FILES_BESIDE):
        reason = f"{IN_FLIGHT + FILES_BESIDE:,} open files are not allowed here"
        report.not_shown(RATIO_NAME, "x", reason, at_most=RATIO_MAX)
        return
    with BrokerProcess(store=directory / "connections", flushDiskType="ASYNC_FLUSH") as broker:
        async with trovemq.connect(broker.address) as client:
            await client.admin.create_topic(measuring.TOPIC, queue_count=measuring.QUEUES)
        channels: list[Any] = [rpc.insecure_channel(broker.address) for _ in range(IN_FLIGHT)]
        try:
            one, many = await _costs(broker.pid, channels, 1 if quick else ROUNDS)
        finally:
            await asyncio.gather(*(channel.close() for channel in channels))
    report.add(f"{NAME}, one connection: server's processor", median(one), "us")
    report.add(f"{NAME}, {IN_FLIGHT:,} connections: server's processor", median(many), "us")
    report.add(RATIO_NAME, median_ratio(many, one), "x", at_most=RATIO_MAX)


async def _costs(pid: int, channels: list[Any], rounds: int) -> tuple[list[float], list[float]]:
    """Microseconds a call, by round: over the first channel, and over all of them, alternately."""
    sender, methods = Sender(measuring.TOPIC), [channel.unary_unary(SEND) for channel in channels]

    async def by_one(_number: int) -> None:
        await sender.send(methods[0])

    async def by_all(number: int) -> None:
        await sender.send(methods[number % len(methods)])

    await measuring.each(len(methods), by_all, IN_FLIGHT // 10)  # connected, not too many at once
    one, many = list[float](), list[float]()
    for _ in range(rounds):
        one.append(await cost_us(pid, CALLS, by_one, IN_FLIGHT))
        many.append(await cost_us(pid, CALLS, by_all, IN_FLIGHT))
    return one, many
