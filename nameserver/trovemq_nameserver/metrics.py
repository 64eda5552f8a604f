"""The nameserver's own metrics, read from the registry at each scrape."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from trovemq_daemon.refusals import access_metrics
from trovemq_nameserver.access import NameserverAccess
from trovemq_nameserver.service import Registry


class RegistryCollector(Collector):
    """Gauges and counters of one Registry, and of its access control if there is one."""

    def __init__(self, registry: Registry, access: NameserverAccess | None = None) -> None:
        self._registry = registry
        self._access = access

    def collect(self) -> Iterable[Metric]:
        registry = self._registry
        gauges = (
            ("rocketmq_topic_number", "Topics that some live broker has.", len(registry.table.names)),
            ("trovemq_topic_routes", "Topics of all brokers together.", registry.table.topic_routes),
            (
                "trovemq_topics_left_out",
                "Topics of brokers beyond the limits.",
                registry.table.topics_left_out,
            ),
            ("trovemq_registered_brokers", "Live brokers.", registry.table.broker_count),
            ("trovemq_route_watchers", "Clients that watch the routes.", len(registry.watchers)),
            ("trovemq_heartbeats_waiting_bytes", "Heartbeats that wait to be read.", registry.bytes_waiting),
            ("trovemq_route_replies_bytes", "Routes that are sent to watchers now.", registry.outgoing.size),
            ("trovemq_route_version", "Version of the route table.", registry.table.version),
        )
        counters = (
            ("trovemq_registrations", "Registrations accepted.", registry.registrations),
            ("trovemq_registrations_refused", "Registration streams ended with an error.", registry.refusals),
            ("trovemq_heartbeats_with_changes", "Heartbeats with changes of topics.", registry.changes),
            (
                "trovemq_all_topics_asked",
                "Heartbeats with changes that did not fit.",
                registry.all_topics_asked,
            ),
            ("trovemq_brokers_lost", "Brokers removed that did not unregister.", registry.expirations),
            (
                "trovemq_leader_changes",
                "Broker names that went to the leader of a higher epoch.",
                registry.leader_changes,
            ),
        )
        yield from (GaugeMetricFamily(name, text, value=value) for name, text, value in gauges)
        yield from (CounterMetricFamily(name, text, value=value) for name, text, value in counters)
        if self._access is not None:
            yield from access_metrics(self._access.refusals, len(self._access.sessions))
