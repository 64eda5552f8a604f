"""A fixed life of a whole engine, made from one number, and a ledger of its promises.

The script goes through everything the engine does to its files: sends, rolls, spare segments, syncs,
deletions, offsets, retention, clean stops, crashes with torn tails and lost projections, and the work of
consumers, timers and transactions (consumer_script.py). A step that is refused for want of space is tried
again; any other failure stops the engine as the daemon stops it.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.support.engine import NOW_MS, SMALL, append, read_queue, record
from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.groups.delivery.dead_letters import dead_letter_topic
from trovemq_broker.state.consumer_state import ConsumerState
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueId, QueueOffset
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.steps import finished
from trovemq_store.files.files import FileSystem, StorageError
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.files.real import RealFileSystem
from trovemq_store.topics.config_table import Change, ConfigTable
from trovemq_store.topics.subscription_groups import RetryPolicy, SubscriptionGroup
from trovemq_store.topics.topic_deletion import TopicDeletion
from trovemq_store.topics.topics import NewTopic

SETTINGS: Final = replace(
    SMALL,
    commit_log_file_size=16_384,
    index_slot_count=16,
    index_item_count=64,
    undispatched_bytes_max=1 << 20,
    flush_mode="sync",
    tree_index_enable=True,
    tables_in_log=True,
)
CONSUMERS: Final = ConsumerSettings(
    new_group_start="begin", transaction_check_max=1, timer_log_file_size=52 * 64, timer_batch_max=4
)
PLAIN: Final = ("orders", "bills", "tasks", "lines")
TOPICS: Final = (*PLAIN, "later", "deals", "left")
UNIQUE: Final = ("once", "right")
"""Deduplicated."""
QUEUES: Final = 2
WORKERS: Final = SubscriptionGroup("workers", retry_policy=RetryPolicy("customized", (1_000,)), retry_max=2)
STEPS: Final = SubscriptionGroup("steps", orderly=True, retry_max=2)
KEYS: Final = ("Aa", "BB", "common")
"""The first two have the same hash."""
TRIES_MAX: Final = 3


@dataclass(frozen=True)
class Sent:
    """One message of a topic of PLAIN, as the append placed it."""

    topic: str
    queue_id: QueueId
    queue_offset: int
    physical_offset: int
    body: bytes
    keys: str


class Run(NamedTuple):
    """An atomic transaction: its messages by topic and queue, and bodies of the acknowledged ones."""

    messages: list[tuple[str, int, bytes]]
    acknowledged: list[bytes]


class Synced(NamedTuple):
    """How much of the ledger a sync covers, or has covered."""

    sent: int = 0
    once: int = 0
    committed: int = 0


@dataclass
class Ledger:
    """The promises. `durable`: the acknowledged part of `sent`, `once`, `committed`; `doubt`: bodies of
    an append under way. `once`: unique key -> place; `committed`: transaction -> place; `tried` and
    `once_tried` have those of both that may be there. status and on_disk: the outcome of each timer,
    transaction and delivery, by its body; on_disk as the last acknowledged sync has it. offsets: values that
    the one watched consumer offset may have."""

    sent: list[Sent] = field(default_factory=list)
    durable: Synced = field(default_factory=Synced)
    doubt: list[bytes] = field(default_factory=list)
    trimmed: int = 0
    status: dict[bytes, str] = field(default_factory=dict)
    on_disk: dict[bytes, str] = field(default_factory=dict)
    in_flight: set[bytes] = field(default_factory=set)
    due_ms: dict[bytes, int] = field(default_factory=dict)
    offsets: list[int | None] = field(default_factory=lambda: [None])
    topics: dict[str, set[bool]] = field(default_factory=dict)
    once_tried: list[str] = field(default_factory=list)
    once: dict[str, int] = field(default_factory=dict)
    tried: dict[str, Run] = field(default_factory=dict)
    committed: dict[str, int] = field(default_factory=dict)
    deleted: list[bytes] = field(default_factory=list)
    """Bodies of the topic `temp` while it lives."""

    def copy(self) -> Ledger:
        return copy.deepcopy(self)


class StoppedError(Exception):
    """The engine failed and was stopped as the daemon stops it."""


class EngineScript:
    """run() once. `files` are replaced where the script crashes the engine; `now_ms` is its clock."""

    def __init__(self, files: FileSystem, seed: int, root: Path | None = None) -> None:
        self.files = files
        self.root = root
        self.source = random.Random(f"engine script {seed}")
        self.now_ms = NOW_MS
        self.ledger = Ledger()
        self.in_work = False
        self.is_open = False
        self.count = 0
        self.life = 0
        """Odd: by a version that keeps topics, groups and offsets in files alone."""
        self.stopped_cleanly = True
        self.store: MessageStore
        self.model: ConsumerState

    # --- running steps ------------------------------------------------------------------------------
    def attempt(self, step: Callable[[], None]) -> None:
        """The step, again where it was refused for now. StoppedError where the engine cannot continue."""
        for _ in range(TRIES_MAX):
            try:
                step()
                return
            except TroveError as error:
                self.in_work = False
                self.ledger.doubt = []
                if error.spec is not errors.DISK_FULL and self.is_open:
                    self._stop(error)
            except (StorageError, OSError) as error:
                self._stop(error)
        raise AssertionError("a fault that came once is not there any more")

    def _stop(self, error: Exception) -> None:
        self.in_work = False
        if self.is_open:
            self.store.mark_failed()
            self.is_open = False
            with suppress(StorageError, TroveError):
                self.store.close(self.now_ms)
        raise StoppedError from error

    def work(self, run: Callable[[], None]) -> None:
        """The work of a thread of the daemon."""
        self.in_work = True
        run()
        self.in_work = False

    def tick(self, ms: int = 10) -> EpochMs:
        self.now_ms += ms
        return self.now_ms

    # --- opening and closing ------------------------------------------------------------------------
    def open(self) -> None:
        settings = replace(SETTINGS, tables_in_log=self.life % 2 == 0)
        store = MessageStore.open(self.files, settings, self.now_ms, process_id=7)
        try:
            self.model = ConsumerState.open(store, self.files, CONSUMERS, self.now_ms)
        except (TroveError, StorageError):
            store.mark_failed()
            with suppress(StorageError, TroveError):
                store.close(self.now_ms)
            raise
        self.store, self.is_open = store, True

    def opened(self) -> None:
        """Open, with the topics and groups. A start that fails is tried again, as a supervisor does."""
        self.life += 1
        for attempt in range(TRIES_MAX):
            try:
                self.open()
                break
            except (TroveError, StorageError):
                assert attempt < TRIES_MAX - 1, "a fault that came once keeps no store from opening"
        stored = self.store.offsets.get("audit", "orders", QueueId(0))
        if self.store.tables is None and not self.stopped_cleanly:
            self.ledger.offsets.append(
                stored
            )  # that version does not read the last records; the next one does
        else:
            assert stored in self.ledger.offsets
            self.ledger.offsets = [stored]
        for topic in (*TOPICS, *UNIQUE, "temp"):
            self.attempt(partial(self.create, topic))
        for group in (WORKERS, STEPS):
            if self.model.groups.get(group.name) is None:
                self.attempt(partial(self.create_group, group))

    def create(self, topic: str) -> None:
        if self.store.topics.get(topic) is None:
            possible = self.ledger.topics.setdefault(topic, {False})
            possible.add(True)
            options = {"deduplicate": "30d"} if topic in UNIQUE else {}
            wanted = NewTopic(topic, QUEUES, options=options)
            change, refusals = self.store.topics.begin_create_all([wanted], now_ms=self.now_ms)
            assert change is not None, refusals
            self.save(change, self.store.topics)
            self.ledger.topics[topic] = {True}

    def create_group(self, group: SubscriptionGroup) -> None:
        if self.model.groups.get(group.name) is None:
            self.save(self.model.groups.begin_create(group, now_ms=self.now_ms), self.model.groups)

    def save(self, change: Change[Any], table: ConfigTable[Any]) -> None:
        """Its records and one group commit, or its file; then the table."""
        try:
            if change.logged:
                change.run()
            else:
                self.work(change.run)
        except (TroveError, StorageError):
            table.finish(change)
            raise
        if change.logged:
            self.commit_log()
        table.finish(change)

    def write_tables(self) -> None:
        """The files of the tables, when the log is on disk up to their changes."""
        tables = self.store.tables
        if tables is not None and (work := tables.begin_write()) is not None:
            self.commit_log()
            self.work(work.run)
            tables.finish_write(work)

    def close(self) -> None:
        """A clean stop. One that fails leaves a store as after a crash."""
        try:
            self.model.export_to_rocketmq(self.tick())
            self.is_open = False
            self.store.close(self.now_ms)
            self.stopped_cleanly = True
        except (TroveError, StorageError):
            self.stopped_cleanly = False
            self.store.mark_failed()
            if self.is_open:
                self.is_open = False
                self.store.close(self.now_ms)
            return
        self.note_synced(self.written(), dict(self.ledger.status))
        self.ledger.offsets = self.ledger.offsets[-1:]

    def crash(self) -> None:
        """The process is killed: the files as another one finds them."""
        self.is_open = False
        if isinstance(self.files, MemoryFileSystem):
            self.files = self.files.after_process_kill()
        else:
            assert self.root is not None
            self.files = RealFileSystem(self.root)

    # --- messages -----------------------------------------------------------------------------------
    def body(self, size: int) -> bytes:
        self.count += 1
        return f"{self.count:06d}".encode() + b"x" * size

    def send(self, topic: str, queue_id: QueueId, sizes: list[int], **fields: str) -> None:
        bodies = [self.body(size) for size in sizes]
        keys = [f"{KEYS[self.source.randrange(2)]} common" for _ in bodies]
        records = [
            record(
                body,
                topic=topic,
                queue_id=queue_id,
                keys=key,
                tag=key[:2],
                unique_key=body[:6].decode(),
                properties={"__SHARDINGKEY": "group"} if topic == "lines" else {},
                append_property_crc=SETTINGS.append_property_crc,
            )
            for body, key in zip(bodies, keys, strict=True)
        ]
        self.ledger.doubt = bodies
        result = append(self.store, *records, topic=topic, queue_id=queue_id, now_ms=self.tick())
        self.ledger.doubt = []
        if topic == "temp":
            self.ledger.deleted += bodies
            return
        self.ledger.sent += [
            Sent(
                topic,
                queue_id,
                result.first_queue_offset + i,
                result.physical_offset + int(result.positions[i]),
                body,
                keys[i],
            )
            for i, body in enumerate(bodies)
        ]

    def fill(self, batches: int) -> None:
        for _ in range(batches):
            topic, queue_id = self.source.choice(PLAIN[:2]), self.source.randrange(QUEUES)
            sizes = [self.source.randrange(900) for _ in range(self.source.randrange(1, 5))]
            if self.source.random() < 0.2:
                sizes = [20] * 12
            self.attempt(partial(self.send, topic, QueueId(queue_id), sizes))
            if self.source.random() < 0.4:
                self.spare()
            if self.source.random() < 0.5:
                self.attempt(self.sync)

    def sync(self) -> None:
        """One group commit. A failed one ends the engine."""
        self.model.events.flush(self.now_ms)
        self.commit_log()

    def commit_log(self) -> None:
        """The sync of everything in the log."""
        written, status = self.written(), dict(self.ledger.status)
        work = self.store.begin_flush()
        if work is None:
            self.model.on_messages_available(self.store.dispatch())
            return
        self.work(work.run)
        grown = self.store.finish_flush(work)
        self.note_synced(written, status)
        self.model.on_messages_available(grown)
        self.model.on_messages_available(self.store.dispatch())

    def written(self) -> Synced:
        return Synced(len(self.ledger.sent), len(self.ledger.once), len(self.ledger.committed))

    def note_synced(self, written: Synced, status: dict[bytes, str]) -> None:
        self.ledger.durable = Synced(*map(max, self.ledger.durable, written))
        self.ledger.on_disk = status

    def spare(self) -> None:
        work = self.store.spare_work()
        if work is not None:
            self.work(work.run)
            self.store.finish_spare(work)

    def flush_projections(self, *, index: bool = True) -> None:
        self.attempt(lambda: self.work(lambda: self.store.flush_projections(index=index)))

    # --- offsets, topics, retention -----------------------------------------------------------------
    def commit_offset(self) -> None:
        queue = self.store.consume_queues.get("orders", QueueId(0))
        value = 0 if queue is None else min(queue.max_offset, self.source.randrange(1 + queue.max_offset))
        self.ledger.offsets.append(value)
        self.store.offsets.commit("audit", "orders", QueueId(0), QueueOffset(value))
        self.store.offsets.record_next("audit", "orders")

    def persist_offsets(self) -> None:
        """A record and one group commit, or the file."""
        tables, last = self.store.tables, self.ledger.offsets[-1]
        if tables is not None:
            if tables.record_offsets() is None:
                return
            self.commit_log()
        else:
            work = self.store.offsets.begin_persist()
            if work is None:
                return
            self.work(work.run)
            self.store.offsets.finish_persist(work)
        trail = self.ledger.offsets
        self.ledger.offsets = trail[len(trail) - 1 - trail[::-1].index(last) :]

    def delete_temp(self) -> None:
        """Its messages are gone once the deletion is on disk; refused, nothing has changed."""
        self.ledger.topics["temp"].add(False)
        work = self.store.begin_delete_topic("temp", self.tick())
        try:
            self.work(work.prepare if work.change.logged else work.run)
            if work.change.logged:
                self.append_deletion(work)
        except TroveError:
            self.store.finish_delete_topic(work)
            raise
        self.store.finish_delete_topic(work)
        self.ledger.topics["temp"] = {False}
        self.ledger.deleted = []

    def append_deletion(self, work: TopicDeletion) -> None:
        try:
            work.change.run()
        except TroveError:
            work.undo()
            raise
        self.commit_log()

    def expire(self) -> None:
        """The oldest closed segments go, after their pending messages were appended again."""
        store, model = self.store, self.model
        segments = [s for s in store.closed_segments() if s.end <= model.saved_log_end][:2]
        if not segments:
            return
        end = segments[-1].end
        model.reappend_live_records_before(end, self.tick())
        while store.tables is not None and store.tables.reappend_before(end):
            self.sync()
        self.write_tables()
        self.sync()
        trim = store.trim(end)
        finished(trim.prepare())
        self.work(trim.measure)
        model.reappend_live_records_before(end, self.now_ms)
        self.note_expired(end)
        trim.hide()
        finished(trim.follow())
        self.sync()
        for _ in range(TRIES_MAX):
            try:
                self.work(trim.remove)
                return
            except StorageError:
                self.in_work = False
        raise AssertionError("a removal continues where it stopped")

    def note_expired(self, end: int) -> None:
        """Delivered or copied messages below are not pending any more: they go as every message does."""
        self.ledger.trimmed = end
        for topic in ("later", "deals", dead_letter_topic(WORKERS.name)):
            for queue_id in range(QUEUES):
                queue = self.store.consume_queues.get(topic, QueueId(queue_id))
                below = 0 if queue is None else queue.lower_bound(PhysicalOffset(end)) - queue.min_offset
                for message in read_queue(self.store, topic, QueueId(queue_id))[:below]:
                    self.ledger.status[message.body] = self.ledger.on_disk[message.body] = "expired"

    def snapshot(self) -> None:
        work = self.model.begin_snapshot(self.tick(), always=True)
        assert work is not None
        self.sync()
        try:
            self.work(work.run)
        except StorageError:
            self.in_work = False  # tried again later, as the daemon does
            self.work(work.run)

    # --- damage that only a crash leaves --------------------------------------------------------------
    def tear_tail(self) -> None:
        """Bytes of a record that was being written, and a segment that was made ahead of it."""
        end, size = self.store.end_offset, SETTINGS.commit_log_file_size
        torn = min(90, size - end % size)
        file = self.files.open(f"commitlog/{end // size * size:020d}")
        file.write(end % size, bytes(range(1, 91))[:torn])
        file.close()
        path = f"commitlog/{end // size * size + size:020d}"
        if not self.files.exists(path):
            self.files.create(path, size, preallocate=True).close()

    def lose_queue(self) -> None:
        for name in self.files.list("consumequeue/orders/0"):
            self.files.remove(f"consumequeue/orders/0/{name}")
        self.files.sync_directory("consumequeue/orders/0")

    # --- beside a thread ----------------------------------------------------------------------------
    def go_on_beside(self) -> None:
        """The event loop's work while a thread's work is held: appends, dispatch, reads, look-ups."""
        self.in_work = False
        known = len(self.ledger.sent)
        self.send("orders", QueueId(0), [30, 700])
        self.model.on_messages_available(self.store.dispatch())
        self.commit_offset()
        for topic in PLAIN:
            for queue_id in range(QUEUES):
                messages = read_queue(self.store, topic, QueueId(queue_id))
                offsets = [message.queue_offset for message in messages]
                assert offsets == list(range(offsets[0], offsets[0] + len(offsets))) if offsets else True
        assert self.ledger.durable.sent <= known
        self.in_work = True
