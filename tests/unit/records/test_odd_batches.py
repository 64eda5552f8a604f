"""Batches that are damaged, unlike each other or illegal in one field, and their errors."""

from __future__ import annotations

import sys
import zlib
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.engine import record, with_crc_property
from trovemq_proto.errors import TroveError
from trovemq_proto.records import RecordBatch, decode_message, index_hash, java_hash
from trovemq_proto.records.compression import inflate_body
from trovemq_proto.records.encode import encode_record
from trovemq_proto.records.fields import read_fields
from trovemq_proto.records.geometry import measure
from trovemq_proto.records.hashes import group_queue
from trovemq_proto.records.layout import BODY_AT, BODY_CRC_AT, SYS_FLAG_AT
from trovemq_proto.records.message import decode_stored
from trovemq_proto.records.properties import message_properties
from trovemq_proto.records.record_crcs import damaged_records
from trovemq_proto.records.validate import validate_batch


def batch(*records: bytes) -> RecordBatch:
    return RecordBatch.split(bytearray().join(records))


def spoilt(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


# --- reading ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("count", [1, 40])
def test_messages_of_a_batch_end_at_a_damaged_record(count: int) -> None:
    damaged = spoilt(record(b"other body"), BODY_AT + 2)
    given = iter(batch(*[record(b"body")] * count, damaged).messages())
    assert [next(given).body for _ in range(count)] == [b"body"] * count
    with pytest.raises(TroveError, match="RECORD_DAMAGED"):
        next(given)
    for decode in (decode_message, decode_stored):
        with pytest.raises(TroveError, match="does not have the CRC"):
            decode(damaged)


def test_bodies_are_those_that_the_application_gave() -> None:
    plain, packed = b"plain", b"packed " * 100
    given = batch(record(plain), encode_record("orders", zlib.compress(packed), sys_flag=0x301))
    assert [bytes(body) for body in given.bodies()] == [plain, packed]
    with pytest.raises(TroveError, match="RECORD_DAMAGED"):
        given.bodies(body_size_max=10)


@pytest.mark.parametrize("body_size", [0, 10_000])
@pytest.mark.parametrize("step", [1, -1])
def test_properties_are_found_beside_any_body_size_and_in_any_order(body_size: int, step: int) -> None:
    keys = ["k" * (1 + n % 3) + str(n) for n in range(20)]
    given = batch(*(record(bytes(body_size), keys=key) for key in keys))
    ordered = RecordBatch(given.data, given.positions[::step], given.sizes[::step])
    assert ordered.property_values("KEYS") == keys[::step]


@settings(max_examples=60)
@given(
    topics=st.lists(st.sampled_from([f"t{n:02}" for n in range(40)] + ["Bé", "Bé2", "T"]), max_size=80),
    broken=st.integers(0, 80),
)
def test_records_are_grouped_by_topic_in_the_order_of_first_appearance(
    topics: list[str], broken: int
) -> None:
    """Few topics, more than are distinguished by columns, of several lengths, and one whose name is not
    text."""
    records = [bytearray(record(b"body", topic=topic)) for topic in topics]
    if broken < len(records):
        records[broken] = records[broken].replace(b"t", b"\xff", 1)
    mixed = batch(*map(bytes, records))
    expected: dict[str, list[int]] = {}
    for index, topic in enumerate(mixed.topics):
        expected.setdefault(topic, []).append(index)
    assert [(topic, found.tolist()) for topic, found in mixed.topic_groups()] == list(expected.items())


def test_a_body_that_is_not_compressed_is_the_body() -> None:
    assert inflate_body(b"as it is", 0, 1) == b"as it is"


def test_an_lz4_body_that_is_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package is optional: this stands for its decompressor, that waits for more."""
    waiting = SimpleNamespace(eof=False, decompress=lambda stored, max_length: stored[:max_length])
    frame = SimpleNamespace(LZ4FrameDecompressor=lambda: waiting)
    monkeypatch.setitem(sys.modules, "lz4", SimpleNamespace(frame=frame))
    monkeypatch.setitem(sys.modules, "lz4.frame", frame)
    with pytest.raises(TroveError, match="cut short"):
        inflate_body(b"x", 0x101, 100)
    waiting.eof = True
    assert inflate_body(b"x", 0x101, 100) == b"x"


@pytest.mark.parametrize("size", [0, -1, 90])
def test_a_run_of_records_that_leads_nowhere_is_not_a_batch(size: int) -> None:
    first = record(b"first")
    with pytest.raises(TroveError, match="1 records lead to byte"):
        RecordBatch.split(first + size.to_bytes(4, signed=True) + bytes(100))


def test_a_record_of_the_smallest_size_has_no_space_for_long_hosts() -> None:
    data = encode_record("o", b"", properties={})
    assert len(data) < 91 + 24
    assert read_fields(data, 0, len(data)) is not None
    both_ipv6 = (0x30).to_bytes(4)
    assert read_fields(data[:SYS_FLAG_AT] + both_ipv6 + data[SYS_FLAG_AT + 4 :], 0, len(data)) is None


def test_records_that_do_not_follow_one_another_are_measured_one_by_one() -> None:
    """Of one size, and not at one distance: the first and the last are where a row of them would be."""
    data = memoryview(bytearray().join([record(bytes([number]) * 40) for number in range(5)]))
    size = len(data) // 5
    positions = np.array([0, 2, 1, 3], np.int64) * size
    found = measure(data, positions, np.full(4, size, np.int64))
    assert found.well_formed == 4
    assert found.body_positions.tolist() == [position + BODY_AT for position in positions.tolist()]


def test_an_empty_batch_has_no_damage() -> None:
    assert damaged_records(batch(record(b"x")).where(np.array([False]))).tolist() == []


@pytest.mark.parametrize("count", [3, 40])
def test_index_entries_of_records_whose_words_stand_elsewhere(count: int) -> None:
    """Keys of one length, with their spaces at other places; tags beyond ASCII."""
    keys = ["a bcd", "ab cd", "abc d"]
    records = [record(b"x", keys=keys[number % 3], tag="ä", unique_key="U") for number in range(count)]
    given = batch(*records)
    found = given.index_entries()
    hashes = [found.hashes[found.record_index == number].tolist() for number in range(count)]
    for number in range(count):
        words = ["U", *keys[number % 3].split(" "), "T#ä"]
        assert sorted(hashes[number]) == sorted(index_hash("orders", word) for word in words)
    assert given.tags_codes().tolist() == [java_hash("ä")] * count


def test_tags_of_many_alike_records_are_hashed_together() -> None:
    tags = [f"tag-{number % 7}" for number in range(40)]
    given = batch(*[record(b"x", tag=tag) for tag in tags])
    assert given.tags_codes().tolist() == [java_hash(tag) for tag in tags]


@pytest.mark.parametrize("count", [1, 2, 7, 1_000])
def test_a_message_group_has_one_of_the_queues(count: int) -> None:
    chosen = [group_queue(f"group-{number}", count) for number in range(200)]
    assert set(chosen) <= set(range(count))
    assert len(set(chosen)) > min(count, 100) // 2
    more = [group_queue(f"group-{number}", count + 1) for number in range(200)]
    moved = [after for before, after in zip(chosen, more, strict=True) if before != after]
    assert all(after == count for after in moved), "a group moves to the new queue or not at all"


# --- properties -------------------------------------------------------------------------------------------
def test_properties_of_a_message_are_checked_one_by_one() -> None:
    assert message_properties(None, None, None, None) == {}
    assert message_properties("U", ["a", "b"], "t", {"own": "1"}) == {
        "UNIQ_KEY": "U",
        "KEYS": "a b",
        "TAGS": "t",
        "own": "1",
    }
    assert message_properties(None, [], None, {}) == {}
    with pytest.raises(TroveError):
        message_properties(None, "", None, None)


# --- legal appends -----------------------------------------------------------------------------------------
def illegal(data: bytes, *, crc: bool = False, ipv6: bool = False) -> str:
    with pytest.raises(TroveError) as caught:
        validate_batch(
            data,
            topic="orders",
            queue_id=0,
            body_size_max=1_000,
            store_host_ipv6=ipv6,
            append_property_crc=crc,
        )
    assert caught.value.symbol == "BATCH_ILLEGAL"
    return caught.value.message


@pytest.mark.parametrize("count", [1, 40])
def test_one_record_that_cannot_be_appended_is_named(count: int) -> None:
    good = [record(b"body")] * (count - 1)
    assert f"record {count - 1} " in illegal(b"".join([*good, spoilt(record(b"body"), BODY_CRC_AT + 3)]))
    assert "store host has another form" in illegal(b"".join([*good, record(b"body")]), ipv6=True)
    with_property = with_crc_property(record(b"body"))
    assert "may not have a CRC property" in illegal(b"".join([*good, with_property]))
