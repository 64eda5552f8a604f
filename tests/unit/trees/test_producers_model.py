"""Numbered messages by a model of the broker's knowledge, as Hypothesis chooses the steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from tests.support.deduplicated import ENDS, TOPIC, WINDOW_MS, ended, places_of, step, sweep_a_little
from tests.support.engine import NOW_MS, flush
from tests.support.numbered_store import DEPTH, PRODUCERS_MAX, Message, Stored, in_log, opened, send
from trovemq_proto import errors
from trovemq_proto.errors import ErrorSpec, TroveError
from trovemq_proto.positions import QueueId
from trovemq_store.engine.append_result import AppendResult
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.index.trees import producer_entries, producers
from trovemq_store.index.trees.layout import PRODUCER, SEQUENCE
from trovemq_store.index.trees.producers import Gap
from trovemq_store.index.trees.unique_ids import MessagePosition


class Model:
    """The content of the log, and the known numbers."""

    def __init__(self) -> None:
        self.log: list[Stored] = []
        self._used: list[str] = []
        self._certain_from: dict[str, int] = {}

    def add(self, stored: Stored) -> None:
        producer = stored.message.producer
        if producer in self._used:
            self._used.remove(producer)
        else:
            self._certain_from[producer] = len(self.log)
        self._used = [*self._used, producer][-PRODUCERS_MAX:]
        self.log.append(stored)

    def certain(self, producer: str, since_ms: int) -> bool:
        """Whether nothing of the producer that counts may have been forgotten for the others' sake."""
        alive = [
            number
            for number, stored in enumerate(self.log)
            if stored.message.producer == producer and stored.place.store_timestamp > since_ms
        ]
        return not alive or (producer in self._used and alive[0] >= self._certain_from[producer])

    def highest(self, producer: str, since_ms: int) -> int:
        found = [
            int(stored.message.sequence)
            for stored in self.log
            if stored.message.producer == producer and stored.place.store_timestamp > since_ms
        ]
        return max(found, default=-1)

    def gaps(
        self, messages: Sequence[Message], duplicates: Mapping[int, MessagePosition], since_ms: int
    ) -> list[tuple[int, Gap]]:
        """The gaps before each message of a batch, where there are any."""
        highest = {message.producer: self.highest(message.producer, since_ms) for message in messages}
        found = []
        for index, message in enumerate(messages):
            before, sequence = highest[message.producer], int(message.sequence)
            if index in duplicates:
                continue
            if 0 <= before < sequence - 1:
                found.append((index, Gap(message.producer.encode(), before + 1, sequence - 1)))
            highest[message.producer] = max(before, sequence)
        return found

    def expected(self, messages: Sequence[Message], since_ms: int) -> list[MessagePosition | int | None]:
        """For each message: the original's place, or the index of the first one of its kind in the batch, or
        None where it is stored. TroveError where the batch is refused."""
        alive = [stored for stored in self.log if stored.place.store_timestamp > since_ms]
        by_id = {stored.message.unique_id: stored.place for stored in alive if stored.message.unique_id}
        by_number = {stored.message[:2]: stored for stored in alive}
        found: list[MessagePosition | int | None] = []
        first_ids: dict[str, int] = {}
        for index, message in enumerate(messages):
            first = first_ids.setdefault(message.unique_id, index) if message.unique_id else index
            found.append(by_id.get(message.unique_id, first if first != index else None))
        highest = {message.producer: self.highest(message.producer, since_ms) for message in messages}
        firsts: dict[tuple[str, int | str], int] = {}
        for producer in dict.fromkeys(message.producer for message in messages):
            for index, message in enumerate(messages):
                if message.producer != producer or found[index] is not None:
                    continue
                number, sequence = message[:2], int(message.sequence)
                if sequence <= highest[producer] - DEPTH:
                    raise TroveError(errors.PRODUCER_SEQUENCE_TOO_OLD)
                if number in by_number:
                    _check(by_number[number].message, message)
                    found[index] = by_number[number].place
                elif number in firsts:
                    _check(messages[firsts[number]], message)
                    found[index] = firsts[number]
                else:
                    firsts[number] = index
                    highest[producer] = max(highest[producer], sequence)
        for index in range(len(found)):
            while type(found[index]) is int:
                target = found[found[index]]  # type: ignore[index]
                if target is None:
                    break
                found[index] = target
        return found


def _check(original: Message, again: Message) -> None:
    if original.unique_id and again.unique_id and original.unique_id != again.unique_id:
        raise TroveError(errors.PRODUCER_SEQUENCE_CONFLICT)


class Machine(RuleBasedStateMachine):
    """Sends of several producers, with gaps, replays and late ones; steps of the trees, restarts, power cuts,
    lost trees; compared with the log."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        for module in (producers, producer_entries):
            self.patch.setattr(module, "DEPTH", DEPTH)
        self.files = MemoryFileSystem()
        self.store, self.deduplication = opened(self.files)
        self.now_ms = NOW_MS
        self.model = Model()
        self.base = 0

    def teardown(self) -> None:
        self.store.close(self.now_ms)
        self.patch.undo()

    @rule(
        rows=st.lists(
            st.tuples(
                st.sampled_from("aaaaaabbbcd"), st.integers(-9, 4), st.sampled_from(["", "", "=", "x"])
            ),
            min_size=1,
            max_size=5,
        ),
        queue_id=st.integers(0, 1),
        later_ms=st.sampled_from([0, 1, 3_000, 9_999, 10_000]),
    )
    def send(self, rows: list[tuple[str, int, str]], queue_id: QueueId, later_ms: int) -> None:
        self.now_ms += later_ms
        since_ms = max(self.now_ms, self.store.last_store_timestamp) - WINDOW_MS
        messages = []
        for producer, step_by, kind in rows:
            sequence = max(0, self.model.highest(producer, 0) + 1 + step_by)
            unique_id = f"{producer}-{sequence}{kind}" if kind else ""
            messages.append(Message(producer, sequence, unique_id))
        certain = all(self.model.certain(message.producer, since_ms) for message in messages)
        try:
            expected: list[MessagePosition | int | None] | ErrorSpec = self.model.expected(messages, since_ms)
        except TroveError as error:
            expected = error.spec
        before = self.store.end_offset
        refused: ErrorSpec | None = None
        try:
            result = send(self.deduplication, self.store, messages, queue_id=queue_id, now_ms=self.now_ms)
        except TroveError as error:
            refused = error.spec
        if refused is not None:
            assert self.store.end_offset == before
            assert not certain or refused == expected
            return
        places = places_of(result, queue_id)
        if certain:
            assert not isinstance(expected, ErrorSpec), expected
            wanted = [places[each] if type(each) is int else each for each in expected]
            assert {index: place for index, place in enumerate(wanted) if place} == result.duplicates
            assert list(result.gaps.items()) == self.model.gaps(messages, result.duplicates, since_ms)
        self.check_parts(result)
        for index, (message, place) in enumerate(zip(messages, places, strict=True)):
            if index not in result.duplicates:
                assert place.physical_offset >= before
                self.model.add(Stored(message, place))
        for index, place in result.duplicates.items():
            original = next(stored.message for stored in self.model.log if stored.place == place)
            same_id = bool(original.unique_id) and original.unique_id == messages[index].unique_id
            assert original[:2] == messages[index][:2] or same_id

    @staticmethod
    def check_parts(result: AppendResult) -> None:
        """Each message's own answer, where many sends were put together."""
        for index, part in enumerate(result.parts([1] * result.message_count)):
            reported = [part.gaps[0]] if part.gaps else []
            assert reported == [gap for at, gap in result.gaps.items() if at == index]
            assert part.gaps == result.part(index, 1).gaps
        halves = result.message_count // 2
        behind = result.part(halves, result.message_count - halves).gaps
        assert behind == {at - halves: gap for at, gap in result.gaps.items() if at >= halves}

    @rule(producer=st.sampled_from("ab"), count=st.integers(2, 9), skip=st.sampled_from([0, 0, 3]))
    def send_on(self, producer: str, count: int, skip: int) -> None:
        """In order, as a producer does."""
        since_ms = max(self.now_ms, self.store.last_store_timestamp) - WINDOW_MS
        first = self.model.highest(producer, since_ms) + 1 + skip
        messages = [Message(producer, first + number) for number in range(count)]
        result = send(self.deduplication, self.store, messages, now_ms=self.now_ms)
        assert not result.duplicates
        if self.model.certain(producer, since_ms):
            assert list(result.gaps.items()) == self.model.gaps(messages, {}, since_ms)
        for message, place in zip(messages, places_of(result, QueueId(0)), strict=True):
            self.model.add(Stored(message, place))

    @rule(producer=st.sampled_from("abcd"))
    def ask_where_it_stands(self, producer: str) -> None:
        since_ms = max(self.now_ms, self.store.last_store_timestamp) - WINDOW_MS
        found = self.deduplication.next_sequence(TOPIC, producer.encode(), self.now_ms)
        highest = self.model.highest(producer, since_ms)
        assert found <= highest + 1
        assert found == highest + 1 or not self.model.certain(producer, since_ms)

    @rule()
    def flush(self) -> None:
        flush(self.store)

    @rule(bytes_max=st.sampled_from([1, 1 << 20]))
    def step_of_the_trees(self, bytes_max: int) -> None:
        step(self.store, bytes_max)
        trees = self.store.trees
        assert trees is not None
        with trees.trees.read() as reader:
            heads = {key for key, _ in reader.items(PRODUCER, b"")}
            entries = Counter(key[:-9] for key, _ in reader.items(SEQUENCE, b""))
        assert heads == entries.keys() == trees.producer_entries.last.keys()
        assert len(heads) <= PRODUCERS_MAX
        assert max(entries.values(), default=0) <= DEPTH

    @rule()
    def sweep(self) -> None:
        sweep_a_little(self.store)

    @rule(how=st.sampled_from(ENDS))
    def restart(self, how: str) -> None:
        self.files = ended(self.files, self.store, how, self.now_ms)
        self.store, self.deduplication = opened(self.files)
        self.model = Model()
        for each in in_log(self.store):
            self.model.add(each)


Machine.TestCase.settings = hypothesis_settings(max_examples=40, stateful_step_count=25, deadline=None)
test_a_number_is_stored_once_and_what_is_missing_may_come_late = pytest.mark.slow(Machine.TestCase)
