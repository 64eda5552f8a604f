"""The range of offsets of a topic's queues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from trovemq_proto.positions import QueueId, QueueOffset
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.queues import queue_ids as queue_ids_of
from trovemq_store.engine.queues import queue_range


class QueueOffsets(NamedTuple):
    """Messages [min_offset, max_offset) of the queue can be read."""

    queue_id: QueueId
    min_offset: QueueOffset
    max_offset: QueueOffset


def queue_offsets(store: MessageStore, topic: str, queue_ids: Sequence[QueueId] = ()) -> list[QueueOffsets]:
    """The ranges of these queues, or of all queues if none is named.

    Raises TroveError TOPIC_NOT_FOUND, QUEUE_NOT_FOUND.
    """
    chosen = queue_ids or queue_ids_of(store, topic)
    return [QueueOffsets(queue_id, *queue_range(store, topic, queue_id)) for queue_id in chosen]
