"""The lag of each consumer group, from the stored offsets.

Messages that wait for their retry count: in retry topics, which a group may not have read yet, and among the
delayed messages for them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from trovemq_broker.groups.group_topic_key import GroupTopicKey
from trovemq_proto.positions import QUEUE_ORIGIN, QueueOffset
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.steps import Steps
from trovemq_store.index.consume_queue import ConsumeQueue
from trovemq_store.topics.names import RETRY_PREFIX, retry_topics

PAIRS_STEP: Final = 64
"""The number of pairs of group and topic in one step."""


@dataclass(slots=True)
class ConsumerLag:
    """`messages`: the number in all queues; `oldest`: store time of the oldest (epoch ms), None if there is
    none."""

    messages: int = 0
    oldest: int | None = None


def lag_steps(
    store: MessageStore, entries_max: int, delayed: Callable[[str], int]
) -> Steps[dict[GroupTopicKey, ConsumerLag]]:
    """The lags by (group, topic), of at most that many. `delayed`: topic -> the number of its delayed
    messages."""
    lags: dict[GroupTopicKey, ConsumerLag] = {}
    for number, (group, topic) in enumerate(store.offsets.pairs()[:entries_max], 1):
        lag = lags[group, topic] = ConsumerLag()
        for queue_id, offset in store.offsets.of(group, topic):
            queue = store.consume_queues.get(topic, queue_id)
            if queue is not None:
                _add(store, lag, queue, offset)
        if number % PAIRS_STEP == 0:
            yield
    yield from _add_retries(store, lags, entries_max, delayed)
    return lags


def _add_retries(
    store: MessageStore,
    lags: dict[GroupTopicKey, ConsumerLag],
    entries_max: int,
    delayed: Callable[[str], int],
) -> Steps[None]:
    read = [(group, topic) for group, topic in lags if not topic.startswith(RETRY_PREFIX)]
    retries = dict.fromkeys((group, retry) for group, topic in read for retry in retry_topics(group, topic))
    for number, (group, retry) in enumerate(retries, 1):
        if number % PAIRS_STEP == 0:
            yield
        waiting = delayed(retry)
        lag = lags.get((group, retry))
        if lag is None:
            queues = store.consume_queues.queues(retry)  # the group has read none of them
            if not (queues or waiting) or len(lags) >= entries_max:
                continue
            lag = lags[group, retry] = ConsumerLag()
            for queue in queues:
                _add(store, lag, queue, QUEUE_ORIGIN)
        lag.messages += waiting


def _add(store: MessageStore, lag: ConsumerLag, queue: ConsumeQueue, offset: QueueOffset) -> None:
    """Adds the messages of the queue from `offset` on."""
    if queue.max_offset <= (first := max(offset, queue.min_offset)):
        return
    lag.messages += queue.max_offset - first
    timestamp = _timestamp_at(store, queue, first)
    if timestamp is not None and (lag.oldest is None or timestamp < lag.oldest):
        lag.oldest = timestamp


def _timestamp_at(store: MessageStore, queue: ConsumeQueue, offset: QueueOffset) -> int | None:
    return store.store_timestamp_at(queue.unit(offset)[0])
