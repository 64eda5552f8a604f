"""The owner of a producer id: an id `USER:NAME` belongs to that user. Nothing is stored for it, so no other
user can take it first, and no restart forgets its owner.

The ids are those that the engine would read: of records with numbers, without the broker's own copies. A
batch that cannot be read has none: its service refuses it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from broker.server.native.frames import AppendFrame
from trovemq_proto.errors import TroveError
from trovemq_proto.records.batch import RecordBatch
from trovemq_proto.records.layout import PROPERTY_PRODUCER
from trovemq_proto.v1 import message_pb2
from trovemq_store.index.trees.producer_sequences import stored_numbers

_PROPERTY: Final = PROPERTY_PRODUCER.encode()


def of_frame(frame: AppendFrame) -> Iterable[str]:
    """The producer ids of a frame. The received message is first searched for the property's name, because
    few messages have it."""
    if frame.fault or _PROPERTY not in _searchable(frame):
        return ()
    records = frame.records
    try:
        batch = RecordBatch.split(bytearray(records), topic=frame.topic)
    except TroveError:
        return ()
    return {each.producer.decode() for each in stored_numbers(batch)}


def _searchable(frame: AppendFrame) -> bytes | bytearray:
    """The records, or the message that has them: that saves a copy."""
    records = frame.records
    whole = records.obj if isinstance(records, memoryview) else records
    if frame.owned or isinstance(whole, bytes):
        assert isinstance(whole, bytes | bytearray), (
            "frames are read of bytes, or of a message's own bytearray"
        )
        return whole
    return bytes(records)  # of a part of the receive buffer


def of_send(request: message_pb2.SendRequest) -> Iterable[str]:
    found = (message.properties.get(PROPERTY_PRODUCER) for message in request.messages)
    return {each for each in found if each is not None}


def of_question(request: message_pb2.GetProducerRequest) -> Iterable[str]:
    return (request.producer_id,)


def is_own(producer_id: str, access_key: str) -> bool:
    """Whether the user may send numbered messages with this id."""
    return producer_id.startswith(f"{access_key}:")
