"""The parts of a broker on a store in memory, and its /metrics, read by Prometheus' own parser."""

from __future__ import annotations

from dataclasses import replace

from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from tests.support.engine import NOW_MS, SMALL, open_store
from trovemq_broker.daemon.broker_services import BrokerServices
from trovemq_broker.daemon.opening import open_consumer_state
from trovemq_broker.daemon.settings import BrokerSettings
from trovemq_broker.server.monitoring.metrics import BrokerCollector
from trovemq_broker.server.monitoring.traffic import Traffic
from trovemq_daemon.addresses import Address
from trovemq_daemon.exposition import text_of
from trovemq_daemon.metrics import RpcMetrics, new_registry
from trovemq_store.files.memory import MemoryFileSystem

ADVERTISED = Address("10.0.0.1", 8_081)


class Bench:
    """Call inside of a running loop. `now_ms` is the clock of the figures."""

    def __init__(self, settings: BrokerSettings | None = None) -> None:
        self.now_ms = NOW_MS
        self.registry: CollectorRegistry = new_registry("1.2.3")
        self.rpc = RpcMetrics(self.registry, cluster="C", node_type="broker", node_id="broker-a")
        self.store = open_store(MemoryFileSystem(), replace(SMALL, tree_index_enable=True))
        traffic = Traffic(self.rpc.observe)
        settings = settings or BrokerSettings()
        model = open_consumer_state(self.store, settings)
        services = BrokerServices(self.store, model, settings, ADVERTISED, "1.2.3", traffic=traffic)
        self.parts, self.statistics, self.services = services.core, services.statistics, services
        self.statistics.clock_ms = lambda: self.now_ms
        self.registry.register(BrokerCollector(self.statistics))

    def values(self, name: str, **labels: str) -> list[float]:
        """Of every series that has these labels."""
        return [
            float(sample.value)
            for family in text_string_to_metric_families(text_of(self.registry).decode())
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]

    def value(self, name: str, **labels: str) -> float:
        """Of the one series that has them."""
        (found,) = self.values(name, **labels)
        return found

    def counter(self, name: str) -> int:
        return self.statistics.counters()[name]

    def dispatch(self) -> None:
        """The appended messages are visible, and read by the consumer model."""
        self.parts.model.on_messages_available(self.store.dispatch())

    def close(self) -> None:
        self.parts.group_commit.close()
