"""Encoding: whichever way a batch takes, its records are those that encode_record makes one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import trovemq_proto.records.batch_encoder as batch_encoder
from tests.unit.records import reference
from tests.unit.records.strategies import KEY_TEXT, LONG_TOPIC
from trovemq_proto.errors import TroveError
from trovemq_proto.records import (
    BatchEncoder,
    RecordBatch,
    SingleRecords,
    UniqueKeyGenerator,
    blank_record,
    encode_record,
    validate_batch,
)
from trovemq_proto.records.properties import encode_properties, message_properties

TAG = st.sampled_from(["paid", "open", "Bé", "ab cd"])
OWN = st.dictionaries(st.sampled_from(["a", "b", "é"]), st.text("xyé ", min_size=1, max_size=5), max_size=2)
IPV6 = st.booleans()


def generator() -> UniqueKeyGenerator:
    return UniqueKeyGenerator(bytes.fromhex("56F7E71C361B"), 0x21BC, 38_587_838, lambda: 0)


def one_by_one(topic: str, bodies: Sequence[bytes], columns: Mapping[str, Any], encoder: Any) -> bytes:
    out = b""
    for i, body in enumerate(bodies):
        keys, tags, own, flags = (columns[name] for name in ("keys", "tags", "properties", "flags"))
        out += encode_record(
            topic,
            body,
            queue_id=3,
            properties=message_properties(
                columns["unique_keys"][i],
                None if keys is None else keys[i],
                tags if isinstance(tags, str) or tags is None else tags[i],
                own if isinstance(own, Mapping) or own is None else own[i],
            ),
            flag=flags if isinstance(flags, int) else flags[i],
            born_timestamp=1_700_000_000_000,
            born_host=bytes(20 if encoder["born_host_ipv6"] else 8),
            store_host=bytes(20 if encoder["store_host_ipv6"] else 8),
            append_property_crc=encoder["append_property_crc"],
        )
    return out


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[bytes], dict[str, Any]]:
    count = draw(st.integers(0, 8))

    def each(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
        return st.lists(strategy, min_size=count, max_size=count)

    alike = st.text("abc", min_size=3, max_size=3)
    return draw(each(st.binary(max_size=20))), {
        "unique_keys": draw(each(KEY_TEXT) | each(alike)),
        "keys": draw(
            st.none()
            | each(alike)
            | each(KEY_TEXT | st.none() | st.lists(KEY_TEXT, max_size=3) | st.just(()))
        ),
        "tags": draw(st.none() | TAG | each(TAG | st.none()) | each(st.sampled_from(["paid", "open"]))),
        "properties": draw(st.none() | OWN | each(OWN | st.none())),
        "flags": draw(st.integers(-(2**31), 2**31 - 1) | each(st.integers(-(2**31), 2**31 - 1))),
    }


@given(batches(), st.sampled_from(["orders", LONG_TOPIC]), IPV6, IPV6, st.booleans(), st.booleans())
def test_batches_are_their_records(
    batch: tuple[list[bytes], dict[str, Any]],
    topic: str,
    born_ipv6: bool,
    store_ipv6: bool,
    crc: bool,
    numpy_installed: bool,
) -> None:
    bodies, columns = batch
    settings: dict[str, Any] = {
        "born_host_ipv6": born_ipv6,
        "store_host_ipv6": store_ipv6,
        "append_property_crc": crc,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_encoder, "has_numpy", lambda: numpy_installed)
        encoded = BatchEncoder(topic, **settings).encode(
            bodies, queue_id=3, born_timestamp=1_700_000_000_000, **columns
        )
    assert isinstance(encoded, bytearray)
    assert bytes(encoded) == one_by_one(topic, bodies, columns, settings)
    records = reference.split(bytes(encoded))
    assert records is not None
    assert [record.body for record in records] == bodies
    if bodies:
        validated = validate_batch(
            encoded,
            topic=topic,
            queue_id=3,
            body_size_max=100,
            store_host_ipv6=store_ipv6,
            append_property_crc=crc,
        )
        assert len(validated) == len(bodies)


@pytest.mark.parametrize("count", [1, 4, 5, 50])
@pytest.mark.parametrize("keys", ["alike", "unlike"])
def test_unique_keys_as_matrix_or_text_make_the_same(count: int, keys: str) -> None:
    own = [f"k{i:03}" if keys == "alike" else f"k{i}" for i in range(count)]
    encoder, bodies = BatchEncoder("orders"), [b"x" * i for i in range(count)]
    matrix, texts = generator().take_matrix(count), generator().take(count)
    encoded = [
        encoder.encode(bodies, queue_id=0, unique_keys=unique_keys, keys=own, tags="t", born_timestamp=1)
        for unique_keys in (matrix, texts)
    ]
    assert encoded[0] == encoded[1]
    assert RecordBatch.split(encoded[0]).property_values("UNIQ_KEY") == texts


@pytest.mark.parametrize("count", [1, 20])
@pytest.mark.parametrize(
    ("columns", "symbol"),
    [
        ({"keys": "k k"}, "KEY_ILLEGAL"),
        ({"keys": ""}, "KEY_ILLEGAL"),
        ({"keys": ["a", ""]}, "KEY_ILLEGAL"),
        ({"keys": "a\x02"}, "KEY_ILLEGAL"),
        ({"keys": "\ud800"}, "KEY_ILLEGAL"),
        ({"tags": "a|b"}, "TAG_ILLEGAL"),
        ({"tags": " "}, "TAG_ILLEGAL"),
        ({"tags": ""}, "TAG_ILLEGAL"),
        ({"unique_keys": ""}, "UNIQUE_KEY_ILLEGAL"),
        ({"unique_keys": "a b"}, "UNIQUE_KEY_ILLEGAL"),
        ({"unique_keys": "é" * 128}, "UNIQUE_KEY_ILLEGAL"),
        ({"unique_keys": "a" * 256}, "UNIQUE_KEY_ILLEGAL"),
        ({"properties": {"KEYS": "a"}}, "PROPERTY_ILLEGAL"),
        ({"properties": {"a": ""}}, "PROPERTY_ILLEGAL"),
        ({"properties": {"a": "b\x01"}}, "PROPERTY_ILLEGAL"),
        ({"properties": {"a": "b" * 40_000}}, "PROPERTIES_SIZE_EXCEEDED"),
        ({"properties": {"a": "b" * 32_760}}, "PROPERTIES_SIZE_EXCEEDED"),
    ],
)
def test_illegal_texts(count: int, columns: dict[str, Any], symbol: str) -> None:
    given_columns = {"keys": "k", "tags": None, "properties": None, "unique_keys": "u"} | columns
    for as_one in (True, False):
        arguments: dict[str, Any] = {name: [value] * count for name, value in given_columns.items()}
        if as_one:
            arguments |= {name: given_columns[name] for name in ("tags", "properties")}
        with pytest.raises(TroveError) as raised:
            BatchEncoder("orders").encode([b""] * count, queue_id=0, born_timestamp=1, **arguments)
        assert raised.value.symbol == symbol


def test_columns_of_other_lengths() -> None:
    with pytest.raises(TroveError, match="REQUEST_ILLEGAL"):
        BatchEncoder("orders").encode([b""] * 3, queue_id=0, unique_keys=["a", "b"], born_timestamp=1)


@pytest.mark.parametrize("topic", ["", "é" * 127, "x" * 256])
def test_topics_that_do_not_fit(topic: str) -> None:
    with pytest.raises(TroveError, match="TOPIC_ILLEGAL"):
        BatchEncoder(topic)


def test_blank_record() -> None:
    assert blank_record(1000).hex() == "000003e8cbd43194"


def test_the_matrix_of_unique_keys() -> None:
    matrix = generator().take_matrix(2)
    assert matrix.dtype == np.uint8
    assert [bytes(row) for row in matrix] == [
        b"0156F7E71C361B21BC024CCDBE00000000",
        b"0156F7E71C361B21BC024CCDBE00000001",
    ]


@given(st.sampled_from(["t", LONG_TOPIC]), st.binary(max_size=40), OWN, IPV6, IPV6, st.booleans())
def test_records_of_one_queue_are_those_of_encode_record(
    topic: str, body: bytes, own: dict[str, str], born_ipv6: bool, store_ipv6: bool, crc: bool
) -> None:
    block = encode_properties(own)
    born_host, store_host = bytes(20 if born_ipv6 else 8), bytes(20 if store_ipv6 else 8)
    encoder = SingleRecords(topic, 7, born_host=born_host, store_host=store_host, append_property_crc=crc)
    expected = encode_record(
        topic,
        body,
        queue_id=7,
        properties=block,
        flag=6,
        born_timestamp=5,
        born_host=born_host,
        store_host=store_host,
        append_property_crc=crc,
    )
    assert encoder.encode(body, block, 5, 6) == expected
    pieces = [b"before"]
    assert encoder.add(pieces, body, block, 5, 6) == len(expected)
    assert b"".join(pieces) == b"before" + expected
