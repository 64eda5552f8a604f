"""The console with 10,000 topics, and a scrape of 1,000 with 8 queues and a message each.

A scrape and a page that stays open are measured by the broker's processor time, pages by the clock. Figures
are medians of ROUNDS. Later scrapes reuse the text of the labels that the first one made, and no numbers.
"""

from __future__ import annotations

import asyncio
import time
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

import trovemq
from bench import measure
from bench.report import Report
from tests.support.console_process import running_console
from trovemq.testing import BrokerProcess

ROUNDS: Final = 15
FEW, MANY = 1_000, 10_000
ABOUT: Final = "Broker, console and the one who asks share the processors.\n\n"
AT_ONCE: Final = 200
SETTLED_S: Final = 1.0
OPEN_S: Final = 60.0
"""The longest time that the console keeps an answer."""
LOOK_S: Final = 5.0
PAGES: Final = ("/", "/topics", "/topics?from=5000", "/topics?filter=999", "/topic?name=t-00007", "/storage")
OPENED: Final = ("/topics", "/storage")
SEARCH: Final = "/search?q=k-7&topic=t-00007"


def fetched(url: str) -> float:
    """Milliseconds until all of it is there."""
    began = time.perf_counter()
    with urllib.request.urlopen(url, timeout=30) as reply:
        reply.read()
    return (time.perf_counter() - began) * 1e3


def processor_ms(process_id: int, work: Callable[[], object]) -> float:
    """Of a process, while something is done."""
    before = measure.scheduled_seconds(process_id)
    work()
    return (measure.scheduled_seconds(process_id) - before) * 1e3


async def fill(address: str, numbers: range, *, send: bool) -> None:
    """Topics, each with a message that has a key."""
    async with trovemq.connect(address) as client:
        for some in batched(numbers):
            await asyncio.gather(*(client.admin.create_topic(f"t-{number:05}") for number in some))
            if send:
                sends = (client.send(f"t-{number:05}", b"x", keys=[f"k-{number}"]) for number in some)
                await asyncio.gather(*sends)


async def send_more(address: str) -> None:
    """A message to each topic."""
    async with trovemq.connect(address) as client:
        for some in batched(range(FEW)):
            await asyncio.gather(*(client.send(f"t-{number:05}", b"x") for number in some))


def batched(numbers: range) -> Iterator[range]:
    return (numbers[first : first + AT_ONCE] for first in range(0, len(numbers), AT_ONCE))


def stay_open(url: str | None) -> None:
    """A page as a browser has it that refreshes each LOOK_S, which is more often than /storage does; or as
    long without one."""
    end = time.monotonic() + OPEN_S
    while time.monotonic() < end:
        if url is not None:
            fetched(url)
        time.sleep(LOOK_S)


async def measure_console(report: Report, directory: Path, *, quick: bool) -> None:
    """Pages and scrapes wait for their answers: in a thread."""
    await asyncio.to_thread(_measure, report, directory, ROUNDS // (3 if quick else 1))


def _measure(report: Report, directory: Path, rounds: int) -> None:
    with BrokerProcess(store=directory / "store") as broker:
        asyncio.run(fill(broker.address, range(FEW), send=True))
        metrics = f"http://{broker.http_address}/metrics"
        what = f"a scrape with {FEW:,} topics: broker CPU"
        first, *scrapes = [processor_ms(broker.pid, lambda: fetched(metrics)) for _ in range(rounds + 1)]
        report.add(what, median(scrapes), "ms", at_most=20)
        report.add(f"{what}, the first after a start", first, "ms")
        changed = []
        for _ in range(rounds // 3):
            asyncio.run(send_more(broker.address))
            time.sleep(SETTLED_S)
            changed.append(processor_ms(broker.pid, lambda: fetched(metrics)))
        report.add(f"{what}, after a message to each", median(changed), "ms", at_most=20)
        asyncio.run(fill(broker.address, range(FEW, MANY), send=False))
        idle = processor_ms(broker.pid, lambda: stay_open(None)) / OPEN_S / 10
        with running_console(broker.address) as (url, _):
            for path in PAGES:
                times = [fetched(url + path) for _ in range(rounds)]
                report.add(f"page {path}, {MANY:,} topics", median(times), "ms", at_most=300)
            times = [fetched(url + SEARCH) for _ in range(rounds)]
            report.add("search by key, to the message and its track", median(times), "ms", at_most=200)
            for path in OPENED:
                opened = processor_ms(broker.pid, partial(stay_open, url + path)) / OPEN_S / 10
                what = f"page {path} stays open: of the broker's processor"
                report.add(what, max(0.0, opened - idle), "%", at_most=1)
