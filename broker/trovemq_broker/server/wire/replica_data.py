"""Frames of the log between replicas, written and read without a copy of the log's bytes in a protobuf
message: most frames are large ones of this kind.

    FollowReply.data   one length-delimited field, the whole message
    its fields         numbers, then `data` as the last one

A message of another form, also one that says the same, is left to protobuf.
"""

from __future__ import annotations

from typing import Final

from google.protobuf.message import DecodeError

from trovemq_broker.replication.frames import Data
from trovemq_proto.v1 import replication_pb2 as pb
from trovemq_proto.varints import read_varint, write_varint

_LENGTH_DELIMITED: Final = 2
_FRAME_TAG: Final = pb.FollowReply.DATA_FIELD_NUMBER << 3 | _LENGTH_DELIMITED
_DATA_TAG: Final = pb.ReplicaData.DATA_FIELD_NUMBER << 3 | _LENGTH_DELIMITED
_NUMBERS: Final = frozenset(
    field.number << 3 for field in pb.ReplicaData.DESCRIPTOR.fields if field.name != "data"
)


def data_bytes(frame: Data) -> bytes:
    """The FollowReply."""
    numbers = pb.ReplicaData(
        epoch=frame.epoch, offset=frame.offset, commit=frame.commit, crc=frame.crc, blank=frame.blank
    )
    size = len(frame.data)
    head = b"%b%c%b" % (numbers.SerializeToString(), _DATA_TAG, write_varint(size))
    return b"".join((b"%c%b" % (_FRAME_TAG, write_varint(len(head) + size)), head, frame.data))


def is_data(message: bytes) -> bool:
    """Whether it is nothing else, as far as its first byte shows."""
    return bool(message) and message[0] == _FRAME_TAG


def split_data(message: bytes) -> tuple[pb.ReplicaData, memoryview] | None:
    """The frame's numbers, and the log's bytes as a view of the message. None: it has another form."""
    try:
        if not is_data(message):
            return None
        size, begin = read_varint(message, 1)
        at = begin
        for _ in range(len(_NUMBERS)):
            if message[at] not in _NUMBERS:
                break
            _, at = read_varint(message, at + 1)
        if begin + size != len(message) or message[at] != _DATA_TAG:
            return None
        data_size, data_at = read_varint(message, at + 1)
        if not data_size or data_at + data_size != len(message):
            return None
        return pb.ReplicaData.FromString(message[begin:at]), memoryview(message)[data_at:]
    except (IndexError, ValueError, DecodeError):
        return None
