"""The text of /metrics is that of prometheus_client, whatever the labels say, and always that of now."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.metrics_core import Metric

from trovemq_daemon import sample_tables
from trovemq_daemon.exposition import text_of
from trovemq_daemon.sample_tables import HistogramTable, LabelTexts, NumberTable, number_text

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


class Tables:
    """Families as rows; `rows` are those of the present scrape."""

    def __init__(self) -> None:
        self.texts = LabelTexts({"node": 'a"\n', "cluster": "C"}, ("topic", "is_system"))
        self.rows: list[tuple[tuple[str, str], list[int], float]] = []

    def collect(self) -> Iterator[Metric]:
        counter = NumberTable("kept", "Counts.", "counter", self.texts)
        gauge = NumberTable("kept_gauge", "Gauges.", "gauge", self.texts)
        sizes = HistogramTable("kept_sizes", "Sizes.", self.texts, (1, 2.5, 1_000))
        for values, counts, number in self.rows:
            counter.add(values, number)
            gauge.add(values, -number)
            sizes.add(values, counts, number)
        yield from (counter, gauge, sizes)


_LABELS = st.tuples(st.sampled_from(VALUES), st.sampled_from(("true", "false")))
_COUNTS = st.lists(st.integers(0, 10**7), min_size=4, max_size=4)
_ROWS = st.lists(st.tuples(_LABELS, _COUNTS, st.sampled_from(NUMBERS)), max_size=8)


@given(st.lists(_ROWS, min_size=1, max_size=6), st.integers(1, 6))
def test_the_text_of_rows_is_that_of_their_samples_at_every_scrape(
    scrapes: list[list[tuple[tuple[str, str], list[int], float]]], kept_max: int
) -> None:
    """What is kept from one scrape to the next, however little, shows in none of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sample_tables, "LABEL_TEXTS_MAX", kept_max)
        tables, registry = Tables(), CollectorRegistry()
        registry.register(tables)
        for rows in scrapes:
            tables.rows = rows
            assert text_of(registry) == generate_latest(registry)


@given(st.one_of(st.integers(-(10**25), 10**25), st.floats()))
def test_a_number_has_the_text_that_the_library_gives_it(number: float) -> None:
    gauge = GaugeMetricFamily("one", "One.", value=number)
    registry = CollectorRegistry()
    registry.register(Fixed(gauge))
    assert generate_latest(registry).endswith(f"\none {number_text(number)}\n".encode())


class Fixed:
    """One family."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family


def test_an_older_part_of_a_family_does_not_repeat_its_head() -> None:
    tables = Tables()
    registry = CollectorRegistry()
    registry.register(tables)

    class Twice:
        def collect(self) -> Iterator[Metric]:
            for number in (1, 2):
                part = NumberTable("parts", "Parts.", "gauge", tables.texts)
                part.add((str(number), "false"), number)
                yield part

    registry.register(Twice())
    text = text_of(registry).decode()
    assert text.count("# TYPE parts gauge") == text.count("# HELP parts Parts.") == 1
    assert text.count("\nparts{") == 2
