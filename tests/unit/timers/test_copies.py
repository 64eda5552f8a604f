"""A copy made from a waiting record's bytes equals the record, by the slow codec."""

from __future__ import annotations

import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.engine import NOW_MS
from trovemq_broker.timers.copies import Target, delivered_copy
from trovemq_broker.timers.wheel_records import PROPERTIES_SPACE_MAX, WHEEL_TOPIC
from trovemq_proto.positions import PhysicalOffset, QueueId
from trovemq_proto.records import RecordBatch, decode_message, encode_record, parse_properties
from trovemq_proto.records.record_crc import record_crc_property

PLACE = 1 << 40
BODY = zlib.compress(b"body")
NAMES = [
    "TAGS",
    "UNIQ_KEY",
    "xREAL_QID",
    "REAL_QIDx",
    "TIMER_ENQUEUE_MS",
    "TIMER_DEQUEUE_MS",
    "__CRC32#",
    "größe",
]
pieces = st.lists(
    st.tuples(st.sampled_from(NAMES), st.sampled_from(["1", "REAL_QID", "7\x01", "ä b"])), max_size=8
)


def target(topic: str = "orders", queue_count: int = 4, *, crc: bool = False, ipv6: bool = False) -> Target:
    return Target.of(topic, queue_count, bytes(20 if ipv6 else 8), crc)


def waiting(block: bytes, body: bytes = b"body", **fields: Any) -> memoryview:
    data = encode_record(
        WHEEL_TOPIC, body, properties=block, physical_offset=PLACE, store_timestamp=NOW_MS - 700, **fields
    )
    return memoryview(data)


def copied(record: memoryview, to: Target, *, annotated: bool = True) -> tuple[int, bytes]:
    copy = delivered_copy(record, PhysicalOffset(PLACE), to, NOW_MS, annotated=annotated)
    assert copy is not None
    return copy


@pytest.mark.slow
@given(
    before=pieces,
    after=pieces,
    queue_id=st.integers(0, 100),
    cut=st.booleans(),
    annotated=st.booleans(),
    crc=st.booleans(),
    ipv6=st.tuples(st.booleans(), st.booleans()),
    topic=st.sampled_from(["orders", "o" * 200]),
)
@settings(max_examples=150, deadline=None)
def test_the_copy_has_what_the_record_had(
    before: list[tuple[str, str]],
    after: list[tuple[str, str]],
    queue_id: QueueId,
    cut: bool,
    annotated: bool,
    crc: bool,
    ipv6: tuple[bool, bool],
    topic: str,
) -> None:
    named = [("REAL_QID", "1"), *before, ("REAL_QID", str(queue_id)), *after]
    block = "".join(f"{name}\x01{value}\x02" for name, value in named).encode()
    block = block[:-1] if cut else block
    record = waiting(
        block, BODY, born_host=bytes(range(20 if ipv6[0] else 8)), flag=7, sys_flag=0x309, reconsume_times=3,
        born_timestamp=5, prepared_transaction_offset=9,
    )  # fmt: skip
    queue, data = copied(record, target(topic, crc=crc, ipv6=ipv6[1]), annotated=annotated)
    RecordBatch.split(data, topic=topic)
    found = parse_properties(_block(data))
    assert found.pop("__CRC32#", "") == ("0" * 10 if crc else "")
    if crc:
        data = data[:-20] + record_crc_property(data, 0, len(data))
    message, original = decode_message(memoryview(data)), decode_message(record)
    expected = parse_properties(block)
    expected.pop("__CRC32#", None)
    if annotated:
        expected |= {
            "TIMER_ENQUEUE_MS": expected.get("TIMER_ENQUEUE_MS", str(NOW_MS - 700)),
            "TIMER_DEQUEUE_MS": str(NOW_MS),
        }
    assert found == expected
    assert (message.topic, message.queue_id, queue) == (topic, queue_id % 4, queue_id % 4)
    assert message.sys_flag & ~0x30 == 0x301, "compressed, and in no transaction"
    assert (message.stored_body, message.flag, message.reconsume_times) == (BODY, 7, 3)
    assert (message.born_timestamp, message.born_host) == (5, original.born_host)
    assert message.prepared_transaction_offset == 0


def _block(data: bytes) -> bytes:
    (row,) = RecordBatch.split(data).rows
    return data[row.property_position :]


@pytest.mark.parametrize("position", [4, 8, 30, 84, 90])
def test_a_damaged_record_has_no_copy(position: int) -> None:
    """Its magic, body CRC, physical offset, length of the body, body."""
    data = bytearray(waiting(b"REAL_QID\x010\x02"))
    assert (
        delivered_copy(memoryview(data), PhysicalOffset(PLACE), target(), NOW_MS, annotated=True) is not None
    )
    data[position] ^= 1
    assert delivered_copy(memoryview(data), PhysicalOffset(PLACE), target(), NOW_MS, annotated=True) is None


@pytest.mark.parametrize("block", [b"", b"xREAL_QID\x010\x02", b"REAL_QID\x01-1\x02", b"a\x01REAL_QID\x02"])
def test_a_record_that_names_no_queue_has_no_copy(block: bytes) -> None:
    assert delivered_copy(waiting(block), PhysicalOffset(PLACE), target(), NOW_MS, annotated=True) is None


def test_a_record_that_is_gone_has_no_copy() -> None:
    assert delivered_copy(memoryview(b""), PhysicalOffset(PLACE), target(), NOW_MS, annotated=True) is None


def test_a_record_without_space_is_reported_nothing() -> None:
    block = b"REAL_QID\x010\x02a\x01".ljust(PROPERTIES_SPACE_MAX - 1, b"x") + b"\x02"
    _, data = copied(waiting(block), target(crc=True))
    assert _block(data)[: len(block)] == block
    assert len(_block(data)) == len(block) + 20, "and the CRC"
    longer = block[:-1] + b"x\x02"
    assert _block(copied(waiting(longer), target())[1]) == longer
    assert _block(copied(waiting(longer), target(crc=True))[1]) == longer, "without the CRC, but not lost"
