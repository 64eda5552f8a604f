"""Finding a queue by topic and queue id, as a caller names it: for pulling, queries and administration alike.

A topic exists here if it is configured or if the store has queues of it, whatever its name: everything in the
store can be read. A configured queue that has had no message yet exists, and is empty.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QUEUE_ORIGIN, QueueId, QueueOffset
from trovemq_store.index.consume_queue import ConsumeQueue
from trovemq_store.topics.topics import TopicConfig

if TYPE_CHECKING:
    from trovemq_store.engine.message_store import MessageStore


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
