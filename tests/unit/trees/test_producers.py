"""Numbered messages in the engine: gaps and replays are distinguished, in a window that outlives restarts."""

from __future__ import annotations

import pytest

from tests.support.deduplicated import TOPIC, WINDOW_MS, places_of, step
from tests.support.engine import NOW_MS, append, flush, sent_record
from tests.support.numbered_store import DEPTH, Message, numbers, opened, send
from trovemq_proto import errors
from trovemq_proto.errors import ErrorSpec, TroveError
from trovemq_proto.positions import EpochMs, QueueId
from trovemq_store.engine.deduplication import Deduplication
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.trim import trim_now
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.index.trees import producer_entries, producers
from trovemq_store.index.trees.layout import PRODUCER, SEQUENCE
from trovemq_store.index.trees.producers import Gap


def refusal(deduplication: Deduplication, store: MessageStore, *messages: Message) -> ErrorSpec:
    """Of these as one batch, of which nothing may have been stored."""
    before = store.end_offset
    with pytest.raises(TroveError) as caught:
        send(deduplication, store, messages)
    assert store.end_offset == before
    return caught.value.spec


@pytest.fixture
def shallow(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (producers, producer_entries):
        monkeypatch.setattr(module, "DEPTH", DEPTH)


def settle(store: MessageStore) -> None:
    """Everything into the trees."""
    flush(store)
    while step(store):
        pass


def test_gaps_are_reported_and_filling_them_is_not_a_replay() -> None:
    reported: list[tuple[str, Gap]] = []
    store, _ = opened(MemoryFileSystem())
    deduplication = Deduplication(store, on_gap=lambda topic, gap: reported.append((topic, gap)))
    for sequence in (0, 1, 5, 2, 4, 3, 6):
        result = send(deduplication, store, numbers("p", sequence))
        assert not result.duplicates
        assert result.gaps == ({0: Gap(b"p", 2, 4)} if sequence == 5 else {})
        settle(store)
    assert reported == [(TOPIC, Gap(b"p", 2, 4))]
    assert (deduplication.missing, deduplication.filled) == ({TOPIC: 3}, {TOPIC: 3})
    assert send(deduplication, store, numbers("p", 0, 1, 2, 3, 4, 5, 6)).record_count == 0
    assert deduplication.duplicates == {TOPIC: 7}
    assert len(reported) == 1
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
    send(deduplication, store, numbers("p", 3), now_ms=EpochMs(NOW_MS + WINDOW_MS - 1))
    flush(store)
    if indexed:
        settle(store)
    later = send(deduplication, store, numbers("p", 1, 0, 3), now_ms=NOW_MS + WINDOW_MS)
    assert sorted(later.duplicates) == [2]
    if not indexed:
        step(store, 1)  # the older ones, on disk
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
    first = send(deduplication, store, numbers("p", 0, 1), queue_id=QueueId(2))
    send(deduplication, store, numbers("q", 0, 1))
    for number in range(3):
        again = send(deduplication, store, numbers("p", 1, 2 + number, 0))
        assert places_of(again, QueueId(0))[0] == places_of(first, QueueId(2))[1]
        assert places_of(again, QueueId(0))[2] == places_of(first, QueueId(2))[0]
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
def test_a_number_below_the_window_is_refused_without_a_known_unique_key(indexed: bool) -> None:
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
def test_what_is_not_a_number_is_refused_with_its_whole_batch(producer: str, sequence: int | str) -> None:
    store, deduplication = opened(MemoryFileSystem())
    own = [Message("p", 0), Message(producer, sequence)]
    assert refusal(deduplication, store, *own) is errors.PRODUCER_SEQUENCE_ILLEGAL
    assert not send(deduplication, store, numbers("p", 0)).duplicates


@pytest.mark.parametrize(("producer", "sequence"), ILLEGAL)
def test_what_is_not_a_number_in_the_log_stops_nothing(producer: str, sequence: int | str) -> None:
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


def test_a_producers_last_number_is_known_in_deduplicated_topics_only() -> None:
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


def test_a_topic_that_is_recreated_knows_no_producer() -> None:
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
    while trees.sweep(100) or trees.sweep_ids(store.time.since_of(NOW_MS), NOW_MS, 100):
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
    while trees.sweep_ids(store.time.since_of(store.last_store_timestamp), store.last_store_timestamp, 3):
        pass
    assert len(trees.producer_entries.last) == 10
    with trees.trees.read() as reader:
        assert (reader.count(PRODUCER), reader.count(SEQUENCE)) == (10, 30)
    store.topics.alter(TOPIC, options={"deduplicate": "off"})
    send(deduplication, store, numbers("z", 0), now_ms=NOW_MS + 40_000)
    settle(store)
    while trees.sweep_ids(store.time.since_of(store.last_store_timestamp), store.last_store_timestamp, 3):
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
