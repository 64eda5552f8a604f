"""Finding a queue by topic and queue id, as a caller names it: for pulling, queries and administration alike.

A topic is known here by its configuration or by queues that the store has of it, whatever its name: what is
in the store can be read. A queue that was configured and has had no message yet is there, and empty.
"""

from __future__ import annotations

from broker.index.consume_queue import ConsumeQueue
from broker.message_store import MessageStore
from trovemq_proto import errors
from trovemq_proto.errors import TroveError


def queue_ids(store: MessageStore, topic: str) -> list[int]:
    """Every queue of the topic, sorted. Raises TroveError TOPIC_NOT_FOUND."""
    config = store.topics.get(topic)
    used = {queue.queue_id for queue in store.consume_queues.queues(topic)}
    if config is None and not used:
        raise topic_not_found(topic)
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
            f"topic {topic[:200]} has no queue {queue_id} here (queue count {len(known)})",
            topic=topic[:200],
            queue_id=queue_id,
            queue_count=len(known),
        )
    return queue


def queue_range(store: MessageStore, topic: str, queue_id: int) -> tuple[int, int]:
    """(min, max) queue offset; (0, 0) of an empty queue. Raises as find_queue does."""
    queue = find_queue(store, topic, queue_id)
    return (queue.min_offset, queue.max_offset) if queue is not None else (0, 0)


def topic_not_found(topic: str) -> TroveError:
    shown = topic[:200]  # an error never repeats a whole hostile name
    return TroveError(errors.TOPIC_NOT_FOUND, f"topic {shown!r} does not exist here", topic=shown)
