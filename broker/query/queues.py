"""Finding a queue by topic and queue id, as a caller names it."""

from __future__ import annotations

from broker.index.consume_queue import ConsumeQueue
from broker.message_store import MessageStore
from trovemq_proto import errors
from trovemq_proto.errors import TroveError


def queue_ids(store: MessageStore, topic: str) -> list[int]:
    """Every queue of the topic: those of its configuration and those that have messages.

    Raises TroveError TOPIC_NOT_FOUND.
    """
    config = store.topics.get(topic)
    used = {queue.queue_id for queue in store.consume_queues.queues(topic)}
    if config is None and not used:
        raise TroveError(errors.TOPIC_NOT_FOUND, f"topic {topic!r} does not exist here", topic=topic)
    count = max(config.queue_count, config.write_queue_count) if config is not None else 0
    return sorted(used.union(range(count)))


def find_queue(store: MessageStore, topic: str, queue_id: int) -> ConsumeQueue | None:
    """The queue, or None where it is there and has had no message yet.

    Raises TroveError TOPIC_NOT_FOUND, QUEUE_NOT_FOUND.
    """
    queue = store.consume_queues.get(topic, queue_id)
    if queue is None and queue_id not in (known := queue_ids(store, topic)):
        raise TroveError(
            errors.QUEUE_NOT_FOUND,
            f"topic {topic} has no queue {queue_id} here; it has {len(known)} queues",
            topic=topic,
            queue_id=queue_id,
        )
    return queue
