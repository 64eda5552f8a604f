"""The services of one open store, wired together: produce and consume, without the network."""

from __future__ import annotations

import asyncio
import gc
import os
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, cast

from trovemq_broker.admin.group_changes import GroupChanges
from trovemq_broker.admin.topic_changes import TopicChanges
from trovemq_broker.atomic.commits import AtomicCommits
from trovemq_broker.atomic.open_transactions import OpenTransactions
from trovemq_broker.daemon.duplicate_log import log_duplicate, log_gap
from trovemq_broker.daemon.settings import BrokerSettings
from trovemq_broker.fetch.long_poll import LongPolls
from trovemq_broker.fetch.offsets import OffsetKeeper
from trovemq_broker.fetch.pull import Puller, PullSettings
from trovemq_broker.groups.lag.priority_counts import PriorityCounts
from trovemq_broker.groups.members.new_messages import NewMessages
from trovemq_broker.groups.members.receive_waits import ReceiveWaits
from trovemq_broker.maintenance import background, consumer_tasks
from trovemq_broker.maintenance.clock_task import ClockTask
from trovemq_broker.maintenance.consumer_tasks import TimerTask
from trovemq_broker.maintenance.group_expiry import GroupExpiry
from trovemq_broker.maintenance.limits import watch_limits
from trovemq_broker.maintenance.projection_flushes import ProjectionFlushes
from trovemq_broker.maintenance.retention_task import RetentionTask
from trovemq_broker.maintenance.tree_task import TreeTask
from trovemq_broker.produce.accumulator import Accumulator
from trovemq_broker.produce.append import Appender, AppendTracer, batch_size_limit
from trovemq_broker.produce.group_commit import GroupCommit
from trovemq_broker.produce.outgoing import OutgoingEncoder
from trovemq_broker.query.search_offset import search_offset
from trovemq_broker.security.audit_trail import AuditTrail
from trovemq_broker.server.core.clients import ClientRegistry
from trovemq_broker.server.monitoring.statistics import BrokerStatistics, StatisticsParts
from trovemq_broker.server.monitoring.traffic import Traffic
from trovemq_broker.server.native.append_stream import AppendParts
from trovemq_broker.server.native.fetch_stream import FetchParts
from trovemq_broker.server.native.message_service import MessageService
from trovemq_broker.server.native.query_service import QueryService
from trovemq_broker.server.native.search_service import SearchService
from trovemq_broker.server.native.store_service import StoreService
from trovemq_broker.server.native.transaction_service import TransactionParts, TransactionService
from trovemq_broker.state.consumer_state import ConsumerState
from trovemq_daemon import clocks
from trovemq_daemon.logging import get_logger
from trovemq_daemon.memory_trim import TrimPolicy, keep_trimmed
from trovemq_daemon.reply_budget import ReplyBudget
from trovemq_daemon.turns import Turns
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, QueueId, QueueOffset
from trovemq_proto.records import UniqueKeyGenerator
from trovemq_store.engine.clock_trust import ClockTrust
from trovemq_store.engine.deduplication import Deduplication
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.failures import storage_errors
from trovemq_store.files.kernel_sync import KernelSync
from trovemq_store.topics.names import is_system_topic
from trovemq_store.topics.topics import TopicConfig

clock_ms: Final = cast("Callable[[], EpochMs]", clocks.SettledClock())
"""The time for everything but store times and removal by age."""
SECONDS_2021: Final = 1_609_459_200  # 2021-01-01T00:00:00Z, the origin of the clock in unique keys


class StoreServices:
    """The parts of an open store. The daemon runs `background` and ends with `drain`."""

    def __init__(
        self,
        store: MessageStore,
        settings: BrokerSettings,
        traffic: Traffic | None = None,
        model: ConsumerState | None = None,
        replies: ReplyBudget | None = None,
        tracer: AppendTracer | None = None,
    ) -> None:
        self.store, self.model = store, model or open_consumer_state(store, settings)
        self.audit = AuditTrail(store, self.model.writer, settings.audit_retention_ms, f"{clock_ms():x}")
        self.appended, self.long_polls = asyncio.Event(), LongPolls(settings.long_polls_max)
        self.receive_waits = _receive_waits(store, self.model, settings)
        self.timer_task = TimerTask(self.model, clock_ms, stopped=settings.timer_stop_dequeue)
        self.clients = ClientRegistry(settings.clients_max, settings.client_expiry_ms)
        kernel = KernelSync.open() if settings.flush_in_kernel_enable else None
        self.group_commit = GroupCommit(store, settings, self._on_messages_available, kernel)
        self.deduplication = Deduplication(store, log_duplicate(), log_gap())
        self.appender = Appender(
            store,
            self.group_commit,
            settings,
            wall_ms,
            self._on_messages_available,
            self.appended.set,
            self.deduplication,
            tracer,
        )
        self.model.on_append = self.appender.appended
        encoder = OutgoingEncoder(store.settings, self.appender.store_host_ipv6, unique_keys().next)
        self.traffic, self.turns = traffic or Traffic(), Turns()
        self.accumulator = Accumulator(
            self.appender,
            encoder,
            batch_size_limit(store.settings),
            self.group_commit,
            self.traffic.appended,
        )
        self.puller = Puller(store, PullSettings(bytes_max=settings.pull_bytes_max))
        self.offsets = OffsetKeeper(store, self.group_commit.durable, self.search_offset, self._offsets_moved)
        self.topic_changes = TopicChanges(store, clock_ms, self.offsets.persist, self._topic_deleted)
        self.group_changes = GroupChanges(
            self.model.groups,
            store,
            self.model.delivery,
            self.topic_changes,
            clock_ms,
            self.offsets.persist,
            self.receive_waits.wake_group,
        )
        self.projection_flushes = _projection_flushes(store, settings)
        self.clock_trust = open_clock_trust(store)
        self.clock_task = ClockTask(store, self.clock_trust, self.projection_flushes, wall_ms, clocks.boot_ms)
        self.retention = self._retention_task(settings)
        self.store_service = StoreService(
            store, settings.store_path, self.topic_changes.changing, clock_ms, settings.backup_path
        )
        self.priorities = PriorityCounts(store)
        self.messages = self._message_service(settings, replies)
        self.queries = QueryService(store, settings.queries_max, self.traffic, self.turns)
        self.searches = SearchService(store, self.queries.one_more, self.traffic, self.turns)
        self.atomic = self._open_transactions(settings)
        self.transactions = self._transaction_service(settings)
        self.statistics = BrokerStatistics(self._statistics_parts())

    def _retention_task(self, settings: BrokerSettings) -> RetentionTask:
        return RetentionTask(
            self.store,
            self.model,
            settings.retention_policy(),
            settings.clean_interval_ms,
            self.group_commit.durable,
            self.appender.hold,
            self.topic_changes,
            clock_ms,
            lambda topic: [group for group, _ in self.clients.subscriptions(topic=topic)],
            self.audit.carry,
            self.clock_trust.trusted_ms,
        )

    def _open_transactions(self, settings: BrokerSettings) -> OpenTransactions:
        commits = AtomicCommits(self.store, self.model, self.deduplication)
        return OpenTransactions(commits, settings, self.appender.topic_for_write)

    def _transaction_service(self, settings: BrokerSettings) -> TransactionService:
        return TransactionService(
            TransactionParts(
                transactions=self.atomic,
                appender=self.appender,
                group_commit=self.group_commit,
                traffic=self.traffic,
                broker=settings.name,
                clock_ms=clock_ms,
            )
        )

    def _message_service(self, settings: BrokerSettings, replies: ReplyBudget | None) -> MessageService:
        append = AppendParts(
            self.appender,
            self.accumulator,
            self.group_commit,
            self.traffic,
            settings.name,
            settings.append_frames_in_flight_max,
        )
        fetch = FetchParts(
            self.puller,
            self.long_polls,
            self.traffic,
            settings.long_poll_wait_max_ms,
            settings.fetch_frames_in_flight_max,
            replies,
        )
        return MessageService(append, fetch, self.accumulator, clock_ms)

    def _statistics_parts(self) -> StatisticsParts:
        return StatisticsParts(
            store=self.store,
            model=self.model,
            group_commit=self.group_commit,
            long_polls=self.long_polls,
            receive_waits=self.receive_waits,
            queries=self.queries,
            searches=self.searches.counters,
            streams=self.messages.streams,
            traffic=self.traffic,
            timer_task=self.timer_task,
            clients=self.clients,
            retention=self.retention.counters,
            priorities=self.priorities,
            deduplication=self.deduplication,
            atomic=self.atomic,
            store_service=self.store_service.counters,
            drained=lambda: self.appender.drained,
            clock_ms=clock_ms,
        )

    def _on_messages_available(self, queues: list[tuple[str, QueueId]]) -> None:
        """Wakes all calls that wait for messages of these queues."""
        if self.appender.sync and len(self.long_polls):
            # Many may wait for one queue, and whoever has waited for this sync is to be answered first. In
            # async mode the acknowledgements were sent before.
            asyncio.get_running_loop().call_soon(self.long_polls.wake, queues)
        else:
            self.long_polls.wake(queues)
        self.model.on_messages_available(queues)
        self.timer_task.changed()
        self.receive_waits.on_messages_available(queues)

    def _offsets_moved(
        self, group: str, topic: str, offsets: Mapping[QueueId, QueueOffset]
    ) -> Mapping[QueueId, int]:
        """Is called when a group's offsets were set: forgets its messages in flight in these queues."""
        forgotten = self.model.delivery.reset(group, topic, offsets, clock_ms())
        self.receive_waits.wake((group, topic))
        return forgotten

    def _topic_deleted(self, topic: str) -> None:
        self.deduplication.forget_topic(topic)
        self.priorities.forget(topic)
        now_ms = clock_ms()
        self.model.delivery.forget_topic(topic, now_ms)
        self.model.timers.forget_topic(topic, now_ms)
        self.model.transactions.forget_topic(topic)
        self.receive_waits.wake_topic(topic)

    def search_offset(self, topic: str, queue_id: QueueId, timestamp: EpochMs) -> QueueOffset:
        """The first queue offset stored at or after that time."""
        return search_offset(self.store, topic, queue_id, timestamp)

    def background(self, settings: BrokerSettings) -> dict[str, Coroutine[Any, Any, None]]:
        """The background tasks by name; they run until they are cancelled."""
        return {
            "clock": self.clock_task.run(),
            "projections": self.projection_flushes.run(),
            "offsets": background.persist_offsets(self.offsets, settings.consumer_offset_flush_interval_ms),
            "catch-up": background.catch_up(self.store),
            "trees": TreeTask(
                self.store, settings.tree_index_share_percent, looked_up=lambda: self.queries.lookup_count
            ).run(),
            "reserve": background.keep_reserve(self.store, self._on_messages_available),
            "frozen": background.freeze_lasting_objects(lambda: len(self.store.topics)),
            "segments": background.make_segments_ahead(self.store, self.appended),
            "retention": self.retention.run(),
            "timers": self.timer_task.run(),
            "memory": keep_trimmed(TrimPolicy()),
            "snapshots": consumer_tasks.save_snapshots(self.model, self.group_commit.durable, clock_ms),
            **(
                {"group expiry": self.group_expiry(settings.group_expiry_ms).run()}
                if settings.group_expiry_ms
                else {}
            ),
            "limits": watch_limits(
                {"topics": self.store.topics.limit_warning, "groups": self.model.groups.limit_warning}
            ),
            "groups": consumer_tasks.save_groups(
                self.group_changes.save_used, settings.consumer_offset_flush_interval_ms
            ),
        }

    def group_expiry(self, expiry_ms: int) -> GroupExpiry:
        """The task that forgets unused groups after that time."""
        return GroupExpiry(
            self.model.groups,
            self.store,
            self.clients.groups,
            self.model.timers.pending_of,
            lambda: max(expiry_ms, self.retention.reserved_ms),
            self.group_changes.delete,
            self.turns.run,
        )

    async def drain(self, timeout_s: float) -> None:
        """Refuses appends, syncs the log, answers the open requests, ends the streams."""
        self.accumulator.append_all()  # batches that came before
        self.appender.refuse(TroveError(errors.SERVICE_NOT_AVAILABLE, "the broker is stopping"))
        self.group_commit.stop()
        self.long_polls.close()
        self.receive_waits.close()
        await asyncio.gather(self.messages.streams.end_all(timeout_s), self.transactions.end_all(timeout_s))

    async def settle(self) -> None:
        """Returns when no thread writes any more. Is called when there are no more requests."""
        await self.topic_changes.settle()
        await self.group_changes.settle()
        await self.offsets.settle()


def open_consumer_state(store: MessageStore, settings: BrokerSettings) -> ConsumerState:
    """Reads the pending messages; blocks. Raises TroveError STORE_FAILED, STORE_NEWER, DISK_FULL."""
    with failures_that_end("the store cannot be opened"), collector_at_rest():
        model = ConsumerState.open(store, store.files, settings.consumer_settings(), clock_ms())
    if model.groups.fault:
        get_logger().warning("store.second_copy_read", reason=model.groups.fault)
    return model


def wall_ms() -> EpochMs:
    """The machine's clock."""
    return EpochMs(clocks.wall_ms())


def open_clock_trust(store: MessageStore) -> ClockTrust:
    """Raises TroveError STORE_NEWER."""
    trust = ClockTrust(store.files, clocks.boot_id())
    trust.load()
    return trust


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """Stops the garbage collector: all objects that a start creates stay, and to examine them again and again
    takes a tenth of a start with 80,000 queues."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def failures_that_end(what: str) -> Iterator[None]:
    """A failed call to the disk is repeated while the broker runs, but ends its start or stop: raises
    TroveError DISK_FULL, STORE_FAILED."""
    try:
        with storage_errors(what, errors.STORE_FAILED):
            yield
    except TroveError as error:
        if error.spec not in (errors.UNKNOWN_ERROR, errors.RESOURCES_SCARCE):
            raise
        raise TroveError(errors.STORE_FAILED, error.message) from error


class RoutedTopics:
    """The topics of routes: those of the table, and those of which the store has queues only."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store

    @property
    def data_version(self) -> int:
        return self._store.topics.data_version

    @property
    def change_count(self) -> int:
        return self._store.topics.change_count

    def changed_since(self, change_count: int) -> list[str] | None:
        return self._store.topics.changed_since(change_count)

    def names(self, include_system: bool = False) -> list[str]:
        names = {*self._store.topics.names(include_system=True), *self._store.consume_queues.topics()}
        return sorted(name for name in names if include_system or not is_system_topic(name))

    def find(self, name: str) -> TopicConfig | None:
        known = name in self._store.topics or self._store.consume_queues.has_topic(name)
        return self.require(name) if known else None

    def require(self, name: str) -> TopicConfig:
        config = self._store.topics.get(name)
        if config is not None:
            return config
        queues = self._store.consume_queues.queues(name)
        count = max((queue.queue_id for queue in queues), default=-1) + 1
        return TopicConfig(name, count, count, message_type="UNSPECIFIED")

    def add_change_listener(self, listener: Callable[[], None]) -> None:
        self._store.topics.add_change_listener(listener)


def _projection_flushes(store: MessageStore, settings: BrokerSettings) -> ProjectionFlushes:
    many_queues_interval_ms = settings.many_queues_flush_interval_ms
    return ProjectionFlushes(store, settings.projection_flush_interval_ms, many_queues_interval_ms)


def _receive_waits(store: MessageStore, model: ConsumerState, settings: BrokerSettings) -> ReceiveWaits:
    return ReceiveWaits(settings.receive_polls_max, NewMessages(store, model.delivery.next_offset))


def unique_keys() -> UniqueKeyGenerator:
    """Makes unique keys for messages that a client sent without one."""
    started = time.monotonic()
    return UniqueKeyGenerator(
        uuid.getnode().to_bytes(6),
        os.getpid(),
        int(time.time()) - SECONDS_2021,
        lambda: int(time.monotonic() - started),
    )
