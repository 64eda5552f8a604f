"""Rates and histories: values that are sampled regularly and kept in memory, with the oldest removed
first."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Final

from trovemq import TroveError
from trovemq_console.cluster import Clock, Cluster

POINTS_MAX: Final = 360
KEYS_MAX: Final = 20_000
RATE_SECONDS_MAX: Final = 60.0
SAMPLE_INTERVAL_S: Final = 5.0
APART_S: Final = 2.0
"""Samples that are closer, for example those of a page and of the sampler, have no rate between them."""
ROUTES_AGE_MAX_S: Final = 60.0
WATCHED_MAX: Final = 16
WATCHED_SECONDS: Final = 1_800.0
RATED: Final = ("messages_in", "messages_out", "bytes_in", "bytes_out", "appends_refused")

Key = tuple[str, ...]
Point = tuple[float, float]
Refresh = Callable[[], Awaitable[None]]


class History:
    """Values by key, each with its time; the least recently used keys are removed first."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._points: OrderedDict[Key, deque[Point]] = OrderedDict()

    def add(self, key: Key, value: float) -> None:
        """Adds the present value."""
        points = self._points.setdefault(key, deque(maxlen=POINTS_MAX))
        points.append((self.clock(), value))
        self._points.move_to_end(key)
        if len(self._points) > KEYS_MAX:
            self._points.popitem(last=False)

    def points(self, key: Key) -> list[Point]:
        """All kept points, oldest first."""
        return list(self._points.get(key, ()))

    def rate(self, key: Key) -> float | None:
        """The growth of a counter per second, over the last minute; None if it is not known yet."""
        points = self._points.get(key, ())
        recent = [point for point in points if point[0] > self.clock() - RATE_SECONDS_MAX]
        return rate_between(recent[0], recent[-1]) if len(recent) > 1 else None

    def rates(self, key: Key) -> list[Point]:
        """The rate from each sample to the next. Samples less than APART_S after another are left out."""
        apart: list[Point] = []
        for point in self.points(key):
            if not apart or point[0] - apart[-1][0] >= APART_S:
                apart.append(point)
        found = [(after[0], rate_between(before, after)) for before, after in pairwise(apart)]
        return [(at, rate) for at, rate in found if rate is not None]


def rate_between(first: Point, last: Point) -> float | None:
    """The rate; None if no time passed, or if the counter began again because its broker was restarted."""
    seconds, growth = last[0] - first[0], last[1] - first[1]
    return growth / seconds if seconds > 0 and growth >= 0 else None


class Sampler:
    """Samples every broker's counters, and groups and topics of recent pages, every few seconds."""

    def __init__(self, cluster: Cluster, history: History) -> None:
        self._cluster = cluster
        self.history = history
        self._watched: OrderedDict[Key, tuple[float, Refresh]] = OrderedDict()

    def watch(self, key: Key, refresh: Refresh) -> None:
        """Calls `refresh` at each sample, for half an hour from now."""
        self._watched[key] = (self.history.clock() + WATCHED_SECONDS, refresh)
        self._watched.move_to_end(key)
        if len(self._watched) > WATCHED_MAX:
            self._watched.popitem(last=False)

    async def run(self) -> None:
        """Runs until it is cancelled."""
        while True:
            await self.sample()
            await asyncio.sleep(SAMPLE_INTERVAL_S)

    async def sample(self) -> None:
        """Takes one sample of everything. Failures are ignored, because the pages see them themselves."""
        try:
            for answer in await self._cluster.brokers(ROUTES_AGE_MAX_S):
                if answer.counters is not None:
                    self.add_counters(answer.info.name, answer.counters)
        except TroveError:
            return
        now = self.history.clock()
        self._watched = OrderedDict((key, entry) for key, entry in self._watched.items() if entry[0] > now)
        for _, refresh in list(self._watched.values()):
            try:
                await refresh()
            except TroveError:
                continue

    def add_counters(self, broker: str, counters: dict[str, int]) -> None:
        """Adds a broker's present counters."""
        for name in RATED:
            self.history.add(("broker", broker, name), counters.get(name, 0))
