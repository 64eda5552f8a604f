"""The right answers of a store, by a plain list of messages: see tests/support/store_machine.py.

Each way to a message must agree with the list: queue offset, key, unique key, tag, offsetMsgId and time. Of a
record that was hit (tests/durability/damaged_store_machine.py) all that counts is that no answer has it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import Final

import pytest
from hypothesis.stateful import RuleBasedStateMachine, invariant

from tests.support.engine import NOW_MS
from trovemq_broker.query.get_message import get_message, get_message_at
from trovemq_broker.query.key_query import KeyQuery, KeyType
from trovemq_broker.query.offsets_by_time import search_offset
from trovemq_broker.query.query_by_key import query_pages
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, QueueId, QueueOffset
from trovemq_proto.records import decode_message
from trovemq_proto.records.layout import PROPERTY_PRODUCER, PROPERTY_SEQUENCE
from trovemq_proto.records.priorities import PRIORITY_DEFAULT, PROPERTY_PRIORITY
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.settings import StoreSettings

TOPICS: Final = ("orders", "bills")
TAGS: Final = ("", "Aa", "BB")  # the hashes of the last two are equal
QUEUES: Final = 3
GROUPS: Final = ("billing", "audit")


@dataclass(frozen=True)
class Sent:
    """One message as it was appended; in the list all stand in log order. `hit`: its record was damaged.
    `producer`, `sequence`: its number, where it has one."""

    topic: str
    queue_id: QueueId
    queue_offset: int
    physical_offset: int
    store_timestamp: EpochMs
    offset_msg_id: str
    body: bytes
    keys: str
    tag: str
    unique_key: str
    hit: bool = False
    producer: str = ""
    sequence: int = -1

    @property
    def number(self) -> int:
        """Each message has another one."""
        return int.from_bytes(self.body[:4], "big")

    @property
    def carrier(self) -> str:
        return ("UA", "U", "DL")[self.number % 3]

    @property
    def priority(self) -> int:
        return self.number * 7 % 10 if self.number % 5 else PRIORITY_DEFAULT

    @property
    def properties(self) -> dict[str, str]:
        """Beside keys, tag and unique key."""
        given = {PROPERTY_PRIORITY: str(self.priority)} if self.number % 5 else {}
        if self.producer:
            given |= {PROPERTY_PRODUCER: self.producer, PROPERTY_SEQUENCE: str(self.sequence)}
        return {"carrier": self.carrier, **given}

    def has(self, key_type: KeyType, key: str) -> bool:
        if key_type is KeyType.TAG:
            return self.tag == key
        return self.unique_key == key or (key_type is KeyType.KEY and key in self.keys.split(" "))


class StoreAnswers(RuleBasedStateMachine):
    """`self.sent` lists the living messages, oldest first; those before `self.visible` can be read, those
    before `self.durable` survive a power cut, and of later ones a beginning survives. `self.hits` has the
    physical offsets of damaged records, also of deleted topics: a damaged topic may read as another one.
    `self.expired` counts the messages of each queue that retention removed, `self.expired_whole` up to the
    last record of it that was whole."""

    settings: StoreSettings
    store: MessageStore

    def __init__(self) -> None:
        super().__init__()
        self.files = MemoryFileSystem()
        self.now = NOW_MS
        self.counter = 0
        self.sent: list[Sent] = []
        self.hits: set[int] = set()
        self.visible = self.durable = 0
        self.committed: dict[tuple[str, str, int], int] = {}
        self.stored: dict[tuple[str, str, int], int] = {}
        self.asked = 0
        self.expired: dict[tuple[str, int], int] = {}
        self.expired_whole: dict[tuple[str, int], int] = {}

    def queue(self, topic: str, queue_id: QueueId, end: int) -> list[Sent]:
        return [m for m in self.sent[:end] if (m.topic, m.queue_id) == (topic, queue_id)]

    def queue_begin(self, topic: str, queue_id: QueueId) -> int:
        return self.expired.get((topic, queue_id), 0)

    def queue_end(self, topic: str, queue_id: QueueId, end: int) -> int:
        return self.queue_begin(topic, queue_id) + len(self.queue(topic, queue_id, end))

    # --- invariants after each step -------------------------------------------------------------------
    @invariant()
    def queues_equal_the_model(self) -> None:
        for topic in TOPICS:
            for queue_id in range(QUEUES):
                expected = self.queue(topic, QueueId(queue_id), self.visible)
                begin = self.queue_begin(topic, QueueId(queue_id))
                assert [m.queue_offset for m in expected] == list(range(begin, begin + len(expected)))
                self.check_ends(topic, QueueId(queue_id), expected)
                for m in expected:
                    self.check_at_its_offset(m)
        times = [m.store_timestamp for m in self.sent]
        assert times == sorted(times)

    def check_ends(self, topic: str, queue_id: QueueId, expected: list[Sent]) -> None:
        queue, begin = self.store.consume_queues.get(topic, queue_id), self.queue_begin(topic, queue_id)
        if queue is None:
            assert not expected
            return
        assert queue.max_offset == begin + len(expected)
        # A queue that is rebuilt begins with the first record that is whole, or after the last before it.
        first = next((m.queue_offset for m in expected if not m.hit), queue.max_offset)
        assert self.expired_whole.get((topic, queue_id), 0) <= queue.min_offset <= first

    def check_at_its_offset(self, message: Sent) -> None:
        place = (self.store, message.topic, message.queue_id, QueueOffset(message.queue_offset))
        if message.hit:
            with pytest.raises(TroveError) as caught:
                get_message_at(*place)
            assert caught.value.spec in (
                errors.RECORD_DAMAGED,
                errors.MESSAGE_NOT_FOUND,
                errors.OFFSET_OUT_OF_RANGE,
            )
            return
        found = decode_message(get_message_at(*place).records[0])
        assert (found.body, found.queue_offset) == (message.body, message.queue_offset)
        assert found.properties.get("KEYS", "") == message.keys

    @invariant()
    def a_scan_of_the_log_equals_the_model(self) -> None:
        found = dict(self.scanned())
        for m in self.sent:
            if m.hit:
                found.pop(m.physical_offset, None)
        assert found == {m.physical_offset: m.body for m in self.sent[: self.visible] if not m.hit}

    def scanned(self) -> list[tuple[int, bytes]]:
        store, found = self.store, []
        for begin, records, alive in store.scan(store.min_offset, store.visible_offset):
            for i, position in enumerate(records.positions.tolist()):
                if begin + position not in self.hits and (alive is None or alive[i]):
                    raw = records.data[position : position + int(records.sizes[i])]
                    message = decode_message(raw)
                    if message.topic in TOPICS:
                        found.append((begin + position, message.body))
        return found

    @invariant()
    def every_way_to_a_message_leads_there(self) -> None:
        """One of the queries after each step, by rotation: all would be most of a walk's time."""
        self.asked += 1
        chosen = self.asked * 7 % max(1, len(self.sent))
        unique_key = (self.sent[chosen].unique_key if self.sent else "") or "none"
        key_type, key = (
            (KeyType.KEY, "all"),
            (KeyType.UNIQUE, unique_key),
            (KeyType.KEY, f"k{chosen % 4}"),
            (KeyType.TAG, TAGS[1 + chosen % 2]),
        )[self.asked % 4]
        self.check_keys(key_type, key)
        if self.sent:
            self.check_identifiers(self.sent[chosen], chosen < self.visible)
            self.check_times(self.sent[chosen])

    def check_keys(self, key_type: KeyType, key: str) -> None:
        for topic in TOPICS:
            query = KeyQuery(topic, key, key_type)
            if self.store.topics.get(topic) is None and topic not in self.store.consume_queues.topics():
                with pytest.raises(TroveError, match="TOPIC_NOT_FOUND"):
                    list(query_pages(self.store, query))
                continue
            if not self.settings.message_index_enable:
                with pytest.raises(TroveError, match="INDEX_DISABLED"):
                    list(query_pages(self.store, query))
                continue
            pages = list(query_pages(self.store, query, messages_max=100_000))
            assert pages[-1].complete
            found = [physical_offset for page in pages for physical_offset in page.physical_offsets]
            readable = [m for m in self.sent[: self.visible] if m.topic == topic and not m.hit]
            assert found == [m.physical_offset for m in reversed(readable) if m.has(key_type, key)]

    def check_identifiers(self, message: Sent, visible: bool) -> None:
        if message.hit:
            with pytest.raises(TroveError):
                get_message(self.store, message.offset_msg_id)
            return
        place = (self.store, message.topic, message.queue_id, QueueOffset(message.queue_offset))
        if visible:
            for found in (get_message(self.store, message.offset_msg_id), get_message_at(*place)):
                assert decode_message(found.records[0]).body == message.body
                assert found.queue_offsets == [message.queue_offset]
            return
        with pytest.raises(TroveError) as caught:
            get_message(self.store, message.offset_msg_id)
        assert caught.value.spec in (errors.MESSAGE_NOT_FOUND, errors.INDEX_DISABLED)
        with pytest.raises(TroveError, match="OFFSET_OUT_OF_RANGE"):
            get_message_at(*place)

    def check_times(self, message: Sent) -> None:
        queue = self.queue(message.topic, message.queue_id, self.visible)
        if any(m.hit for m in queue):
            return  # the time of a damaged record is anything
        times = [m.store_timestamp for m in queue]
        for timestamp in (message.store_timestamp - 1, message.store_timestamp, message.store_timestamp + 1):
            lower, upper = (
                search_offset(self.store, message.topic, message.queue_id, EpochMs(timestamp), upper=upper)
                for upper in (False, True)
            )
            begin = self.queue_begin(message.topic, message.queue_id)
            exact = begin + bisect_left(times, timestamp), begin + max(0, bisect_right(times, timestamp) - 1)
            if self.hits:  # a damaged time may look like a step back: then nothing of the time is skipped
                assert lower <= exact[0]
                assert upper >= exact[1]
            else:
                assert (lower, upper) == exact

    @invariant()
    def positions_are_in_order(self) -> None:
        store = self.store
        assert store.min_offset <= store.flushed_offset <= store.end_offset
        assert store.visible_offset <= store.end_offset
        if self.settings.flush_mode == "sync":
            assert store.visible_offset <= store.flushed_offset
