"""Middleware for handlers: logging and metrics. Any `async def middleware(call, proceed)` is one. Spans need
no middleware: a client whose options have `tracing` makes them (`trovemq.otel`)."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from trovemq.handlers import Call, Middleware

_log = logging.getLogger("trovemq.handlers")


def log_calls(logger: logging.Logger = _log, level: int = logging.INFO) -> Middleware:
    """Logs each call with its time, one line per call, also of failed ones."""

    async def log_call(call: Call, proceed: Callable[[], Awaitable[None]]) -> None:
        begin, result = time.perf_counter(), "failed"
        try:
            await proceed()
            result = "done"
        finally:
            first = call.messages[0]
            logger.log(
                level,
                "%s %s in %.1f ms: %s of %s for %s, attempt %d%s",
                call.name,
                result,
                (time.perf_counter() - begin) * 1000,
                first.message_id,
                call.topic,
                call.group,
                first.attempt,
                f", and {len(call.messages) - 1} more" if len(call.messages) > 1 else "",
            )

    return log_call


@dataclass(frozen=True, slots=True)
class CallStatistics:
    """Counts of one topic and group: calls that returned and that raised, their messages, and the seconds of
    both."""

    done: int = 0
    failed: int = 0
    messages: int = 0
    seconds: float = 0.0
    seconds_max: float = 0.0


class CallMetrics:
    """Counts calls; itself a middleware. `statistics` has the counts, `prometheus` exports them.

    trovemq_handler_calls_total{topic, group, result}, trovemq_handler_messages_total{topic, group} and
    trovemq_handler_seconds_total{topic, group}
    """

    def __init__(self) -> None:
        self._statistics: dict[tuple[str, str], CallStatistics] = {}

    async def __call__(self, call: Call, proceed: Callable[[], Awaitable[None]]) -> None:
        """Counts one call."""
        begin, failed = time.perf_counter(), True
        try:
            await proceed()
            failed = False
        finally:
            seconds = time.perf_counter() - begin
            before = self._statistics.get((call.topic, call.group), CallStatistics())
            self._statistics[call.topic, call.group] = replace(
                before,
                done=before.done + (not failed),
                failed=before.failed + failed,
                messages=before.messages + len(call.messages),
                seconds=before.seconds + seconds,
                seconds_max=max(before.seconds_max, seconds),
            )

    def statistics(self) -> dict[tuple[str, str], CallStatistics]:
        """The counts by topic and group."""
        return dict(self._statistics)

    def prometheus(self, registry: Any = None) -> None:
        """Exports the counts by prometheus_client; None for its own registry."""
        from prometheus_client import REGISTRY

        (REGISTRY if registry is None else registry).register(self)

    def collect(self) -> list[Any]:
        """Called by prometheus_client for the metrics."""
        from prometheus_client.core import CounterMetricFamily

        labels = ["topic", "group"]
        calls = CounterMetricFamily("trovemq_handler_calls", "Calls of handlers.", labels=[*labels, "result"])
        messages = CounterMetricFamily("trovemq_handler_messages", "Their messages.", labels=labels)
        seconds = CounterMetricFamily("trovemq_handler_seconds", "Their time.", labels=labels)
        for place, counts in self._statistics.items():
            calls.add_metric([*place, "done"], counts.done)
            calls.add_metric([*place, "failed"], counts.failed)
            messages.add_metric(place, counts.messages)
            seconds.add_metric(place, counts.seconds)
        return [calls, messages, seconds]
