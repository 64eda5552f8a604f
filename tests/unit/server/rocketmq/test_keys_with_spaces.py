"""Keys with spaces, which RocketMQ's v2 protocol allows: stored as RocketMQ stores them, found as sent."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.engine import SMALL, open_store, send
from trovemq_broker.query.key_query import KeyQuery, KeyType
from trovemq_broker.query.query_by_key import query_pages
from trovemq_broker.query.search.conditions import AllOf, AnyOf, Has, SearchQuery
from trovemq_broker.query.search.search import search_page
from trovemq_broker.server.wire.send_requests import SendLimits, read_request
from trovemq_proto.positions import EpochMs
from trovemq_proto.records import decode_message, parse_properties
from trovemq_proto.records.keys import key_sizes, key_word, keys_with_spaces
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2 as service
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.steps import finished
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.index.trees.layout import KEY

SENT = (
    ["order 42"],
    [" lead"],
    ["a  b"],
    ["trail "],
    ["first", "order 42", "last"],
    ["x", " lead"],
    ["a  b", "c"],
    ["order", "43"],
    ["order-42", "lead", "ab", "a b"],
    ["order 421"],
)
"""The keys of each message."""


def properties_of(keys: list[str]) -> dict[str, str]:
    """The stored properties of a message with these keys."""
    message = v2.Message(topic=v2.Resource(name="orders"), body=b"x")
    message.system_properties.message_id = "id"
    message.system_properties.keys.extend(keys)
    request = service.SendMessageRequest(messages=[message])
    (found,) = finished(read_request(request, SendLimits(100, EpochMs(0)))).messages
    return parse_properties(found.properties)


@pytest.fixture(params=["indexed", "scanned"])
def store(request: pytest.FixtureRequest) -> MessageStore:
    store = open_store(MemoryFileSystem(), replace(SMALL, tree_index_enable=True))
    for number, keys in enumerate(SENT):
        properties = properties_of(keys) | {"UNIQ_KEY": f"id-{number}"}
        send(store, b"%d" % number, properties=properties)
    if request.param == "indexed":
        store.catch_up_trees()
    return store


def expected(key: str) -> list[int]:
    """By the keys as they were sent, or a word of them."""
    return [n for n, keys in enumerate(SENT) if key in keys or key in " ".join(keys).split(" ")]


def queried(store: MessageStore, key: str, kind: KeyType = KeyType.KEY) -> list[int]:
    pages = list(query_pages(store, KeyQuery("orders", key, kind)))
    assert pages[-1].complete
    return sorted(int(decode_message(record).body) for page in pages for record in page.records)


def searched(store: MessageStore, where: Has | AllOf | AnyOf) -> list[int]:
    page = search_page(store, SearchQuery("orders", where))
    assert page.complete
    return sorted(int(decode_message(record).body) for record in page.records)


@pytest.mark.parametrize("keys", SENT)
def test_keys_stand_in_the_record_as_rocketmq_writes_them(keys: list[str]) -> None:
    stored = properties_of(keys)
    assert stored["KEYS"] == " ".join(keys)
    assert ("TROVEMQ_KEY_SIZES" in stored) == any(" " in key for key in keys)


@pytest.mark.parametrize("key", sorted({key for keys in SENT for key in keys} | {"order", "42", "b", "x y"}))
def test_a_key_with_spaces_was_not_found(store: MessageStore, key: str) -> None:
    found = expected(key)
    assert all(number in found for number, keys in enumerate(SENT) if key in keys), "each as it was sent"
    assert queried(store, key) == found
    assert searched(store, Has(KEY, key.encode())) == found
    both = AllOf((Has(KEY, key.encode()), Has(KEY, key_word(key.encode()))))
    assert searched(store, both) == found


@pytest.mark.parametrize(
    ("beginning", "found"),
    [
        ("order 4", [0, 4, 9]),
        ("order 42", [0, 4, 9]),
        (" le", [1, 5]),
        ("a  ", [2, 6]),
        ("  ", []),
        ("order ", [0, 4, 9]),
        ("x  lead", []),
        ("nothing ", []),
    ],
)
def test_the_beginning_of_a_key_with_spaces_is_searched_for(
    store: MessageStore, beginning: str, found: list[int]
) -> None:
    assert searched(store, Has(KEY, beginning.encode(), is_prefix=True)) == found
    either = AnyOf((Has(KEY, beginning.encode(), is_prefix=True), Has(KEY, b"none of them")))
    assert searched(store, either) == found


def test_a_unique_key_with_a_space_is_still_found(store: MessageStore) -> None:
    """RocketMQ may have stored one."""
    send(store, b"99", unique_key="an id")
    assert queried(store, "an id") == queried(store, "an id", KeyType.UNIQUE) == [99]


def test_sizes_that_do_not_fit_the_keys_are_not_believed() -> None:
    keys = ["x", "a b", "é  "]
    joined = " ".join(keys).encode()
    assert key_sizes(keys) == "1,3,4"
    assert keys_with_spaces(joined, b"1,3,4") == [b"a b", "é  ".encode()]
    for wrong in (b"", b"1,3", b"1,3,5", b"2,2,4", b"-1,5,4", b"1,3,x", b"9" * 5_000, b"1,3,4,0"):
        assert keys_with_spaces(joined, wrong) == []
