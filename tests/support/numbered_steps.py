"""Steps of the store's machine: producers that number their messages, with gaps, replays and late ones.

The list of messages decides about a number (index/trees/producers.py has the table). Where all of it can be
known, the answer must be exactly that; where it depends on a message that is damaged or that retention
removed, the trees may know it or not, and forbidden answers are checked all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from tests.support.deduplicated import places_of
from tests.support.engine import BORN_HOST, validated
from tests.support.store_answers import QUEUES, TOPICS, Sent
from tests.support.store_machine import encoded
from tests.support.transaction_steps import TransactionSteps
from trovemq_proto import errors
from trovemq_proto.errors import ErrorSpec, TroveError
from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueId, QueueOffset
from trovemq_store.engine.append_result import AppendResult
from trovemq_store.index.trees.producer_sequences import DEPTH
from trovemq_store.index.trees.producers import Gap
from trovemq_store.index.trees.unique_ids import MessagePosition

PRODUCERS: Final = ("p", "q")
NUMBER_STEPS: Final = (1, 1, 1, 2, 4, 0, -1, -5, DEPTH, 1 - DEPTH, -DEPTH, -DEPTH)
"""From the highest number on to the next message's."""
ID_KINDS: Final = ("none", "none", "own", "own", "own", "another")


@dataclass
class Expected:
    """The expected result of a batch. `originals`: where each message is that is not stored, or the index of
    the one in the batch that is."""

    originals: dict[int, MessagePosition | int] = field(default_factory=dict)
    gaps: dict[int, Gap] = field(default_factory=dict)
    filled: int = 0


class NumberedSteps(TransactionSteps):
    """See the module's text."""

    def append(self, records: list[bytes], topic: str, queue: int, now_ms: EpochMs) -> AppendResult:
        """As a producer's send; where trees are off, as one to a topic that is not deduplicated."""
        if self.trees is None:
            return super().append(records, topic, queue, now_ms)
        batch = validated(self.store, records, topic, QueueId(queue))
        part = topic, queue, len(batch)
        (result,) = self.deduplication.append(batch, (part,), now_ms, born_host=BORN_HOST)
        return result

    def refused_without_trees(self, records: list[bytes], topic: str, queue: int) -> None:
        before = self.store.end_offset
        batch = validated(self.store, records, topic, QueueId(queue))
        with pytest.raises(TroveError, match="INDEX_DISABLED"):
            self.deduplication.append(batch, ((topic, queue, len(batch)),), self.now, born_host=BORN_HOST)
        assert self.store.end_offset == before

    # --- numbers by the list -------------------------------------------------------------------------
    def since_ms(self, topic: str) -> int:
        return max(self.now, self.store.last_store_timestamp) - self.options_of(topic).window_ms

    def of_producer(self, topic: str, producer: str) -> list[Sent]:
        """Its messages that are, or were, in the log; the newest first."""
        everything = (*reversed(self.sent), *reversed(self.gone))
        return [m for m in everything if (m.topic, m.producer) == (topic, producer)]

    def is_certain(self, message: Sent, own: Iterable[Sent]) -> bool:
        """Whether its number is known: its record can be read, and no number has come by which it would have
        been too old to be kept."""
        readable = message.physical_offset >= self.store.min_offset and not self.is_before_damage(message)
        return readable and all(m.sequence - DEPTH < message.sequence for m in own)

    def highest(self, topic: str, producer: str) -> tuple[int, int]:
        """The highest number of the producer, at least and at most."""
        own, since_ms = self.of_producer(topic, producer), self.since_ms(topic)
        counting = [m for m in own if m.store_timestamp > since_ms]
        certain = (m.sequence for m in counting if self.is_certain(m, own))
        return max(certain, default=-1), max((m.sequence for m in counting), default=-1)

    def stored_as(self, topic: str, producer: str, sequence: int) -> list[tuple[Sent, bool]]:
        """The messages of the number, and whether each is known for certain; none after one that is."""
        own, since_ms = self.of_producer(topic, producer), self.since_ms(topic)
        found: list[tuple[Sent, bool]] = []
        for m in own:
            if m.sequence == sequence and m.store_timestamp > since_ms:
                found.append((m, self.is_certain(m, own)))
                if found[-1][1]:
                    break
        return found

    def expected(self, messages: Sequence[Sent]) -> Expected | None:
        """Of a batch of one producer; None where that cannot be known. TroveError where it is refused."""
        topic, producer = messages[0].topic, messages[0].producer
        highest, highest_perhaps = self.highest(topic, producer)
        if highest != highest_perhaps or self.any_hit(topic):
            return None
        wanted, ids, numbers = Expected(), dict[str, int](), dict[int, int]()
        for index, m in enumerate(messages):
            places, certain = self.known(topic, m.unique_key, self.now)
            if len(places) != certain:
                return None
            first = ids.setdefault(m.unique_key, index) if m.unique_key else index
            if places:
                wanted.originals[index] = places[0]
            elif first != index:
                wanted.originals[index] = first
        for index, m in enumerate(messages):
            if index in wanted.originals:
                continue
            if m.sequence <= highest - DEPTH:
                raise TroveError(errors.PRODUCER_SEQUENCE_TOO_OLD)
            stored = self.stored_as(topic, producer, m.sequence)
            if stored and not stored[0][1]:
                return None
            first = numbers.setdefault(m.sequence, index)
            if stored:
                check_same(stored[0][0], m)
                wanted.originals[index] = place_in_log(stored[0][0])
            elif first != index:
                check_same(messages[first], m)
                wanted.originals[index] = first
            else:
                if 0 <= highest < m.sequence - 1:
                    wanted.gaps[index] = Gap(producer.encode(), highest + 1, m.sequence - 1)
                wanted.filled += m.sequence < highest
                highest = max(highest, m.sequence)
        return wanted

    # --- steps ----------------------------------------------------------------------------------------
    @rule(
        topic=st.sampled_from(TOPICS),
        queue=st.integers(0, QUEUES - 1),
        producer=st.sampled_from(PRODUCERS),
        rows=st.lists(
            st.tuples(st.sampled_from(NUMBER_STEPS), st.sampled_from(ID_KINDS)), min_size=1, max_size=6
        ),
        later_ms=st.sampled_from([0, 1, 3_000]),
    )
    def send_numbered(
        self, topic: str, queue: int, producer: str, rows: list[tuple[int, str]], later_ms: int
    ) -> None:
        self.made(topic)
        self.now += later_ms
        messages = self.numbered_messages(topic, queue, producer, rows)
        records = [encoded(message) for message in messages]
        if self.trees is None and self.options_of(topic).window_ms:
            self.refused_without_trees(records, topic, queue)
            return
        expected: Expected | ErrorSpec | None = Expected()
        if self.options_of(topic).window_ms:
            try:
                expected = self.expected(messages)
            except TroveError as error:
                expected = error.spec
        self.judge_and_store(messages, records, expected)

    def numbered_messages(
        self, topic: str, queue: int, producer: str, rows: list[tuple[int, str]]
    ) -> list[Sent]:
        highest = max((m.sequence for m in self.of_producer(topic, producer)), default=-1)
        found = []
        for step_by, kind in rows:
            sequence = max(0, highest + step_by)
            highest = max(highest, sequence)
            m = replace(self.new_message(topic, queue, 0, 20), producer=producer, sequence=sequence)
            ids = {"none": "", "own": f"{producer}-{sequence}", "another": f"u{self.counter}"}
            found.append(replace(m, unique_key=ids[kind]))
        return found

    def judge_and_store(
        self, messages: list[Sent], records: list[bytes], expected: Expected | ErrorSpec | None
    ) -> None:
        topic, queue, before = messages[0].topic, messages[0].queue_id, self.store.end_offset
        counts = self.counts(topic)
        highest = self.highest(topic, messages[0].producer)
        refused, result = None, None
        try:
            result = self.append(records, topic, queue, self.now)
        except TroveError as error:
            refused = error.spec
        if result is None:
            assert refused in (errors.PRODUCER_SEQUENCE_TOO_OLD, errors.PRODUCER_SEQUENCE_CONFLICT)
            assert expected is None or refused is expected, (messages, expected)
            assert self.store.end_offset == before
            assert self.counts(topic) == counts
            return
        assert not isinstance(expected, ErrorSpec), (messages, expected)
        places = places_of(result, queue)
        if expected is not None:
            originals = {
                index: places[at] if isinstance(at, int) else at for index, at in expected.originals.items()
            }
            assert dict(result.duplicates) == originals
            assert list(result.gaps.items()) == sorted(expected.gaps.items())
        elif self.options_of(topic).window_ms:
            self.check_duplicates(messages, places, result, highest[0])
        missing = sum(gap.last - gap.first + 1 for gap in result.gaps.values())
        assert self.counts(topic)[:2] == (counts[0] + len(result.duplicates), counts[1] + missing)
        assert expected is None or self.counts(topic)[2] == counts[2] + expected.filled
        for index, (message, place) in enumerate(zip(messages, places, strict=True)):
            if index not in result.duplicates:
                assert place.physical_offset >= before
                self.sent.append(self.placed(message, place))
        self.appended()

    def check_duplicates(
        self, messages: list[Sent], places: list[MessagePosition], result: AppendResult, highest: int
    ) -> None:
        """The invariants where not all is known."""
        for index, m in enumerate(messages):
            by_id, known = self.known(m.topic, m.unique_key, self.now)
            by_number = self.stored_as(m.topic, m.producer, m.sequence)
            in_batch = [
                at
                for at, other in enumerate(messages[:index])
                if other.sequence == m.sequence or (m.unique_key and other.unique_key == m.unique_key)
            ]
            if index in result.duplicates:
                alike = (places[at] for at in in_batch)
                before = (*by_id, *alike, *(place_in_log(one) for one, _ in by_number))
                assert places[index] in before or places[index].physical_offset in self.hits
                continue
            assert not known
            assert not any(certain for _, certain in by_number), f"{m.sequence} is stored twice"
            assert m.sequence > highest - DEPTH
            assert not set(in_batch).difference(result.duplicates), "a known id leaves its number free"

    def counts(self, topic: str) -> tuple[int, int, int]:
        of = self.deduplication
        return of.duplicates[topic], of.missing[topic], of.filled[topic]

    @invariant()
    def producers_stand_where_the_list_says(self) -> None:
        """One a step, in turn."""
        topic, producer = TOPICS[self.asked % 2], PRODUCERS[self.asked // 2 % 2]
        refusal = None
        if self.store.topics.get(topic) is None:
            refusal = errors.TOPIC_NOT_FOUND
        elif not self.options_of(topic).window_ms:
            refusal = errors.REQUEST_ILLEGAL
        elif self.trees is None:
            refusal = errors.INDEX_DISABLED
        if refusal is not None:
            with pytest.raises(TroveError, match=refusal.symbol):
                self.deduplication.next_sequence(topic, producer.encode(), self.now)
            return
        low, high = self.highest(topic, producer)
        found = self.deduplication.next_sequence(topic, producer.encode(), self.now)
        assert low + 1 <= found
        assert found <= high + 1 or self.any_hit(topic)


def check_same(original: Sent, again: Sent) -> None:
    if original.unique_key and again.unique_key and original.unique_key != again.unique_key:
        raise TroveError(errors.PRODUCER_SEQUENCE_CONFLICT)


def place_in_log(m: Sent) -> MessagePosition:
    return MessagePosition(
        PhysicalOffset(m.physical_offset), m.queue_id, QueueOffset(m.queue_offset), m.store_timestamp
    )
