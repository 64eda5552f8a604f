"""The metrics of the cluster's routes, and of calls that are forwarded to other brokers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from trovemq_broker.cluster.call_forwarding import CallForwarder
from trovemq_broker.cluster.cluster_routes import ClusterRoutes


class RoutesCollector(Collector):
    """Brokers in the routes, nameservers that are followed, replies."""

    def __init__(self, routes: ClusterRoutes, leaving_out: Callable[[], Sequence[str]]) -> None:
        """leaving_out: the nameservers whose routes lack topics of this broker."""
        self._routes = routes
        self._leaving_out = leaving_out

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        routes = self._routes
        for name, what, value in (
            ("trovemq_routes_brokers", "Other brokers of the cluster in the routes.", len(routes.brokers)),
            ("trovemq_routes_nameservers", "Nameservers whose routes are followed now.", routes.connected),
            ("trovemq_routes_left_out", "Brokers that the limits leave out of the routes.", routes.left_out),
            (
                "trovemq_routes_incomplete",
                "Nameservers whose limits leave out topics of this broker.",
                len(self._leaving_out()),
            ),
        ):
            yield GaugeMetricFamily(name, what, value=value)
        yield CounterMetricFamily(
            "trovemq_routes_replies", "Routes that nameservers have sent.", value=routes.reports
        )


class ForwardsCollector(Collector):
    """Calls of clients that are forwarded to other brokers."""

    def __init__(self, calls: CallForwarder) -> None:
        self._calls = calls

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "trovemq_forwards_open",
            "Clients' calls and telemetry streams that are open at other brokers now.",
            value=self._calls.open_calls,
        )
        yield CounterMetricFamily(
            "trovemq_forwards", "Clients' calls that were forwarded.", value=self._calls.forwarded
        )
        failed = CounterMetricFamily(
            "trovemq_forwards_failed", "Forwarded calls that failed, by error.", labels=("error",)
        )
        for symbol, count in self._calls.failed.items():
            failed.add_metric((symbol,), count)
        yield failed
