"""Metrics of consumer groups, delayed messages, transactions and connected clients.

Clients choose groups, languages and versions: group_series.py bounds the series of each name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from prometheus_client.metrics_core import Metric

from trovemq_broker.groups.lag.backlog import GroupBacklog
from trovemq_broker.server.core.clients import Client
from trovemq_broker.server.monitoring.group_series import backlogs_together, bounded
from trovemq_broker.server.monitoring.metric_families import NodeFamilies, Samples, flag
from trovemq_broker.server.monitoring.statistics import BrokerStatistics
from trovemq_broker.server.wire.consumers import ClientType
from trovemq_store.topics.names import RETRY_PREFIX, is_system_group, is_system_topic

GROUP_LABELS: Final = ("consumer_group", "topic", "is_retry", "is_system")
PRODUCER_LABELS: Final = ("language", "version", "protocol_type")
CONSUMER_LABELS: Final = (
    "consumer_group",
    "language",
    "version",
    "consume_mode",
    "protocol_type",
    "is_system",
)
PUSHED: Final = (ClientType.PUSH_CONSUMER, ClientType.LITE_PUSH_CONSUMER)
UNKNOWN: Final = "unknown"  # the client did not send a value
CLIENTS_STEP: Final = 512


class ConsumerMetrics:
    """BrokerCollector's families about consumers."""

    def __init__(self, statistics: BrokerStatistics, families: NodeFamilies) -> None:
        self._statistics = statistics
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._groups()
        yield from self._connections()
        yield from self._timers()
        yield from self._transactions()
        yield from self._own()

    # --- under RocketMQ's names ---------------------------------------------------------------------
    def _groups(self) -> Iterator[Metric]:
        gauges = self._families.gauges
        now_ms = self._statistics.clock_ms()
        backlogs: dict[tuple[str, ...], GroupBacklog] = {}

        def ready() -> Samples:
            found = yield from self._statistics.backlogs()
            backlogs.update(bounded(found, lambda one: one.ready + one.in_flight, backlogs_together))
            for key, backlog in backlogs.items():
                yield group_values(*key), backlog.ready

        yield from gauges(
            "rocketmq_consumer_ready_messages",
            "Messages that the group has neither consumed nor in flight.",
            GROUP_LABELS,
            ready(),
        )
        yield from gauges(
            "rocketmq_consumer_inflight_messages",
            "Messages in flight: delivered and invisible now.",
            GROUP_LABELS,
            ((group_values(*key), backlog.in_flight) for key, backlog in backlogs.items()),
        )
        yield from gauges(
            "rocketmq_consumer_queueing_latency",
            "Age of the oldest message never delivered to the group, in milliseconds.",
            GROUP_LABELS,
            (
                (group_values(*key), 0 if backlog.oldest is None else max(0, now_ms - backlog.oldest))
                for key, backlog in backlogs.items()
            ),
        )
        for name, what, table in (
            (
                "rocketmq_send_to_dlq_messages",
                "Messages copied to the group's dead-letter topic.",
                self._statistics.dead_letters(),
            ),
            (
                "rocketmq_pop_revive_retry_messages",
                "Messages delivered again.",
                self._statistics.redeliveries(),
            ),
        ):
            samples = [(group_values(*key), count) for key, count in bounded(table, int, sum).items()]
            yield from self._families.counters(name, what, GROUP_LABELS, samples)

    def _connections(self) -> Iterator[Metric]:
        clients = list(self._statistics.clients)
        yield from self._families.gauges(
            "rocketmq_producer_connections",
            "Connected producers.",
            PRODUCER_LABELS,
            _counted((client for client in clients if client.is_producer), _producer_values),
        )
        yield from self._families.gauges(
            "rocketmq_consumer_connections",
            "Connected consumers.",
            CONSUMER_LABELS,
            _counted((client for client in clients if not client.is_producer), _consumer_values),
        )

    def _timers(self) -> Iterator[Metric]:
        statistics, families = self._statistics, self._families
        timers, topics = statistics.model.timers, statistics.store.topics
        waiting = timers.pending_by_topic().items()
        pending = {topic: count for topic, count in waiting if count or topics.get(topic) is not None}
        yield from families.gauges(
            "rocketmq_timing_messages", "Pending delayed messages.", ("topic",), _by_topic(pending)
        )
        yield from families.counters(
            "rocketmq_timer_enqueue",
            "Delayed messages stored.",
            ("topic",),
            _by_topic(timers.enqueued),
        )
        yield from families.counters(
            "rocketmq_timer_dequeue",
            "Delayed messages whose time has come.",
            ("topic",),
            _by_topic(timers.dequeued),
        )
        yield families.gauge(
            "rocketmq_timer_dequeue_latency",
            "How late the earliest delayed message is now, in milliseconds.",
            statistics.timer_behind_ms,
        )

    def _transactions(self) -> Iterator[Metric]:
        families, transactions = self._families, self._statistics.model.transactions
        yield from families.gauges(
            "rocketmq_half_messages",
            "Half messages whose transactions are open.",
            ("topic",),
            _by_topic(transactions.open_by_topic),
        )
        yield from families.counters(
            "rocketmq_commit_messages",
            "Transactions committed.",
            ("topic",),
            _by_topic(transactions.committed),
        )
        yield from families.counters(
            "rocketmq_rollback_messages",
            "Transactions rolled back.",
            ("topic",),
            _by_topic(transactions.rolled_back),
        )

    # --- under our own names ------------------------------------------------------------------------
    def _own(self) -> Iterator[Metric]:
        statistics, model = self._statistics, self._statistics.model
        delivery, timers = model.delivery, model.timers
        for name, what, value in (
            ("trovemq_events", "Internal events of the consumer model written.", model.events.appended_count),
            (
                "trovemq_pauses",
                "Pauses of the broker process of more than two seconds.",
                delivery.lease_time.pause_count,
            ),
            ("trovemq_damaged_messages", "Messages skipped as unreadable.", delivery.damaged_count),
            (
                "trovemq_records_not_copied",
                "Records that could not be copied.",
                model.writer.copy_failures.count,
            ),
            (
                "trovemq_dead_letter_failures",
                "Copies to dead-letter topics that were refused.",
                delivery.dead_letter_failures,
            ),
            ("trovemq_snapshot_failures", "Snapshots that could not be saved.", model.snapshot_failures),
            ("trovemq_timers_recalled", "Delayed messages recalled.", timers.recalled_count),
            ("trovemq_timers_dropped", "Delayed messages of deleted topics.", timers.dropped_count),
            ("trovemq_timers_lost", "Delayed messages whose record cannot be read.", timers.lost_count),
            (
                "trovemq_transactions_given_up",
                "Transactions ended because their checks had no answer.",
                model.transactions.given_up_count,
            ),
        ):
            yield self._families.counter(name, what, value)
        yield from self._families.counters(
            "trovemq_dead_letters",
            "Dead letters made, by the kind of their reason.",
            ("reason",),
            [((kind,), count) for kind, count in delivery.dead_letters_by_reason.items()],
        )
        for name, what, value in (
            ("trovemq_events_pending", "Internal events not written yet.", model.events.pending_count),
            ("trovemq_clients", "Connected clients of RocketMQ's protocol.", len(statistics.clients)),
            ("trovemq_telemetry_streams", "Open telemetry streams.", statistics.clients.stream_count),
            (
                "trovemq_timer_lateness_max_ms",
                "How late the latest delayed message was since the start.",
                statistics.timer_task.lateness_max_ms,
            ),
        ):
            yield self._families.gauge(name, what, value)


def group_values(group: str, topic: str) -> tuple[str, ...]:
    """The values of GROUP_LABELS."""
    return (group, topic, flag(topic.startswith(RETRY_PREFIX)), flag(is_system_topic(topic)))


def _by_topic(table: Mapping[str, int]) -> Samples:
    return [((topic,), count) for topic, count in table.items()]


def _counted(clients: Iterable[Client], values_of: Callable[[Client], tuple[str, ...]]) -> Samples:
    """The number of clients with the same values."""
    counts: Counter[tuple[str, ...]] = Counter()
    for number, client in enumerate(clients, 1):
        counts[values_of(client)] += 1
        if number % CLIENTS_STEP == 0:
            yield None
    yield from bounded(counts, int, sum).items()


def _producer_values(client: Client) -> tuple[str, ...]:
    description = client.description
    return (description.language.lower() or UNKNOWN, description.version.lower() or UNKNOWN, "grpc")


def _consumer_values(client: Client) -> tuple[str, ...]:
    language, version, protocol = _producer_values(client)
    mode = "push" if client.description.client_type in PUSHED else "pull"
    return (client.group, language, version, mode, protocol, flag(is_system_group(client.group)))
