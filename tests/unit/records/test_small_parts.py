"""Hosts, identifiers, hashes, properties, compression."""

from __future__ import annotations

import importlib
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.records import reference
from tests.unit.records.strategies import property_blocks
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset
from trovemq_proto.records import (
    UniqueKeyGenerator,
    check_property,
    decode_message,
    decode_offset_msg_id,
    encode_offset_msg_id,
    encode_properties,
    encode_record,
    format_host,
    index_hash,
    java_hash,
    java_hash_bytes,
    looks_like_offset_msg_id,
    pack_host,
    parse_properties,
)
from trovemq_proto.records.compression import inflate_body
from trovemq_proto.records.hash_columns import HASHED_BYTES_MAX, row_hashes, running_sums, slice_hashes
from trovemq_proto.records.hashes import index_hashes


@pytest.mark.parametrize(
    ("text", "packed", "formatted"),
    [
        ("1.2.3.4:80", "0102030400000050", "1.2.3.4:80"),
        ("[::1]:80", "0000000000000000000000000000000100000050", "[0:0:0:0:0:0:0:1]:80"),
        ("[fe80::1]:10911", "fe80000000000000000000000000000100002a9f", "[fe80:0:0:0:0:0:0:1]:10911"),
    ],
)
def test_hosts(text: str, packed: str, formatted: str) -> None:
    assert pack_host(text).hex() == packed
    assert format_host(pack_host(text)) == formatted
    assert pack_host(formatted) == pack_host(text)


@given(st.text(max_size=20) | st.sampled_from(["::1:80", "[1.2.3.4]:80", "1.2.3.4", "1.2.3.4:70000", "a:1"]))
def test_texts_that_are_no_host(text: str) -> None:
    with pytest.raises(TroveError, match="REQUEST_ILLEGAL"):
        pack_host(text)


@given(
    st.binary(min_size=8, max_size=8) | st.binary(min_size=20, max_size=20), st.integers(-(2**63), 2**63 - 1)
)
def test_offset_msg_ids(host: bytes, physical_offset: int) -> None:
    text = encode_offset_msg_id(host, PhysicalOffset(physical_offset))
    assert text == text.upper()
    assert decode_offset_msg_id(text) == (host, physical_offset)
    assert decode_offset_msg_id(text.lower()) == (host, physical_offset)


def test_offset_msg_id_by_example() -> None:
    assert (
        encode_offset_msg_id(pack_host("10.0.0.1:10911"), PhysicalOffset(12345))
        == "0A00000100002A9F0000000000003039"
    )


@given(st.text("0123456789abcdefABCDEFg ٣", max_size=60))
def test_texts_that_are_no_offset_msg_id(text: str) -> None:
    if looks_like_offset_msg_id(text):
        decode_offset_msg_id(text)
    else:
        with pytest.raises(TroveError, match="MESSAGE_ID_ILLEGAL"):
            decode_offset_msg_id(text)


def test_unique_keys_follow_one_another_and_the_clock() -> None:
    seconds = iter(range(100))
    generator = UniqueKeyGenerator(bytes(6), 70_000, 1, lambda: next(seconds))
    keys = [generator.next(), *generator.take(3), generator.next()]
    assert [key[:18] for key in keys] == ["01" + "00" * 6 + "1170"] * 5
    assert [key[18:26] for key in keys] == [f"{n:08X}" for n in (1, 2, 2, 2, 3)]
    assert [key[26:] for key in keys] == [f"{n:08X}" for n in range(5)]


def test_the_sequence_wraps() -> None:
    generator = UniqueKeyGenerator(bytes(6), 1, 0, lambda: 0)
    generator._sequence = 2**32 - 2
    assert [key[26:] for key in generator.take(4)] == ["FFFFFFFE", "FFFFFFFF", "00000000", "00000001"]
    assert generator.next()[26:] == "00000002"


@pytest.mark.parametrize(
    ("topic", "key", "expected"),
    [
        ("TopicTest", "k1", 2746024),
        ("TopicTest", "Aa", 2744770),
        ("TopicTest", "BB", 2744770),
        ("AaTopic", "BB", 10606476),
        ("BBTopic", "Aa", 10606476),
        ("T", "jllgvmc", 0),
    ],
)
def test_index_hashes_by_example(topic: str, key: str, expected: int) -> None:
    assert index_hash(topic, key) == expected


def test_the_smallest_hash() -> None:
    assert java_hash("T#jllgvmc") == -(2**31)
    assert java_hash("TagA") == 2598919


@given(st.text(st.characters(), max_size=30) | st.text("\ud800\udc00é", max_size=5))
def test_java_hash(text: str) -> None:
    assert java_hash(text) == reference.java_hash(text)


@given(st.binary(max_size=30))
def test_java_hash_of_bytes(raw: bytes) -> None:
    assert java_hash_bytes(raw) == reference.java_hash(raw.decode("utf-8", "replace"))


@given(st.text(st.characters(max_codepoint=127), min_size=1, max_size=60), st.data())
def test_hashes_of_slices_and_rows(text: str, data: st.DataObject) -> None:
    flat = np.frombuffer(text.encode(), np.uint8)
    start = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(start + 1, len(text)))
    hashes = slice_hashes(running_sums(flat), np.array([start]), np.array([end]))
    assert int(hashes.view(np.int32)[0]) == java_hash(text[start:end])
    assert row_hashes(flat[None, start:end]).tolist() == hashes.tolist()


def test_hashes_of_slices_far_out() -> None:
    flat = np.full(HASHED_BYTES_MAX, ord("z"), np.uint8)
    end = HASHED_BYTES_MAX
    hashes = slice_hashes(running_sums(flat), np.array([end - 5]), np.array([end]))
    assert int(hashes.view(np.int32)[0]) == java_hash("zzzzz")


@given(property_blocks() | st.binary(max_size=40))
def test_property_parser(block: bytes) -> None:
    assert parse_properties(block) == reference.properties(block)


NAME = st.text(st.characters(exclude_characters="\x01\x02", codec="utf-8"), min_size=1, max_size=8)


@given(st.dictionaries(NAME, NAME))
def test_properties_come_back(properties: dict[str, str]) -> None:
    assert parse_properties(encode_properties(properties)) == properties


@pytest.mark.parametrize("name", ["", "KEYS", "__CRC32#", "a\x01", "\udfff", "__RMQ.TRANSIENT.x"])
def test_illegal_property_names(name: str) -> None:
    with pytest.raises(TroveError, match="PROPERTY_ILLEGAL"):
        check_property(name, "value")


# --- compressed bodies ---
def test_zlib_bodies_inflate() -> None:
    body = b"hello " * 1000
    for method in (0x000, 0x300):
        message = decode_message(encode_record("t", zlib.compress(body), sys_flag=0x1 | method))
        assert message.body == body
        assert message.stored_body == zlib.compress(body)


@pytest.mark.parametrize("stored", [b"", b"no zlib", zlib.compress(b"hello" * 100)[:-5]])
def test_broken_zlib_bodies(stored: bytes) -> None:
    with pytest.raises(TroveError, match="RECORD_DAMAGED"):
        inflate_body(stored, 0x301, 10_000)


def test_inflating_is_bounded() -> None:
    bomb = zlib.compress(bytes(50_000_000))
    assert len(inflate_body(bomb[:], 0x301, 50_000_000)) == 50_000_000
    with pytest.raises(TroveError, match="RECORD_DAMAGED"):
        inflate_body(bomb, 0x301, 1000)


@pytest.mark.parametrize(("method", "package"), [(0x100, "lz4.frame"), (0x200, "zstandard")])
def test_methods_of_optional_packages(method: int, package: str) -> None:
    try:
        codec = importlib.import_module(package)
    except ImportError:
        with pytest.raises(TroveError, match="COMPRESSION_UNSUPPORTED"):
            inflate_body(b"x", method | 1, 100)
        return
    stored = codec.compress(b"hello")
    assert inflate_body(stored, method | 1, 100) == b"hello"
    for spoilt in (stored[:-3], b"noise"):
        with pytest.raises(TroveError, match="RECORD_DAMAGED"):
            inflate_body(spoilt, method | 1, 100)
    with pytest.raises(TroveError, match="RECORD_DAMAGED"):
        inflate_body(stored, method | 1, 2)


def test_an_unknown_method() -> None:
    with pytest.raises(TroveError, match="COMPRESSION_UNSUPPORTED"):
        inflate_body(b"x", 0x401, 100)


@given(st.lists(st.text(max_size=5), max_size=5), st.text(max_size=8))
def test_a_key_is_hashed_once_for_many_topics(topics: list[str], key: str) -> None:
    assert index_hashes(topics, key) == [index_hash(topic, key) for topic in topics]
