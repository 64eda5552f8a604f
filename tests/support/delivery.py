"""A delivery engine over a store in memory, with a separate clock: for tests of
broker/trovemq_broker/groups/delivery."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tests.support.engine import NOW_MS, SMALL, flush, send
from tests.support.settling import acknowledge
from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.filters.filter import TAKE_ALL, Filter
from trovemq_broker.groups.delivery.delivery import Delivery
from trovemq_broker.groups.delivery.request import Delivered, DeliveredRun, ReceiveRequest
from trovemq_broker.groups.delivery.snapshots import DeliveryState
from trovemq_proto.positions import ANY_QUEUE, QueueId, QueueOffset
from trovemq_proto.records import Message, decode_message
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.record_writer import RecordWriter
from trovemq_store.events.event_log import EventLog
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.settings import StoreSettings
from trovemq_store.topics.subscription_groups import SubscriptionGroup, SubscriptionGroups

LEASE_MS = 10_000
ROOMY = replace(SMALL, commit_log_file_size=1 << 20, consume_queue_file_size=20 * 4_096)


class Engine:
    """One store with its delivery engine. `now_ms` is the time; nothing moves it but the test."""

    def __init__(
        self,
        settings: ConsumerSettings | None = None,
        *,
        files: MemoryFileSystem | None = None,
        store_settings: StoreSettings = ROOMY,
        topic: str = "orders",
        queue_count: int = 1,
    ) -> None:
        self.settings = settings or ConsumerSettings(new_group_start="begin")
        self.store_settings = store_settings
        self.now_ms = NOW_MS
        self.files = files or MemoryFileSystem()
        self._open()
        if self.store.topics.get(topic) is None:
            self.store.topics.create(topic, queue_count=queue_count)

    def _open(self, state: DeliveryState | None = None, begin: int = 0) -> None:
        self.store = MessageStore.open(self.files, self.store_settings, self.now_ms, process_id=7)
        self.writer = RecordWriter(self.store, self._appended)
        self.events = EventLog(self.store, self.writer)
        self.groups = SubscriptionGroups.load(self.files)
        self.delivery = Delivery(self.store, self.writer, self.events, self.groups, self.settings)
        if state is not None:
            self.delivery.restore(state)
        for event in self.events.replay(QueueOffset(begin)):
            self.delivery.apply(event)
        self.delivery.complete_replay()

    def _appended(self) -> None:
        self.store.dispatch()

    # --- life ------------------------------------------------------------------------------------------
    def crash(self, *, flushed: bool = False) -> None:
        """The process is killed; with `flushed` the events were in the log, else those that wait are lost."""
        if flushed:
            self.events.flush(self.now_ms)
            self.store.dispatch()
        self.files = self.files.after_process_kill()
        self._open()

    def restart(self) -> None:
        """A clean stop and start, by the snapshot of the state (no hand-back)."""
        self.events.flush(self.now_ms)
        state, begin = self.delivery.snapshot(), self.events.next_offset
        self.store.close(self.now_ms)
        self._open(state, begin)

    def export_to_rocketmq(self) -> None:
        """A clean stop as the broker makes it, and a start from the events alone."""
        self.delivery.export_to_rocketmq(self.now_ms, self.files)
        self.events.flush(self.now_ms)
        flush(self.store)
        self.store.close(self.now_ms)
        self._open()

    def spoil(self, physical_offset: int) -> None:
        """The record's body goes bad, and the process is killed: from then on its CRC counts."""
        flush(self.store)
        self.store.flush_projections(index=False)  # the part below the marks is not read again
        path = f"commitlog/{0:020d}"
        self.files._files[path].data[physical_offset + 88] ^= 0xFF
        self.crash(flushed=True)

    # --- clients ---------------------------------------------------------------------------------------
    def send(
        self,
        body: str,
        topic: str = "orders",
        queue_id: QueueId = QueueId(0),
        *,
        key: str = "",
        tag: str = "",
    ) -> int:
        """Returns the queue offset; `key` is the message group."""
        properties = {"__SHARDINGKEY": key} if key else {}
        result = send(
            self.store,
            body.encode(),
            self.now_ms,
            topic=topic,
            queue_id=queue_id,
            tag=tag,
            unique_key=f"id-{body}",
            properties=properties,
        )
        return result.first_queue_offset

    def receive(
        self,
        group: str | SubscriptionGroup = "workers",
        topic: str = "orders",
        *,
        count: int = 32,
        queue_id: QueueId = ANY_QUEUE,
        filter: Filter = TAKE_ALL,  # noqa: A002
        invisible_ms: int = LEASE_MS,
        client_id: str = "client",
        renewed: bool = False,
        attempt_id: str = "",
    ) -> list[Delivered]:
        request = self._request(group, topic, count, invisible_ms)
        return self.delivery.receive(
            replace(
                request,
                queue_id=queue_id,
                filter=filter,
                client_id=client_id,
                renewed=renewed,
                attempt_id=attempt_id,
            )
        )

    def receive_runs(
        self, group: str = "workers", topic: str = "orders", *, count: int = 32
    ) -> list[DeliveredRun]:
        return self.delivery.receive_runs(self._request(group, topic, count, LEASE_MS))

    def _request(
        self, group: str | SubscriptionGroup, topic: str, count: int, invisible_ms: int
    ) -> ReceiveRequest:
        known = group if isinstance(group, SubscriptionGroup) else self.groups.get(group)
        return ReceiveRequest(
            group=known or SubscriptionGroup(str(group)),
            topic=topic,
            count_max=count,
            invisible_ms=invisible_ms,
            now_ms=self.now_ms,
            client_id="client",
        )

    def ack(self, *delivered: Delivered, group: str = "workers", topic: str = "orders") -> None:
        for one in delivered:
            acknowledge(self.delivery, group, topic, one.receipt_handle, self.now_ms)

    def committed(
        self, group: str = "workers", topic: str = "orders", queue_id: QueueId = QueueId(0)
    ) -> int | None:
        return self.store.offsets.get(group, topic, queue_id)

    def messages(self, topic: str, queue_id: QueueId = QueueId(0)) -> list[Message]:
        """Every message of a queue."""
        queue = self.store.consume_queues.get(topic, queue_id)
        if queue is None:
            return []
        places = queue.units(queue.min_offset, queue.max_offset - queue.min_offset)[
            "physical_offset"
        ].tolist()
        records = [self.store.record_at(place) for place in places]
        return [decode_message(record) for record in records if record is not None]


def bodies(delivered: Sequence[Delivered]) -> list[str]:
    return [decode_message(one.record).body.decode() for one in delivered]


def attempts(delivered: Sequence[Delivered]) -> list[int]:
    return [one.attempt for one in delivered]
