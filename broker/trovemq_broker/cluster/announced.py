"""The state of one registration stream: the topics that its nameserver has, and so the next heartbeat.

The first heartbeat of a stream has all topics. Later ones have those that changed, where the nameserver says
that it understands changes, and the broker still knows the changes: `change_count` counts the changes of the
topics, and the newest few thousand are kept. Otherwise, and when the nameserver asks for it, they have all.

A nameserver takes heartbeats up to a size. One with all topics has those that fit, the first ones by name:
a larger one would end the stream, and the broker would have no routes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from trovemq_broker.cluster.view import BrokerDescription, BrokerView, broker_info, topic_routes
from trovemq_proto.v1 import common_pb2, route_pb2

FIELDS_SIZE_MAX: Final = 8_192
"""Bytes of a heartbeat beside its topics, at most."""
TOPIC_FRAME_MAX: Final = 5
"""Bytes before each topic."""


class Announced:
    """The state of one stream. For each heartbeat `next()`, then `answered()` with its reply.

    Attributes:
        size_max: Bytes of the largest heartbeat that the nameserver takes; 0: not known.
        unsent: Topics that did not fit into the last heartbeat with all.
    """

    def __init__(self, view: BrokerView, size_max: int = 0) -> None:
        self._view = view
        self.size_max = size_max
        self.unsent = 0
        self._version: int | None = None
        self._change_count = 0
        self._description: BrokerDescription | None = None
        self._understands_changes = False
        self._sent_all = False

    def is_behind(self) -> bool:
        """Whether the nameserver asked for all topics, which the next heartbeat has."""
        return self._version is None

    def next_has_all(self) -> bool:
        """Whether the next heartbeat has all topics."""
        return self._view.data_version != self._version and self._changed() is None

    def next(self) -> tuple[route_pb2.Heartbeat, int]:
        """The next heartbeat, and how many topics it has if these are all topics, else 0."""
        version = self._view.data_version
        heartbeat, all_topics = route_pb2.Heartbeat(data_version=version), 0
        if version == self._version:
            self._sent_all = False
            return heartbeat, 0
        changed = self._changed()
        if changed is None:
            topics = topic_routes(self._view, self._view.topics())
            kept = _fitting(topics, self.size_max - FIELDS_SIZE_MAX) if self.size_max else topics
            heartbeat.topics.extend(kept)
            all_topics, self.unsent = len(kept), len(topics) - len(kept)
            self._description = None
        else:
            self._add_changes(heartbeat, changed)
        if self._description != self._view.description():
            self._description = self._view.description()
            heartbeat.broker.CopyFrom(broker_info(self._view))
        self._sent_all = changed is None
        self._version, self._change_count = version, self._view.change_count
        return heartbeat, all_topics

    def answered(self, reply: route_pb2.HeartbeatReply) -> None:
        self._understands_changes = reply.changes
        had, self.size_max = self.size_max, reply.heartbeat_size_max or self.size_max
        if (reply.all_topics and not self._sent_all) or (self.unsent and self.size_max > had):
            self._version = None

    def _changed(self) -> list[str] | None:
        """Names of the topics that changed since the last heartbeat; None: all must be sent, as where some
        did not fit."""
        if self._version is None or not self._understands_changes or self.unsent:
            return None
        changed = self._view.changed_since(self._change_count)
        return None if changed is None else list(changed)

    def _add_changes(self, heartbeat: route_pb2.Heartbeat, names: list[str]) -> None:
        assert self._version is not None, "changes have a base"
        heartbeat.base_version = self._version
        topics = [(name, self._view.find(name)) for name in names]
        heartbeat.topics.extend(topic_routes(self._view, [topic for _, topic in topics if topic is not None]))
        heartbeat.removed_topics.extend(name for name, topic in topics if topic is None)


def _fitting(topics: Sequence[common_pb2.TopicRoute], size: int) -> Sequence[common_pb2.TopicRoute]:
    """The first topics, as many as have at most `size` bytes."""
    for number, topic in enumerate(topics):
        size -= topic.ByteSize() + TOPIC_FRAME_MAX
        if size < 0:
            return topics[:number]
    return topics
