"""Any identifier finds its message, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.engine import NOW_MS, SMALL, open_store, send
from trovemq_broker.query.get_message import IdentifierKind, get_message, get_message_at
from trovemq_broker.query.offsets_by_time import search_offset
from trovemq_broker.query.queue_offsets import queue_offsets
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset, QueueId, QueueOffset
from trovemq_proto.records import encode_offset_msg_id, pack_host
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.memory import MemoryFileSystem


@pytest.fixture
def store() -> Iterator[MessageStore]:
    opened = open_store(MemoryFileSystem(), SMALL, topics=["orders", "other"])
    yield opened
    opened.close(NOW_MS)


def _symbol(store: MessageStore, identifier: str, topic: str = "") -> str:
    with pytest.raises(TroveError) as caught:
        get_message(store, identifier, topic)
    return caught.value.symbol


def test_an_offset_msg_id_names_host_and_place(store: MessageStore) -> None:
    send(store, b"one")
    result = send(store, b"two", unique_key="U")
    (identifier,) = result.offset_msg_ids()
    for text in (identifier, identifier.lower()):
        found = get_message(store, text)
        assert found.kind is IdentifierKind.OFFSET_MSG_ID
        assert found.physical_offsets == [result.physical_offset]
        assert found.queue_offsets == [1]
        assert b"two" in bytes(found.records[0])
    place = result.physical_offset
    host = pack_host(SMALL.store_host)
    for inside in (place - 1, place + 1, result.end, result.end + 1000, -1, 2**62):
        assert _symbol(store, encode_offset_msg_id(host, PhysicalOffset(inside))) == "MESSAGE_NOT_FOUND"
    assert _symbol(store, encode_offset_msg_id(pack_host("10.0.0.9:8081"), place)) == "MESSAGE_NOT_FOUND"
    assert _symbol(store, encode_offset_msg_id(pack_host("[::1]:8081"), place)) == "MESSAGE_NOT_FOUND"


def test_a_store_that_moved_is_asked_by_the_host_of_its_records() -> None:
    files = MemoryFileSystem()
    store = open_store(files, SMALL)
    (identifier,) = send(store, b"x").offset_msg_ids()
    store.close(NOW_MS)
    moved = open_store(files, replace(SMALL, store_host="[fe80::1]:1"))
    assert get_message(moved, identifier).queue_offsets == [0]
    (longer,) = send(moved, b"y", store_host=bytes(20)).offset_msg_ids()
    assert len(longer) == 56
    assert get_message(moved, longer).queue_offsets == [1]


def test_a_unique_key_is_looked_for_in_every_topic(store: MessageStore) -> None:
    first = send(store, b"one", unique_key="U1")
    second = send(store, b"two", unique_key="U1", topic="other")
    send(store, b"three", keys="U1")
    found = get_message(store, "U1")
    assert found.kind is IdentifierKind.UNIQUE_KEY
    assert found.physical_offsets == [second.physical_offset, first.physical_offset]
    assert found.complete
    assert get_message(store, "U1", "orders").physical_offsets == [first.physical_offset]
    assert _symbol(store, "U2") == "MESSAGE_NOT_FOUND"


def test_a_unique_key_may_look_like_an_offset_msg_id(store: MessageStore) -> None:
    (place,) = send(store, b"one").offset_msg_ids()
    twin = send(store, b"two", unique_key=place)
    other = "7F00000100002A9F0000000000003039"
    hidden = send(store, b"three", unique_key=other)
    assert get_message(store, place).kind is IdentifierKind.OFFSET_MSG_ID
    found = get_message(store, other)
    assert found.kind is IdentifierKind.UNIQUE_KEY
    assert found.physical_offsets == [hidden.physical_offset]
    assert twin.physical_offset != hidden.physical_offset


def test_many_messages_of_one_unique_key_are_cut_and_it_is_said() -> None:
    store = open_store(MemoryFileSystem(), replace(SMALL, query_messages_max=3))
    for _ in range(4):
        send(store, b"x", unique_key="U")
    found = get_message(store, "U")
    assert len(found.records) == 3
    assert not found.complete


@pytest.mark.parametrize("identifier", ["", "a b", "a\x01", "x" * 256, "\n"])
def test_what_can_be_no_identifier_is_refused(store: MessageStore, identifier: str) -> None:
    assert _symbol(store, identifier) == "MESSAGE_ID_ILLEGAL"


def test_messages_of_a_deleted_topic_are_not_found(store: MessageStore) -> None:
    (identifier,) = send(store, b"x", unique_key="U").offset_msg_ids()
    store.delete_topic("orders", NOW_MS)
    assert _symbol(store, identifier) == "MESSAGE_NOT_FOUND"
    assert _symbol(store, "U") == "MESSAGE_NOT_FOUND"


def test_without_an_index_places_work_and_keys_are_refused() -> None:
    store = open_store(MemoryFileSystem(), replace(SMALL, message_index_enable=False))
    (identifier,) = send(store, b"x", unique_key="U").offset_msg_ids()
    assert get_message(store, identifier).queue_offsets == [0]
    assert get_message_at(store, "orders", QueueId(0), QueueOffset(0)).physical_offsets == [0]
    assert search_offset(store, "orders", QueueId(0), NOW_MS) == 0
    assert _symbol(store, "U") == "INDEX_DISABLED"


def test_a_damaged_record_is_named() -> None:
    files = MemoryFileSystem()
    store = open_store(files, SMALL)
    (identifier,) = send(store, b"body").offset_msg_ids()
    path = f"commitlog/{0:020d}"
    files.open(path).write(files.read_bytes(path).index(b"body"), b"?")
    assert _symbol(store, identifier) == "RECORD_DAMAGED"
    with pytest.raises(TroveError) as caught:
        get_message_at(store, "orders", QueueId(0), QueueOffset(0))
    assert caught.value.symbol == "RECORD_DAMAGED"


def test_a_queue_location_names_the_valid_range(store: MessageStore) -> None:
    for _ in range(2):
        send(store, b"x", queue_id=1)
    found = get_message_at(store, "orders", QueueId(1), QueueOffset(1))
    assert found.kind is IdentifierKind.QUEUE_LOCATION
    assert found.queue_offsets == [1]
    for queue_id, offset, high in [(1, 2, "2"), (1, -1, "2"), (0, 0, "0")]:
        with pytest.raises(TroveError) as caught:
            get_message_at(store, "orders", QueueId(queue_id), QueueOffset(offset))
        assert caught.value.symbol == "OFFSET_OUT_OF_RANGE"
        assert caught.value.fields == {"min_offset": "0", "max_offset": high}


@pytest.mark.parametrize(
    ("topic", "queue_id", "symbol"),
    [("none", 0, "TOPIC_NOT_FOUND"), ("orders", 4, "QUEUE_NOT_FOUND"), ("orders", -1, "QUEUE_NOT_FOUND")],
)
def test_unknown_queues_are_refused(store: MessageStore, topic: str, queue_id: QueueId, symbol: str) -> None:
    for call in (
        lambda: get_message_at(store, topic, queue_id, QueueOffset(0)),
        lambda: search_offset(store, topic, queue_id, NOW_MS),
        lambda: queue_offsets(store, topic, [queue_id]),
    ):
        with pytest.raises(TroveError) as caught:
            call()
        assert caught.value.symbol == symbol


def test_queues_without_messages_have_offsets_too(store: MessageStore, tmp_path: Path) -> None:
    for _ in range(3):
        send(store, b"x", queue_id=2)
    assert queue_offsets(store, "orders") == [(0, 0, 0), (1, 0, 0), (2, 0, 3), (3, 0, 0)]
    assert queue_offsets(store, "orders", [QueueId(2)]) == [(2, 0, 3)]
    assert search_offset(store, "orders", QueueId(0), NOW_MS, upper=True) == 0


def test_search_by_time_has_both_boundaries(store: MessageStore) -> None:
    for step in (0, 0, 10, 20):
        send(store, b"x", NOW_MS + step)
    assert search_offset(store, "orders", QueueId(0), NOW_MS) == 0
    assert search_offset(store, "orders", QueueId(0), NOW_MS, upper=True) == 1
    assert search_offset(store, "orders", QueueId(0), NOW_MS + 5) == 2
    assert search_offset(store, "orders", QueueId(0), NOW_MS + 5, upper=True) == 1
    assert search_offset(store, "orders", QueueId(0), NOW_MS + 99) == 4
    assert search_offset(store, "orders", QueueId(0), NOW_MS + 99, upper=True) == 3
