"""The hand-read frames are protobuf: they read and write the same as protobuf's own code."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trovemq_broker.server.wire.frames import read_append_frame, write_with_records
from trovemq_broker.server.wire.native_messages import born_host_of
from trovemq_proto.positions import QueueId
from trovemq_proto.v1 import message_pb2

INT64 = st.integers(-(2**63), 2**63 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)


@given(INT64, st.text(max_size=200), INT32, st.binary(max_size=500), st.booleans())
def test_reads_what_protobuf_writes(
    frame_id: int, topic: str, queue_id: QueueId, records: bytes, one_way: bool
) -> None:
    wire = message_pb2.AppendFrame(
        frame_id=frame_id, topic=topic, queue_id=queue_id, records=records, one_way=one_way
    )
    frame = read_append_frame(wire.SerializeToString())
    assert frame.fault == ""
    assert (frame.frame_id, frame.topic, frame.queue_id) == (frame_id, topic, queue_id)
    assert (bytes(frame.records), frame.one_way) == (records, one_way)


@given(st.binary(max_size=300))
def test_any_bytes_give_a_frame_or_a_fault(data: bytes) -> None:
    """Whatever protobuf takes has no fault here, and means the same."""
    frame = read_append_frame(data)
    try:
        wire = message_pb2.AppendFrame.FromString(data)
    except Exception:
        return
    if not frame.fault:
        assert (frame.frame_id, frame.queue_id) == (wire.frame_id, wire.queue_id)
        assert bytes(frame.records) == wire.records


def test_unknown_fields_are_skipped_and_the_last_value_counts() -> None:
    known = message_pb2.AppendFrame(frame_id=1, records=b"a").SerializeToString()
    varint, fixed64, fixed32, text = b"\x58\x05", b"\x59" + bytes(8), b"\x5d" + bytes(4), b"\x5a\x02ab"
    later = message_pb2.AppendFrame(frame_id=2, records=b"bc").SerializeToString()
    frame = read_append_frame(varint + known + fixed64 + text + later + fixed32)
    assert (frame.fault, frame.frame_id, bytes(frame.records)) == ("", 2, b"bc")


def test_faults_keep_what_was_read_before() -> None:
    whole = message_pb2.AppendFrame(frame_id=9, topic="orders", records=b"abc").SerializeToString()
    cut = read_append_frame(whole[:-1])
    assert (cut.frame_id, cut.topic) == (9, "orders")
    assert "cut" in cut.fault
    for data in (b"\x08", b"\x0b", b"\x08" + b"\xff" * 11, b"\x59\x00"):
        assert read_append_frame(data).fault != ""


@given(st.lists(st.binary(max_size=400), max_size=5), INT64)
def test_fetch_replies_are_read_by_protobuf(parts: list[bytes], next_offset: int) -> None:
    head = message_pb2.FetchReply(fetch_id=3, next_offset=next_offset, damaged_offsets=[1, 2])
    data = write_with_records(head, [memoryview(part) for part in parts], sum(map(len, parts)))
    reply = message_pb2.FetchReply.FromString(data)
    assert reply.records == b"".join(parts)
    assert (reply.fetch_id, reply.next_offset, list(reply.damaged_offsets)) == (3, next_offset, [1, 2])


def test_born_hosts_of_peers() -> None:
    assert born_host_of("ipv4:192.168.0.9:258") == bytes([192, 168, 0, 9, 0, 0, 1, 2])
    assert born_host_of("ipv6:%5B::1%5D:80") == bytes(15) + b"\x01" + bytes([0, 0, 0, 80])
    assert born_host_of("ipv6:[::1]:80") == bytes(15) + b"\x01" + bytes([0, 0, 0, 80])
    for peer in ("unix:/tmp/socket", "", "ipv4:nonsense"):
        assert born_host_of(peer) is None
