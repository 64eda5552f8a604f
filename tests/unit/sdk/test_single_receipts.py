"""The fast paths of a single send give the same as the general ones."""

from __future__ import annotations

import os

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trovemq._produce.property_block import property_block
from trovemq._produce.unique_keys import next_unique_key
from trovemq._wire.streams import append_outcome
from trovemq.receipts import NO_GAPS, AppendOutcome, Duplicate, FrameReceipt, SendReceipt
from trovemq_proto.positions import PhysicalOffset
from trovemq_proto.records import encode_offset_msg_id, encode_properties, parse_properties
from trovemq_proto.v1 import common_pb2, message_pb2

INT63 = st.integers(0, (1 << 63) - 1)
INT31 = st.integers(0, (1 << 31) - 1)


@given(st.integers(-1, 1 << 62), st.booleans(), st.sampled_from([{}, {0: range(5, 8)}]))
def test_the_receipt_of_a_message_alone_in_its_frame(place: int, ipv6: bool, gaps: dict[int, range]) -> None:
    host = bytes(range(20 if ipv6 else 8))
    outcome = AppendOutcome(1, "PUT_OK", None, 9, place, 1, 1_700, "disk", host, "broker-a", (), gaps)
    expected = SendReceipt(
        topic="orders",
        queue_id=3,
        queue_offset=9,
        physical_offset=place,
        offset_msg_id=encode_offset_msg_id(host, PhysicalOffset(place)),
        message_id="K",
        durability="disk",
        store_timestamp=1_700,
        broker="broker-a",
        status="PUT_OK",
        sequence_gap=gaps.get(0, range(0)),
    )
    (receipt,) = FrameReceipt("orders", 3, [100], ["K"], outcome).receipts()
    assert (receipt, type(receipt), repr(receipt)) == (expected, SendReceipt, repr(expected))


@given(
    st.tuples(INT63, INT63, INT63, INT31, INT63),
    st.sampled_from(["PUT_OK", "FLUSH_DISK_TIMEOUT", "PUT_STATUS_UNSPECIFIED"]),
    st.booleans(),
    st.binary(max_size=20),
    st.lists(st.tuples(INT31, INT31, INT63, INT63, INT63), max_size=2),
    st.lists(st.tuples(INT31, INT31, INT31), max_size=2),
)
def test_a_reply_as_protobuf_reads_it(
    numbers: tuple[int, int, int, int, int],
    status: str,
    on_disk: bool,
    host: bytes,
    duplicates: list[tuple[int, int, int, int, int]],
    gaps: list[tuple[int, int, int]],
) -> None:
    frame_id, first, place, count, stored_at = numbers
    refused = status != "PUT_OK"
    reply = message_pb2.AppendReply(
        frame_id=frame_id,
        status=status,
        error=common_pb2.Error(symbol="DISK_FULL", message="full") if refused else None,
        first_queue_offset=first,
        physical_offset=place,
        record_count=count,
        store_timestamp=stored_at,
        durability=common_pb2.DISK if on_disk else common_pb2.MEMORY,
        store_host=host,
        broker="b",
    )
    for duplicate in duplicates:
        reply.duplicates.add(
            index=duplicate[0],
            queue_id=duplicate[1],
            queue_offset=duplicate[2],
            physical_offset=duplicate[3],
            store_timestamp=duplicate[4],
        )
    for index, low, high in gaps:
        reply.sequence_gaps.add(index=index, first=low, last=high)
    outcome = append_outcome(reply.SerializeToString())
    assert (outcome.error is not None) == refused
    assert outcome == AppendOutcome(
        frame_id=frame_id,
        status=status,
        error=outcome.error,
        first_queue_offset=first,
        physical_offset=place,
        record_count=count,
        store_timestamp=stored_at,
        durability="disk" if on_disk else "memory",
        store_host=host,
        broker="b",
        duplicates=tuple(Duplicate(*duplicate) for duplicate in duplicates),
        sequence_gaps={index: range(low, high + 1) for index, low, high in gaps} or NO_GAPS,
    )
    assert type(outcome) is AppendOutcome


@given(st.integers(0, 1 << 62), st.booleans(), st.integers(2, 5))
def test_the_receipts_of_a_frame_are_those_of_its_records(place: int, ipv6: bool, count: int) -> None:
    host = bytes(range(20 if ipv6 else 8))
    outcome = AppendOutcome(1, "PUT_OK", None, 9, place, count, 1_700_000_000_000, "disk", host, "broker-a")
    sizes = list(range(100, 100 + count))
    frame = FrameReceipt("orders", 3, sizes, [f"K{i}" for i in range(count)], outcome)
    assert frame.receipts() == [frame.receipt(i, offset) for i, offset in enumerate(frame.physical_offsets)]
    columns = FrameReceipt("orders", 3, np.array(sizes), frame.message_ids, outcome)
    assert columns.receipts() == frame.receipts()


def test_the_block_of_a_message_without_properties() -> None:
    key, block = property_block()
    assert block == encode_properties({"UNIQ_KEY": key})
    key, block = property_block(keys="a", tag="b")
    assert list(parse_properties(block).items()) == [("UNIQ_KEY", key), ("KEYS", "a"), ("TAGS", "b")]


def test_a_forked_process_makes_unique_keys_of_its_own() -> None:
    before = next_unique_key()
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.write(write, next_unique_key().encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 100)[:22] != before[:22].encode()
    assert next_unique_key()[:22] == before[:22]
    os.close(read)
    os.close(write)
