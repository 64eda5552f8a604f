"""Records with any fields go through a whole life: received, retried, dead-lettered, carried by retention,
filtered, searched, tracked, exported at a stop, read again after a start and after a kill.

Of the doors' records all fields are drawn that a door takes; of a store's, also those that none takes today
(an older version, or RocketMQ, may have stored them)."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

import pytest

from tests.support.engine import append_batch, validated, with_crc_property
from tests.support.retention import HOUR_MS, LEASE_MS, SETTINGS, STEPS, WORKERS, Broker
from trovemq_broker.filters.filter import parse_filter
from trovemq_broker.groups.delivery.reappends import CARRIED_TOPIC
from trovemq_broker.groups.delivery.request import ReceiveRequest
from trovemq_broker.query.key_query import KeyQuery, KeyType
from trovemq_broker.query.query_by_key import query_page
from trovemq_broker.query.search.conditions import SearchQuery
from trovemq_broker.query.search.search import search_page
from trovemq_broker.server.wire.rocketmq_messages import message_of
from trovemq_broker.track.diagnosis import Members
from trovemq_broker.track.message_tracker import Limits, MessageTracker
from trovemq_broker.transactions.records import HALF_TOPIC
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueId
from trovemq_proto.records import Message, RecordBatch, decode_received, decode_stored, encode_record
from trovemq_proto.records.layout import RESERVED_PROPERTIES
from trovemq_proto.records.limits import BORN_TIMESTAMP_MAX
from trovemq_store.engine.record_writer import NewRecord
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.topics.subscription_groups import SubscriptionGroup

pytestmark = pytest.mark.usefixtures("small_timer_wheel")

TREES: Final = replace(SETTINGS, tree_index_enable=True)
NAMES: Final = (*sorted(RESERVED_PROPERTIES - {"UNIQ_KEY"}), "a", "b", "é", "TAGS", "KEYS")
TEXTS: Final = (
    *(b"", b"0", b"-1", b"1", b"99999999999999999999", b"true", b"orders", b"%RETRY%workers", b"a b", b" "),
    *(b"\xff\xfe", b"\x00\x00", b"x\x01y", b"\xed\xa0\x80", b"9" * 5_000, b"%DLQ%workers", b"3 4 5"),
)
STREAM_HEADS: Final = {0x1: b"\x78\x9c", 0x101: bytes.fromhex("04224d18"), 0x201: bytes.fromhex("28b52ffd")}
SQL: Final = SubscriptionGroup("sql")
FILTER: Final = parse_filter("sql92", "a > 1 OR TAGS = 'x' OR b IS NULL OR _SYS_MSG_PRIORITY_ < 3")


def properties_of(source: random.Random, unique_key: str, message_group: str) -> bytes:
    """Any pieces: names of RocketMQ, twice the same, broken text."""
    pieces = [b"UNIQ_KEY\x01%s\x02" % unique_key.encode()]
    for _ in range(source.randrange(6)):
        name = source.choice(NAMES).encode() if source.random() < 0.8 else source.choice(TEXTS)
        value = source.choice(TEXTS) if source.random() < 0.8 else source.randbytes(source.randrange(40))
        pieces.append(name + source.choice((b"\x01", b"\x01", b"\x01", b"")) + value + b"\x02")
    if message_group:
        pieces.append(b"__SHARDINGKEY\x01%s\x02" % message_group.encode())
    source.shuffle(pieces)
    return b"".join(pieces)


def record_of(source: random.Random, topic: str, unique_key: str, *, any_store: bool) -> bytes:
    sys_flag = source.choice((0, 0, 2, 0x300, *STREAM_HEADS))
    body = STREAM_HEADS.get(sys_flag, b"") + source.randbytes(source.randrange(60))
    port = source.choice((0, 1, 65_535, -1, 1 << 30)) if any_store else source.randrange(65_536)
    return encode_record(
        topic,
        body,
        properties=properties_of(source, unique_key, source.choice("ab") if topic == "lines" else ""),
        flag=source.choice((0, -1, 7, 2**31 - 1, -(2**31))),
        sys_flag=sys_flag,
        born_timestamp=source.choice((0, 1, BORN_TIMESTAMP_MAX, *((-1, 2**62) if any_store else ()))),
        born_host=source.randbytes(source.choice((4, 16))) + port.to_bytes(4, signed=True),
        reconsume_times=source.choice((0, 5, -3)) if any_store else 0,
        prepared_transaction_offset=source.choice((0, 9, -9)) if any_store else 0,
    )


@contextmanager
def suppress_not_found() -> Iterator[None]:
    """Retention took the message."""
    try:
        yield
    except TroveError as error:
        if error.spec is not errors.MESSAGE_NOT_FOUND:
            raise


class Life:
    """One broker and its messages."""

    def __init__(self, seed: int, *, any_store: bool) -> None:
        self.source = random.Random(seed)
        self.any_store = any_store
        self.broker = Broker(MemoryFileSystem(), settings=TREES)
        self.sent: dict[str, Message] = {}
        self.committing: list[str] = []

    def send(self, topic: str, count: int) -> None:
        store = self.broker.store
        while count:
            unique_key = f"id-{len(self.sent)}"
            record = record_of(self.source, topic, unique_key, any_store=self.any_store)
            try:
                batch = validated(store, [record], topic, QueueId(0))
            except TroveError:
                if not self.any_store:
                    continue
                data = bytearray(with_crc_property(record))
                batch = RecordBatch.split(data, topic=topic)
            try:
                append_batch(store, batch, topic, now_ms=self.broker.now_ms, born_host=None)
            except TroveError:
                continue  # properties like a lost sector
            self.sent[unique_key] = decode_stored(record)
            count -= 1
        self.broker.sync()

    def send_waiting(self) -> None:
        """A delayed message and two half ones, one of which is committed later."""
        broker = self.broker
        for action in ("schedule", "prepare", "commit"):
            unique_key = f"id-{len(self.sent)}"
            record = record_of(self.source, "orders", unique_key, any_store=self.any_store)
            new = NewRecord.copy_of(decode_stored(record), "orders", QueueId(0))
            if action == "schedule":
                broker.model.timers.schedule(new, broker.now_ms + HOUR_MS, broker.now_ms)
            else:
                broker.model.transactions.prepare(new, broker.now_ms)
                self.committing += [unique_key] if action == "commit" else []
            self.sent[unique_key] = decode_stored(record)
        broker.sync()

    def commit(self) -> None:
        for unique_key in self.committing:
            self.broker.model.transactions.end(unique_key, "orders", True, self.broker.now_ms)
        self.committing.clear()
        self.broker.sync()

    def receive_all(self) -> None:
        """By a plain group, an ordered one, and one with a condition; clients read the messages."""
        broker = self.broker
        for group, topic in ((WORKERS, "orders"), (STEPS, "lines")):
            found = broker.receive(group, topic)
            for one in found:
                message_of(one.record, topic, QueueId(0), one.queue_offset).SerializeToString()
                decode_received(one.record)
            broker.ack(found[:1], group, topic)
        request = ReceiveRequest(
            group=SQL, topic="orders", count_max=8, invisible_ms=LEASE_MS, now_ms=broker.now_ms, filter=FILTER
        )
        broker.model.delivery.receive(request)
        broker.model.events.flush(broker.now_ms)
        broker.sync()

    def ask(self) -> None:
        store, broker = self.broker.store, self.broker
        store.catch_up_trees()
        for topic in ("orders", "lines"):
            search_page(store, SearchQuery(topic))
            query_page(store, KeyQuery(topic, "a"))
        for unique_key in self.source.sample(sorted(self.sent), 3):
            query_page(store, KeyQuery("", unique_key, KeyType.UNIQUE))
            biographer = MessageTracker(
                store, broker.model, lambda *_: Members(0, 0, "", []), lambda _: [], Limits()
            )
            with suppress_not_found():
                deque(biographer.steps(unique_key, "", lambda: broker.now_ms), maxlen=0)

    def live(self) -> None:
        """Attempts that end, dead letters, retention."""
        for _ in range(4):
            self.receive_all()
            self.broker.now_ms += 2 * LEASE_MS
        self.receive_all()
        self.ask()
        self.broker.fill()
        self.broker.now_ms += 2 * HOUR_MS
        self.broker.fill()
        assert self.broker.clean() > 0, "segments went"

    def kill(self) -> None:
        files = self.broker.files
        assert isinstance(files, MemoryFileSystem)
        self.broker = Broker(files.after_process_kill(), now_ms=self.broker.now_ms, settings=TREES)

    def stop(self) -> None:
        broker = self.broker
        broker.model.export_to_rocketmq(broker.now_ms)
        broker.store.close(broker.now_ms)
        self.broker = Broker(broker.files, now_ms=broker.now_ms, settings=TREES)

    def check(self) -> int:
        """Every copy equals its original; how many there are."""
        count = 0
        assert self.broker.model.writer.copy_failures.count == 0
        for topic in self.broker.store.consume_queues.topics():
            if topic in ("orders", "lines", HALF_TOPIC) or topic.startswith(("%", CARRIED_TOPIC)):
                for copy in self.messages(topic):
                    check_copy(copy, self.sent[copy.unique_key or ""])
                    count += 1
        return count

    def messages(self, topic: str) -> list[Message]:
        queue = self.broker.store.consume_queues.get(topic, QueueId(0))
        assert queue is not None
        units = queue.units(queue.min_offset, queue.max_offset - queue.min_offset)
        records = [self.broker.store.record_at(at) for at in units["physical_offset"].tolist()]
        return [decode_stored(record) for record in records if record is not None]


ADDED: Final = {"DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID", "1ST_POP_TIME", "RETRY_TOPIC", "__CRC32#"}


WAITING: Final = ("REAL_", "TIMER_", "TRAN", "PGROUP", "CHECK_", "__", "CLUSTER", "CORR")
"""How names begin that a half or a delayed message gets, or loses."""


def check_copy(copy: Message, original: Message) -> None:
    for name in ("flag", "born_timestamp", "packed_born_host", "stored_body", "body_crc"):
        assert getattr(copy, name) == getattr(original, name), name
    assert copy.sys_flag & ~0x3C == original.sys_flag & ~0x3C
    for name, value in original.properties.items():
        if name not in ADDED and not name.startswith(
            ("REAL_", "TIMER_", "TRAN", "PGROUP", "CHECK_", "__trans")
        ):
            assert copy.properties[name] == value
    pieces = original.property_block.split(b"\x02")
    names = {piece.partition(b"\x01")[0].decode("utf-8", "replace") for piece in pieces}
    if not names & ADDED and not any(name.startswith(WAITING) for name in names):
        assert copy.property_block.startswith(original.property_block), "not a byte of it is another one"


@pytest.mark.untraced
@pytest.mark.parametrize("any_store", [False, True], ids=["of the doors", "of any store"])
@pytest.mark.parametrize("seed", range(12))
def test_one_odd_record_stopped_retention_dead_letters_and_the_clean_stop(seed: int, any_store: bool) -> None:
    life = Life(seed, any_store=any_store)
    life.send("orders", 9)
    life.send("lines", 5)
    life.send_waiting()
    life.live()
    life.commit()
    life.broker.deliver_timers()
    assert life.check() > 0
    life.send("orders", 4)
    life.receive_all()
    life.stop()
    life.check()
    life.receive_all()
    life.kill()
    life.send("lines", 3)
    life.send_waiting()
    life.live()
    life.broker.deliver_timers()
    life.check()
    life.stop()
    life.check()
    life.ask()
