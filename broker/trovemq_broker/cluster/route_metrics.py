"""The metrics of the cluster's routes."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from trovemq_broker.cluster.cluster_routes import ClusterRoutes
from trovemq_broker.cluster.registration import Registrations


class RoutesCollector(Collector):
    """Brokers in the routes, nameservers that are followed, replies."""

    def __init__(self, routes: ClusterRoutes, registrations: Registrations) -> None:
        self._routes = routes
        self._registrations = registrations

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
                len(self._registrations.leaving_out()),
            ),
        ):
            yield GaugeMetricFamily(name, what, value=value)
        yield CounterMetricFamily(
            "trovemq_routes_replies", "Routes that nameservers have sent.", value=routes.reports
        )
