"""The broker's metrics under RocketMQ 5's names, read from plain numbers when Prometheus asks.

Counters only grow while the topic lives; a deleted topic's series go with it. `node_id` is the broker's name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from broker.consume.lag import consumer_lags
from broker.server.statistics import BrokerStatistics
from broker.topics.names import RETRY_PREFIX, is_system_topic

NODE_LABELS: Final = ("cluster", "node_type", "node_id")
TOPIC_LABELS: Final = (*NODE_LABELS, "topic", "message_type", "is_system")
GROUP_LABELS: Final = (*NODE_LABELS, "consumer_group", "topic", "is_retry", "is_system")
PERMISSION: Final = 6  # RocketMQ's read and write
LAG_ENTRIES_MAX: Final = 10_000  # series of consumer lag in one answer

Samples = Iterable[tuple[tuple[str, ...], float]]


class BrokerCollector(Collector):
    """Register it with the daemon's registry."""

    def __init__(self, statistics: BrokerStatistics) -> None:
        self._statistics = statistics
        settings = statistics.store.settings
        self._node = (settings.cluster, "broker", settings.broker)

    def describe(self) -> Iterable[Metric]:
        return ()  # else registering would collect

    def collect(self) -> Iterator[Metric]:
        yield from self._traffic()
        yield from self._store()
        yield from self._consumers()
        yield from self._own()

    # --- under RocketMQ's names ---------------------------------------------------------------------
    def _traffic(self) -> Iterator[Metric]:
        traffic = self._statistics.traffic
        tables = (
            ("rocketmq_messages_in", "Messages appended.", traffic.messages_in),
            ("rocketmq_messages_out", "Messages handed to consumers.", traffic.messages_out),
            ("rocketmq_throughput_in", "Bytes of records appended.", traffic.bytes_in),
            ("rocketmq_throughput_out", "Bytes of records handed to consumers.", traffic.bytes_out),
        )
        for name, what, table in tables:
            samples = ((self._topic_values(topic), count) for topic, count in table.items())
            yield self._counter(name, what, TOPIC_LABELS, samples)
        sizes = HistogramMetricFamily(
            "rocketmq_message_size", "Bytes of each record appended.", labels=TOPIC_LABELS
        )
        for topic, buckets in traffic.message_sizes.items():
            sizes.add_metric(self._topic_values(topic), buckets.cumulative(), buckets.total)
        yield sizes

    def _topic_values(self, topic: str) -> tuple[str, ...]:
        config = self._statistics.store.topics.get(topic)
        message_type = config.message_type if config is not None else "UNSPECIFIED"
        return (*self._node, topic, message_type, _flag(is_system_topic(topic)))

    def _store(self) -> Iterator[Metric]:
        store = self._statistics.store
        behind = self._statistics.group_commit.unsynced_bytes
        gauges = (
            ("rocketmq_storage_size", "Bytes of the log.", store.end_offset - store.min_offset),
            ("rocketmq_storage_flush_behind_bytes", "Log bytes not yet synced.", behind),
            (
                "rocketmq_storage_dispatch_behind_bytes",
                "Log bytes not yet dispatched.",
                store.undispatched_bytes,
            ),
            (
                "rocketmq_storage_message_reserve_time",
                "Age of the oldest record, in ms.",
                self._reserve_time_ms(),
            ),
            ("rocketmq_topic_number", "Topics.", len(store.topics)),
            ("rocketmq_consumer_group_number", "Groups with an offset.", len(store.offsets.groups())),
            ("rocketmq_broker_permission", "2 = write, 4 = read.", 4 if store.failed else PERMISSION),
        )
        for name, what, value in gauges:
            yield self._gauge(name, what, value)
        watermark = GaugeMetricFamily(
            "rocketmq_processor_watermark",
            "Requests that wait or run now.",
            labels=(*NODE_LABELS, "processor"),
        )
        for processor, count in (
            ("append", self._statistics.group_commit.waiting),
            ("long_poll", len(self._statistics.long_polls)),
            ("query", self._statistics.queries.running),
        ):
            watermark.add_metric((*self._node, processor), count)
        yield watermark

    def _reserve_time_ms(self) -> int:
        """How old the oldest record is."""
        oldest = self._statistics.store.store_timestamp_at(self._statistics.store.min_offset)
        return 0 if oldest is None else max(0, self._statistics.clock_ms() - oldest)

    def _consumers(self) -> Iterator[Metric]:
        messages = GaugeMetricFamily(
            "rocketmq_consumer_lag_messages", "Messages behind the group's offset.", labels=GROUP_LABELS
        )
        latency = GaugeMetricFamily(
            "rocketmq_consumer_lag_latency",
            "Age of the oldest message behind the group's offset, in milliseconds.",
            labels=GROUP_LABELS,
        )
        for (group, topic), lag in consumer_lags(self._statistics.store, LAG_ENTRIES_MAX).items():
            retry, system = _flag(topic.startswith(RETRY_PREFIX)), _flag(is_system_topic(topic))
            labels = (*self._node, group, topic, retry, system)
            messages.add_metric(labels, lag.messages)
            age = 0 if lag.oldest is None else max(0, self._statistics.clock_ms() - lag.oldest)
            latency.add_metric(labels, age)
        yield messages
        yield latency

    # --- under our own names ------------------------------------------------------------------------
    def _own(self) -> Iterator[Metric]:
        statistics = self._statistics
        store, traffic, commit = statistics.store, statistics.traffic, statistics.group_commit
        by_symbol = (*NODE_LABELS, "error")
        refused, one_way = traffic.refusals, traffic.one_way_refusals
        yield self._counter(
            "trovemq_appends_refused", "Appends refused.", by_symbol, self._by_symbol(refused)
        )
        yield self._counter(
            "trovemq_one_way_refused", "Refused appends that nobody was told of.", by_symbol,
            self._by_symbol(one_way),
        )  # fmt: skip
        counters = (
            ("trovemq_flushes", "Syncs of the log.", commit.flush_count),
            (
                "trovemq_flush_timeouts",
                "Acknowledgements that became FLUSH_DISK_TIMEOUT.",
                commit.timeout_count,
            ),
            (
                "trovemq_projection_failures",
                "Batches that a projection could not take.",
                store.projection_failures,
            ),
            ("trovemq_segment_create_failures", "Log segments not to be had.", store.segment_create_failures),
            ("trovemq_index_create_failures", "Index files not to be had.", statistics.index_create_failures),
        )
        for name, what, value in counters:
            yield self._counter(name, what, NODE_LABELS, [(self._node, value)])
        yield self._gauge("trovemq_long_polls", "Fetches that wait for messages.", len(statistics.long_polls))
        lagging = GaugeMetricFamily(
            "trovemq_projection_lagging", "1 where it has not reached the log's visible end.",
            labels=(*NODE_LABELS, "projection"),
        )  # fmt: skip
        for name in store.lagging:
            lagging.add_metric((*self._node, name), 1)
        yield lagging

    def _by_symbol(self, table: Mapping[str, int]) -> Samples:
        return (((*self._node, symbol), count) for symbol, count in table.items())

    def _gauge(self, name: str, what: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, what, labels=NODE_LABELS)
        family.add_metric(self._node, value)
        return family

    def _counter(self, name: str, what: str, labels: tuple[str, ...], samples: Samples) -> Metric:
        family = CounterMetricFamily(name, what, labels=labels)
        for values, count in samples:
            family.add_metric(values, count)
        return family


def _flag(value: bool) -> str:
    return "true" if value else "false"
