"""The broker's metrics under RocketMQ 5's names, read from plain numbers at each scrape.

Other requests run between two parts of a family, so a collection is copied before it is iterated over.
Counters only grow while the topic exists; the series of a deleted topic end. `node_id` is the broker's name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from operator import attrgetter
from typing import Final

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from trovemq_broker.groups.lag.stored import ConsumerLag, lag_steps
from trovemq_broker.server.monitoring.consumer_metrics import GROUP_LABELS, ConsumerMetrics, group_values
from trovemq_broker.server.monitoring.group_series import (
    PRIORITY_SERIES_MAX,
    bounded,
    counts_together,
    lags_together,
)
from trovemq_broker.server.monitoring.metric_families import NodeFamilies, Samples, flag
from trovemq_broker.server.monitoring.statistics import GROUP_ENTRIES_MAX, BrokerStatistics
from trovemq_broker.server.monitoring.traffic import MESSAGE_SIZE_BUCKETS
from trovemq_store.topics.names import is_system_topic

TOPIC_LABELS: Final = ("topic", "message_type", "is_system")
PERMISSION: Final = 6  # RocketMQ's read and write


class BrokerCollector(Collector):
    """The broker's collector, for the daemon's registry."""

    def __init__(self, statistics: BrokerStatistics) -> None:
        self._statistics = statistics
        settings = statistics.store.settings
        self._families = NodeFamilies(settings.cluster, "broker", settings.broker)
        self._consumer_metrics = ConsumerMetrics(statistics, self._families)

    def describe(self) -> Iterable[Metric]:
        return ()  # otherwise registering would collect

    def collect(self) -> Iterator[Metric]:
        yield from self._traffic()
        yield from self._store()
        yield from self._lags()
        yield from self._own()
        yield from self._consumer_metrics.collect()

    # --- under RocketMQ's names ---------------------------------------------------------------------
    def _traffic(self) -> Iterator[Metric]:
        traffic = self._statistics.traffic
        values_of = cache(self._topic_values)  # for this scrape
        for name, what, number in (
            ("rocketmq_messages_in", "Messages appended.", attrgetter("count")),
            ("rocketmq_throughput_in", "Bytes of records appended.", attrgetter("total")),
        ):
            sizes_of = list(traffic.message_sizes.items())
            samples = ((values_of(topic), number(sizes)) for topic, sizes in sizes_of)
            yield from self._families.counters(name, what, TOPIC_LABELS, samples)
        tables = (
            ("rocketmq_messages_out", "Messages delivered to consumers.", traffic.messages_out),
            (
                "trovemq_duplicates",
                "Messages that were not stored because they were duplicates.",
                self._statistics.duplicates,
            ),
            (
                "trovemq_producer_missing",
                "Sequence numbers that a producer had left out when a higher one arrived.",
                self._statistics.missing,
            ),
            (
                "trovemq_producer_filled",
                "Messages that arrived after one with a higher sequence number of their producer.",
                self._statistics.filled,
            ),
            ("rocketmq_throughput_out", "Bytes of records delivered to consumers.", traffic.bytes_out),
        )
        for name, what, table in tables:
            samples = ((values_of(topic), count) for topic, count in list(table.items()))
            yield from self._families.counters(name, what, TOPIC_LABELS, samples)
        yield from self._families.histograms(
            "rocketmq_message_size",
            "Bytes of each record appended.",
            TOPIC_LABELS,
            MESSAGE_SIZE_BUCKETS,
            ((values_of(topic), sizes) for topic, sizes in list(traffic.message_sizes.items())),
        )

    def _topic_values(self, topic: str) -> tuple[str, ...]:
        config = self._statistics.store.topics.get(topic)
        message_type = config.message_type if config is not None else "UNSPECIFIED"
        return (topic, message_type, flag(is_system_topic(topic)))

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
                "trovemq_store_restart_read_bytes",
                "Log bytes that a restart reads again.",
                store.end_offset - store.marked_offset,
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
            yield self._families.gauge(name, what, value)
        running = {
            "append": self._statistics.group_commit.waiting,
            "long_poll": len(self._statistics.long_polls),
            "receive": len(self._statistics.receive_waits),
            "query": self._statistics.queries.running,
        }
        yield from self._families.gauges(
            "rocketmq_processor_watermark",
            "Waiting and running requests.",
            ("processor",),
            (((processor,), count) for processor, count in running.items()),
        )

    def _reserve_time_ms(self) -> int:
        """The age of the oldest record."""
        oldest = self._statistics.store.store_timestamp_at(self._statistics.store.min_offset)
        return 0 if oldest is None else max(0, self._statistics.clock_ms() - oldest)

    def _lags(self) -> Iterator[Metric]:
        delayed = self._statistics.model.timers.pending_of
        lags: dict[tuple[str, ...], ConsumerLag] = {}
        now_ms = self._statistics.clock_ms()

        def messages() -> Samples:
            found = yield from lag_steps(self._statistics.store, GROUP_ENTRIES_MAX, delayed)
            lags.update(bounded(found, lambda lag: lag.messages, lags_together))
            for key, lag in lags.items():
                yield group_values(*key), lag.messages

        yield from self._families.gauges(
            "rocketmq_consumer_lag_messages",
            "Messages after the group's offset, with those that wait for a retry.",
            GROUP_LABELS,
            messages(),
        )
        yield from self._families.gauges(
            "rocketmq_consumer_lag_latency",
            "Age of the oldest message after the group's offset, in milliseconds.",
            GROUP_LABELS,
            (
                (group_values(*key), 0 if lag.oldest is None else max(0, now_ms - lag.oldest))
                for key, lag in lags.items()
            ),
        )

    # --- under our own names ------------------------------------------------------------------------
    def _own(self) -> Iterator[Metric]:
        statistics = self._statistics
        store, traffic, commit = statistics.store, statistics.traffic, statistics.group_commit
        families = self._families
        yield from families.counters(
            "trovemq_appends_refused", "Appends refused.", ("error",), _by_symbol(traffic.refusals)
        )
        yield from families.counters(
            "trovemq_one_way_refused",
            "Refused one-way appends, whose senders got no reply.",
            ("error",),
            _by_symbol(traffic.one_way_refusals),
        )
        counters = (
            ("trovemq_flushes", "Syncs of the log.", commit.flush_count),
            (
                *("trovemq_flush_timeouts", "Acknowledgements that became FLUSH_DISK_TIMEOUT."),
                commit.timeout_count,
            ),
            (
                *("trovemq_replica_timeouts", "Acknowledgements that became REPLICA_TIMEOUT."),
                commit.replica_timeout_count,
            ),
            (
                "trovemq_projection_failures",
                "Batches that a projection could not apply.",
                store.projection_failures,
            ),
            (
                "trovemq_segment_create_failures",
                "Log segments that could not be created.",
                store.segment_create_failures,
            ),
            (
                "trovemq_index_create_failures",
                "Index files that could not be created.",
                statistics.index_create_failures,
            ),
        )
        for name, what, value in counters:
            yield families.counter(name, what, value)
        yield families.gauge(
            "trovemq_long_polls", "Fetches that wait for messages.", len(statistics.long_polls)
        )
        yield families.gauge(
            "trovemq_open_queue_files",
            "Files of consume queues that are kept open.",
            store.consume_queues.open_file_count,
        )
        yield from families.gauges(
            "trovemq_projection_lagging",
            "1 if the projection has not reached the visible end of the log.",
            ("projection",),
            (((name,), 1) for name in store.lagging),
        )
        yield from self._priorities()
        yield from self._trees()
        yield from self._searches()
        yield from self._damage()
        yield from self._retention()
        yield from self._atomic()

    def _atomic(self) -> Iterator[Metric]:
        numbers, families = self._statistics.atomic_counters(), self._families
        for name, what in (
            ("open", "Atomic transactions that are open."),
            ("bytes", "Bytes of memory that open atomic transactions take."),
            ("cut", "1 if the last start cut an unfinished transaction from the log's end."),
            ("unfinished", "Transactions in the middle of the log that lacked records at the last start."),
        ):
            yield families.gauge(f"trovemq_atomic_{name}", what, numbers[f"atomic_{name}"])
        for name, what in (
            ("committed", "Atomic transactions committed."),
            ("repeated", "Repeated commits, which were answered as before."),
            ("rolled_back", "Atomic transactions rolled back."),
            ("timed_out", "Atomic transactions that were rolled back because their timeout passed."),
            ("refused", "Commits of atomic transactions that were refused."),
        ):
            yield families.counter(f"trovemq_atomic_{name}", what, numbers[f"atomic_{name}"])

    def _priorities(self) -> Iterator[Metric]:
        """Ten series for each topic that is received by priority, and for each of its groups."""
        statistics, families = self._statistics, self._families
        yield from families.counters(
            "trovemq_priority_messages",
            "Messages stored in topics with order = priority.",
            (*TOPIC_LABELS, "priority"),
            (
                ((*self._topic_values(topic), str(priority)), count)
                for topic, priority, count in list(statistics.priorities.rows())
            ),
        )
        yield from families.gauges(
            "trovemq_priority_waiting_messages",
            "Messages that were not delivered to the group yet.",
            (*GROUP_LABELS, "priority"),
            self._waiting_by_priority(),
        )

    def _waiting_by_priority(self) -> Samples:
        waiting = yield from self._statistics.waiting_by_priority()
        for key, counts in bounded(waiting, sum, counts_together, PRIORITY_SERIES_MAX).items():
            yield from (
                ((*group_values(*key), str(priority)), count) for priority, count in enumerate(counts)
            )

    def _searches(self) -> Iterator[Metric]:
        searches = self._statistics.searches
        for name, what, value in (
            ("trovemq_searches", "Searches.", searches.searches),
            (
                "trovemq_search_entries",
                "Entries of the sorted trees that searches read.",
                searches.search_entries,
            ),
            (
                "trovemq_search_scanned_bytes",
                "Bytes of the log that searches read because the sorted trees did not have them yet.",
                searches.search_scanned_bytes,
            ),
        ):
            yield self._families.counter(name, what, value)

    def _trees(self) -> Iterator[Metric]:
        """The metrics of the sorted trees, if the store has them."""
        for name, value in self._statistics.tree_counters().items():
            what = _TREES[name]
            if name == "tree_records":
                yield self._families.counter(f"trovemq_{name}", what, value)
            else:
                yield self._families.gauge(f"trovemq_{name}", what, value)

    def _damage(self) -> Iterator[Metric]:
        damage, service, families = (
            self._statistics.store.damage,
            self._statistics.store_service,
            self._families,
        )
        for name, what, table in (
            ("trovemq_store_damaged_ranges", "Places of the log without a good record.", damage.ranges),
            ("trovemq_store_damaged_bytes", "Bytes of the log without a good record.", damage.bytes),
        ):
            yield from families.counters(name, what, ("state",), _by_symbol(table))
        for name, what, value in (
            ("trovemq_store_scrubs", "Completed scrubs.", service.scrubs),
            ("trovemq_store_scrubbed_bytes", "Bytes of the log that scrubs read.", service.scrubbed_bytes),
            ("trovemq_store_scrub_damages", "Damaged places that scrubs found.", service.scrub_damages),
            ("trovemq_store_backups", "Backups made.", service.backups),
            ("trovemq_store_backup_bytes", "Bytes copied by backups.", service.backup_bytes),
            ("trovemq_store_backup_failures", "Backups that failed.", service.backup_failures),
        ):
            yield families.counter(name, what, value)

    def _retention(self) -> Iterator[Metric]:
        retention, families = self._statistics.retention, self._families
        counters = (
            ("trovemq_retention_segments", "Log segments removed.", retention.removed_segments),
            (
                "trovemq_retention_bytes",
                "Bytes of the log segments that were removed.",
                retention.removed_bytes,
            ),
            (
                "trovemq_retention_forced_segments",
                "Log segments that were removed before their time, to free the disk.",
                retention.forced_segments,
            ),
            (
                "trovemq_retention_carried_messages",
                "Pending messages that were appended again before their segment was removed.",
                retention.carried_messages,
            ),
            (
                "trovemq_retention_dropped_messages",
                "Pending messages that were removed with their segment, to free the disk.",
                retention.dropped_messages,
            ),
            (
                "trovemq_retention_dropped_unacknowledged",
                "Unacknowledged messages of `until_acknowledged` topics, removed to free the disk.",
                retention.dropped_unacknowledged,
            ),
            ("trovemq_retention_failures", "Removals that failed.", retention.failures),
        )
        for name, what, value in counters:
            yield families.counter(name, what, value)
        end_offset = self._statistics.store.end_offset
        yield from families.gauges(
            "trovemq_retention_held_bytes",
            "Bytes of the log that a topic keeps until this group, its slowest one, has acknowledged.",
            ("topic", "group"),
            (
                ((one.topic, one.group), max(0, end_offset - one.physical_offset))
                for one in retention.held.first_of_each_topic(GROUP_ENTRIES_MAX)
            ),
        )
        yield families.gauge(
            "trovemq_retention_early_until_timestamp_seconds",
            "Store time up to which answers may lack messages that were removed early; 0 if none was.",
            self._statistics.store.early_removal.removed.until_ms / 1000,
        )
        yield families.gauge(
            "trovemq_disk_used_percent", "Used part of the store's disk.", retention.disk_used_percent
        )
        yield families.gauge(
            "trovemq_disk_full",
            "1 while new messages are refused because the disk is full.",
            int(self._statistics.disk_full),
        )
        drained = int(self._statistics.appender.drained)
        yield families.gauge(
            "trovemq_drained", "1 while the broker is drained and refuses new messages.", drained
        )


_TREES: Final = {
    "producers_numbered": "Idempotent producers that are known.",
    "tree_lag_bytes": "Bytes of the log that are not in the sorted trees yet: searches scan them.",
    "unique_ids_waiting": "Message ids in memory, not yet in their tree.",
    "tree_bytes": "Bytes of the sorted trees on disk.",
    "tree_records": "Records that were entered into the sorted trees since the start.",
    "trees_quarantined": "1 if the sorted trees could not be trusted at the start and are rebuilt.",
}


def _by_symbol(table: Mapping[str, int]) -> Samples:
    return [((symbol,), count) for symbol, count in table.items()]
