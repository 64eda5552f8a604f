"""Refused calls: counted by error, and logged once a minute each, without credentials."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from trovemq_daemon.logging import get_logger
from trovemq_proto.errors import TroveError

LOGGED_INTERVAL_MS: Final = 60_000
LOGGED_MAX: Final = 1_000  # different refusals in one interval that are logged


class Refusals:
    """Those of one server. `counts`: by the error's symbol."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._logged: set[tuple[str, str, str]] = set()
        self._logged_from_ms = 0

    def add(self, path: str, error: TroveError, source: str, access_key: str, now_ms: int) -> None:
        """`source`: the caller's address; `access_key`: "" where it is not known."""
        self.counts[error.symbol] += 1
        if not 0 <= now_ms - self._logged_from_ms < LOGGED_INTERVAL_MS:
            self._logged.clear()
            self._logged_from_ms = now_ms
        key = (path, error.symbol, access_key or source)
        if key in self._logged or len(self._logged) >= LOGGED_MAX:
            return
        self._logged.add(key)
        get_logger().warning(
            "access.refused", method=path, error=error.symbol, user=access_key, source=source
        )


def access_metrics(refusals: Refusals, sessions: int) -> Iterator[Metric]:
    """Of a server that asks who calls."""
    refused = CounterMetricFamily(
        "trovemq_access_refusals", "Calls and messages that were refused to their sender.", labels=("error",)
    )
    for symbol, count in refusals.counts.items():
        refused.add_metric((symbol,), count)
    yield refused
    yield GaugeMetricFamily(
        "trovemq_sessions", "Sessions of clients that proved who they are.", value=sessions
    )
