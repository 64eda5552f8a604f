"""A message's cost for the broker with a large store, and with many consumer groups, beside a small one's.

Three brokers with one topic of one queue take turns, as in topics.py, with the same kinds of calls: a store
with a few messages; one that begins with four million; and one with 1,000 groups, each of which has consumed
a message.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from typing import Final

from bench import measure as measuring
from bench.goals.topics import RATIO_MAX, RECORDS, STREAMS, filled, in_turns
from bench.report import Report, median_ratio

MESSAGES: Final = 4_000_000
GROUPS: Final = 1_000
GROUPS_AT_ONCE: Final = 16
ROUNDS: Final = 3


async def measure(report: Report, directory: Path, *, quick: bool) -> None:
    messages, groups = MESSAGES // (10 if quick else 1), GROUPS // (10 if quick else 1)
    async with AsyncExitStack() as stack:
        small, large, shared = [
            await filled(stack, directory / f"growth-{name}", 1) for name in ("small", "large", "shared")
        ]
        await measuring.each(messages // RECORDS, large.append, STREAMS)
        await measuring.each(groups, shared.consume_one, GROUPS_AT_ONCE)
        for store in (large, shared):
            await store.settle()
        for kind in small.kinds:
            costs = await in_turns([small, large, shared], kind, 1 if quick else ROUNDS, directory)
            name = f"{kind}: server's processor a message"
            report.add(f"{name}, a small store", median(costs[0]), "us")
            for what, of_store in zip(
                (f"{messages:,} messages before", f"{groups:,} groups"), costs[1:], strict=True
            ):
                report.add(f"{name}, {what}", median(of_store), "us")
                ratio = median_ratio(of_store, costs[0])
                report.add(f"{name}, {what} / a small store", ratio, "x", at_most=RATIO_MAX)
