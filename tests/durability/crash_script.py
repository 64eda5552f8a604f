"""A broker's engine with random work in memory, and its promises: for tests that crash it anywhere.

`Script` does the steps that a broker does: sends, group commits, rolls with and without a spare segment,
flushes of projections, topics, consumer offsets, retention, deliveries and their events, delayed messages,
transactions, clean stops, crashes. Its promises (tests/durability/crash_promises.py) say at every moment
which messages must be there after a crash then.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import pytest

from tests.durability.crash_promises import Delayed, Half, Plain, Promises
from tests.durability.crash_seam import RecordingFileSystem
from tests.support.engine import BORN_HOST, NOW_MS, SMALL, append, record
from tests.support.settling import acknowledge, change_invisible
from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.groups.delivery.request import ReceiveRequest
from trovemq_broker.state.consumer_state import ConsumerState
from trovemq_broker.transactions.records import OP_TOPIC
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueId, QueueOffset
from trovemq_proto.records import decode_message
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.record_writer import NewRecord
from trovemq_store.engine.steps import finished
from trovemq_store.files.memory import PAGE_SIZE, SECTOR_SIZE, MemoryFileSystem
from trovemq_store.topics.subscription_groups import SubscriptionGroup

PLAIN, BILLS, LATER, DEALS = TOPICS = ("orders", "bills", "later", "deals")
QUEUES: Final = 2
TAGS: Final = ("", "Aa", "BB")  # the hashes of the last two are equal
WORKERS: Final = SubscriptionGroup("workers", retry_max=1_000)
AUDIT: Final = "audit"
CONSUMERS: Final = ConsumerSettings(new_group_start="begin", timer_log_file_size=1 << 16)
LEASE_MS: Final = 10_000

Boundary = Callable[["Script", str, str], None]


class Script:
    """One broker's life. `boundary(script, operation, path)` is called ahead of each change of a file."""

    def __init__(
        self, source: random.Random, boundary: Boundary = lambda script, operation, path: None
    ) -> None:
        self._source = source
        self._boundary = boundary
        mode = "async" if source.random() < 0.25 else "sync"
        self.settings = replace(SMALL, flush_mode=mode, index_item_count=48)  # type: ignore[arg-type]
        self._mix_records()
        self.now_ms = NOW_MS
        self.promises = Promises()
        self._count = 0
        self._handles: dict[bytes, str] = {}
        self._delivered: set[bytes] = set()  # since the start: their events are in memory, or in the log
        self.files = RecordingFileSystem()
        self._open(self.files)

    def _mix_records(self) -> None:
        """Records with and without the CRC of the whole may stand in one log."""
        self.settings = replace(self.settings, append_property_crc=self._source.random() < 0.7)

    def _open(self, files: RecordingFileSystem) -> None:
        self.files = files
        files.before = lambda operation, path: self._boundary(self, operation, path)
        self.store = MessageStore.open(files, self.settings, self.now_ms, process_id=7)
        files.log.truncate(self.store.end_offset)
        self.promises.crashed(self.store.end_offset)
        self.store.index_later()
        self.store.index_files_by_work()
        self.model = ConsumerState.open(self.store, files, CONSUMERS, self.now_ms)
        # It may have written events, and synced them.
        self.promises.durable_end = max(self.promises.durable_end, self.store.flushed_offset)
        self.sync()
        if self.model.groups.get(WORKERS.name) is None:
            self.model.groups.create(WORKERS)
        for topic in TOPICS:
            self._have_topic(topic)
        self._handles.clear()
        self._delivered.clear()

    def _have_topic(self, topic: str) -> None:
        if self.store.topics.get(topic) is None:
            self.store.topics.create(topic, queue_count=QUEUES)
        self.promises.topics.add(topic)

    # --- the log ------------------------------------------------------------------------------------
    def sync(self) -> None:
        """One group commit; until it has ended it promises nothing."""
        work = self.store.begin_flush()
        if work is not None:
            work.run()
            grown = self.store.finish_flush(work)
            self.promises.durable_end = work.end
            self.model.on_messages_available(grown)
        self._see()

    def _see(self) -> None:
        if self.settings.flush_mode == "async":
            self.model.on_messages_available(self.store.dispatch())

    def _next_body(self) -> bytes:
        self._count += 1
        size = self._source.choice((0, 60, 600, 1500, 3500))
        return f"{self._count:06}".encode() + bytes(self._source.randrange(size + 1))

    def send(self) -> None:
        topic, queue_id = self._source.choice((PLAIN, PLAIN, BILLS)), self._source.randrange(QUEUES)
        self._have_topic(topic)
        bodies = [self._next_body() for _ in range(self._source.choice((1, 1, 2, 5)))]
        records = [
            record(
                body,
                topic=topic,
                queue_id=QueueId(queue_id),
                keys=f"all k{len(body) % 3} {'x' * self._source.choice((0, 0, 700))}",
                tag=self._source.choice(TAGS),
                unique_key=f"u{body[:6].decode()}",
                append_property_crc=self.settings.append_property_crc,
            )
            for body in bodies
        ]
        while sum(map(len, records)) + 8 > self.settings.commit_log_file_size:
            records.pop()
        self.files.fail_next_log_write = self._source.random() < 0.05
        try:
            result = append(self.store, *records, topic=topic, queue_id=QueueId(queue_id), now_ms=self.now_ms)
        except TroveError as error:
            assert error.spec.symbol == "UNKNOWN_ERROR"  # noqa: PT017
            return
        finally:
            self.files.fail_next_log_write = False
        for body, position in zip(bodies, result.positions.tolist(), strict=False):
            if topic == PLAIN:
                self.promises.plain[body] = Plain(result.physical_offset + position, result.end)
        self._see()

    def refuse(self) -> None:
        """An append that cannot be had changes nothing."""
        before = bytes(self.files.log.data)
        large = record(bytes(5_000), append_property_crc=self.settings.append_property_crc)
        with pytest.raises(TroveError, match="BATCH_SIZE_EXCEEDED"):
            append(self.store, large, large, large, now_ms=self.now_ms)
        assert self.files.log.data == before

    def prepare_segment(self) -> None:
        work = self.store.spare_work()
        if work is not None:
            work.run()
            self.store.finish_spare(work)

    def keep_reserve(self) -> None:
        """Fills the disk reserve."""
        work = self.store.reserve.work()
        if work is not None:
            work.run()
            self.store.reserve.finish(work)

    def flush_projections(self) -> None:
        work = self.store.index_file_work()
        if work is not None:
            work.run()
            self.store.finish_index_file(work)
        self.store.catch_up(1 << 20)
        self.store.flush_projections(index=self._source.random() < 0.5, queues=self._source.random() < 0.7)

    # --- topics, offsets, retention -----------------------------------------------------------------
    def delete_topic(self) -> None:
        if self.store.topics.get(BILLS) is None:
            return
        promises, end = self.promises, self.store.end_offset
        promises.topics.discard(BILLS)
        promises.deletions[BILLS] = (*promises.deletions.get(BILLS, (0,)), end)
        for table in (promises.persisted, promises.committed):
            for place in [place for place in table if place[1] == BILLS]:
                del table[place]
        self.store.delete_topic(BILLS, self.now_ms)
        promises.deletions[BILLS] = (end,)

    def commit_offsets(self) -> None:
        """Never back, so that the persisted offset is a lower bound."""
        for topic in (PLAIN, BILLS):
            for queue_id in map(QueueId, range(QUEUES)):
                queue = self.store.consume_queues.get(topic, queue_id)
                if queue is not None and self._source.random() < 0.7:
                    place = (AUDIT, topic, queue_id)
                    offset = max(self.promises.committed.get(place, 0), queue.max_offset)
                    self.promises.committed[place] = offset
                    self.store.offsets.commit(*place, QueueOffset(offset))
        if self._source.random() < 0.7:
            self.store.offsets.persist()
            for place, offset in self.promises.committed.items():
                self.promises.persisted[place] = min(
                    offset, self._durable_queue_end(place[1], QueueId(place[2]))
                )

    def _durable_queue_end(self, topic: str, queue_id: QueueId) -> int:
        deleted = self.promises.deletions.get(topic, (0,))[-1]
        return max(
            (
                logged.queue_offset + 1
                for logged in self.files.log.records
                if (logged.topic, logged.queue_id) == (topic, queue_id)
                and deleted <= logged.physical_offset < self.promises.durable_end
            ),
            default=0,
        )

    def expire(self) -> None:
        """As the broker's retention does it: pending messages are appended again and synced before a file
        goes."""
        store, promises = self.store, self.promises
        closed = [s for s in store.closed_segments() if s.end <= self.model.saved_log_end]
        if not closed:
            return
        end = closed[0].end
        promises.copy_open()
        store.topics.ensure_internal(OP_TOPIC, 1, now_ms=self.now_ms)
        self.model.reappend_live_records_before(end, self.now_ms)
        self.sync()
        trim = store.trim(end)
        finished(trim.prepare())
        trim.measure()
        self.model.reappend_live_records_before(end, self.now_ms)
        self.sync()
        trim.hide()
        finished(trim.follow())
        promises.begins = (promises.begins[-1], end)
        for plain in promises.plain.values():
            plain.expired |= plain.physical_offset < end and not plain.received
        for logged in self.files.log.records:
            for table in (promises.delayed, promises.halves):
                outstanding = table.get(logged.body)
                if outstanding is not None and logged.physical_offset < end and logged.topic in TOPICS:
                    outstanding.gone = True
        trim.remove()
        promises.begins, promises.copying = (end,), False

    # --- deliveries ---------------------------------------------------------------------------------
    def receive(self) -> None:
        self.now_ms += self._source.choice((0, 10, LEASE_MS))
        request = ReceiveRequest(
            group=WORKERS,
            topic=PLAIN,
            count_max=self._source.randint(1, 8),
            invisible_ms=LEASE_MS,
            now_ms=self.now_ms,
        )
        for one in self.model.delivery.receive(request):
            body = decode_message(one.record).body
            plain = self.promises.plain.get(body)
            assert plain is not None, "a delivered message was sent"
            assert not plain.acked or plain.expired or plain.repeats, (
                "a consumed message is not delivered again"
            )
            if plain.acked:
                plain.acked, plain.expired = False, plain.physical_offset < self.promises.begins[-1]
            plain.received = True
            self._handles[body] = one.receipt_handle
        self._see()

    def acknowledge(self) -> None:
        for body in self._source.sample(sorted(self._handles), len(self._handles) // 2):
            plain, handle = self.promises.plain[body], self._handles.pop(body)
            plain.acked, plain.ack_end = True, None
            try:
                acknowledge(self.model.delivery, WORKERS.name, PLAIN, handle, self.now_ms)
            except TroveError:
                plain.acked = False  # its lease had ended

    def change_invisible(self) -> None:
        for body, handle in sorted(self._handles.items())[:1]:
            try:
                self._handles[body] = change_invisible(
                    self.model.delivery, WORKERS.name, PLAIN, handle, 2 * LEASE_MS, self.now_ms
                )
            except TroveError:
                del self._handles[body]

    def flush_events(self) -> None:
        self.model.events.flush(self.now_ms)
        for plain in self.promises.plain.values():
            if plain.acked and plain.ack_end is None and not plain.expired:
                plain.ack_end = self.store.end_offset
            if plain.received and plain.received_end is None:
                plain.received_end = self.store.end_offset
        for body, delayed in self.promises.delayed.items():
            if body in self._delivered and delayed.ended_end is None:
                delayed.ended_end = self.store.end_offset
        self._see()

    def snapshot(self) -> None:
        work = self.model.begin_snapshot(self.now_ms, always=True)
        assert work is not None
        self.sync()
        work.run()

    # --- delayed messages and transactions ----------------------------------------------------------
    def _new_record(self, topic: str) -> NewRecord:
        body = self._next_body()
        return NewRecord(
            topic,
            QueueId(self._source.randrange(QUEUES)),
            body,
            {"UNIQ_KEY": f"u{body[:6].decode()}", "KEYS": "all"},
            self.now_ms,
            BORN_HOST,
        )

    def schedule(self) -> None:
        new, due_ms = self._new_record(LATER), self.now_ms + self._source.choice((1, 5_000, 80_000))
        result = self.model.timers.schedule(new, due_ms, self.now_ms)
        self.promises.delayed[new.body] = Delayed(due_ms, result.end)
        self._see()

    def deliver_due(self) -> None:
        self.now_ms += self._source.choice((1, 5_000, 80_000))
        before = len(self.files.log.records)
        self.model.timers.deliver_due(self.now_ms)
        self._delivered |= {
            logged.body for logged in self.files.log.records[before:] if logged.topic == LATER
        }
        self._see()

    def prepare(self) -> None:
        new = self._new_record(DEALS)
        result = self.model.transactions.prepare(new, self.now_ms)
        self.promises.halves[new.body] = Half(result.end)
        self._see()

    def end_transaction(self) -> None:
        for body, half in list(self.promises.halves.items()):
            if half.commit is None and half.end <= self.store.visible_offset and self._source.random() < 0.7:
                half.commit = self._source.random() < 0.7
                self.model.transactions.end(f"u{body[:6].decode()}", DEALS, half.commit, self.now_ms)
                half.ended_end = self.store.end_offset
                self._see()

    def check_transactions(self) -> None:
        self.model.transactions.due_checks(self.now_ms)
        self._see()

    # --- stops --------------------------------------------------------------------------------------
    def stop(self) -> None:
        """A clean stop and the next start."""
        self.promises.copy_open()
        self.model.export_to_rocketmq(self.now_ms)
        self.promises.copying = False
        end = self.promises.durable_end = self.store.end_offset
        for plain in self.promises.plain.values():
            plain.received_end = end if plain.received else None
            if plain.acked and not plain.expired:
                plain.ack_end = end
        self.store.close(self.now_ms)
        self._mix_records()
        self._open(self.files)
        assert self.store.recovery.clean

    def crash(self) -> None:
        odds, unit = self._source.choice((0.0, 0.5, 1.0)), self._source.choice((PAGE_SIZE, SECTOR_SIZE))
        self.go_on_from(self.files.after_power_cut(lambda: self._source.random() < odds, unit=unit))

    def kill(self) -> None:
        self.go_on_from(self.files.after_process_kill())

    def go_on_from(self, tree: MemoryFileSystem) -> None:
        self._open(RecordingFileSystem(tree, self.files.log))
        self.promises.committed = {
            (group, topic, queue_id): offset
            for group, topic, queue_id, offset in self.store.offsets.entries()
            if group == AUDIT
        }

    def step(self) -> str:
        """One step by chance; its name."""
        name = self._source.choices(tuple(WEIGHTS), tuple(WEIGHTS.values()))[0]
        getattr(self, name)()
        if self.settings.flush_mode == "sync":
            assert self.store.visible_offset <= self.promises.durable_end, (
                "nobody sees a message that may be lost"
            )
        if self._source.random() < 0.5:
            self.sync()
        return name


WEIGHTS: Final = {
    "send": 14,
    "sync": 3,
    "refuse": 1,
    "prepare_segment": 3,
    "keep_reserve": 1,
    "flush_projections": 6,
    "delete_topic": 1,
    "commit_offsets": 3,
    "expire": 4,
    "receive": 6,
    "acknowledge": 5,
    "change_invisible": 1,
    "flush_events": 4,
    "snapshot": 3,
    "schedule": 3,
    "deliver_due": 3,
    "prepare": 3,
    "end_transaction": 3,
    "check_transactions": 1,
    "stop": 1,
    "crash": 1,
    "kill": 1,
}
