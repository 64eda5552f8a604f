"""Finding a queue by topic and queue id, as a caller names it: for pulling, queries and administration alike.

A topic exists here if it is configured or if the store has queues of it, whatever its name: everything in the
store can be read. A configured queue that has had no message yet exists, and is empty.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from trovemq_proto import errors
from trovemq_proto.errors import DamagedError, TroveError
from trovemq_proto.positions import QUEUE_ORIGIN, QueueId, QueueOffset
from trovemq_proto.records import Message, decode_stored
from trovemq_store.files.files import UnreadableError
from trovemq_store.index.consume_queue import UNIT_DTYPE, ConsumeQueue
from trovemq_store.topics.topics import TopicConfig

if TYPE_CHECKING:
    from trovemq_store.engine.message_store import MessageStore

UNITS_STEP: Final = 1_024
"""Units that are read at a time."""
# Filler where a queue's first offset is not 0 (docs/store-format.md, "Filler units").
BLANK_UNIT_SIZE: Final = 0x7FFFFFFF
UNREADABLE_UNIT_SIZE: Final = 0  # readable_units() uses it: no record is that small


def queue_ids(store: MessageStore, topic: str) -> list[QueueId]:
    """Every queue of the topic, sorted. Raises TroveError TOPIC_NOT_FOUND."""
    config = store.topics.get(topic)
    used = {queue.queue_id for queue in store.consume_queues.queues(topic)}
    if config is None and not used:
        raise topic_not_found(topic)
    return sorted(used.union(map(QueueId, range(_stated_count(config)))))


def _stated_count(config: TopicConfig | None) -> int:
    return max(config.queue_count, config.write_queue_count) if config is not None else 0


def find_queue(store: MessageStore, topic: str, queue_id: QueueId) -> ConsumeQueue | None:
    """The queue; None if it exists and has had no message yet.

    Raises TroveError TOPIC_NOT_FOUND, QUEUE_NOT_FOUND.
    """
    queue = store.consume_queues.get(topic, queue_id)
    if queue is not None or 0 <= queue_id < _stated_count(store.topics.get(topic)):
        return queue
    known = queue_ids(store, topic)
    raise TroveError(
        errors.QUEUE_NOT_FOUND,
        f"topic {topic[:200]} has no queue {queue_id} here (queue count {len(known)})",
        topic=topic[:200],
        queue_id=queue_id,
        queue_count=len(known),
    )


def queue_range(store: MessageStore, topic: str, queue_id: QueueId) -> tuple[QueueOffset, QueueOffset]:
    """(min, max) queue offset; (0, 0) of an empty queue. TroveError TOPIC_NOT_FOUND, QUEUE_NOT_FOUND."""
    queue = find_queue(store, topic, queue_id)
    return (queue.min_offset, queue.max_offset) if queue is not None else (QUEUE_ORIGIN, QUEUE_ORIGIN)


def topic_not_found(topic: str) -> TroveError:
    shown = topic[:200]  # an error never repeats a whole hostile name
    return TroveError(errors.TOPIC_NOT_FOUND, f"topic {shown!r} does not exist here", topic=shown)


def readable_units(queue: ConsumeQueue, offset: QueueOffset, count: int) -> NDArray[np.void]:
    """queue.units(), with units of UNREADABLE_UNIT_SIZE in the place of those that the disk does not
    return."""
    count = min(count, queue.max_offset - offset)
    try:
        return queue.units(offset, count)
    except UnreadableError:
        if count == 1:
            return np.array([(-1, UNREADABLE_UNIT_SIZE, 0)], UNIT_DTYPE)
        half = count // 2
        parts = (
            readable_units(queue, offset, half),
            readable_units(queue, QueueOffset(offset + half), count - half),
        )
        return np.concatenate(parts)


def messages_from(
    store: MessageStore, topic: str, queue_id: QueueId, begin: QueueOffset, end: QueueOffset | None = None
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
