"""Figures of the console and of a scrape: `python -m bench.console`.

| figure                                                                             | goal   |
|------------------------------------------------------------------------------------|--------|
| the broker's processor time for a scrape: 1,000 topics with 8 queues and a message | 20 ms  |
| a page of the console with 10,000 topics                                           | 300 ms |
| the search box, from a key to the message and its track                            | 200 ms |
| the broker's processor time for a page that stays open                             | 1 %    |

Times are the median and the longest of ROUNDS; a page stays open as in a browser, which asks every five
seconds.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from statistics import median

import trovemq
from bench.tracing import processor_s
from tests.support.console_process import running_console
from trovemq.testing import BrokerProcess

ROUNDS = 15
FEW, MANY = 1_000, 10_000
AT_ONCE = 200
OPEN_S = 30.0
LOOK_S = 5.0
PAGES = ("/", "/topics", "/topics?from=5000", "/topics?filter=999", "/topic?name=t-00007", "/storage")
SEARCH = "/search?q=k-7&topic=t-00007"


def fetched(url: str) -> float:
    """Milliseconds until all of it is there."""
    began = time.perf_counter()
    with urllib.request.urlopen(url, timeout=30) as reply:
        reply.read()
    return (time.perf_counter() - began) * 1e3


def show(what: str, values: list[float], goal: float, unit: str) -> None:
    print(f"{what:56} {median(values):7.1f} {unit} (longest {max(values):.1f}), goal {goal:g}", flush=True)


def processor_ms(process_id: int, work: Callable[[], object]) -> float:
    """Of a process, while something is done."""
    before = processor_s(process_id)
    work()
    return (processor_s(process_id) - before) * 1e3


async def fill(address: str, numbers: range, *, send: bool) -> None:
    """Topics, each with a message that has a key."""
    async with trovemq.connect(address) as client:
        for first in range(0, len(numbers), AT_ONCE):
            some = numbers[first : first + AT_ONCE]
            await asyncio.gather(*(client.admin.create_topic(f"t-{number:05}") for number in some))
            if send:
                sends = (client.send(f"t-{number:05}", b"x", keys=[f"k-{number}"]) for number in some)
                await asyncio.gather(*sends)


def stay_open(url: str | None) -> None:
    """A page as a browser has it; or as long without one."""
    end = time.monotonic() + OPEN_S
    while time.monotonic() < end:
        if url is not None:
            fetched(url)
        time.sleep(LOOK_S)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, BrokerProcess(store=Path(folder) / "store") as broker:
        asyncio.run(fill(broker.address, range(FEW), send=True))
        metrics = f"http://{broker.http_address}/metrics"
        scrapes = [processor_ms(broker.pid, lambda: fetched(metrics)) for _ in range(ROUNDS)]
        show("a scrape with 1,000 topics", scrapes, 20, "ms")
        asyncio.run(fill(broker.address, range(FEW, MANY), send=False))
        idle = processor_ms(broker.pid, lambda: stay_open(None)) / OPEN_S / 10
        with running_console(broker.address) as (url, _):
            for path in PAGES:
                show(path, [fetched(url + path) for _ in range(ROUNDS)], 300, "ms")
            show(SEARCH, [fetched(url + SEARCH) for _ in range(ROUNDS)], 200, "ms")
            opened = processor_ms(broker.pid, lambda: stay_open(f"{url}/topics")) / OPEN_S / 10
        show("the broker's processor for an open page", [opened - idle], 1, "%")


if __name__ == "__main__":
    main()
