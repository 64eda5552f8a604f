"""Makes Prometheus families of plain numbers; each sample has the labels of this node.

A family with many samples is returned in parts of the same name, so that no step of a scrape is long
(`trovemq_daemon.exposition` joins them). `None` among the samples ends a part: a step of the counting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from trovemq_daemon.metrics import Buckets
from trovemq_daemon.sample_tables import HistogramTable, LabelTexts, NumberTable, Values

NODE_LABELS: Final = ("cluster", "node_type", "node_id")
LABEL_SETS_MAX: Final = 64
SAMPLES_OF_PART: Final = 512
HISTOGRAMS_OF_PART: Final = 64  # each has nine samples

Samples = Iterable[tuple[Values, float] | None]
"""The values of the further labels, and the number; None between two steps."""

Row = TypeVar("Row")
Family = TypeVar("Family", bound=Metric)


def family_parts(
    make: Callable[[], Family],
    add: Callable[[Family, Row], object],
    rows: Iterable[Row | None],
    rows_max: int = SAMPLES_OF_PART,
) -> Iterator[Metric]:
    """The family in parts of at most that many rows; one part without rows if there are none."""
    family, count = make(), 0
    for row in rows:
        if row is not None:
            add(family, row)
            count += 1
        if row is None or count == rows_max:
            yield family
            family, count = make(), 0
    yield family


class NodeFamilies:
    """The families of one node; `labels` are those after the node's own."""

    def __init__(self, cluster: str, node_type: str, node_id: str) -> None:
        self.node: Final = (cluster, node_type, node_id)
        constant = dict(zip(NODE_LABELS, self.node, strict=True))
        self._texts: Final = lru_cache(LABEL_SETS_MAX)(lambda labels: LabelTexts(constant, labels))

    def gauge(self, name: str, what: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, what, labels=NODE_LABELS)
        family.add_metric(self.node, value)
        return family

    def gauges(self, name: str, what: str, labels: tuple[str, ...], samples: Samples) -> Iterator[Metric]:
        return self._numbers(name, what, "gauge", labels, samples)

    def counter(self, name: str, what: str, value: float) -> Metric:
        family = CounterMetricFamily(name, what, labels=NODE_LABELS)
        family.add_metric(self.node, value)
        return family

    def counters(self, name: str, what: str, labels: tuple[str, ...], samples: Samples) -> Iterator[Metric]:
        """`name` without its `_total`."""
        return self._numbers(name, what, "counter", labels, samples)

    def histograms(
        self,
        name: str,
        what: str,
        labels: tuple[str, ...],
        bounds: Sequence[float],
        rows: Iterable[tuple[Values, Buckets]],
    ) -> Iterator[Metric]:
        """Of the same bounds."""
        texts = self._texts(labels)
        return family_parts(
            lambda: HistogramTable(name, what, texts, bounds),
            lambda family, row: family.add(row[0], row[1].counts, row[1].total),
            rows,
            HISTOGRAMS_OF_PART,
        )

    def _numbers(
        self, name: str, what: str, kind: str, labels: tuple[str, ...], samples: Samples
    ) -> Iterator[Metric]:
        texts = self._texts(labels)
        return family_parts(
            lambda: NumberTable(name, what, kind, texts),
            lambda family, sample: family.add(*sample),
            samples,
        )


def flag(value: bool) -> str:
    return "true" if value else "false"
