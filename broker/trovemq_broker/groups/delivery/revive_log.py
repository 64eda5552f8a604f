"""Reads RocketMQ's log of pop receives: check points (delivered messages) and acknowledgements.

(docs/store-format.md, "Retries, dead letters and pop receives")

They are messages of `rmq_sys_REVIVE_LOG_<cluster>` that first wait in the timer wheel. A check point is
pending if it still waits, or if its time has come and the reader group has not passed it: its unacknowledged
offsets are in flight. The timers know which records of the wheel's queue still wait; one that was imported
before does not.

Bodies are JSON: ck `{"bm", "c", "d", "it", "n", "pt", "q", "so", "t"}`, ack `{"ao", "c", "pt", "q", "so",
"t"}`, bAck with `"aol"` instead of `"ao"`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

import msgspec

from trovemq_broker.timers.wheel_records import WHEEL_QUEUE_ID, WHEEL_TOPIC
from trovemq_proto.errors import DamagedError
from trovemq_proto.positions import EpochMs, QueueId, QueueOffset
from trovemq_proto.records import Message, decode_message, java_hash
from trovemq_proto.records.check import is_plausible_topic
from trovemq_proto.records.layout import PROPERTY_REAL_TOPIC
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.queue_units import BLANK_UNIT_SIZE, UNITS_STEP
from trovemq_store.topics.names import RETRY_PREFIX

REVIVE_PREFIX: Final = "rmq_sys_REVIVE_LOG_"
REVIVE_GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"
_CHECK_POINT_TAG: Final = "ck"
_ACK_TAGS: Final = ("ack", "bAck")


class CheckPoint(msgspec.Struct, frozen=True):
    """The messages that one pop receive delivered from one queue."""

    t: str
    q: QueueId
    c: str
    so: int
    pt: EpochMs
    it: int
    n: int = 0
    bm: int = 0
    d: tuple[int, ...] | None = None

    @property
    def key(self) -> Key:
        return self.c, self.t, self.q, self.so, self.pt

    @property
    def revive_ms(self) -> EpochMs:
        return self.pt + self.it

    @property
    def is_plausible(self) -> bool:
        """Whether RocketMQ could have written it: `n` is one byte in RocketMQ, and the group's name is legal
        in a topic name."""
        return self.n < 256 and is_plausible_topic(f"{RETRY_PREFIX}{self.c}")

    def open_offsets(self) -> list[int]:
        """The offsets that the check point itself does not mark as acknowledged."""
        offsets = [self.so + step for step in (self.d or range(self.n))]
        return [offset for index, offset in enumerate(offsets) if not self.bm >> index & 1]


class _Ack(msgspec.Struct):
    t: str
    q: QueueId
    c: str
    so: int
    pt: EpochMs
    ao: int = -1
    aol: list[int] | None = None


Key = tuple[str, str, int, int, int]


class ReviveLog:
    """The content of the store's revive topics, and of the wheel. `waiting`: offsets in the wheel's queue of
    all records that wait for a revive topic."""

    def __init__(self, store: MessageStore, waiting: Collection[int]) -> None:
        self._store = store
        self._pending: dict[Key, CheckPoint] = {}
        self._passed: set[Key] = set()
        self._acknowledged: dict[Key, set[int]] = {}
        for topic, queue_id in self.queues(store):
            queue = store.consume_queues.get(topic, queue_id)
            low = queue.min_offset if queue is not None else 0
            passed = store.offsets.get(REVIVE_GROUP, topic, queue_id) or 0
            for offset, message in _tagged(store, topic, queue_id, low):
                self._read(message, pending=offset >= passed)
        if waiting or self.queues(store):
            for offset, message in _tagged(store, WHEEL_TOPIC, WHEEL_QUEUE_ID, 0):
                if message.properties.get(PROPERTY_REAL_TOPIC, "").startswith(REVIVE_PREFIX):
                    self._read(message, pending=offset in waiting)

    @staticmethod
    def queues(store: MessageStore) -> list[tuple[str, QueueId]]:
        """(topic, queue id) of every revive queue that has messages."""
        topics = [topic for topic in store.consume_queues.topics() if topic.startswith(REVIVE_PREFIX)]
        return [(topic, queue.queue_id) for topic in topics for queue in store.consume_queues.queues(topic)]

    def in_flight(self) -> list[tuple[CheckPoint, list[int]]]:
        """The pending check points, earliest first, each with its unacknowledged offsets."""
        found = []
        for key, point in self._pending.items():
            if key in self._passed:
                continue
            acknowledged = self._acknowledged.get(key, set())
            offsets = [offset for offset in point.open_offsets() if offset not in acknowledged]
            if offsets:
                found.append((point, offsets))
        return sorted(found, key=lambda one: (one[0].pt, one[0].key))

    def _read(self, message: Message, *, pending: bool) -> None:
        try:
            if message.tags == _CHECK_POINT_TAG:
                point = msgspec.json.decode(message.body, type=CheckPoint)
                if not point.is_plausible:
                    return
                if pending:
                    self._pending[point.key] = point
                elif not message.topic.startswith(WHEEL_TOPIC):
                    self._passed.add(point.key)
            else:
                ack = msgspec.json.decode(message.body, type=_Ack)
                offsets = self._acknowledged.setdefault((ack.c, ack.t, ack.q, ack.so, ack.pt), set())
                offsets.update(ack.aol or (ack.ao,))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return  # not written by RocketMQ: ignored


def mark_revive_log_processed(store: MessageStore) -> None:
    """Marks the revive topics as processed, so that RocketMQ does not process them again."""
    for topic, queue_id in ReviveLog.queues(store):
        end = store.consume_queues.next_offset(topic, queue_id)
        store.offsets.commit(REVIVE_GROUP, topic, queue_id, end)


def _tagged(store: MessageStore, topic: str, queue_id: QueueId, begin: int) -> Iterator[tuple[int, Message]]:
    """(queue offset, message) of the messages with one of the log's tags, from `begin` on."""
    queue = store.consume_queues.get(topic, queue_id)
    if queue is None:
        return
    codes = {java_hash(tag) for tag in (_CHECK_POINT_TAG, *_ACK_TAGS)}
    offset = max(begin, queue.min_offset)
    while offset < queue.max_offset:
        units = queue.units(QueueOffset(offset), min(queue.max_offset - offset, UNITS_STEP))
        for index, (physical_offset, size, code) in enumerate(units.tolist()):
            if code not in codes or size == BLANK_UNIT_SIZE:
                continue
            try:
                record = store.record_at(physical_offset)
            except DamagedError:
                continue  # damaged: reported by recovery
            if record is not None:
                message = decode_message(record)
                if message.tags == _CHECK_POINT_TAG or message.tags in _ACK_TAGS:
                    yield offset + index, message
        offset += len(units)
