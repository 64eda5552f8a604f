"""Counts refused calls by error, and logs them by subject and minute, without credentials."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from trovemq_daemon.minute_log import MinuteLog
from trovemq_proto.errors import TroveError


class Refusals:
    """The refused calls of one server. `counts`: by the error's symbol."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.log: Final = MinuteLog()

    def add(self, path: str, error: TroveError, source: str, access_key: str, now_ms: int) -> None:
        """Counts a refusal. `source`: the caller's address; `access_key`: "" if it is unknown."""
        self.counts[error.symbol] += 1
        self.log.note(
            "warning",
            "access.refused",
            now_ms,
            method=path,
            error=error.symbol,
            user=access_key,
            source="" if access_key else source,
        )


def access_metrics(refusals: Refusals, sessions: int) -> Iterator[Metric]:
    """Metrics of refusals and sessions of a server that authenticates callers."""
    refused = CounterMetricFamily(
        "trovemq_access_refusals", "Calls and messages that were refused to their sender.", labels=("error",)
    )
    for symbol, count in refusals.counts.items():
        refused.add_metric((symbol,), count)
    yield refused
    yield GaugeMetricFamily(
        "trovemq_sessions", "Sessions of clients that proved who they are.", value=sessions
    )
