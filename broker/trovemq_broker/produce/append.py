"""Appends batches from clients to the log: checks, the append, and the put status of a refusal.

A batch is checked completely before the log is written; it is stored whole or not at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal, NamedTuple, Protocol

from trovemq_broker.produce.admission import Admission
from trovemq_broker.produce.group_commit import GroupCommit, Grown
from trovemq_broker.produce.waiters import When, until
from trovemq_broker.security.creators import present_creator
from trovemq_daemon.settings import setting
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueId
from trovemq_proto.records import BLANK_SIZE, RecordBatch, pack_host
from trovemq_proto.records.columns import QueuePart
from trovemq_proto.records.priority_columns import check_priorities
from trovemq_proto.records.queue_rules import QueueRules
from trovemq_proto.records.uniform_records import UniformForms
from trovemq_proto.records.validate import read_batch, read_parts
from trovemq_store.engine.deduplication import Deduplication
from trovemq_store.engine.message_store import AppendResult, MessageStore
from trovemq_store.files.files import Buffer
from trovemq_store.settings import StoreSettings
from trovemq_store.topics.config_marks import reason_text
from trovemq_store.topics.message_kinds import TAKES_NORMAL, check_kinds
from trovemq_store.topics.names import check_topic_name
from trovemq_store.topics.topics import TopicConfig

Durability = Literal["disk", "memory"]

QUEUES_KNOWN: Final = 16_384
"""Whose rules are kept: about 8 MB, and 30 MB where the records of each have another form."""


def batch_size_limit(settings: StoreSettings) -> int:
    """Bytes of the largest batch that can be appended: a batch lies in one segment, before a blank record."""
    return min(settings.batch_size_max, settings.commit_log_file_size - BLANK_SIZE)


class _Log(Protocol):
    """Where the records of a queue are appended: the store, or its deduplication."""

    def append(
        self,
        batch: RecordBatch,
        parts: Sequence[tuple[str, int, int]],
        now_ms: EpochMs,
        *,
        born_host: bytes | None = None,
    ) -> list[AppendResult]: ...


class _Queue(NamedTuple):
    """A queue that may be written, as long as its topic has this configuration. takes_any: whether it takes
    each record that is not special (RecordBatch.special)."""

    config: TopicConfig
    rules: QueueRules
    takes_any: bool
    log: _Log


class AppendTrace(Protocol):
    """One append that is traced."""

    def ended(self, error: TroveError | None) -> None:
        """The append is as durable as its acknowledgement says, or `error` says why it failed or was
        refused."""


class AppendTracer(Protocol):
    """Traces the appends of messages that are in a trace."""

    def begin_append(self, topic: str, queue_id: int, batch: RecordBatch) -> AppendTrace | None:
        """None if the append is not traced."""


@dataclass(frozen=True, kw_only=True)
class AppendSettings:
    """Whether a send creates its topic, and how many frames of a stream may wait."""

    auto_create_topic_enable: Annotated[bool, setting(rocketmq="autoCreateTopicEnable", restart=False)] = (
        False
    )
    """Creates an unknown topic when a message is sent to it. Not where the cluster's configuration has an
    owner."""
    auto_create_queue_count: Annotated[
        int, setting("queues", 1, 1_024, rocketmq="defaultTopicQueueNums", restart=False)
    ] = 8
    """Queues of a topic that was created by sending."""
    append_frames_in_flight_max: Annotated[int, setting("frames", 1, 65_536)] = 256
    """Frames of one Append stream that may await their acknowledgement."""


class Appender(Admission):
    """Appends batches to the store, on the event loop, in the order of the calls."""

    def __init__(
        self,
        store: MessageStore,
        group_commit: GroupCommit,
        settings: AppendSettings,
        clock_ms: Callable[[], EpochMs],
        on_messages_available: Callable[[Grown], None],
        on_appended: Callable[[], None] = lambda: None,
        deduplication: Deduplication | None = None,
        tracer: AppendTracer | None = None,
    ) -> None:
        super().__init__(store)
        self._tracer = tracer
        self.deduplication: Final = deduplication or Deduplication(store)
        self._group_commit = group_commit
        self._settings = settings
        self.may_create_topics: Callable[[], bool] = lambda: True
        """Whether settings decide that a send creates its topic; else none does."""
        self._clock_ms = clock_ms
        self._on_messages_available = on_messages_available
        self._on_appended = on_appended
        self._batch_size_limit = batch_size_limit(store.settings)
        self._sync = store.settings.flush_mode == "sync"
        self._store_host_ipv6 = len(pack_host(store.settings.store_host)) == 20
        self._queues: dict[tuple[str, QueueId], _Queue] = {}
        self._uniform_forms = UniformForms()
        self.dispatch_scheduled = False
        """Async mode: whether a dispatch follows in this iteration of the loop."""
        self._before_dispatch: Callable[[], None] | None = None

    def apply(self, settings: AppendSettings) -> None:
        """Sets the settings from now on."""
        self._settings = settings

    @property
    def queues_of_made_topic(self) -> int:
        """Queues of a topic that its first send creates; 0: a send creates none."""
        makes = self._settings.auto_create_topic_enable and self.may_create_topics()
        return self._settings.auto_create_queue_count if makes else 0

    @property
    def durability(self) -> Durability:
        """The durability that an acknowledgement of this broker promises."""
        return "disk" if self._sync else "memory"

    @property
    def sync(self) -> bool:
        """Whether each append is to be synced at once."""
        return self._sync

    @property
    def store_host_ipv6(self) -> bool:
        return self._store_host_ipv6

    def append(
        self,
        topic: str,
        queue_id: QueueId,
        records: Buffer,
        born_host: bytes | None,
        *,
        owned: bool = False,
    ) -> AppendResult:
        """Checks the batch and appends it; in async mode it is visible in the loop's next iteration.

        `records` is a run of records as the producer encoded them; it is copied once, unless it is a
        writable view that the caller never uses again (`owned`). If it raises TroveError, nothing was
        written.
        """
        if not self._accepting or self._store.reserve.refuses:
            self.check_accepting()
        queue = self._queue(topic, queue_id)
        batch = self._read(queue, records, owned)
        trace = None if self._tracer is None else self._tracer.begin_append(topic, queue_id, batch)
        try:
            part = topic, queue_id, len(batch.positions)
            (result,) = queue.log.append(batch, (part,), self._clock_ms(), born_host=born_host)
        except TroveError as error:
            self._note(error)
            if trace is not None:
                trace.ended(error)
            raise
        if result.record_count:
            self.appended()
        if trace is not None:
            self.when_acknowledged(topic)(result.end, trace.ended)
        return result

    def _note(self, error: TroveError) -> None:
        """An append raised it."""
        if error.spec is errors.STORE_FAILED:
            self._group_commit.fail(error)

    def has_topic(self, topic: str) -> bool:
        """Whether the topic exists."""
        return self._store.topics.get(topic) is not None

    def joins(self, topic: str) -> bool:
        """Whether append_joined() takes batches of the topic, which exists."""
        exists = self._tracer is None and self._store.topics.get(topic) is not None
        return exists and not self._store.topics.options(topic).deduplicate_ms

    def append_joined(self, parts: Sequence[QueuePart], data: bytearray) -> list[AppendResult]:
        """Checks the records of each part and appends them to its queue, all in one run. The result of each
        part. `data` belongs to the store from then on. If it raises TroveError, none of them was written."""
        if not self._accepting or self._store.reserve.refuses:
            self.check_accepting()
        queues = [self._queue(topic, QueueId(queue_id)) for topic, queue_id, _ in parts]
        self._check_size(data)
        batch = read_parts(memoryview(data), parts, [queue.rules for queue in queues])
        if batch.special or False in [queue.takes_any for queue in queues]:
            _check_part_kinds(queues, parts, batch)
        try:
            results = self._store.append(batch, parts, self._clock_ms())
        except TroveError as error:
            self._note(error)
            raise
        self.appended()
        return results

    def when_acknowledged(self, topic: str) -> When:
        """(end, resolve): calls `resolve` when the log up to `end` is as durable as an acknowledged message
        of the topic."""
        commit = self._group_commit
        if commit.copies is None:
            return commit.when_acknowledged
        return commit.when_acknowledged_as(self._store.topics.options(topic).acknowledge)

    async def acknowledged(self, topic: str, end: PhysicalOffset) -> None:
        """Waits until when_acknowledged(topic) resolves. Raises its error."""
        await until(self.when_acknowledged(topic), end)

    def copies(self, topic: str) -> int:
        """How many copies hold a message of the topic when it is acknowledged."""
        commit = self._group_commit
        if commit.copies is None:
            return 1
        return commit.copies_as(self._store.topics.options(topic).acknowledge)

    def is_replicated(self, topic: str) -> bool:
        """Whether messages of the topic wait for the copies."""
        return self._group_commit.is_replicated(self._store.topics.options(topic).acknowledge)

    def checked_batch(
        self,
        topic: str,
        queue_id: QueueId,
        records: Buffer,
        *,
        of_open_transaction: bool = False,
        owned: bool = False,
    ) -> RecordBatch:
        """The batch over a copy of the records (over the records, if `owned`), after all checks that come
        before a write.

        Raises TroveError.
        """
        self.check_accepting(of_open_transaction=of_open_transaction)
        return self._read(self._queue(topic, queue_id), records, owned)

    def _read(self, queue: _Queue, records: Buffer, owned: bool) -> RecordBatch:
        """checked_batch() of a queue that may be written."""
        if len(records) > self._batch_size_limit:
            self._check_size(records)
        batch = read_batch(memoryview(records if owned else bytearray(records)), queue.rules)
        if batch.special or not queue.takes_any:
            _check_kinds(queue.config, batch)
        return batch

    def _queue(self, topic: str, queue_id: QueueId) -> _Queue:
        """A queue that may be written. TroveError TOPIC_ILLEGAL, TOPIC_NOT_FOUND, TOPIC_CLOSED,
        QUEUE_NOT_FOUND, SERVICE_NOT_AVAILABLE."""
        queue = self._queues.get((topic, queue_id))
        if queue is not None and queue.config is self._store.topics.get(topic):
            return queue
        config = self.topic_for_write(topic, queue_id)
        settings = self._store.settings
        rules = QueueRules(
            topic,
            queue_id,
            body_size_max=settings.body_size_max,
            store_host_ipv6=self._store_host_ipv6,
            append_property_crc=settings.append_property_crc,
            uniform_forms=self._uniform_forms,
        )
        takes_any = config.message_type in TAKES_NORMAL and not config.by_priority
        log = self.deduplication if config.options.deduplicate_ms else self._store
        if len(self._queues) >= QUEUES_KNOWN:
            self._queues.clear()
        queue = self._queues[topic, queue_id] = _Queue(config, rules, takes_any, log)
        return queue

    def _check_size(self, records: Buffer) -> None:
        if len(records) > self._batch_size_limit:
            raise TroveError(
                errors.BATCH_SIZE_EXCEEDED,
                f"the batch has {len(records)} bytes, the limit is {self._batch_size_limit}",
                batch_size_max=self._batch_size_limit,
            )

    def appended(self) -> None:
        """The log grew, by append() or by the broker's own records: it needs a sync and a dispatch."""
        if self._sync:
            self._group_commit.appended()
            self._on_appended()
        elif not self.dispatch_scheduled:
            self.dispatch_scheduled = True
            asyncio.get_running_loop().call_soon(self._dispatch)

    def append_later(self, append: Callable[[], None]) -> None:
        """In async mode: calls `append` just before the dispatch of this iteration of the loop. It appends
        the records that it gathered meanwhile, and must not raise."""
        assert not self._sync, "only async mode has a dispatch of each iteration"
        assert self._before_dispatch in (None, append), "there is one such caller"
        self._before_dispatch = append
        if not self.dispatch_scheduled:
            self.dispatch_scheduled = True
            asyncio.get_running_loop().call_soon(self._dispatch)

    def _dispatch(self) -> None:
        """In async mode: dispatches after the present callback, once for all appends of this iteration
        of the loop.

        So the acknowledgement is sent before the projections are written. The next request of its receiver is
        handled after that, in a later iteration, and finds the message.
        """
        try:
            if self._before_dispatch is not None:
                append, self._before_dispatch = self._before_dispatch, None
                append()
            self.dispatch_scheduled = False
            self._on_messages_available(self._store.dispatch())
        except Exception as error:
            self._group_commit.fail(error)  # ends the daemon: an acknowledged message must be readable
            raise
        self._group_commit.appended()
        self._on_appended()

    def topic_for_write(self, topic: str, queue_id: QueueId | None = None) -> TopicConfig:
        """The topic, if it may be written; it is created now if settings allow that.

        Raises TOPIC_ILLEGAL, TOPIC_NOT_FOUND, TOPIC_CLOSED, QUEUE_NOT_FOUND, SERVICE_NOT_AVAILABLE (no write
        permission).
        """
        check_topic_name(topic)
        config = self._store.topics.get(topic)
        if config is None:
            if not self._settings.auto_create_topic_enable:
                text = f"topic {topic} does not exist: trovemq topic create {topic}"
                raise TroveError(errors.TOPIC_NOT_FOUND, text, topic=topic)
            if not self.may_create_topics():
                text = f"topic {topic} does not exist, and the first use creates none in a cluster whose "
                text += "configuration has an owner: trovemq topic create"
                raise TroveError(errors.TOPIC_NOT_FOUND, text, topic=topic)
            config = self._store.topics.create(
                topic,
                self._settings.auto_create_queue_count,
                creator=present_creator(),
                now_ms=self._clock_ms(),
            )
        config.check_open()
        if not config.writable:
            what = f"topic {topic} may not be written{reason_text(config.attributes)}"
            raise TroveError(errors.SERVICE_NOT_AVAILABLE, what, topic=topic)
        if queue_id is not None and not 0 <= queue_id < config.write_queue_count:
            raise TroveError(
                errors.QUEUE_NOT_FOUND,
                f"topic {topic} has queues 0 to {config.write_queue_count - 1}, not {queue_id}",
                topic=topic,
                queue_id=queue_id,
                queue_count=config.write_queue_count,
            )
        return config


def _check_kinds(config: TopicConfig, batch: RecordBatch) -> None:
    check_kinds(config, batch)
    if config.by_priority:
        check_priorities(batch)


def _check_part_kinds(queues: Sequence[_Queue], parts: Sequence[QueuePart], batch: RecordBatch) -> None:
    end = 0
    for queue, part in zip(queues, parts, strict=True):
        own = slice(end, end + part.size)
        end += part.size
        _check_kinds(
            queue.config, RecordBatch(batch.data, batch.positions[own], batch.sizes[own], part.topic)
        )
