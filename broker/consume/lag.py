"""How far each consumer group is behind, by the offsets that are stored here."""

from __future__ import annotations

from dataclasses import dataclass

from broker.index.consume_queue import ConsumeQueue
from broker.message_store import MessageStore


@dataclass(slots=True)
class ConsumerLag:
    """`messages` of all queues; `oldest`: store time of the oldest (epoch ms), None where there is none."""

    messages: int = 0
    oldest: int | None = None


def consumer_lags(store: MessageStore, entries_max: int) -> dict[tuple[str, str], ConsumerLag]:
    """By (group, topic), for at most that many of them."""
    lags: dict[tuple[str, str], ConsumerLag] = {}
    for group, topic, queue_id, offset in store.offsets.entries():
        lag = lags.get((group, topic))
        if lag is None:
            if len(lags) >= entries_max:
                continue
            lag = lags[group, topic] = ConsumerLag()
        queue = store.consume_queues.get(topic, queue_id)
        if queue is None or queue.max_offset <= (first := max(offset, queue.min_offset)):
            continue
        lag.messages += queue.max_offset - first
        timestamp = _timestamp_at(store, queue, first)
        if timestamp is not None and (lag.oldest is None or timestamp < lag.oldest):
            lag.oldest = timestamp
    return lags


def _timestamp_at(store: MessageStore, queue: ConsumeQueue, offset: int) -> int | None:
    return store.store_timestamp_at(queue.unit(offset)[0])
