"""The right answers of a store with B+trees, by the plain list of messages of tests/support/store_answers.py.

Searches, the order of priorities, which ids may be stored again and which transactions are there: each as the
list says, with trees and without, however far they are. The steps: tests/support/indexed_store_machine.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pytest
from hypothesis.stateful import invariant

from tests.support.searching import answered
from tests.support.store_answers import QUEUES, TOPICS, Sent
from tests.support.store_machine import StoreMachine
from trovemq_broker.atomic.commits import AtomicCommits
from trovemq_broker.atomic.ends import StoredMessage
from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.groups.delivery.priority_order import PriorityQueues
from trovemq_broker.groups.delivery.records import RecordReader
from trovemq_broker.query.search.conditions import TIME_MAX, AllOf, AnyOf, Condition, Has, SearchQuery
from trovemq_broker.query.search.search import search_page
from trovemq_broker.state.consumer_state import ConsumerState
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueId, QueueOffset
from trovemq_proto.records.priorities import PRIORITY_COUNT
from trovemq_store.engine.deduplication import Deduplication
from trovemq_store.index.trees.layout import KEY, PROPERTY, TAG, UNIQUE_KEY
from trovemq_store.index.trees.store_trees import StoreTrees
from trovemq_store.index.trees.unique_ids import MessagePosition

CONDITIONS: Final[tuple[Condition, ...]] = (
    Has(KEY, b"all"),
    Has(KEY, b"k", is_prefix=True),
    Has(UNIQUE_KEY, b"u1", is_prefix=True),
    Has(UNIQUE_KEY, b"id-3"),
    Has(PROPERTY, b"U", is_prefix=True, name="carrier"),
    Has(TAG, b"Aa"),
    AllOf(()),
    AllOf((Has(KEY, b"k1"), Has(TAG, b"B", is_prefix=True))),
    AnyOf((Has(PROPERTY, b"DL", name="carrier"), Has(KEY, b"k0"))),
    AllOf((Has(PROPERTY, b"U", name="carrier"), AnyOf((Has(KEY, b"k2"), Has(TAG, b"BB"))))),
)
QueuePlace = tuple[str, int, int]
"""Topic, queue, queue offset."""
UNTIL: Final = 120_000
"""Searches of a time range end within this many ms of the first message."""


@dataclass(frozen=True)
class Options:
    """Of one topic."""

    window_ms: int = 0
    by_priority: bool = False
    declared: bool = False


@dataclass(frozen=True)
class Transaction:
    """Its place in the log, its messages in the order of sending, and its acknowledgements."""

    begin: int
    end: int
    messages: tuple[StoredMessage, ...]
    acknowledged_count: int
    acknowledged: frozenset[QueuePlace]


def place_of(message: Sent) -> QueuePlace:
    return message.topic, message.queue_id, message.queue_offset


class IndexedAnswers(StoreMachine):
    """`options` as they were set. `gone` has messages that retention removed: their ids may still be known.
    `transactions`: the committed ones that a crash has not taken. `consumed`: what they acknowledged."""

    def __init__(self) -> None:
        super().__init__()
        self.options: dict[str, Options] = {}
        self.gone: list[Sent] = []
        self.transactions: dict[str, Transaction] = {}
        self.consumed: set[QueuePlace] = set()

    def opened(self) -> None:
        """The parts on top of the store are opened as a broker opens them."""
        self.deduplication = Deduplication(self.store)
        settings = ConsumerSettings(new_group_start="begin")
        self.model = ConsumerState.open(self.store, self.files, settings, self.now)
        self.commits = AtomicCommits(self.store, self.model, self.deduplication)
        self.priorities = PriorityQueues(self.store, RecordReader(self.store))
        self.check_options()
        self.check_transactions()

    @property
    def trees(self) -> StoreTrees | None:
        return self.store.trees

    def options_of(self, topic: str) -> Options:
        return self.options.get(topic, Options())

    def check_options(self) -> None:
        for topic in TOPICS:
            found, wanted = self.store.topics.options(topic), self.options_of(topic)
            assert (found.deduplicate_ms, found.by_priority) == (wanted.window_ms, wanted.by_priority)
            assert found.indexed_properties == (("carrier",) if wanted.declared else ())

    # --- ids ------------------------------------------------------------------------------------------
    def any_hit(self, topic: str) -> bool:
        """Whether a record of the topic was damaged: trees that read it then have it as it is now, under
        another id, number or time perhaps."""
        return any(m.hit and m.topic == topic for m in (*self.sent, *self.gone))

    def known(self, topic: str, unique_id: str, now_ms: EpochMs) -> tuple[list[MessagePosition], bool]:
        """Where a message of the id may be said to be, and whether it may not be stored again. The index may
        know a message that is damaged or that retention removed, and need not."""
        window_ms = self.options_of(topic).window_ms
        since_ms = max(now_ms, self.store.last_store_timestamp) - window_ms
        places: list[MessagePosition] = []
        if not window_ms or not unique_id:
            return places, False
        for m in (*reversed(self.sent), *reversed(self.gone)):
            if (m.topic, m.unique_key) != (topic, unique_id) or m.store_timestamp <= since_ms:
                continue
            places.append(
                MessagePosition(
                    PhysicalOffset(m.physical_offset),
                    m.queue_id,
                    QueueOffset(m.queue_offset),
                    m.store_timestamp,
                )
            )
            if m.physical_offset >= self.store.min_offset and not self.is_before_damage(m):
                return places, True
        return places, False

    def is_before_damage(self, message: Sent) -> bool:
        """Whether the message or a later one is damaged: the time of a damaged record may look like a clock
        that was set back, and windows then end early for the records before it."""
        return any(at >= message.physical_offset for at in self.hits)

    # --- transactions ---------------------------------------------------------------------------------
    def check_transactions(self) -> None:
        """After a start: all of each, or nothing. That all of its messages are there is seen as of all."""
        end = self.store.end_offset
        for transaction_id, one in list(self.transactions.items()):
            assert not one.begin < end < one.end, f"a part of {transaction_id} is in the log"
            if one.begin >= end:
                del self.transactions[transaction_id]
                self.consumed -= one.acknowledged
                assert transaction_id not in self.commits.ends, f"{transaction_id} is gone and remembered"
            elif one.begin >= self.store.min_offset:
                assert transaction_id in self.commits.ends, f"{transaction_id} is forgotten"
                self.check_answer(transaction_id, one)
        self.consumed &= {place_of(m) for m in self.sent}

    def check_answer(self, transaction_id: str, one: Transaction) -> None:
        """A repeated question gets the same answer."""
        if any(m.physical_offset in self.hits for m in one.messages):
            return
        committed = self.commits.ends.committed(transaction_id)
        assert (committed.messages, committed.end) == (one.messages, one.end)
        assert committed.acknowledged_count == one.acknowledged_count

    # --- searches and priorities ----------------------------------------------------------------------
    @invariant()
    def searches_equal_the_model(self) -> None:
        """One search a step, in turn."""
        turn = self.asked
        topic, where = TOPICS[turn % 2], CONDITIONS[turn * 7 % len(CONDITIONS)]
        begin = (
            self.sent[turn * 5 % len(self.sent)].store_timestamp
            if self.sent and turn % 3 == 0
            else EpochMs(0)
        )
        query = SearchQuery(topic, where, begin, EpochMs(begin + UNTIL if begin else TIME_MAX), turn % 4 < 2)
        if self.store.topics.get(topic) is None and topic not in self.store.consume_queues.topics():
            with pytest.raises(TroveError, match="TOPIC_NOT_FOUND"):
                search_page(self.store, query)
            return
        if query.properties() and not self.options_of(topic).declared:
            with pytest.raises(TroveError, match="PROPERTY_NOT_INDEXED"):
                search_page(self.store, query)
            return
        expected = [m.physical_offset for m in self.sent[: self.visible] if answers(m, query)]
        if query.newest_first:
            expected.reverse()
        assert answered(self.store, query, page_size=(0, 3)[turn % 2]) == expected

    @invariant()
    def priorities_come_in_order(self) -> None:
        """One queue a step, from a place in it on."""
        topic, queue_id = TOPICS[self.asked // 3 % 2], self.asked % QUEUES
        queue = self.store.consume_queues.get(topic, QueueId(queue_id))
        if not self.options_of(topic).by_priority or queue is None:
            return
        messages = self.queue(topic, QueueId(queue_id), self.visible)
        begin = messages[self.asked % len(messages)].queue_offset if self.asked % 2 and messages else 0
        begin = max(begin, queue.min_offset)
        assert self.priorities.catch_up(topic, QueueId(queue_id), begin, 1 << 30)
        damaged = {m.queue_offset for m in messages if m.hit}
        for priority in range(PRIORITY_COUNT):
            found = list(self.offsets(topic, QueueId(queue_id), priority, begin))
            wanted = [m.queue_offset for m in messages if m.priority == priority and m.queue_offset >= begin]
            assert [offset for offset in found if offset not in damaged] == [
                offset for offset in wanted if offset not in damaged
            ]
            count = self.priorities.count(topic, QueueId(queue_id), priority, begin, queue.max_offset)
            assert count == len(found)

    def offsets(self, topic: str, queue_id: QueueId, priority: int, begin: int) -> Iterator[int]:
        at = self.priorities.next_offset(topic, queue_id, priority, begin)
        while at is not None:
            yield at
            at = self.priorities.next_offset(topic, queue_id, priority, at + 1)

    @invariant()
    def trees_are_not_ahead(self) -> None:
        for index in self.trees.indexes if self.trees is not None else ():
            assert index.position <= self.store.flushed_offset


def answers(message: Sent, query: SearchQuery) -> bool:
    """Whether the message is in the answer."""
    return (
        message.topic == query.topic
        and not message.hit
        and query.begin <= message.store_timestamp <= query.end
        and _meets(message, query.where)
    )


def _meets(message: Sent, where: Condition) -> bool:
    if isinstance(where, AllOf):
        return all(_meets(message, part) for part in where.parts)
    if isinstance(where, AnyOf):
        return any(_meets(message, part) for part in where.parts)
    values = {
        KEY: message.keys.split(),
        TAG: [message.tag],
        UNIQUE_KEY: [message.unique_key],
        PROPERTY: [message.carrier],
    }[where.kind]
    wanted = where.value.decode()
    return any(value.startswith(wanted) if where.is_prefix else value == wanted for value in values)
