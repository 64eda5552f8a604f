"""Finds the queue offset of a time."""

from __future__ import annotations

from trovemq_proto.positions import QUEUE_ORIGIN, EpochMs, QueueId, QueueOffset
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.queues import find_queue
from trovemq_store.index import time_search


def search_offset(
    store: MessageStore, topic: str, queue_id: QueueId, timestamp: EpochMs, *, upper: bool = False
) -> QueueOffset:
    """The smallest offset with time >= timestamp (epoch ms), or `upper`: the largest with time <= timestamp.

    Where store times step back along the log, earlier messages than asked for may lie at or after the answer.
    Always in [min_offset, max_offset] of the queue. Raises TroveError TOPIC_NOT_FOUND, QUEUE_NOT_FOUND.
    """
    queue = find_queue(store, topic, queue_id)
    if queue is None:
        return QUEUE_ORIGIN
    store.time_runs.trim_before(store.min_offset)
    runs = store.time_runs.runs
    if len(runs) > 1 or any(run.slack_ms for run in runs):
        return time_search.search_in_runs(queue, timestamp, upper, store.store_timestamp_at, runs)
    return time_search.search_offset(queue, timestamp, upper, store.store_timestamp_at, store.min_offset)
