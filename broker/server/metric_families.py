"""Making Prometheus families out of plain numbers, each sample under the labels of this node."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

NODE_LABELS: Final = ("cluster", "node_type", "node_id")

Samples = Iterable[tuple[tuple[str, ...], float]]
"""Values of the further labels, and the number."""


class NodeFamilies:
    """The families of one node; `labels` are those that come after the node's own."""

    def __init__(self, cluster: str, node_type: str, node_id: str) -> None:
        self.node: Final = (cluster, node_type, node_id)

    def gauge(self, name: str, what: str, value: float) -> Metric:
        return self.gauges(name, what, (), [((), value)])

    def gauges(self, name: str, what: str, labels: tuple[str, ...], samples: Samples) -> Metric:
        family = GaugeMetricFamily(name, what, labels=(*NODE_LABELS, *labels))
        for values, number in samples:
            family.add_metric((*self.node, *values), number)
        return family

    def counter(self, name: str, what: str, value: float) -> Metric:
        return self.counters(name, what, (), [((), value)])

    def counters(self, name: str, what: str, labels: tuple[str, ...], samples: Samples) -> Metric:
        """`name` without its `_total`."""
        family = CounterMetricFamily(name, what, labels=(*NODE_LABELS, *labels))
        for values, number in samples:
            family.add_metric((*self.node, *values), number)
        return family


def flag(value: bool) -> str:
    return "true" if value else "false"
