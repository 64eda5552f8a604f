"""Frames packed by hand equal protobuf's of the same message."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trovemq._wire.frames import append_frame, append_head, split_records
from trovemq_proto.v1 import common_pb2, message_pb2
from trovemq_proto.varints import write_varint

int63 = st.integers(0, (1 << 63) - 1)


@given(
    int63,
    st.text(max_size=127),
    st.integers(0, 1 << 20),
    st.lists(st.binary(max_size=200), max_size=4),
    st.booleans(),
)
def test_append_frames(frame_id: int, topic: str, queue_id: int, pieces: list[bytes], one_way: bool) -> None:
    records = b"".join(pieces)
    data = append_frame(
        frame_id=frame_id,
        head=append_head(topic, queue_id),
        records=map(bytearray, pieces),
        size=len(records),
        one_way=one_way,
    )
    assert message_pb2.AppendFrame.FromString(data) == message_pb2.AppendFrame(
        frame_id=frame_id, topic=topic, queue_id=queue_id, records=records, one_way=one_way
    )


@given(
    int63, st.binary(max_size=500), int63, st.binary(max_size=64), st.lists(int63, max_size=5), st.booleans()
)
def test_fetch_replies(
    fetch_id: int, records: bytes, next_offset: int, offsets: bytes, damaged: list[int], failed: bool
) -> None:
    reply = message_pb2.FetchReply(
        fetch_id=fetch_id,
        records=records,
        next_offset=next_offset,
        queue_offsets=offsets,
        damaged_offsets=damaged,
        error=common_pb2.Error(symbol="X", message="m") if failed else None,
    )
    found, rest = split_records(reply.SerializeToString())
    assert bytes(found) == records
    reply.ClearField("records")
    assert message_pb2.FetchReply.FromString(rest) == reply


@given(st.binary(max_size=60))
def test_what_is_not_a_message_is_refused_or_read_as_protobuf_does(data: bytes) -> None:
    """But for groups (wire types 3 and 4), which protobuf skips and no message of ours has."""
    try:
        split_records(data)
    except ValueError as error:
        if "wire type" in str(error):
            return
        with pytest.raises(Exception):  # noqa: B017  protobuf's DecodeError
            message_pb2.FetchReply.FromString(data)


@given(int63)
def test_varints(value: int) -> None:
    assert write_varint(value) == message_pb2.FetchReply(fetch_id=value).SerializeToString()[1:] or value == 0
