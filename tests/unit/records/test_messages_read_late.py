"""A message's fields are read from its record when they are asked for, with the same values."""

from __future__ import annotations

import copy
import pickle
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueOffset
from trovemq_proto.records import SingleRecords, encode_properties, pack_host
from trovemq_proto.records.fields import split_fields
from trovemq_proto.records.layout import BODY_CRC_AT
from trovemq_proto.records.message import Message, decode_message, decode_received, received_of

HOST = pack_host("127.0.0.1:10911")
PROPERTIES = {"UNIQ_KEY": "A" * 32, "TAGS": "a", "KEYS": "k1 k2", "mine": "1"}


def encoded(properties: dict[str, str] = PROPERTIES, body: bytes = b"content") -> bytes:
    records = SingleRecords("late", 3, born_host=HOST, store_host=HOST, append_property_crc=False)
    return records.encode(body, encode_properties(properties), 1_700_000_000_000, 5)


NAMES = [field.name for field in fields(Message)]


@pytest.mark.parametrize("first", NAMES)
def test_a_field_has_its_value_whichever_is_asked_for_first(first: str) -> None:
    whole = decode_message(encoded(), queue_offset=QueueOffset(7))
    expected = {name: getattr(whole, name) for name in NAMES}
    message = decode_message(encoded(), queue_offset=QueueOffset(7))
    assert getattr(message, first) == expected[first]
    assert {name: getattr(message, name) for name in NAMES} == expected
    assert message == Message(**expected)
    assert repr(message) == repr(Message(**expected))


def test_the_values_are_those_of_the_record() -> None:
    message = decode_message(encoded(), queue_offset=QueueOffset(7))
    assert (message.topic, message.queue_id, message.queue_offset) == ("late", 3, 7)
    assert (message.flag, message.born_timestamp) == (5, 1_700_000_000_000)
    assert (message.born_host, message.store_host) == ("127.0.0.1:10911", "127.0.0.1:10911")
    assert (message.body, message.stored_body, message.body_error) == (b"content", b"content", "")
    assert (message.properties, message.keys) == (PROPERTIES, ("k1", "k2"))
    assert message.store_size == len(message.record)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_message_of_which_nothing_was_read_can_be_copied(copied: object) -> None:
    assert callable(copied)
    assert copied(decode_message(encoded())) == decode_message(encoded())


def test_a_message_of_which_nothing_was_read_can_be_changed_by_replace() -> None:
    changed = replace(decode_message(encoded()), body=b"other")
    assert changed == replace(decode_message(encoded()), body=b"other")
    assert (changed.body, changed.stored_body, changed.topic) == (b"other", b"content", "late")


def test_a_name_that_no_message_has_is_an_attribute_error() -> None:
    message = decode_message(encoded())
    with pytest.raises(AttributeError, match="shape"):
        _ = message.shape  # type: ignore[attr-defined]
    with pytest.raises(AttributeError):
        _ = Message.__new__(Message).topic
    assert not hasattr(message, "__fspath__")


def test_a_program_does_not_see_our_own_properties() -> None:
    received = decode_received(encoded({**PROPERTIES, "TROVEMQ_SEQUENCE": "4"}))
    assert received.properties == PROPERTIES
    assert decode_received(encoded()).properties == PROPERTIES


@given(
    bodies=st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=4),
    at=st.integers(0, 3),
    queue_offset=st.one_of(st.none(), st.just(QueueOffset(9))),
    damaged=st.booleans(),
)
def test_a_record_among_others_is_decoded_as_by_itself(
    bodies: list[bytes], at: int, queue_offset: QueueOffset | None, damaged: bool
) -> None:
    parts = [bytearray(encoded(body=body)) for body in bodies]
    at %= len(parts)
    if damaged:
        parts[at][BODY_CRC_AT] ^= 1
    data = b"".join(parts)
    fields = list(split_fields(data))[at]
    if damaged:
        with pytest.raises(TroveError, match="RECORD_DAMAGED"):
            received_of(data, fields, queue_offset)
        return
    found = received_of(memoryview(data), fields, queue_offset)
    assert found == decode_received(parts[at], queue_offset=queue_offset)
    assert (found.body, found.topic, found.properties["TAGS"]) == (bodies[at], "late", "a")
