"""Reading the messages of the broker's own topics."""

from __future__ import annotations

from collections.abc import Iterator

from trovemq_proto.errors import DamagedError
from trovemq_proto.positions import QueueId, QueueOffset
from trovemq_proto.records import Message, decode_stored
from trovemq_store.engine.appending import StoreAppending
from trovemq_store.engine.queue_units import (
    BLANK_UNIT_SIZE,
    UNITS_STEP,
    UNREADABLE_UNIT_SIZE,
    readable_units,
)


def messages_from(
    store: StoreAppending, topic: str, queue_id: QueueId, begin: QueueOffset, end: QueueOffset | None = None
) -> Iterator[tuple[QueueOffset, Message]]:
    """(queue offset, message) of every visible, undamaged message of the queue from `begin` on, up to `end`
    (without it: the queue's present end), with its stored body. Reads message by message, which is meant for
    the broker's own topics."""
    queue = store.consume_queues.get(topic, queue_id)
    if queue is None:
        return
    last = queue.max_offset if end is None else min(end, queue.max_offset)
    offset = max(begin, queue.min_offset)
    while offset < last:
        units = readable_units(queue, offset, min(last - offset, UNITS_STEP))
        places = zip(units["physical_offset"].tolist(), units["size"].tolist(), strict=True)
        for at, (physical_offset, size) in enumerate(places, offset):
            if size == BLANK_UNIT_SIZE:
                continue
            if size == UNREADABLE_UNIT_SIZE:
                store.damage.met_unit(topic, queue_id, QueueOffset(at))
                continue
            try:
                record = store.record_at(physical_offset)
                message = None if record is None else decode_stored(record)
            except DamagedError:
                continue  # damaged: reported by recovery and scrub
            if message is not None:
                yield QueueOffset(at), message
        offset = QueueOffset(offset + len(units))
