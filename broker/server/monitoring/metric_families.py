"""Makes Prometheus families of plain numbers; each sample has the labels of this node.

A family with many samples is returned in parts of the same name, so that no step of a scrape is long
(`trovemq_daemon.exposition` joins them). `None` among the samples ends a part: a step of the counting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

NODE_LABELS: Final = ("cluster", "node_type", "node_id")
SAMPLES_OF_PART: Final = 128

Samples = Iterable[tuple[tuple[str, ...], float] | None]
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

    def gauge(self, name: str, what: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, what, labels=NODE_LABELS)
        family.add_metric(self.node, value)
        return family

    def gauges(self, name: str, what: str, labels: tuple[str, ...], samples: Samples) -> Iterator[Metric]:
        return family_parts(
            lambda: GaugeMetricFamily(name, what, labels=(*NODE_LABELS, *labels)),
            lambda family, sample: family.add_metric((*self.node, *sample[0]), sample[1]),
            samples,
        )

    def counter(self, name: str, what: str, value: float) -> Metric:
        family = CounterMetricFamily(name, what, labels=NODE_LABELS)
        family.add_metric(self.node, value)
        return family

    def counters(self, name: str, what: str, labels: tuple[str, ...], samples: Samples) -> Iterator[Metric]:
        """`name` without its `_total`."""
        return family_parts(
            lambda: CounterMetricFamily(name, what, labels=(*NODE_LABELS, *labels)),
            lambda family, sample: family.add_metric((*self.node, *sample[0]), sample[1]),
            samples,
        )


def flag(value: bool) -> str:
    return "true" if value else "false"
