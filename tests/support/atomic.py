"""Atomic transactions on a store in memory, and their state after a crash."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from tests.support.engine import NOW_MS, SMALL_SYNC, flush, read_queue, record, send, with_crc_property
from trovemq_broker.atomic.commits import AtomicCommits
from trovemq_broker.atomic.ends import Committed
from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.filters.filter import TAKE_ALL
from trovemq_broker.groups.delivery.prepared import Acknowledgement
from trovemq_broker.groups.delivery.request import Delivered, ReceiveRequest
from trovemq_broker.state.consumer_state import ConsumerState
from trovemq_proto.positions import ANY_QUEUE, EpochMs, QueueId
from trovemq_proto.records import Message, RecordBatch, validate_batch
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.files import FileSystem
from trovemq_store.settings import StoreSettings
from trovemq_store.topics.subscription_groups import SubscriptionGroup

TOPICS: Final = ("feed", "orders", "bills")
GROUP: Final = "workers"
LEASE_MS: Final = 10_000
SEGMENT: Final = replace(SMALL_SYNC, commit_log_file_size=32_768, consume_queue_file_size=400)


def batch_of(topic: str, queue_id: QueueId, bodies: Iterable[bytes], settings: StoreSettings) -> RecordBatch:
    """A validated batch, as the produce path makes it."""
    wanted = settings.append_property_crc
    records = [record(body, topic=topic, queue_id=queue_id, unique_key=body[:20].hex()) for body in bodies]
    return validate_batch(
        bytearray().join(map(with_crc_property, records) if wanted else records),
        topic=topic,
        queue_id=queue_id,
        body_size_max=settings.body_size_max,
        store_host_ipv6=False,
        append_property_crc=wanted,
    )


@dataclass
class Sent:
    """One transaction that was to be committed, and its parts."""

    transaction_id: str
    messages: list[tuple[str, int, bytes]]
    acknowledged: list[bytes]
    durable: bool = False
    refused: bool = False


@dataclass
class AtomicStore:
    """An open store with its consumer model. `sent` is the ledger of its transactions over all its lives."""

    files: FileSystem
    settings: StoreSettings = SEGMENT
    now_ms: EpochMs = NOW_MS
    sent: list[Sent] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store = MessageStore.open(self.files, self.settings, self.now_ms, process_id=7)
        try:
            for topic in TOPICS:
                if self.store.topics.get(topic) is None:
                    self.store.topics.create(topic, queue_count=2)
            settings = ConsumerSettings(new_group_start="begin")
            self.model = ConsumerState.open(self.store, self.files, settings, self.now_ms)
        except BaseException:
            self.store._release(stopped=False)
            raise
        self.commits = AtomicCommits(self.store, self.model)

    def feed(self, *bodies: bytes, queue_id: QueueId = QueueId(0)) -> None:
        for body in bodies:
            send(self.store, body, self.now_ms, topic="feed", queue_id=queue_id, unique_key=body.hex())
        self.flush()

    def flush(self) -> None:
        """One group commit; the covered messages are durable."""
        flush(self.store)
        self.store.dispatch()
        if self.store.flushed_offset == self.store.end_offset:
            for sent in self.sent:
                sent.durable = sent.durable or not sent.refused

    def receive(self, count: int = 32, *, group: str = GROUP, topic: str = "feed") -> list[Delivered]:
        request = ReceiveRequest(
            group=SubscriptionGroup(group),
            topic=topic,
            queue_id=ANY_QUEUE,
            filter=TAKE_ALL,
            count_max=count,
            invisible_ms=LEASE_MS,
            now_ms=self.now_ms,
            client_id="client",
        )
        return self.model.delivery.receive(request)

    def commit(
        self,
        transaction_id: str,
        messages: Sequence[tuple[str, int, bytes]],
        delivered: Sequence[Delivered] = (),
        *,
        group: str = GROUP,
    ) -> Committed:
        """Appends the transaction; durable after flush()."""
        bodies = [body_of(one) for one in delivered]
        sent = Sent(transaction_id, list(messages), bodies)
        self.sent.append(sent)
        run = self.commits.new_run(transaction_id)
        try:
            for topic, queue_id, body in messages:
                run.add(batch_of(topic, QueueId(queue_id), [body], self.settings), topic, QueueId(queue_id))
            given = [Acknowledgement(group, "feed", one.receipt_handle) for one in delivered]
            return self.commits.commit(run, given, self.now_ms)
        except BaseException:
            sent.refused = True
            raise

    def messages(self, transaction_id: str) -> list[Message]:
        """The visible part of a transaction, by every queue of its topics."""
        return [
            message
            for topic in ("orders", "bills")
            for queue_id in range(2)
            for message in read_queue(self.store, topic, QueueId(queue_id))
            if message.properties.get("TROVEMQ_TX_ID") == transaction_id
        ]

    def outstanding(self) -> list[bytes]:
        """Bodies of the messages of "feed" that the group has not consumed: in the end all of them."""
        self.now_ms += 100 * LEASE_MS
        found: list[bytes] = []
        while delivered := self.receive():
            found += [body_of(one) for one in delivered]
        return found

    def check_all_or_none(self) -> set[str]:
        """No half transaction is visible, by a pull, its id or its pending messages. The ids that are
        there."""
        outstanding = self.outstanding()
        assert len(outstanding) == len(set(outstanding)), "each message is delivered again once"
        there = set()
        for sent in self.sent:
            seen = sorted((m.topic, m.queue_id, m.body) for m in self.messages(sent.transaction_id))
            consumed = [body for body in sent.acknowledged if body not in outstanding]
            if sent.transaction_id in self.commits.ends:
                there.add(sent.transaction_id)
                assert seen == sorted(sent.messages), sent.transaction_id
                assert consumed == sent.acknowledged, "its acknowledgements are there"
                committed = self.commits.ends.committed(sent.transaction_id)
                assert [(m.topic, m.queue_id) for m in committed.messages] == [m[:2] for m in sent.messages]
            else:
                assert seen == [], f"a part of {sent.transaction_id} is seen"
                others = {body for other in self.sent for body in other.acknowledged if other is not sent}
                assert not set(consumed) - others, "messages are consumed by a transaction that is not there"
            assert not (sent.durable and sent.transaction_id not in there), f"{sent.transaction_id} is lost"
        return there


def body_of(delivered: Delivered) -> bytes:
    return RecordBatch.split(bytes(delivered.record)).message(0).body
