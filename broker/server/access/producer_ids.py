"""Whose a producer's id is: an id `USER:NAME` is that user's. Nothing is kept for it, so nobody can take an
id before its user does, and no restart forgets an owner.

The ids are those that the engine would read: of records with numbers, without the broker's own copies. A
batch that cannot be read has none here: its service refuses it.
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
    """The received message is searched for the property's name first, without a copy: few have one."""
    records = frame.records
    whole = records.obj if isinstance(records, memoryview) else records
    assert isinstance(whole, bytes), "frames are read of bytes"
    if frame.fault or _PROPERTY not in whole:
        return ()
    try:
        batch = RecordBatch.split(bytearray(records), topic=frame.topic)
    except TroveError:
        return ()
    return {each.producer.decode() for each in stored_numbers(batch)}


def of_send(request: message_pb2.SendRequest) -> Iterable[str]:
    found = (message.properties.get(PROPERTY_PRODUCER) for message in request.messages)
    return {each for each in found if each is not None}


def of_question(request: message_pb2.GetProducerRequest) -> Iterable[str]:
    return (request.producer_id,)


def is_own(producer_id: str, access_key: str) -> bool:
    """Whether the user may number messages under this id."""
    return producer_id.startswith(f"{access_key}:")
