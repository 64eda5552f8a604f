"""The engine of a busy broker, in one thread with two helpers, until the process is killed.

Four producers with one batch under way each, delayed messages, transactions, a consumer group, durable
commits of another group's offsets; group commits in a thread; projections, snapshots, the next segment and
consumer offsets in another; retention as the daemon's task does it. Steps are drawn from a seed; the
clock moves with the steps.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from tests.durability.engine_threads import EngineThreads, Reply
from tests.durability.oracle import QUEUES, READERS, TOPIC, WORKERS, History, Ledger, content, may_be_twice
from tests.support.engine import append, record
from tests.support.settling import acknowledge_all
from trovemq_broker.admin.topic_changes import TopicChanges
from trovemq_broker.groups.delivery.request import ReceiveRequest
from trovemq_broker.maintenance.retention_task import RetentionTask
from trovemq_broker.state.consumer_state import ConsumerState
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, QueueId
from trovemq_proto.records import decode_message, pack_host
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.record_writer import NewRecord
from trovemq_store.log.retention import DiskUse, RetentionPolicy
from trovemq_store.topics.subscription_groups import RetryPolicy, SubscriptionGroup

PRODUCERS: Final = 4
LEASE_MS: Final = 10_000
LIFE_MS: Final = 600_000
"""From the start of one life to that of the next, by the engine's clock; a life takes less than a third."""
POLICY: Final = RetentionPolicy(
    reserved_ms=LIFE_MS + 500_000, hours=frozenset(range(24)), forcible_enable=False, files_max=4
)
"""Only segments whose last message is older than this life go: the check at its start has seen them."""
FREE: Final = DiskUse(1_000, 900)
GROUP: Final = SubscriptionGroup(WORKERS, retry_policy=RetryPolicy("customized", (1_000,)), retry_max=1_000)
BORN_HOST: Final = pack_host("10.0.0.2:50123")


class EngineLoad:
    """One life. `reported` is called after each step, and may end the process."""

    def __init__(
        self,
        store: MessageStore,
        model: ConsumerState,
        history: History,
        ledger: Ledger,
        source: random.Random,
        *,
        life: int,
        now_ms: EpochMs,
        reported: Callable[[int], None],
    ) -> None:
        self._store = store
        self._model = model
        self._ledger = ledger
        self._source = source
        self._life = life
        self._now_ms = now_ms
        self._reported = reported
        self._threads = EngineThreads(store, model, ledger, source)
        self._number = 0
        self._halves = sorted(
            sent.identifier
            for sent in history.sent.values()
            if sent.kind == "half" and sent.end_tried is None
        )
        self._handed: list[tuple[str, str]] = []  # id, receipt handle
        self._consumed = history.consumed(store.end_offset)
        self._may_be_consumed: set[str] = set()
        self._loop = asyncio.new_event_loop()
        self._retention = RetentionTask(
            store, model, POLICY, 10_000, self._durable, lambda _: None, self._topic_changes(), self._clock
        )
        self._steps: list[tuple[Callable[[], None], int]] = [
            (self._send, 50),
            (self._schedule, 8),
            (self._prepare, 6),
            (self._end_transaction, 6),
            (self._deliver_timers, 10),
            (self._receive, 12),
            (self._acknowledge, 14),
            (self._commit_offset, 2),
            (self._flush_projections, 6),
            (self._save_snapshot, 1),
            (self._clean, 2),
        ]

    def _clock(self) -> EpochMs:
        return self._now_ms

    def _topic_changes(self) -> TopicChanges:
        async def nothing() -> None:
            """Offsets are saved by a step."""

        return TopicChanges(self._store, self._clock, nothing)

    def run(self, step_count_max: int) -> None:
        """This number of steps; open work is ended then."""
        for name in (READERS, WORKERS):
            if self._model.groups.get(name) is None:
                self._model.groups.create(GROUP if name == WORKERS else SubscriptionGroup(name))
        actions, weights = zip(*self._steps, strict=True)
        for _ in range(step_count_max):
            self._now_ms += self._source.randrange(40)
            self._source.choices(actions, weights)[0]()
            self._threads.turn()
            if len(self._threads.busy) == PRODUCERS:
                self._threads.sync_up_to(self._store.end_offset)
            self._reported(self._threads.acknowledged)
        self._model.events.flush(self._now_ms)
        self._threads.end()
        self._loop.close()

    async def _durable(self, end: int) -> None:
        self._threads.sync_up_to(end)

    # --- producers ----------------------------------------------------------------------------------
    def _new_ids(self, kind: str, count: int = 1) -> list[str]:
        begin = self._number
        self._number += count
        return [f"{self._life}.{number}.{kind}" for number in range(begin, self._number)]

    def _send(self) -> None:
        producer = self._source.randrange(PRODUCERS)
        if producer in self._threads.busy:
            return
        queue_id = (producer + self._source.randrange(2)) % QUEUES
        ids = self._new_ids("plain", self._source.choice((1, 1, 2, 3, 8)))
        self._ledger.add("send", ids, queue_id, 0)
        records = []
        for identifier in ids:
            made = content(identifier)
            records.append(
                record(
                    made.body,
                    topic=TOPIC,
                    queue_id=QueueId(queue_id),
                    keys=" ".join(made.keys),
                    tag=made.tag,
                    unique_key=identifier,
                    append_property_crc=self._store.settings.append_property_crc,
                )
            )
        size_max = self._store.settings.batch_size_max
        while sum(map(len, records)) > size_max:
            records, ids = records[:-1], ids[:-1]
        result = append(self._store, *records, topic=TOPIC, queue_id=QueueId(queue_id), now_ms=self._now_ms)
        places = [result.physical_offset + int(position) for position in result.positions]
        offsets = [result.first_queue_offset + index for index in range(len(ids))]
        self._threads.busy.add(producer)
        self._threads.reply_later(Reply(result.end, ("ack", ids, places, offsets), len(ids), producer))

    def _new_record(self, identifier: str) -> NewRecord:
        made = content(identifier)
        queue_id = self._source.randrange(QUEUES)
        properties = {"UNIQ_KEY": identifier, "KEYS": " ".join(made.keys), "TAGS": made.tag}
        return NewRecord(TOPIC, QueueId(queue_id), made.body, properties, self._now_ms, BORN_HOST)

    def _schedule(self) -> None:
        (identifier,) = self._new_ids("delayed")
        new = self._new_record(identifier)
        long = self._source.random() < 0.2
        deliver_ms = self._now_ms + self._source.randrange(1, 3 * LIFE_MS if long else 3_000)
        self._ledger.add("send", [identifier], new.queue_id, deliver_ms)
        result = self._model.timers.schedule(new, deliver_ms, self._now_ms)
        self._reply_later(result.end, "ack", [identifier], [result.physical_offset], [-1])

    def _reply_later(self, end: int, *line: object) -> None:
        self._threads.reply_later(Reply(end, line))

    def _prepare(self) -> None:
        (identifier,) = self._new_ids("half")
        new = self._new_record(identifier)
        self._ledger.add("send", [identifier], new.queue_id, 0)
        result = self._model.transactions.prepare(new, self._now_ms)
        self._reply_later(result.end, "ack", [identifier], [result.physical_offset], [-1])
        self._halves.append(identifier)

    def _end_transaction(self) -> None:
        if not self._halves or self._source.random() < 0.2:
            return
        identifier = self._halves.pop(self._source.randrange(len(self._halves)))
        commit = self._source.random() < 0.7
        self._ledger.add("end", identifier, commit)
        with suppress(TroveError):  # an unacknowledged half message of an earlier life
            result = self._model.transactions.end(identifier, TOPIC, commit, self._now_ms)
            end = self._store.end_offset
            place = end - 1 if result is None else result.physical_offset
            self._reply_later(end, "ended", identifier, commit, place)

    def _deliver_timers(self) -> None:
        self._model.timers.deliver_due(self._now_ms)

    # --- consumers ----------------------------------------------------------------------------------
    def _receive(self) -> None:
        request = ReceiveRequest(
            group=GROUP,
            topic=TOPIC,
            count_max=self._source.randrange(1, 32),
            invisible_ms=LEASE_MS,
            now_ms=self._now_ms,
        )
        for one in self._model.delivery.receive(request):
            identifier = decode_message(one.record).unique_key or ""
            again = identifier in self._consumed and not may_be_twice(identifier)
            assert not again, f"{identifier} was consumed and is delivered again"
            self._handed.append((identifier, one.receipt_handle))

    def _acknowledge(self) -> None:
        count = self._source.randrange(1, 24)
        chosen, self._handed = self._handed[:count], self._handed[count:]
        if not chosen:
            return
        self._ledger.add("take", [identifier for identifier, _ in chosen])
        handles = [handle for _, handle in chosen]
        refusals = acknowledge_all(self._model.delivery, WORKERS, TOPIC, handles, self._now_ms)
        self._may_be_consumed |= {
            one for (one, _), refusal in zip(chosen, refusals, strict=True) if refusal is None
        }
        if self._source.random() < 0.7:
            self._model.events.flush(self._now_ms)
            self._ledger.add("taken", sorted(self._may_be_consumed), self._store.end_offset)
            self._may_be_consumed.clear()

    def _commit_offset(self) -> None:
        queue_id = self._source.randrange(QUEUES)
        queue = self._store.consume_queues.get(TOPIC, QueueId(queue_id))
        if queue is None:
            return
        offset = queue.lower_bound(self._store.flushed_offset)
        self._ledger.add("reach", queue_id, offset)
        self._store.offsets.commit(READERS, TOPIC, QueueId(queue_id), offset, durable=True)
        self._ledger.add("reached", queue_id, offset)

    # --- in the background --------------------------------------------------------------------------
    def _flush_projections(self) -> None:
        self._store.catch_up(1 << 20)
        if not self._threads.has_work:
            queues = self._source.random() < 0.7
            self._threads.begin_work(lambda: self._store.flush_projections(queues=queues))

    def _save_snapshot(self) -> None:
        if self._threads.has_work:
            return
        work = self._model.begin_snapshot(self._now_ms, always=True)
        if work is not None:
            self._threads.sync_up_to(work.log_end)
            self._threads.begin_work(work.run)

    def _clean(self) -> None:
        """The ledger names every place where the log may begin: only closed segments go."""
        segments = self._store.closed_segments()
        if segments and self._model.saved_log_end < segments[-1].end:
            self._save_snapshot()
        for segment in segments[: POLICY.files_max]:
            self._ledger.add("trim", segment.end)
        self._loop.run_until_complete(self._retention.clean(FREE))
