"""Rates of counters for RocketMQ's tools: a few samples of totals, from which each answer is computed.

A message costs nothing more: the broker counts it anyway, and the total is noted every SAMPLE_S seconds. A
key that has no samples yet has the rate 0.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from trovemq_proto.positions import EpochMs

SAMPLE_S: Final = 10.0
WINDOWS_S: Final = (10, 60, 600)
"""The windows of RocketMQ's runtime information."""
DAY_MS: Final = 86_400_000


class Totals(NamedTuple):
    """Since the start of the broker."""

    messages_in: int
    messages_out: int


class _Sample(NamedTuple):
    time_ms: EpochMs
    totals: Totals


class Rates:
    """`totals`: the present ones. Call sample() every SAMPLE_S."""

    def __init__(self, clock_ms: Callable[[], EpochMs], totals: Callable[[], Totals]) -> None:
        self._clock_ms = clock_ms
        self._totals = totals
        self._samples: deque[_Sample] = deque(maxlen=WINDOWS_S[-1] // int(SAMPLE_S) + 1)
        self._day = self._clock_ms() // DAY_MS
        self.this_morning = self.yesterday_morning = Totals(0, 0)

    def sample(self) -> None:
        now_ms, totals = self._clock_ms(), self._totals()
        self._samples.append(_Sample(now_ms, totals))
        if now_ms // DAY_MS != self._day:
            self._day = now_ms // DAY_MS
            self.yesterday_morning, self.this_morning = self.this_morning, totals

    @property
    def now(self) -> Totals:
        return self._totals()

    def of_windows(self) -> list[tuple[float, float]]:
        """Messages in and out a second, in each of WINDOWS_S, or since the oldest sample."""
        now_ms, totals = self._clock_ms(), self._totals()
        return [self._rate(now_ms, totals, seconds) for seconds in WINDOWS_S]

    def _rate(self, now_ms: EpochMs, totals: Totals, seconds: int) -> tuple[float, float]:
        since = now_ms - seconds * 1_000
        base = next((one for one in self._samples if one.time_ms >= since), None)
        if base is None or now_ms <= base.time_ms:
            return 0.0, 0.0
        elapsed_s = (now_ms - base.time_ms) / 1_000
        return (
            (totals.messages_in - base.totals.messages_in) / elapsed_s,
            (totals.messages_out - base.totals.messages_out) / elapsed_s,
        )
