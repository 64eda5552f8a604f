"""Counts the messages of each priority that arrived in topics that are received by priority, since the
start."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from trovemq_proto.records.priorities import PRIORITY_COUNT
from trovemq_proto.records.priority_columns import priorities_of
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.log.projection import DispatchBatch


class PriorityCounts:
    """Is called with every run of records that becomes visible. Has at most one row per existing topic."""

    def __init__(self, store: MessageStore) -> None:
        self._topics = store.topics
        self._counts: dict[str, list[int]] = {}
        store.on_visible = self.add

    def add(self, batch: DispatchBatch) -> None:
        """Counts records that became visible; costs nothing if no topic is received by priority."""
        topics = self._topics.priority_topics()
        if not topics or not len(batch.records):
            return
        priorities = None
        for topic, records in batch.records.topic_groups():
            if topic not in topics:
                continue
            if priorities is None:
                priorities = priorities_of(batch.records)
            more = np.bincount(priorities[records], minlength=PRIORITY_COUNT).tolist()
            counts = self._counts.get(topic, [0] * PRIORITY_COUNT)
            self._counts[topic] = [one + other for one, other in zip(counts, more, strict=True)]

    def rows(self) -> Iterator[tuple[str, int, int]]:
        """(topic, priority, messages)."""
        for topic, counts in self._counts.items():
            yield from ((topic, priority, count) for priority, count in enumerate(counts))

    def forget(self, topic: str) -> None:
        self._counts.pop(topic, None)
