"""The range of offsets of a topic's queues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from broker.message_store import MessageStore
from broker.query.queues import find_queue
from broker.query.queues import queue_ids as queue_ids_of


class QueueOffsets(NamedTuple):
    """Messages [min_offset, max_offset) of the queue can be read."""

    queue_id: int
    min_offset: int
    max_offset: int


def queue_offsets(store: MessageStore, topic: str, queue_ids: Sequence[int] = ()) -> list[QueueOffsets]:
    """Of these queues, or of all where none is named.

    Raises TroveError TOPIC_NOT_FOUND, QUEUE_NOT_FOUND.
    """
    found = []
    for queue_id in queue_ids or queue_ids_of(store, topic):
        queue = find_queue(store, topic, queue_id)
        low, high = (queue.min_offset, queue.max_offset) if queue is not None else (0, 0)
        found.append(QueueOffsets(queue_id, low, high))
    return found
