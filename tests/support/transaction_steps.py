"""Steps of the store's machine: messages are received, and atomic transactions store messages and acknowledge
received ones.

Nothing else acknowledges, so the group has consumed exactly the messages acknowledged by the transactions in
the log, after any crash too. Which transaction is in the log, and that it is whole:
tests/support/indexed_answers.py.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Final

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from tests.support.engine import record, validated
from tests.support.indexed_answers import IndexedAnswers, QueuePlace, Transaction, place_of
from tests.support.store_answers import QUEUES, TAGS, TOPICS, Sent
from tests.support.store_machine import encoded
from trovemq_broker.groups.delivery.message_status import MessagePhase
from trovemq_broker.groups.delivery.prepared import Acknowledgement
from trovemq_broker.groups.delivery.request import ReceiveRequest
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, QueueId
from trovemq_proto.records import decode_message, encode_offset_msg_id
from trovemq_proto.records.hosts import pack_host
from trovemq_store.files.memory import SECTOR_SIZE
from trovemq_store.index.trees.unique_ids import MessagePosition
from trovemq_store.topics.subscription_groups import SubscriptionGroup

IDS: Final = 6
WORKERS: Final = SubscriptionGroup("workers", retry_max=1_000)
LEASE_MS: Final = 10_000
PARTS: Final = st.lists(
    st.tuples(st.sampled_from(TOPICS), st.integers(0, QUEUES - 1), st.integers(0, 3 * IDS)),
    min_size=1,
    max_size=5,
)
ACKNOWLEDGED: Final = st.lists(st.integers(0, 99), max_size=3)


@dataclass(frozen=True)
class Lease:
    """A message in flight. `certain`: no start since then may have forgotten it."""

    handle: str
    until_ms: EpochMs
    certain: bool = True


class TransactionSteps(IndexedAnswers):
    """`leases`: received messages that were not consumed since."""

    def __init__(self) -> None:
        super().__init__()
        self.leases: dict[QueuePlace, Lease] = {}

    def opened(self) -> None:
        super().opened()
        there = {place_of(m) for m in self.sent}
        self.leases = {
            place: replace(lease, certain=False) for place, lease in self.leases.items() if place in there
        }
        for topic in TOPICS:
            for queue_id in range(QUEUES):
                self.check_consumed(topic, QueueId(queue_id))

    # --- messages -------------------------------------------------------------------------------------
    def new_message(self, topic: str, queue: int, pick: int, size: int) -> Sent:
        """Its id is one of a few, that of a message which is there, a new one, or none."""
        body = self.next_body(size)
        unique_key = f"id-{pick % IDS}" if pick else ""
        if pick > 2 * IDS:
            unique_key = f"u{self.counter}"
        elif pick > IDS and self.sent:
            unique_key = self.sent[-(self.counter * pick) % len(self.sent)].unique_key
        return Sent(
            topic, QueueId(queue), 0, 0, EpochMs(0), "", body, f"k{pick % 4} all", TAGS[pick % 3], unique_key
        )

    def placed(self, message: Sent, place: MessagePosition) -> Sent:
        return replace(
            message,
            queue_offset=place.queue_offset,
            physical_offset=place.physical_offset,
            store_timestamp=place.store_timestamp,
            offset_msg_id=encode_offset_msg_id(pack_host(self.settings.store_host), place.physical_offset),
        )

    def made(self, topic: str) -> None:
        if self.store.topics.get(topic) is None:
            self.store.topics.create(topic, queue_count=4)

    def appended(self) -> None:
        self.store.dispatch()
        if self.settings.flush_mode == "async":
            self.visible = len(self.sent)

    # --- received and consumed ------------------------------------------------------------------------
    @rule(
        topic=st.sampled_from(TOPICS), count=st.integers(1, 6), later_ms=st.sampled_from([0, 500, LEASE_MS])
    )
    def receive(self, topic: str, count: int, later_ms: int) -> None:
        self.now += later_ms
        if self.store.topics.get(topic) is None:
            return
        visible = {place_of(m): m for m in self.sent[: self.visible]}
        request = ReceiveRequest(
            group=WORKERS, topic=topic, count_max=count, invisible_ms=LEASE_MS, now_ms=self.now
        )
        for one in self.model.delivery.receive(request):
            place = (topic, one.queue_id, one.queue_offset)
            before = self.leases.get(place)
            assert decode_message(one.record).body == visible[place].body
            assert place not in self.consumed, "a consumed message is delivered again"
            assert before is None or not before.certain or before.until_ms <= self.now, "it is in flight"
            self.leases[place] = Lease(one.receipt_handle, one.until_ms)

    @rule()
    def flush_events(self) -> None:
        self.model.events.flush(self.now)

    @invariant()
    def the_group_consumed_what_transactions_say(self) -> None:
        """One queue a step."""
        self.check_consumed(TOPICS[self.asked % 2], QueueId(self.asked // 2 % QUEUES))

    def check_consumed(self, topic: str, queue_id: QueueId) -> None:
        for m in self.queue(topic, queue_id, self.visible):
            if not m.hit:
                stands = self.model.delivery.status_of(
                    WORKERS.name,
                    topic,
                    queue_id,
                    m.queue_offset,
                    message_group="",
                    priority=m.priority,
                    now_ms=self.now,
                )
                consumed = stands is not None and stands.phase is MessagePhase.CONSUMED
                assert consumed == (place_of(m) in self.consumed), (place_of(m), stands)

    # --- transactions ---------------------------------------------------------------------------------
    @rule(parts=PARTS, size=st.integers(0, 400), acknowledged=ACKNOWLEDGED)
    def commit_transaction(
        self, parts: list[tuple[str, int, int]], size: int, acknowledged: list[int]
    ) -> None:
        for topic, _, _ in parts:
            self.made(topic)
        messages = [self.new_message(topic, queue, pick, size) for topic, queue, pick in parts]
        places = self.in_flight(acknowledged)
        handles = [Acknowledgement(WORKERS.name, place[0], self.leases[place].handle) for place in places]
        transaction_id, before = f"t{self.counter}", self.store.end_offset
        may_refuse, must_refuse = self.judged(messages)
        may_expire, must_expire = self.judged_leases(places)
        try:
            run = self.commits.new_run(transaction_id)
            for m in messages:
                batch = validated(self.store, [encoded(m)], m.topic, m.queue_id)
                run.add(batch, m.topic, m.queue_id)
            committed = self.commits.commit(run, handles, self.now)
        except TroveError as error:
            if error.spec not in (errors.TRANSACTION_SIZE_EXCEEDED, *may_refuse, *may_expire):
                raise
            assert places or self.store.end_offset == before, "nothing of it is stored"
            assert transaction_id not in self.commits.ends
            return
        assert not must_refuse, "a known id is stored again"
        assert not must_expire, "a lease that has ended acknowledges"
        assert committed.acknowledged_count == len(handles)
        ends = {(m.topic, m.queue_id): self.queue_end(m.topic, m.queue_id, len(self.sent)) for m in messages}
        for m, reported in zip(messages, committed.messages, strict=True):
            assert (reported.topic, reported.queue_id) == (m.topic, m.queue_id)
            assert reported.queue_offset == ends[m.topic, m.queue_id]
            ends[m.topic, m.queue_id] += 1
            place = MessagePosition(
                reported.physical_offset, m.queue_id, reported.queue_offset, committed.store_timestamp
            )
            self.sent.append(self.placed(m, place))
        begin = committed.messages[0].physical_offset
        self.transactions[transaction_id] = Transaction(
            begin, committed.end, committed.messages, len(handles), frozenset(places)
        )
        self.consumed |= set(places)
        for consumed in set(places):
            del self.leases[consumed]
        self.appended()

    @rule(
        parts=PARTS,
        acknowledged=ACKNOWLEDGED,
        trees=st.booleans(),
        seed=st.integers(0, 999),
        odds=st.sampled_from([0.5, 0.8]),
    )
    def power_cut_at_a_commit(
        self,
        parts: list[tuple[str, int, int]],
        acknowledged: list[int],
        trees: bool,
        seed: int,
        odds: float,
    ) -> None:
        """Some sectors of it are on the disk, and some are not."""
        self.commit_transaction(parts, 300, acknowledged)
        self.power_cut(self.settings.message_index_enable, trees, seed, odds, SECTOR_SIZE)

    def judged(self, messages: list[Sent]) -> tuple[list[errors.ErrorSpec], bool]:
        """Errors with which it may be refused for its ids, and whether it must be."""
        may: list[errors.ErrorSpec] = []
        must = False
        judged = [m for m in messages if self.options_of(m.topic).window_ms]
        if judged and self.trees is None:
            return [errors.INDEX_DISABLED], True
        counts = Counter((m.topic, m.unique_key) for m in judged if m.unique_key)
        for (topic, unique_key), count in counts.items():
            places, certain = self.known(topic, unique_key, self.now)
            must = must or certain or count > 1
            if places or count > 1 or self.any_hit(topic):
                may = [errors.TRANSACTION_DUPLICATE]
        return may, must

    def in_flight(self, picks: list[int]) -> list[QueuePlace]:
        """A message for each pick, of those that were received, mostly those whose leases continue."""
        if picks:
            self.receive(TOPICS[picks[0] % 2], len(picks), 0)
        going_on = [place for place, lease in self.leases.items() if lease.until_ms > self.now]
        chosen = list(self.leases) if sum(picks) % 8 == 0 else going_on
        return [chosen[pick % len(chosen)] for pick in picks] if chosen else []

    def judged_leases(self, places: list[QueuePlace]) -> tuple[list[errors.ErrorSpec], bool]:
        """The same for its acknowledgements."""
        leases = [self.leases[place] for place in places]
        ended = [lease for lease in leases if lease.certain and lease.until_ms <= self.now]
        doubtful = [lease for lease in leases if not lease.certain]
        return [errors.RECEIPT_HANDLE_ILLEGAL] if ended or doubtful else [], bool(ended)

    @rule(choice=st.integers(0, 999))
    def commit_again(self, choice: int) -> None:
        """A client without the answer asks again, with all of it or with its id, and nothing is stored."""
        living = [
            (name, one) for name, one in self.transactions.items() if one.begin >= self.store.min_offset
        ]
        if not living:
            return
        transaction_id, one = living[choice // 2 % len(living)]
        before = self.store.end_offset
        if not any(m.physical_offset in self.hits for m in one.messages):
            run = self.commits.new_run(transaction_id)
            more = Acknowledgement(WORKERS.name, TOPICS[0], "")
            handles = [more] * one.acknowledged_count
            for m in one.messages if choice % 2 else ():
                batch = validated(
                    self.store, [record(b"again", topic=m.topic, queue_id=m.queue_id)], m.topic, m.queue_id
                )
                run.add(batch, m.topic, m.queue_id)
            if choice % 2 and choice % 3:
                with pytest.raises(TroveError, match="TRANSACTION_ILLEGAL"):
                    self.commits.commit(run, [*handles, more], self.now)
            assert self.commits.commit(run, handles if choice % 2 else [], self.now).repeated
        self.check_answer(transaction_id, one)
        assert self.store.end_offset == before
