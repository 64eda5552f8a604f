"""The owner of a producer id: an id `USER:NAME` belongs to that user. Nothing is stored for it, so no other
user can take it first, and no restart forgets its owner.

The ids are those that the engine would read: of records with numbers, without the broker's own copies. A
batch that cannot be read has none: its service refuses it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from trovemq_broker.server.wire.frames import AppendFrame
from trovemq_proto.errors import TroveError
from trovemq_proto.records.batch import RecordBatch
from trovemq_proto.records.layout import PROPERTY_PRODUCER
from trovemq_store.index.trees.producer_sequences import stored_numbers

_PROPERTY: Final = PROPERTY_PRODUCER.encode()


def of_frame(frame: AppendFrame) -> Iterable[str]:
    """The producer ids of a frame. It is first searched for the property's name, because few messages have
    it: the whole message that has the records, which saves a copy, or a part of the receive buffer."""
    records = frame.records
    whole: Any = records.obj if isinstance(records, memoryview) else records
    if not frame.owned and not isinstance(whole, bytes):
        whole = bytes(records)
    if frame.fault or _PROPERTY not in whole:
        return ()
    try:
        batch = RecordBatch.split(bytearray(records), topic=frame.topic)
    except TroveError:
        return ()
    return {each.producer.decode() for each in stored_numbers(batch)}


def is_own(producer_id: str, access_key: str) -> bool:
    """Whether the user may send numbered messages with this id."""
    return producer_id.startswith(f"{access_key}:")
