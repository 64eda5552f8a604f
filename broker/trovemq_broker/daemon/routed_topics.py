"""The topics that a broker registers and offers in routes: not the records of its tables, which no client
reads."""

from __future__ import annotations

from collections.abc import Callable

from trovemq_store.engine.message_store import MessageStore
from trovemq_store.topics.names import is_system_topic
from trovemq_store.topics.table_records import META_TOPIC
from trovemq_store.topics.topics import TopicConfig


class RoutedTopics:
    """The topics of routes: those of the table, and those of which the store has queues only."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store

    @property
    def data_version(self) -> int:
        return self._store.topics.data_version

    @property
    def change_count(self) -> int:
        return self._store.topics.change_count

    def changed_since(self, change_count: int) -> list[str] | None:
        return self._store.topics.changed_since(change_count)

    def names(self, include_system: bool = False) -> list[str]:
        names = {*self._store.topics.names(include_system=True), *self._store.consume_queues.topics()}
        names.discard(META_TOPIC)
        return sorted(name for name in names if include_system or not is_system_topic(name))

    def find(self, name: str) -> TopicConfig | None:
        known = name in self._store.topics or self._store.consume_queues.has_topic(name)
        return self.require(name) if known else None

    def require(self, name: str) -> TopicConfig:
        config = self._store.topics.get(name)
        if config is not None:
            return config
        queues = self._store.consume_queues.queues(name)
        count = max((queue.queue_id for queue in queues), default=-1) + 1
        return TopicConfig(name, count, count, message_type="UNSPECIFIED")

    def add_change_listener(self, listener: Callable[[], None]) -> None:
        self._store.topics.add_change_listener(listener)
