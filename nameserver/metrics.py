"""The nameserver's own figures, read from the registry when Prometheus asks."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from nameserver.service import Registry


class RegistryCollector(Collector):
    """Gauges and counters of one Registry."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def collect(self) -> Iterable[Metric]:
        registry = self._registry
        gauges = (
            ("rocketmq_topic_number", "Topics that some live broker has.", len(registry.table.topic_names)),
            ("trovemq_registered_brokers", "Live brokers.", registry.table.broker_count),
            ("trovemq_route_watchers", "Clients that watch the routes.", len(registry.watchers)),
            ("trovemq_route_version", "Version of the route table.", registry.table.version),
        )
        counters = (
            ("trovemq_registrations", "Registrations accepted.", registry.registrations),
            ("trovemq_registrations_refused", "Registration streams ended with an error.", registry.refusals),
            ("trovemq_brokers_lost", "Brokers removed that did not unregister.", registry.expirations),
        )
        yield from (GaugeMetricFamily(name, text, value=value) for name, text, value in gauges)
        yield from (CounterMetricFamily(name, text, value=value) for name, text, value in counters)
