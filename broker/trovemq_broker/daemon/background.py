"""The background tasks of one store: flushes, retention, search trees, delayed messages."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final

from trovemq_broker.daemon.opening import open_clock_trust
from trovemq_broker.daemon.settings import BrokerSettings
from trovemq_broker.maintenance import background, consumer_tasks
from trovemq_broker.maintenance.clock_task import ClockTask
from trovemq_broker.maintenance.group_expiry import GroupExpiry
from trovemq_broker.maintenance.limits import watch_limits
from trovemq_broker.maintenance.projection_flushes import ProjectionFlushes
from trovemq_broker.maintenance.retention_task import RetentionTask
from trovemq_broker.maintenance.tree_task import TreeTask
from trovemq_broker.security.audit_trail import AuditTrail
from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_broker.state.held_log import NOWHERE
from trovemq_daemon import clocks
from trovemq_daemon.memory_trim import TrimPolicy, keep_trimmed
from trovemq_proto.positions import EpochMs, PhysicalOffset


class StoreTasks:
    """The tasks of one store, for use on the event loop; `background` has them by name."""

    def __init__(self, core: BrokerCore, settings: BrokerSettings, wall_ms: Callable[[], EpochMs]) -> None:
        self._core = core
        self._settings = settings
        store = core.store
        seed = f"{core.clock_ms():x}"
        self.audit: Final = AuditTrail(store, core.model.writer, settings.audit_retention_ms, seed)
        self.projection_flushes: Final = ProjectionFlushes(
            store, settings.projection_flush_interval_ms, settings.many_queues_flush_interval_ms
        )
        self.clock_trust: Final = open_clock_trust(store)
        self._clock_task = ClockTask(
            store, self.clock_trust, self.projection_flushes, wall_ms, clocks.boot_ms
        )
        self.retention: Final = RetentionTask(
            store,
            core.model,
            settings.retention_policy(),
            settings.clean_interval_ms,
            core.group_commit.committed,
            core.appender.hold,
            core.topic_changes,
            core.clock_ms,
            lambda topic: [group for group, _ in core.registry.subscriptions(topic=topic)],
            self.audit.carry,
            self.clock_trust.trusted_ms,
            core.table_files.carry,
            self._copies_need,
        )

    def _copies_need(self) -> PhysicalOffset:
        copies = self._core.group_commit.copies
        return NOWHERE if copies is None else copies.needed_from

    def background(self, lookup_count: Callable[[], int]) -> dict[str, Coroutine[Any, Any, None]]:
        """The tasks by name; they run until they are cancelled. `lookup_count`: look-ups since the start."""
        core, settings = self._core, self._settings
        store, model = core.store, core.model
        return {
            "clock": self._clock_task.run(),
            "projections": self.projection_flushes.run(),
            "offsets": background.persist_offsets(core.offsets, settings.consumer_offset_flush_interval_ms),
            "tables": core.table_files.run(),
            "catch-up": background.catch_up(store),
            "trees": TreeTask(store, settings.tree_index_share_percent, looked_up=lookup_count).run(),
            "reserve": background.keep_reserve(store, core.on_messages_available),
            "frozen": background.freeze_lasting_objects(lambda: len(store.topics)),
            "segments": background.make_segments_ahead(store, core.appended),
            "retention": self.retention.run(),
            "timers": core.timer_task.run(),
            "memory": keep_trimmed(TrimPolicy()),
            "snapshots": consumer_tasks.save_snapshots(model, core.group_commit.committed, core.clock_ms),
            **(
                {"group expiry": self.group_expiry(settings.group_expiry_ms).run()}
                if settings.group_expiry_ms
                else {}
            ),
            "limits": watch_limits(
                {"topics": store.topics.limit_warning, "groups": model.groups.limit_warning}
            ),
            "groups": consumer_tasks.save_groups(
                core.group_changes.save_used, settings.consumer_offset_flush_interval_ms
            ),
        }

    def group_expiry(self, expiry_ms: int) -> GroupExpiry:
        """The task that forgets unused groups after that time."""
        core = self._core
        return GroupExpiry(
            core.groups,
            core.store,
            core.registry.groups,
            core.timers.pending_of,
            lambda: max(expiry_ms, self.retention.reserved_ms),
            core.group_changes.delete,
            core.turns.run,
        )
