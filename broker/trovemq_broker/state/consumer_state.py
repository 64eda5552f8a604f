"""The recoverable state of consumers and producers: deliveries, timers and transactions of one open store.

All three states come from the log: from the internal events and from RocketMQ's system topics. This module
opens and saves them together, and exports them at a clean stop.

    trovemq/consumers.snapshot   the state at a position of the log (see events/snapshot.py)

Invariants
- A snapshot is made with no event pending, and saved only when the log is on disk up to its `log_end`.
- `closed` is in the file only between a clean stop and the next start. At that time the system topics and
  RocketMQ's own files are complete, too: the next broker that opens the store continues from them.
- If the log continues after `closed`, RocketMQ has used the store: then its files count, and the snapshot
  does not.
- Of a snapshot of a log that is shorter by now (an operator gave up its last files) only the deliveries
  count, as far as the queues reach: retention may have removed their events. It removes the events of delayed
  and half messages only with these.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec

from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.groups.delivery.delivery import Delivery, DeliveryState
from trovemq_broker.groups.delivery.revive_log import REVIVE_PREFIX
from trovemq_broker.state.rocketmq_import import import_from_rocketmq as import_deliveries
from trovemq_broker.timers.timers import SCHEDULE_TOPIC, WHEEL_TOPIC, Timers, TimersState
from trovemq_broker.transactions.records import HALF_TOPIC, OP_TOPIC
from trovemq_broker.transactions.transaction_log import TransactionsState
from trovemq_broker.transactions.transactions import Transactions
from trovemq_proto.positions import LOG_ORIGIN, QUEUE_ORIGIN, EpochMs, PhysicalOffset, QueueId, QueueOffset
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.record_writer import RecordWriter
from trovemq_store.events.codec import EventKind
from trovemq_store.events.event_log import EventLog
from trovemq_store.events.snapshot import SnapshotFile
from trovemq_store.files.fault_points import fault_point
from trovemq_store.files.files import FileSystem, ScarceError
from trovemq_store.topics.subscription_groups import SubscriptionGroups

_SYSTEM_TOPICS: Final = frozenset((WHEEL_TOPIC, SCHEDULE_TOPIC, HALF_TOPIC, OP_TOPIC))

SNAPSHOT_PATH: Final = "trovemq/consumers.snapshot"
SNAPSHOT_EVENTS_MIN: Final = 20_000
"""A snapshot is written after this many events, so that a start replays about this many at most."""


class ConsumerSnapshot(msgspec.Struct):
    """The content of the snapshot file."""

    closed: bool
    log_end: PhysicalOffset
    event_offset: QueueOffset
    delivery: DeliveryState
    timers: TimersState
    transactions: TransactionsState


class SnapshotWork:
    """One captured state; run() writes it, may block, and may run in another thread."""

    def __init__(
        self,
        file: SnapshotFile[ConsumerSnapshot],
        content: bytes,
        log_end: PhysicalOffset,
        saved: Callable[[PhysicalOffset], None],
    ) -> None:
        self._file = file
        self._content = content
        self._saved = saved
        self.log_end = log_end
        """The log must be on disk up to here before run()."""

    def run(self) -> None:
        """StorageError."""
        fault_point("snapshot.before_save")
        self._file.save(self._content)
        fault_point("snapshot.after_save")
        self._saved(self.log_end)


class ConsumerState:
    """The three states and their common parts. Used by one thread, except SnapshotWork.run()."""

    def __init__(
        self,
        store: MessageStore,
        files: FileSystem,
        settings: ConsumerSettings,
        groups: SubscriptionGroups,
    ) -> None:
        self.on_append: Callable[[], None] = _nothing
        """Called after every append of the consumer state's own records: it needs a sync and a dispatch."""
        self._store = store
        self._files = files
        self._file = SnapshotFile(files, SNAPSHOT_PATH, ConsumerSnapshot)
        self._saved_events = 0
        self._unread: set[str] = set()  # system topics with new messages that could not be read
        self._snapshot_requested = False
        self._was_closed = False
        self.saved_log_end = 0
        """The end of the log when the saved snapshot was made: below it a start needs pending records
        only."""
        self.snapshot_failures = 0
        """Since the start: snapshots that could not be saved; each is repeated."""
        self.settings: Final = settings
        self.groups: Final = groups
        self.writer: Final = RecordWriter(store, self._appended)
        self.events: Final = EventLog(store, self.writer)
        self.timers: Final = Timers(store, self.writer, self.events, settings)
        self.transactions: Final = Transactions(store, self.writer, self.events, settings)
        self.delivery: Final = Delivery(store, self.writer, self.events, groups, settings)

    @classmethod
    def open(
        cls,
        store: MessageStore,
        files: FileSystem,
        settings: ConsumerSettings,
        now_ms: EpochMs,
    ) -> ConsumerState:
        """Opens the states from the log; blocks. TroveError STORE_FAILED, STORE_NEWER."""
        groups = SubscriptionGroups.load(files)
        if store.tables is not None:
            store.tables.attach(groups)
        model = cls(store, files, settings, groups)
        model._load(now_ms)
        model._mark_open(now_ms)
        return model

    def _appended(self) -> None:
        self.on_append()

    def _load(self, now_ms: EpochMs) -> None:
        state = self._file.load()
        self._was_closed = state is not None and state.closed
        deliveries, recorded_end = None, LOG_ORIGIN
        if state is not None and not state.closed and state.log_end > self._store.end_offset:
            # of a log that lost its end since: offsets in it will be those of other messages
            deliveries, state = state.delivery, None
        if state is not None and not (state.closed and not self._ends_at(state.log_end)):
            self._restore(state)
            recorded_end = state.log_end
        elif state is None and self.events.next_offset > 0:
            self._replay(QUEUE_ORIGIN, LOG_ORIGIN, deliveries)  # the snapshot was lost, or does not count
        else:
            self._import_from_rocketmq(now_ms)
            recorded_end = self._store.end_offset
        self.timers.catch_up()
        self.transactions.catch_up()
        self.timers.settle(max(recorded_end, self.events.recorded_end))
        self.transactions.settle()
        self.delivery.complete_replay()

    def _ends_at(self, log_end: int) -> bool:
        """Whether the log ends there, but for records of tables, which a start may append."""
        tables, end = self._store.tables, self._store.end_offset
        if log_end == end or tables is None:
            return log_end == end
        return tables.are_all_after(PhysicalOffset(log_end))

    def _restore(self, state: ConsumerSnapshot) -> None:
        self.timers.restore(state.timers)
        self.transactions.restore(state.transactions)
        self.delivery.restore(state.delivery)
        self._replay(state.event_offset, state.log_end)

    def _replay(
        self, begin: QueueOffset, log_begin: PhysicalOffset, deliveries: DeliveryState | None = None
    ) -> None:
        """Applies the events from `begin` on, and the deletions of groups, from `log_begin` on, which may
        lack their events. `deliveries`: a state that is newer than all of them."""
        if deliveries is not None:
            self.delivery.restore(deliveries)
        tables = self._store.tables
        deleted = deque(() if tables is None or deliveries else tables.deleted_groups(log_begin).items())
        for place, event in self.events.replay_places(begin):
            while deleted and deleted[0][0] < place:
                self.delivery.forget_deleted(deleted.popleft()[1])
            if event.kind is EventKind.TIMER_ENDED:
                self.timers.apply(event)
            elif event.kind is EventKind.TRANSACTION_CHECKED:
                self.transactions.apply(event)
            elif deliveries is None:
                self.delivery.apply(event)
        for _, group in deleted:
            self.delivery.forget_deleted(group)

    def _import_from_rocketmq(self, now_ms: EpochMs) -> None:
        """Imports the state of a store that is new, or that RocketMQ used last."""
        self.timers.import_from_rocketmq(self._files, now_ms)
        self.transactions.import_from_rocketmq()
        revive_topics = [topic for topic in self.timers.pending_by_topic() if topic.startswith(REVIVE_PREFIX)]
        waiting = {timer.queue_offset for topic in revive_topics for timer in self.timers.pending(topic)}
        import_deliveries(self.delivery, self._store, self._files, waiting, now_ms)
        for topic in revive_topics:  # its check points have become retry messages
            self.timers.forget_topic(topic, now_ms)

    # --- snapshots and new messages -----------------------------------------------------------------
    def on_messages_available(self, queues: Iterable[tuple[str, QueueId]]) -> None:
        """Reads new visible messages of those queues that belong to system topics. Where nothing is free to
        read with, they are read at a later call."""
        topics = self._unread | {topic for topic, _ in queues if topic in _SYSTEM_TOPICS}
        if not topics:
            return
        self._unread = topics
        try:
            if WHEEL_TOPIC in topics or SCHEDULE_TOPIC in topics:
                self.timers.catch_up()
            if HALF_TOPIC in topics or OP_TOPIC in topics:
                self.transactions.catch_up()
        except ScarceError:
            return
        self._unread = set()

    def read_unread(self) -> None:
        """Reads the messages that on_messages_available() could not read; to be called now and then."""
        if self._unread:
            self.on_messages_available(())

    def begin_snapshot(self, now_ms: EpochMs, *, always: bool = False) -> SnapshotWork | None:
        """Captures the present state; None if little happened since the last snapshot. TroveError DISK_FULL,
        CREATE_MAPPED_FILE_FAILED, STORE_FAILED, UNKNOWN_ERROR: the pending events were not appended."""
        few = self.events.appended_count - self._saved_events < SNAPSHOT_EVENTS_MIN
        if few and not always and not self._snapshot_requested:
            return None
        if not always and self.groups.is_deleting:
            return None  # the log has the deletion, perhaps, and the state has the group
        work = self._snapshot(now_ms, closed=False)
        self._snapshot_requested = False
        return work

    def request_snapshot(self) -> None:
        """Makes the next begin_snapshot() return one, because the log below saved_log_end is to be
        removed."""
        self._snapshot_requested = True

    def snapshot_not_saved(self) -> None:
        """A snapshot that was begun could not be saved: the next begin_snapshot() returns one."""
        self.snapshot_failures += 1
        self._snapshot_requested = True

    def _snapshot_saved(self, log_end: PhysicalOffset) -> None:
        self.saved_log_end = log_end

    def _snapshot(self, now_ms: EpochMs, *, closed: bool) -> SnapshotWork:
        self.events.flush(now_ms)
        self._saved_events = self.events.appended_count
        log_end = self._store.end_offset
        state = ConsumerSnapshot(
            closed,
            log_end,
            self.events.next_offset,
            self.delivery.snapshot(),
            self.timers.snapshot(),
            self.transactions.snapshot(),
        )
        return SnapshotWork(self._file, self._file.encode(state), log_end, self._snapshot_saved)

    # --- retention ----------------------------------------------------------------------------------
    def lowest_live_record(self) -> PhysicalOffset | None:
        """Lowest physical offset of a pending record."""
        lowest = [
            self.delivery.lowest_live_record(),
            self.timers.lowest_live_record(),
            self.transactions.lowest_live_record(),
        ]
        return min((offset for offset in lowest if offset is not None), default=None)

    def live_records_before(self, physical_offset: PhysicalOffset) -> Iterator[PhysicalOffset]:
        """The physical offsets of the pending records below that offset; one may occur twice."""
        yield from self.delivery.live_records_before(physical_offset)
        yield from self.timers.live_records_before(physical_offset)
        yield from self.transactions.live_records_before(physical_offset)

    def reappend_live_records_before(self, physical_offset: PhysicalOffset, now_ms: EpochMs) -> int:
        """Appends the pending records below that offset again; returns how many. Once the copies are on disk,
        the originals may be removed.

        TroveError DISK_FULL, CREATE_MAPPED_FILE_FAILED, STORE_FAILED, UNKNOWN_ERROR.
        """
        count = self.delivery.reappend_live_records_before(physical_offset, now_ms)
        count += self.timers.reappend_live_records_before(physical_offset, now_ms)
        count += self.transactions.reappend_live_records_before(physical_offset, now_ms)
        self.events.flush(now_ms)
        return count

    # --- start and stop -----------------------------------------------------------------------------
    def _mark_open(self, now_ms: EpochMs) -> None:
        """Marks the store as used by this broker, until export_to_rocketmq(). A snapshot with records that
        are not committed waits for that: if a later leader cut them, it would be one of another log."""
        work = self._snapshot(now_ms, closed=False)
        self._sync()
        if work.log_end <= self._store.lasting_offset or self._was_closed:
            work.run()
        else:
            self.request_snapshot()

    def export_to_rocketmq(self, now_ms: EpochMs) -> None:
        """Writes the pending messages at a clean stop, before the store is closed, so that RocketMQ or the
        next start continues from them. Blocks. After a TroveError or StorageError the next start replays the
        log."""
        self.on_append = _nothing  # these appends are synced here; the event loop appends no more
        if self._store.tables is not None:
            self._store.tables.on_append = _nothing
        self.delivery.export_to_rocketmq(now_ms, self._files)
        fault_point("export_to_rocketmq.after_deliveries")
        self._sync()
        self.timers.catch_up()
        self.transactions.catch_up()
        self.timers.export_to_rocketmq(self._files, now_ms)
        fault_point("export_to_rocketmq.after_timers")
        self.transactions.export_to_rocketmq(now_ms)
        fault_point("export_to_rocketmq.after_transactions")
        self.groups.persist(now_ms=now_ms)
        fault_point("export_to_rocketmq.before_snapshot")
        work = self._snapshot(now_ms, closed=True)
        self._sync()
        work.run()

    def _sync(self) -> None:
        work = self._store.begin_flush()
        if work is not None:
            work.run()
            self.on_messages_available(self._store.finish_flush(work))
        self.on_messages_available(self._store.dispatch())


def _nothing() -> None:
    """Does nothing: appends while the store is opened are synced at the end."""
