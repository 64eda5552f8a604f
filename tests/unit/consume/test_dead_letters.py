"""Dead letters sent again: the new message's fields and place, and refusals."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.support.engine import NOW_MS, open_store, own_properties, read_queue, send
from trovemq_broker.groups.dead_letters import DeadLetters
from trovemq_proto import errors
from trovemq_proto.errors import ErrorSpec, TroveError
from trovemq_proto.positions import EpochMs, QueueId, QueueOffset
from trovemq_proto.records import Message
from trovemq_proto.records.hashes import group_queue
from trovemq_proto.records.internal_properties import INTERNAL_PROPERTIES
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.record_writer import NewRecord, RecordWriter
from trovemq_store.engine.store_time import AHEAD_FOR_MS
from trovemq_store.files.memory import MemoryFileSystem

DEAD = "%DLQ%billing"
LATER = EpochMs(NOW_MS + 1_000)
ORIGIN = {"DLQ_ORIGIN_TOPIC": "orders"}


def bury(store: MessageStore, properties: Mapping[str, str], body: bytes = b"bad") -> None:
    store.topics.ensure_internal(DEAD, 1)
    letter = NewRecord(
        DEAD,
        QueueId(0),
        body,
        properties,
        born_timestamp=EpochMs(NOW_MS - 9),
        born_host=bytes([10, 0, 0, 9, 0, 0, 0, 80]),
        reconsume_times=16,
    )
    RecordWriter(store, lambda: None).append([letter], NOW_MS)
    store.dispatch()


def letters_of(store: MessageStore) -> DeadLetters:
    def found(topic: str, unique_key: str) -> list[Message]:
        messages = [
            message for queue_id in range(4) for message in read_queue(store, topic, QueueId(queue_id))
        ]
        wanted = [message for message in messages if message.unique_key == unique_key]
        return sorted(wanted, key=lambda message: -message.physical_offset)

    return DeadLetters(store, RecordWriter(store, lambda: None), found)


def resend(store: MessageStore, offset: int = 0) -> Message:
    before = {queue_id: len(read_queue(store, "orders", QueueId(queue_id))) for queue_id in range(4)}
    sent = letters_of(store).resend("billing", QueueOffset(offset), LATER)
    store.dispatch()
    assert sent.topic == "orders"
    (message,) = [
        message
        for queue_id in range(4)
        for message in read_queue(store, "orders", QueueId(queue_id))[before[queue_id] :]
    ]
    assert (sent.offset_msg_id, sent.again) == (message.offset_msg_id, False)
    return message


def refused(store: MessageStore, offset: int = 0) -> ErrorSpec:
    end = store.end_offset
    with pytest.raises(TroveError) as caught:
        letters_of(store).resend("billing", QueueOffset(offset), LATER)
    assert store.end_offset == end, "a letter that cannot be sent changes nothing"
    return caught.value.spec


def test_the_copy_has_keys_tags_properties_and_unique_key_but_no_past() -> None:
    store = open_store(MemoryFileSystem())
    user = {"KEYS": "a b", "TAGS": "paid", "UNIQ_KEY": "U1", "colour": "red"}
    past = {
        "DLQ_ORIGIN_TOPIC": "orders",
        "DLQ_ORIGIN_MESSAGE_ID": "0A",
        "ORIGIN_MESSAGE_ID": "0B",
        "RECONSUME_TIME": "16",
        "RETRY_TOPIC": "orders",
        "REAL_TOPIC": "%RETRY%billing_orders",
        "REAL_QID": "0",
        "TIMER_OUT_MS": "5",
        **dict.fromkeys(INTERNAL_PROPERTIES.keys() - {"TROVEMQ_KEY_SIZES"}, "1"),
        "DELAY": "3",
        "TRAN_MSG": "true",
        "1ST_POP_TIME": "7",
    }
    bury(store, user | past)
    message = resend(store)
    (letter,) = read_queue(store, DEAD)
    assert own_properties(message) == user | {"TROVEMQ_RESENT": str(letter.physical_offset)}
    assert (message.body, message.reconsume_times) == (b"bad", 0)
    assert (message.born_timestamp, message.born_host) == (NOW_MS - 9, "10.0.0.9:80")
    assert message.store_timestamp == LATER
    assert letter.unique_key == "U1", "the letter stays"


def test_letters_spread_over_the_queues() -> None:
    store = open_store(MemoryFileSystem())
    for number in range(8):
        bury(store, ORIGIN | {"UNIQ_KEY": str(number)})
    assert [resend(store, offset).queue_id for offset in range(8)] == [0, 1, 2, 3, 0, 1, 2, 3]


def test_an_ordered_message_goes_to_its_first_queue_or_its_groups() -> None:
    store = open_store(MemoryFileSystem())
    for number in range(5):
        bury(store, ORIGIN | {"UNIQ_KEY": str(number), "__SHARDINGKEY": "customer-7"})
    for number, queue_id in ((0, 3), (1, 2)):
        first = NewRecord("orders", QueueId(queue_id), b"first", {"UNIQ_KEY": str(number)})
        RecordWriter(store, lambda: None).append([first], NOW_MS)
    store.dispatch()
    assert [resend(store, offset).queue_id for offset in (0, 1)] == [3, 2]
    own = group_queue("customer-7", store.topics.require("orders").write_queue_count)
    assert {resend(store, offset).queue_id for offset in (2, 3, 4)} == {own}, "where its senders send it"
    bury(store, ORIGIN | {"UNIQ_KEY": "last", "__SHARDINGKEY": "customer-7"})
    assert resend(store, 5).properties["__SHARDINGKEY"] == "customer-7"


@pytest.mark.parametrize("visible", [True, False])
def test_a_letter_that_was_resent_twice_came_twice(visible: bool) -> None:
    store = open_store(MemoryFileSystem())
    for number in range(2):
        bury(store, ORIGIN | {"UNIQ_KEY": "the same", "number": str(number)})
    letters = letters_of(store)
    assert letters.resent("billing", QueueOffset(0)) is None
    first = letters.resend("billing", QueueOffset(0), LATER)
    if visible:
        store.dispatch()
        letters = letters_of(store)  # as after a start
    end = store.end_offset
    for sent in (letters.resend("billing", QueueOffset(0), LATER), letters.resent("billing", QueueOffset(0))):
        assert sent is not None
        assert (sent.topic, sent.offset_msg_id, sent.again) == ("orders", first.offset_msg_id, True)
    assert store.end_offset == end, "nothing was sent"
    assert letters.resent("billing", QueueOffset(1)) is None
    other = letters.resend("billing", QueueOffset(1), LATER)
    assert not other.again, "another letter of the same message is a separate one"


def test_a_letter_was_sent_twice_when_store_times_had_stepped_back() -> None:
    """The copy is older than its letter then, by its store time."""
    store = open_store(MemoryFileSystem())
    send(store, b"of a clock that is ahead", EpochMs(NOW_MS + 3_600_000))
    bury(store, ORIGIN | {"UNIQ_KEY": "U"})
    store.tick(NOW_MS, 0)
    now_ms = EpochMs(NOW_MS + AHEAD_FOR_MS)
    store.tick(now_ms, AHEAD_FOR_MS)
    store.begin_time_step(now_ms)
    store.flush_projections()
    assert store.finish_time_step(now_ms)
    first = letters_of(store).resend("billing", QueueOffset(0), now_ms)
    store.dispatch()
    end = store.end_offset
    again = letters_of(store).resend("billing", QueueOffset(0), now_ms)
    assert (again.offset_msg_id, again.again) == (first.offset_msg_id, True)
    assert store.end_offset == end, "nothing was sent"


def test_what_is_remembered_of_resent_letters_goes_when_they_are_visible() -> None:
    store = open_store(MemoryFileSystem())
    bury(store, ORIGIN | {"UNIQ_KEY": "U"})
    letters = letters_of(store)
    letters.resend("billing", QueueOffset(0), LATER)
    letters.check_group("billing")
    assert letters._not_visible
    store.dispatch()
    letters.check_group("billing")
    assert not letters._not_visible


def test_a_classic_dead_letter_says_its_topic_as_retry_topic() -> None:
    store = open_store(MemoryFileSystem())
    bury(store, {"RETRY_TOPIC": "orders"})
    assert resend(store).topic == "orders"


@pytest.mark.parametrize(
    ("properties", "spec"),
    [
        ({}, errors.PROPERTY_ILLEGAL),
        ({"DLQ_ORIGIN_TOPIC": "gone"}, errors.TOPIC_NOT_FOUND),
        ({"DLQ_ORIGIN_TOPIC": DEAD}, errors.TOPIC_ILLEGAL),
    ],
)
def test_a_letter_that_cannot_go_back_is_refused(properties: dict[str, str], spec: ErrorSpec) -> None:
    store = open_store(MemoryFileSystem())
    bury(store, properties)
    assert refused(store) is spec


def test_a_topic_that_takes_no_messages_takes_no_letters() -> None:
    store = open_store(MemoryFileSystem())
    bury(store, ORIGIN)
    store.topics.alter("orders", perm=4)
    assert refused(store) is errors.PERMISSION_MISSING


def test_a_topic_that_was_closed_to_be_spread_took_dead_letters() -> None:
    store = open_store(MemoryFileSystem())
    bury(store, ORIGIN)
    store.topics.alter("orders", options={"writes": "closed"})
    assert refused(store) is errors.TOPIC_CLOSED


def test_offsets_that_are_not_there_are_refused() -> None:
    store = open_store(MemoryFileSystem())
    assert refused(store) is errors.TOPIC_NOT_FOUND
    bury(store, ORIGIN)
    assert refused(store, 1) is errors.OFFSET_OUT_OF_RANGE
    assert refused(store, -1) is errors.OFFSET_OUT_OF_RANGE


def test_a_group_is_checked_before_any_letter() -> None:
    store = open_store(MemoryFileSystem())
    for group, spec in (("", errors.GROUP_ILLEGAL), ("billing", errors.TOPIC_NOT_FOUND)):
        with pytest.raises(TroveError) as caught:
            letters_of(store).check_group(group)
        assert caught.value.spec is spec
    bury(store, ORIGIN)
    letters_of(store).check_group("billing")
