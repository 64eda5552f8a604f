"""Chooses the queue of a message whose sender named none: round robin in each topic."""

from __future__ import annotations

from typing import Final

from trovemq_proto.positions import QueueId

TOPICS_MAX: Final = 65_536


class QueueChooser:
    """Keeps one number per topic, for a bounded number of topics."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}

    def choose(self, topic: str, queue_count: int) -> QueueId:
        """The queue id (0 to queue_count - 1) whose turn it is."""
        assert queue_count > 0, "a topic has a queue"
        assert len(self._next) <= TOPICS_MAX, "memory is bounded"
        if queue_count == 1:
            return QueueId(0)
        turn = self._next.get(topic, 0)
        if len(self._next) >= TOPICS_MAX:
            self._next.clear()  # all begin at queue 0 again: harmless, and bounded
        self._next[topic] = turn + 1
        return QueueId(turn % queue_count)
