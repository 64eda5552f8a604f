"""The figures of a node that agrees with its group by etcd, for `/metrics`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from trovemq_broker.replication.frames import Epoch

BUCKETS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
OTHER: Final = "other"
REASONS_MAX: Final = 16


class ElectionFigures(Collector):
    """They stay over all roles. It is the Observer of the etcd client."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._up = Gauge(
            "trovemq_etcd_up", "1 while etcd answers this node: the last call was answered.", registry=None
        )
        self._seconds = Histogram(
            "trovemq_etcd_request_seconds",
            "How long calls of etcd took.",
            ("call",),
            buckets=BUCKETS,
            registry=None,
        )
        self._changes = Counter(
            "trovemq_group_leader_changes",
            "Leaders of the group that this node has heard of, by the reason of their election.",
            ("group", "reason"),
            registry=None,
        )
        self._epoch: Epoch = 0
        self._reasons: set[str] = set()
        self.lease_left_s: Callable[[], float] = lambda: 0.0

    def called(self, name: str, seconds: float, *, answered: bool) -> None:
        """A call has ended."""
        self._up.set(int(answered))
        self._seconds.labels(name).observe(seconds)

    def led(self, epoch: Epoch, reason: str) -> None:
        """A node leads in that epoch."""
        if epoch <= self._epoch:
            return
        self._epoch = epoch
        if reason not in self._reasons and len(self._reasons) >= REASONS_MAX:
            reason = OTHER
        self._reasons.add(reason)
        self._changes.labels(self._group, reason).inc()

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        for one in (self._up, self._seconds, self._changes):
            yield from one.collect()
        left = GaugeMetricFamily(
            "trovemq_group_lease_left_seconds",
            "How long this node may still lead by its own clock, without etcd; 0: it does not lead.",
            labels=("group",),
        )
        left.add_metric((self._group,), self.lease_left_s())
        yield left
