"""The text of /metrics is that of prometheus_client, whatever the labels say."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.metrics_core import Metric

from trovemq_daemon.exposition import text_of

VALUES = ("", "plain", 'a"b', "a\\b", "a\nb", '\\"\n', "ümläut", "%s {}", "\x00", "a,b=c")
NUMBERS = (0, 1, 1.5, -2, 1e6, 123_456_789, 1e21, math.inf, -math.inf, math.nan)


class Odd:
    """Families of every kind with odd labels and numbers."""

    def collect(self) -> Iterator[Metric]:
        gauge = GaugeMetricFamily("odd_gauge", 'With "quotes"\nand a \\.', labels=("z", "a"))
        counter = CounterMetricFamily("odd", "Counts.", labels=("topic",))
        histogram = HistogramMetricFamily("odd_sizes", "Sizes.", labels=("topic",))
        for value, number in zip(VALUES, NUMBERS, strict=True):
            gauge.add_metric((value, "x"), number)
            counter.add_metric((value,), number)
            histogram.add_metric((value,), buckets=[("1", 1), ("+Inf", 2)], sum_value=number)
        yield from (gauge, counter, histogram, GaugeMetricFamily("alone", "No labels.", value=7))
        yield InfoMetricFamily("odd_build", "Info.", {"version": 'v"1'})
        timed = GaugeMetricFamily("timed", "With a time.", labels=("a",))
        timed.add_metric(("x",), 1, timestamp=5.0)
        yield timed
        yield CounterMetricFamily("dated", "Since.", value=1, created=5.0)
        yield GaugeMetricFamily("none_yet", "Without samples.", labels=("a",))


@pytest.mark.parametrize("own", [True, False])
def test_the_text_is_that_of_the_library(own: bool) -> None:
    registry = CollectorRegistry()
    if own:
        registry.register(Odd())
    else:
        Counter("made", "By the library.", ("a",), registry=registry).labels('"').inc()
        Histogram("took", "By the library.", registry=registry).observe(0.3)
    assert text_of(registry) == generate_latest(registry)
