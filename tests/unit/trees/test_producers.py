"""Numbered messages in the engine: gaps and replays are told apart, in a window that outlives restarts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from broker.append_result import AppendResult
from broker.deduplication import Deduplication
from broker.message_store import MessageStore
from broker.storage.files import FileSystem
from broker.storage.memory import MemoryFileSystem
from broker.store_trim import trim_now
from broker.trees import producer_entries, producers
from broker.trees.layout import PRODUCER, SEQUENCE
from broker.trees.producers import Gap
from broker.trees.unique_ids import Place
from tests.support.deduplicated import SETTINGS, TOPIC, WINDOW_MS, places_of, step
from tests.support.engine import NOW_MS, append, flush, open_store, sent_record
from trovemq_proto import errors
from trovemq_proto.errors import ErrorSpec, TroveError
from trovemq_proto.records.validate import validate_batch

PRODUCERS_MAX = 3
DEPTH = 6


class Message(NamedTuple):
    producer: str
    sequence: int | str
    unique_id: str = ""


class Stored(NamedTuple):
    message: Message
    place: Place


def opened(
    files: FileSystem, window: str = "10s", producers_max: int = PRODUCERS_MAX
) -> tuple[MessageStore, Deduplication]:
    store = open_store(files, replace(SETTINGS, producers_max=producers_max), topics=())
    if store.topics.get(TOPIC) is None:
        store.topics.create(TOPIC, 4, options={"deduplicate": window})
    return store, Deduplication(store)


def send(
    deduplication: Deduplication,
    store: MessageStore,
    messages: Sequence[Message],
    *,
    topic: str = TOPIC,
    queue_id: int = 0,
    now_ms: int = NOW_MS,
) -> AppendResult:
    data = bytearray()
    for message in messages:
        properties = {"TROVEMQ_PRODUCER": message.producer, "TROVEMQ_SEQUENCE": str(message.sequence)}
        own = {name: value for name, value in properties.items() if value}
        data += sent_record(
            b"body", topic=topic, queue_id=queue_id, unique_key=message.unique_id, properties=own
        )
    batch = validate_batch(
        data,
        topic=topic,
        queue_id=queue_id,
        body_size_max=store.settings.body_size_max,
        store_host_ipv6=False,
        append_property_crc=True,
    )
    return deduplication.append(data, batch, topic=topic, queue_id=queue_id, now_ms=now_ms, born_host=None)


def refusal(deduplication: Deduplication, store: MessageStore, *messages: Message) -> ErrorSpec:
    """Of these as one batch, of which nothing may have been stored."""
    before = store.end_offset
    with pytest.raises(TroveError) as caught:
        send(deduplication, store, messages)
    assert store.end_offset == before
    return caught.value.spec


def numbers(producer: str, *sequences: int) -> list[Message]:
    return [Message(producer, sequence) for sequence in sequences]


def in_log(store: MessageStore) -> list[Stored]:
    flush(store)
    found = []
    for begin, records, _ in store.scan(store.min_offset, store.end_offset):
        for index, message in enumerate(records.messages()):
            if message.topic == TOPIC:
                own = message.properties
                place = Place(
                    begin + int(records.positions[index]),
                    message.queue_id,
                    message.queue_offset,
                    message.store_timestamp,
                )
                number = int(own["TROVEMQ_SEQUENCE"])
                found.append(Stored(Message(own["TROVEMQ_PRODUCER"], number, own.get("UNIQ_KEY", "")), place))
    return found


class Model:
    """What the log has, and what must be known of it."""

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

    def expected(self, messages: Sequence[Message], since_ms: int) -> list[Place | int | None]:
        """For each message: the original's place, or the index of the first one of its kind in the batch, or
        None where it is stored. TroveError where the batch is refused."""
        alive = [stored for stored in self.log if stored.place.store_timestamp > since_ms]
        by_id = {stored.message.unique_id: stored.place for stored in alive if stored.message.unique_id}
        by_number = {stored.message[:2]: stored for stored in alive}
        found: list[Place | int | None] = []
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
    """Sends of several producers, with gaps, replays and what comes late; steps of the trees, restarts, power
    cuts, lost trees; compared with what is in the log."""

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
    def send(self, rows: list[tuple[str, int, str]], queue_id: int, later_ms: int) -> None:
        self.now_ms += later_ms
        since_ms = max(self.now_ms, self.store.last_store_timestamp) - WINDOW_MS
        messages = []
        for producer, step_by, kind in rows:
            sequence = max(0, self.model.highest(producer, 0) + 1 + step_by)
            unique_id = f"{producer}-{sequence}{kind}" if kind else ""
            messages.append(Message(producer, sequence, unique_id))
        certain = all(self.model.certain(message.producer, since_ms) for message in messages)
        try:
            expected: list[Place | int | None] | ErrorSpec = self.model.expected(messages, since_ms)
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
        for index, (message, place) in enumerate(zip(messages, places, strict=True)):
            if index not in result.duplicates:
                assert place.physical_offset >= before
                self.model.add(Stored(message, place))
        for index, place in result.duplicates.items():
            original = next(stored.message for stored in self.model.log if stored.place == place)
            same_id = bool(original.unique_id) and original.unique_id == messages[index].unique_id
            assert original[:2] == messages[index][:2] or same_id

    @rule(producer=st.sampled_from("ab"), count=st.integers(2, 9), skip=st.sampled_from([0, 0, 3]))
    def send_on(self, producer: str, count: int, skip: int) -> None:
        """In order, as a producer does."""
        since_ms = max(self.now_ms, self.store.last_store_timestamp) - WINDOW_MS
        first = self.model.highest(producer, since_ms) + 1 + skip
        messages = [Message(producer, first + number) for number in range(count)]
        result = send(self.deduplication, self.store, messages, now_ms=self.now_ms)
        assert not result.duplicates
        for message, place in zip(messages, places_of(result, 0), strict=True):
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
        trees = self.store.trees
        assert trees is not None
        trees.sweep(2)
        trees.sweep_ids(self.store.last_store_timestamp, 2)

    @rule(how=st.sampled_from(["stopped", "killed", "power", "trees lost"]))
    def restart(self, how: str) -> None:
        if how == "stopped":
            self.store.close(self.now_ms)
        elif how == "killed":
            self.files = self.files.after_process_kill()
        else:
            self.files = self.files.after_power_cut()
        if how == "trees lost":
            self.files.remove("trovemq/trees/data.mdb")
        self.store, self.deduplication = opened(self.files)
        self.model = Model()
        for each in in_log(self.store):
            self.model.add(each)


Machine.TestCase.settings = hypothesis_settings(max_examples=40, stateful_step_count=25, deadline=None)
test_a_number_is_stored_once_and_what_is_missing_may_come_late = Machine.TestCase


@pytest.fixture
def shallow(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (producers, producer_entries):
        monkeypatch.setattr(module, "DEPTH", DEPTH)


def settle(store: MessageStore) -> None:
    """Everything into the trees."""
    flush(store)
    while step(store):
        pass


def test_gaps_are_counted_and_told_and_what_fills_them_is_no_replay() -> None:
    told: list[tuple[str, Gap]] = []
    store, _ = opened(MemoryFileSystem())
    deduplication = Deduplication(store, on_gap=lambda topic, gap: told.append((topic, gap)))
    for sequence in (0, 1, 5, 2, 4, 3, 6):
        assert not send(deduplication, store, numbers("p", sequence)).duplicates
        settle(store)
    assert told == [(TOPIC, Gap(b"p", 2, 4))]
    assert (deduplication.missing, deduplication.filled) == ({TOPIC: 3}, {TOPIC: 3})
    assert send(deduplication, store, numbers("p", 0, 1, 2, 3, 4, 5, 6)).record_count == 0
    assert deduplication.duplicates == {TOPIC: 7}
    assert len(told) == 1
    deduplication.forget_topic(TOPIC)
    assert not deduplication.missing
    assert not deduplication.filled


def test_a_producer_that_begins_anywhere_leaves_no_gap() -> None:
    store, deduplication = opened(MemoryFileSystem())
    send(deduplication, store, numbers("p", 40, 41))
    assert not deduplication.missing


@pytest.mark.parametrize("indexed", [False, True])
def test_a_number_that_was_stored_before_the_window_is_stored_again(indexed: bool) -> None:
    """Although a higher one of the window is known."""
    store, deduplication = opened(MemoryFileSystem())
    send(deduplication, store, numbers("p", 0, 1))
    send(deduplication, store, numbers("p", 3), now_ms=NOW_MS + WINDOW_MS - 1)
    flush(store)
    if indexed:
        settle(store)
    later = send(deduplication, store, numbers("p", 1, 0, 3), now_ms=NOW_MS + WINDOW_MS)
    assert sorted(later.duplicates) == [2]
    if not indexed:
        step(store, 1)  # what is on disk: the older ones
    for _ in range(2):
        again = send(deduplication, store, numbers("p", 0, 1), now_ms=NOW_MS + WINDOW_MS)
        assert [each.physical_offset for each in again.duplicates.values()] == [
            later.physical_offset + int(later.positions[1]),
            later.physical_offset,
        ]
        settle(store)


def test_a_replay_is_answered_with_the_place_of_its_original() -> None:
    files = MemoryFileSystem()
    store, deduplication = opened(files)
    first = send(deduplication, store, numbers("p", 0, 1), queue_id=2)
    send(deduplication, store, numbers("q", 0, 1))
    for number in range(3):
        again = send(deduplication, store, numbers("p", 1, 2 + number, 0))
        assert places_of(again, 0)[0] == places_of(first, 2)[1]
        assert places_of(again, 0)[2] == places_of(first, 2)[0]
        assert again.record_count == 1
        if number == 0:
            settle(store)
        else:
            flush(store)
            store, deduplication = opened(files := files.after_power_cut())


def test_another_message_under_a_number_is_refused() -> None:
    store, deduplication = opened(MemoryFileSystem())
    send(deduplication, store, [Message("p", 0, "one"), Message("p", 1)])
    for _ in range(2):
        assert (
            refusal(deduplication, store, Message("p", 0, "two"), Message("p", 2))
            is errors.PRODUCER_SEQUENCE_CONFLICT
        )
        assert send(deduplication, store, [Message("p", 0), Message("p", 1, "late")]).record_count == 0
        settle(store)
    twice = [Message("p", 2, "one more"), Message("p", 2, "and another")]
    assert refusal(deduplication, store, *twice) is errors.PRODUCER_SEQUENCE_CONFLICT
    assert deduplication.next_sequence(TOPIC, b"p", NOW_MS) == 2


@pytest.mark.usefixtures("shallow")
@pytest.mark.parametrize("indexed", [False, True])
def test_a_number_below_the_window_is_refused_unless_its_unique_key_is_known(indexed: bool) -> None:
    store, deduplication = opened(MemoryFileSystem())
    first = send(deduplication, store, [Message("p", 0, "one")])
    send(deduplication, store, numbers("p", *range(1, DEPTH + 1)))
    if indexed:
        settle(store)
        assert store.trees is not None
        with store.trees.trees.read() as reader:
            assert reader.count(SEQUENCE) == DEPTH
    assert refusal(deduplication, store, Message("p", 0)) is errors.PRODUCER_SEQUENCE_TOO_OLD
    assert refusal(deduplication, store, Message("p", 0, "new")) is errors.PRODUCER_SEQUENCE_TOO_OLD
    again = send(deduplication, store, [Message("p", 0, "one"), Message("p", 1)])
    assert again.record_count == 0
    assert again.duplicates[0].physical_offset == first.physical_offset


ILLEGAL = [
    ("p", -1),
    ("p", ""),
    ("p", "one"),
    ("p", "1.0"),
    ("p", "+1"),
    ("p", "\N{ARABIC-INDIC DIGIT ONE}"),
    ("p", 2**63),
    ("p", 10**30),
    ("", 0),
    ("x" * 65, 0),
    ("a b", 0),
    ("ä", 0),
    ("a\n", 0),
]


@pytest.mark.parametrize(("producer", "sequence"), ILLEGAL)
def test_what_is_no_number_is_refused_with_its_whole_batch(producer: str, sequence: int | str) -> None:
    store, deduplication = opened(MemoryFileSystem())
    own = [Message("p", 0), Message(producer, sequence)]
    assert refusal(deduplication, store, *own) is errors.PRODUCER_SEQUENCE_ILLEGAL
    assert not send(deduplication, store, numbers("p", 0)).duplicates


@pytest.mark.parametrize(("producer", "sequence"), ILLEGAL)
def test_what_is_no_number_in_the_log_stops_nothing(producer: str, sequence: int | str) -> None:
    """It was stored while the topic was not deduplicated."""
    store, deduplication = opened(MemoryFileSystem(), "off")
    send(deduplication, store, [Message(producer, sequence), Message("p", 5)])
    store.topics.alter(TOPIC, options={"deduplicate": "10s"})
    settle(store)
    assert deduplication.next_sequence(TOPIC, b"p", NOW_MS) == 6
    assert send(deduplication, store, numbers("p", 5)).duplicates


def test_the_highest_and_the_longest_are_legal() -> None:
    store, deduplication = opened(MemoryFileSystem())
    longest = "aZ0-_." + "x" * 58
    send(deduplication, store, numbers(longest, 2**63 - 2))
    assert deduplication.next_sequence(TOPIC, longest.encode(), NOW_MS) == 2**63 - 1
    send(deduplication, store, numbers(longest, 2**63 - 1))
    settle(store)
    assert send(deduplication, store, numbers(longest, 2**63 - 1)).duplicates
    with pytest.raises(TroveError) as caught:
        deduplication.next_sequence(TOPIC, longest.encode(), NOW_MS)
    assert caught.value.spec is errors.PRODUCER_SEQUENCE_ILLEGAL


def test_where_a_producer_stands_is_told_of_deduplicated_topics_only() -> None:
    store, deduplication = opened(MemoryFileSystem())
    store.topics.create("plain", 1)
    assert deduplication.next_sequence(TOPIC, b"p", NOW_MS) == 0
    for topic, producer, spec in (
        ("plain", b"p", errors.REQUEST_ILLEGAL),
        ("none", b"p", errors.TOPIC_NOT_FOUND),
        (TOPIC, b"", errors.PRODUCER_SEQUENCE_ILLEGAL),
        (TOPIC, b"x" * 65, errors.PRODUCER_SEQUENCE_ILLEGAL),
    ):
        with pytest.raises(TroveError) as caught:
            deduplication.next_sequence(topic, producer, NOW_MS)
        assert caught.value.spec is spec


def test_topics_that_are_not_deduplicated_do_not_look_at_numbers() -> None:
    store, deduplication = opened(MemoryFileSystem())
    store.topics.create("plain", 1)
    for _ in range(2):
        for message in (Message("p", 0), Message("", "x")):
            assert not send(deduplication, store, [message], topic="plain").duplicates
    settle(store)
    assert store.trees is not None
    assert not store.trees.producer_entries.last


def test_a_topic_that_is_made_again_knows_no_producer() -> None:
    store, deduplication = opened(MemoryFileSystem())
    send(deduplication, store, numbers("p", 0, 1))
    for indexed in (False, True):
        if indexed:
            settle(store)
        store.delete_topic(TOPIC, NOW_MS)
        store.topics.create(TOPIC, 4, options={"deduplicate": "10s"})
        assert deduplication.next_sequence(TOPIC, b"p", NOW_MS) == 0
        assert not send(deduplication, store, numbers("p", 0, 1)).duplicates
    settle(store)
    trees = store.trees
    assert trees is not None
    while trees.sweep(100) or trees.sweep_ids(NOW_MS, 100):
        pass
    with trees.trees.read() as reader:
        assert (reader.count(PRODUCER), reader.count(SEQUENCE)) == (1, 2)


def test_those_idle_the_longest_are_forgotten_first() -> None:
    files = MemoryFileSystem()
    store, deduplication = opened(files)
    for producer in ("a", "b", "c", "a", "d"):
        sequence = deduplication.next_sequence(TOPIC, producer.encode(), NOW_MS)
        send(deduplication, store, numbers(producer, sequence))
        settle(store)
    for _ in range(2):
        found = {
            producer: deduplication.next_sequence(TOPIC, producer.encode(), NOW_MS) for producer in "abcd"
        }
        assert found == {"a": 2, "b": 0, "c": 1, "d": 1}
        store.close(NOW_MS)
        store, deduplication = opened(files)


def test_a_lower_limit_at_the_next_start_is_kept_with_the_next_message() -> None:
    files = MemoryFileSystem()
    store, deduplication = opened(files)
    for producer in "abc":
        send(deduplication, store, numbers(producer, 0))
    settle(store)
    store.close(NOW_MS)
    store, deduplication = opened(files, producers_max=1)
    send(deduplication, store, numbers("b", 1))
    settle(store)
    assert [deduplication.next_sequence(TOPIC, name, NOW_MS) for name in (b"a", b"b", b"c")] == [0, 2, 0]


def test_producers_that_were_silent_for_the_window_are_swept() -> None:
    store, deduplication = opened(MemoryFileSystem(), producers_max=100)
    for number in range(20):
        send(deduplication, store, numbers(f"p{number}", 0, 1, 2), now_ms=NOW_MS + 1_000 * number)
    settle(store)
    trees = store.trees
    assert trees is not None
    while trees.sweep_ids(store.last_store_timestamp, 3):
        pass
    assert len(trees.producer_entries.last) == 10
    with trees.trees.read() as reader:
        assert (reader.count(PRODUCER), reader.count(SEQUENCE)) == (10, 30)
    store.topics.alter(TOPIC, options={"deduplicate": "off"})
    send(deduplication, store, numbers("z", 0), now_ms=NOW_MS + 40_000)
    settle(store)
    while trees.sweep_ids(store.last_store_timestamp, 3):
        pass
    assert not trees.producer_entries.last
    with trees.trees.read() as reader:
        assert (reader.count(PRODUCER), reader.count(SEQUENCE)) == (0, 0)


def test_a_replay_whose_original_has_left_the_log_is_a_replay() -> None:
    store, deduplication = opened(MemoryFileSystem(), "1h")
    first = send(deduplication, store, [Message("p", 0, "one")])
    for number in range(4):
        send(deduplication, store, numbers("q", *range(60 * number, 60 * number + 60)))
    settle(store)
    store.flush_projections()
    trim_now(store.trim(store.closed_segments()[0].end))
    assert store.min_offset > first.physical_offset
    again = send(deduplication, store, [Message("p", 0, "two")])
    assert again.duplicates[0].physical_offset == first.physical_offset


def test_topics_have_numbers_of_their_own_and_copies_have_none() -> None:
    store, deduplication = opened(MemoryFileSystem())
    store.topics.create("bills", 1, options={"deduplicate": "1h"})
    send(deduplication, store, numbers("p", 0, 1))
    send(deduplication, store, numbers("p", 0), topic="bills")
    number = {"TROVEMQ_PRODUCER": "p", "TROVEMQ_SEQUENCE": "7", "REAL_TOPIC": TOPIC}
    append(store, sent_record(b"delivered later", topic=TOPIC, properties=number), topic=TOPIC)
    for _ in range(2):
        assert deduplication.next_sequence(TOPIC, b"p", NOW_MS) == 2
        assert deduplication.next_sequence("bills", b"p", NOW_MS) == 1
        settle(store)
