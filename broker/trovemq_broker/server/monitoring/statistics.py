"""The statistics of one broker, for AdminService and /metrics."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict
from typing import Final

from trovemq_broker.groups.delivery.priority_waiting import waiting_steps
from trovemq_broker.groups.lag.backlog import GroupBacklog, backlog_steps
from trovemq_broker.maintenance.retention_report import RetentionCounters
from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_broker.server.native.query_service import QueryService
from trovemq_broker.server.native.reply_stream import OpenStreams
from trovemq_broker.server.native.search_service import SearchCounters
from trovemq_broker.server.native.store_service import StoreCounters
from trovemq_store.engine.steps import Steps, finished

GROUP_ENTRIES_MAX: Final = 10_000  # the most pairs of group and topic in one answer


class BrokerStatistics:
    """Reads plain numbers at each call; stores none."""

    def __init__(
        self,
        core: BrokerCore,
        *,
        queries: QueryService,
        searches: SearchCounters,
        streams: OpenStreams,
        retention: RetentionCounters,
        store_service: StoreCounters,
    ) -> None:
        self.store: Final = core.store
        self.model: Final = core.model
        self.group_commit: Final = core.group_commit
        self.long_polls: Final = core.long_polls
        self.receive_waits: Final = core.waits
        self.queries: Final = queries
        self.searches: Final = searches
        self.streams: Final = streams
        self.traffic: Final = core.traffic
        self.timer_task: Final = core.timer_task
        self.clients: Final = core.registry
        self.retention: Final = retention
        self.priorities: Final = core.priorities
        self.duplicates: Final = core.deduplication.duplicates
        self.missing: Final = core.deduplication.missing
        self.filled: Final = core.deduplication.filled
        self.atomic: Final = core.atomic
        self.store_service: Final = store_service
        self.appender: Final = core.appender
        self.clock_ms = core.clock_ms

    @property
    def index_create_failures(self) -> int:
        """How often no file could be created for the key index."""
        return int(getattr(self.store.key_index, "create_failures", 0))

    @property
    def disk_full(self) -> bool:
        """Whether new messages are refused, by the disk's watermark or because the disk is full."""
        return self.retention.disk_full or self.store.reserve.is_full()

    @property
    def timer_behind_ms(self) -> int:
        """By how much the earliest delayed message is overdue now."""
        due_ms = self.model.timers.next_due_ms()
        return 0 if due_ms is None else max(0, self.clock_ms() - due_ms)

    def backlogs(self) -> Steps[dict[tuple[str, str], GroupBacklog]]:
        """The backlogs by (group, stored topic)."""
        states = self.model.delivery.group_topics.states()
        return backlog_steps(self.store, states, self.clock_ms(), GROUP_ENTRIES_MAX)

    def waiting_by_priority(self) -> Steps[dict[tuple[str, str], list[int]]]:
        """By (group, topic): waiting messages of priority 0 … 9. A long count is returned by a later call."""
        delivery = self.model.delivery
        return waiting_steps(delivery.context, delivery.group_topics.states(), GROUP_ENTRIES_MAX)

    def redeliveries(self) -> dict[tuple[str, str], int]:
        """By (group, topic): deliveries of messages that had been delivered before."""
        return {key: pair.redelivered_count for key, pair in self.model.delivery.group_topics.items()}

    def dead_letters(self) -> dict[tuple[str, str], int]:
        """By (group, topic): copies in the group's dead-letter topic."""
        return {key: pair.dead_letter_count for key, pair in self.model.delivery.group_topics.items()}

    def counters(self) -> dict[str, int]:
        """counter_steps() in one go."""
        return finished(self.counter_steps())

    def counter_steps(self) -> Steps[dict[str, int]]:
        """Whole numbers by name; docs/statistics.md explains each."""
        backlogs = yield from self.backlogs()
        return self._log_counters() | self._consumer_counters(backlogs.values())

    def _log_counters(self) -> dict[str, int]:
        store, traffic = self.store, self.traffic
        return {
            "messages_in": traffic.messages_in,
            "messages_out": traffic.messages_out.total(),
            "bytes_in": traffic.bytes_in,
            "bytes_out": traffic.bytes_out.total(),
            "appends_refused": traffic.refusals.total(),
            "one_way_refused": traffic.one_way_refusals.total(),
            "log_min_offset": store.min_offset,
            "log_end_offset": store.end_offset,
            "log_flushed_offset": store.flushed_offset,
            "log_visible_offset": store.visible_offset,
            "log_segments": store.segment_count,
            "flushes": self.group_commit.flush_count,
            "flush_timeouts": self.group_commit.timeout_count,
            "replica_timeouts": self.group_commit.replica_timeout_count,
            "flush_behind_bytes": self.group_commit.unsynced_bytes,
            "dispatch_behind_bytes": store.undispatched_bytes,
            "restart_read_bytes": store.end_offset - store.marked_offset,
            "topics": len(store.topics),
            "consumer_groups": len(store.offsets.groups()),
            "appends_waiting": self.group_commit.waiting,
            "long_polls": len(self.long_polls),
            "queries_running": self.queries.running,
            **asdict(self.searches),
            "streams": len(self.streams),
            "lagging_projections": len(store.lagging),
            "projection_failures": store.projection_failures,
            "segment_create_failures": store.segment_create_failures,
            "index_create_failures": self.index_create_failures,
            "damaged_ranges": store.damage.ranges.total(),
            "damaged_bytes": store.damage.bytes.total(),
            "duplicates": self.duplicates.total(),
            "producer_missing": self.missing.total(),
            "producer_filled": self.filled.total(),
            **self.tree_counters(),
            **self._retention_counters(),
            **asdict(self.store_service),
            **self.atomic_counters(),
        }

    def atomic_counters(self) -> dict[str, int]:
        """Atomic transactions (`client.transaction`), not RocketMQ's half messages."""
        return {
            "atomic_open": len(self.atomic),
            "atomic_bytes": self.atomic.bytes,
            "atomic_cut": int(self.store.recovery.cut_transaction is not None),
            "atomic_unfinished": len(self.store.recovery.unfinished),
            **{f"atomic_{name}": count for name, count in asdict(self.atomic.counters).items()},
        }

    def tree_counters(self) -> dict[str, int]:
        """The B+trees beside the log; empty if there are none."""
        trees = self.store.trees
        if trees is None:
            return {}
        return {
            "tree_lag_bytes": trees.lag_bytes,
            "tree_bytes": trees.trees.size_bytes,
            "unique_ids_waiting": trees.unique_ids.recent_count,
            "producers_numbered": len(trees.producer_entries.last),
            "tree_records": sum(index.record_count for index in trees.indexes),
            "trees_quarantined": int(bool(trees.report.quarantined)),
        }

    def _retention_counters(self) -> dict[str, int]:
        retention = self.retention
        return {
            "retention_segments": retention.removed_segments,
            "retention_bytes": retention.removed_bytes,
            "retention_forced_segments": retention.forced_segments,
            "retention_early_newest_ms": self.store.early_removal.removed.newest_ms,
            "retention_early_until_ms": self.store.early_removal.removed.until_ms,
            "retention_carried_messages": retention.carried_messages,
            "retention_dropped_messages": retention.dropped_messages,
            "retention_dropped_unacknowledged": retention.dropped_unacknowledged,
            "retention_held_bytes": retention.held_bytes,
            "retention_failures": retention.failures,
            "disk_used_percent": int(retention.disk_used_percent),
            "disk_full": int(self.disk_full),
        }

    def _consumer_counters(self, backlogs: Collection[GroupBacklog]) -> dict[str, int]:
        model = self.model
        delivery, timers, transactions = model.delivery, model.timers, model.transactions
        producers = sum(client.is_producer for client in self.clients)
        return {
            "ready_messages": sum(backlog.ready for backlog in backlogs),
            "inflight_messages": sum(backlog.in_flight for backlog in backlogs),
            "redelivered_messages": sum(self.redeliveries().values()),
            "damaged_messages": delivery.damaged_count,
            "dead_letters": delivery.dead_letter_count,
            "records_not_copied": model.writer.copy_failures.count,
            "dead_letter_failures": delivery.dead_letter_failures,
            "receives_waiting": len(self.receive_waits),
            "events": model.events.appended_count,
            "events_pending": model.events.pending_count,
            "snapshot_failures": model.snapshot_failures,
            "timers_pending": timers.pending_count,
            "timers_enqueued": timers.enqueued.total(),
            "timers_dequeued": timers.dequeued.total(),
            "timers_recalled": timers.recalled_count,
            "timers_dropped": timers.dropped_count,
            "timers_lost": timers.lost_count,
            "timer_behind_ms": self.timer_behind_ms,
            "timer_lateness_max_ms": self.timer_task.lateness_max_ms,
            "half_messages": transactions.open_count,
            "transactions_committed": transactions.committed.total(),
            "transactions_rolled_back": transactions.rolled_back.total(),
            "transactions_given_up": transactions.given_up_count,
            "clients": len(self.clients),
            "producers": producers,
            "consumers": len(self.clients) - producers,
            "telemetry_streams": self.clients.stream_count,
        }
