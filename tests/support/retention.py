"""A broker's engine and its retention in memory, with a separate clock and no waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from tests.support.engine import NOW_MS, SMALL, flush, send
from tests.support.settling import acknowledge
from trovemq_broker.admin.topic_changes import TopicChanges
from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.groups.delivery.request import Delivered, ReceiveRequest
from trovemq_broker.maintenance.retention_task import RetentionTask
from trovemq_broker.maintenance.table_files import TableFiles
from trovemq_broker.security.audit_trail import AuditTrail
from trovemq_broker.state.consumer_state import ConsumerState
from trovemq_broker.state.held_log import NOWHERE
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, QueueId
from trovemq_proto.records import Message, decode_message
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.record_writer import NewRecord
from trovemq_store.files.files import FileSystem
from trovemq_store.log.retention import DiskUse, RetentionPolicy
from trovemq_store.settings import StoreSettings
from trovemq_store.topics.subscription_groups import RetryPolicy, SubscriptionGroup

SETTINGS: Final = replace(
    SMALL, commit_log_file_size=32_768, body_size_max=16_384, index_item_count=64, flush_mode="sync"
)
CONSUMERS: Final = ConsumerSettings(new_group_start="begin", timer_log_file_size=1 << 16)
LEASE_MS: Final = 60_000
HOUR_MS: Final = 3_600_000
AUDIT_AGE_MS: Final = 90 * 24 * HOUR_MS
AT_ONCE: Final = RetentionPolicy(reserved_ms=HOUR_MS, hours=frozenset(range(24)), forcible_enable=True)
FREE: Final = DiskUse(1_000, 900)
PRESSED: Final = DiskUse(1_000_000, 100)
WORKERS: Final = SubscriptionGroup("workers", retry_policy=RetryPolicy("customized", (1_000,)), retry_max=2)
STEPS: Final = SubscriptionGroup("steps", orderly=True, retry_max=2)


class Broker:
    """One run; `files` outlive it. `task` decides by AT_ONCE unless given another policy."""

    def __init__(
        self,
        files: FileSystem,
        *,
        now_ms: EpochMs = NOW_MS,
        policy: RetentionPolicy = AT_ONCE,
        settings: StoreSettings = SETTINGS,
        interval_ms: int = 10_000,
    ) -> None:
        self.files = files
        self.now_ms = now_ms
        self.store = MessageStore.open(files, settings, now_ms, process_id=7)
        self.model = ConsumerState.open(self.store, files, CONSUMERS, now_ms)
        for group in (WORKERS, STEPS):
            if self.model.groups.get(group.name) is None:
                self.model.groups.create(group)
        for topic in ("orders", "lines", "filler"):
            if self.store.topics.get(topic) is None:
                self.store.topics.create(topic, queue_count=1)
        self.refusal: TroveError | None = None
        self.copies_need = NOWHERE
        """Other copies lack the log from there on."""
        self.topic_changes = TopicChanges(
            self.store, lambda: self.now_ms, self._nothing, durable=self._durable
        )
        self.before_durable: Callable[[], None] = lambda: None
        self.audit = AuditTrail(self.store, self.model.writer, AUDIT_AGE_MS, "t")
        self.task = RetentionTask(
            self.store,
            self.model,
            policy,
            interval_ms,
            self._durable,
            self._hold,
            self.topic_changes,
            lambda: self.now_ms,
            carry_audit=self.audit.carry,
            carry_tables=TableFiles(self.store, self._durable).carry,
            copies_need=lambda: self.copies_need,
        )

    def _hold(self, error: TroveError | None) -> None:
        self.refusal = error

    async def _nothing(self) -> None:
        """Offsets are saved when a test wants that."""

    async def _durable(self, end: int) -> None:
        self.before_durable()
        self.sync()
        assert self.store.flushed_offset >= end

    def sync(self) -> None:
        """One group commit, and a read of the messages that became visible."""
        flush(self.store)
        self.store.dispatch()
        self.model.timers.catch_up()
        self.model.transactions.catch_up()

    # --- messages -----------------------------------------------------------------------------------
    def send(self, body: str, topic: str = "orders", *, key: str = "") -> str:
        """Returns its offsetMsgId; `key` is the message group."""
        properties = {"__SHARDINGKEY": key} if key else {}
        result = send(
            self.store,
            body.encode(),
            self.now_ms,
            topic=topic,
            unique_key=f"id-{body}",
            keys=f"k-{body}",
            properties=properties,
        )
        self.sync()
        return result.offset_msg_ids()[0]

    def schedule(self, body: str, deliver_ms: EpochMs) -> None:
        record = NewRecord("orders", QueueId(0), body.encode(), {"UNIQ_KEY": f"id-{body}"}, self.now_ms)
        self.model.timers.schedule(record, deliver_ms, self.now_ms)
        self.sync()

    def prepare(self, body: str) -> None:
        record = NewRecord("orders", QueueId(0), body.encode(), {"UNIQ_KEY": f"id-{body}"}, self.now_ms)
        self.model.transactions.prepare(record, self.now_ms)
        self.sync()

    def commit(self, body: str) -> None:
        self.model.transactions.end(f"id-{body}", "orders", True, self.now_ms)
        self.sync()

    def receive(
        self, group: SubscriptionGroup = WORKERS, topic: str = "orders", *, count: int = 32
    ) -> list[Delivered]:
        request = ReceiveRequest(
            group=group, topic=topic, count_max=count, invisible_ms=LEASE_MS, now_ms=self.now_ms
        )
        found = self.model.delivery.receive(request)
        self.model.events.flush(self.now_ms)
        self.sync()
        return found

    def ack(
        self, delivered: list[Delivered], group: SubscriptionGroup = WORKERS, topic: str = "orders"
    ) -> None:
        for one in delivered:
            acknowledge(self.model.delivery, group.name, topic, one.receipt_handle, self.now_ms)
        self.model.events.flush(self.now_ms)
        self.sync()

    def deliver_timers(self) -> int:
        count = 0
        while turn := self.model.timers.deliver_due(self.now_ms):
            count += turn
            self.sync()
        return count

    def messages(self, topic: str) -> list[Message]:
        queue = self.store.consume_queues.get(topic, QueueId(0))
        if queue is None:
            return []
        units = queue.units(queue.min_offset, queue.max_offset - queue.min_offset)
        records = [self.store.record_at(at) for at in units["physical_offset"].tolist()]
        return [decode_message(record) for record in records if record is not None]

    # --- retention ----------------------------------------------------------------------------------
    def fill(self, segments: int = 1) -> None:
        """The log gets `segments` closed segments, which only pending messages keep from removal."""
        end = self.store.end_offset // 32_768 * 32_768 + segments * 32_768
        while self.store.end_offset < end:
            self.send("x" * 5_000, "filler")
        self.store.flush_projections()
        self.save_snapshot()

    def save_snapshot(self) -> None:
        work = self.model.begin_snapshot(self.now_ms, always=True)
        assert work is not None
        self.sync()
        work.run()

    def clean(self, disk: DiskUse = FREE) -> int:
        """One run; how many segments went."""
        return asyncio.run(self.task.clean(disk))

    # --- stops --------------------------------------------------------------------------------------
    def stop(self) -> Broker:
        """A clean stop, and the next start."""
        self.model.export_to_rocketmq(self.now_ms)
        self.store.close(self.now_ms)
        return Broker(self.files, now_ms=self.now_ms)


def bodies(delivered: list[Delivered]) -> list[str]:
    return [decode_message(one.record).body.decode() for one in delivered]
