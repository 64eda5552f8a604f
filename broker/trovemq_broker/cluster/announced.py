"""The state of one registration stream: the topics that its nameserver has, and so the next heartbeat.

The first heartbeat of a stream has all topics. Later ones have those that changed, where the nameserver says
that it understands changes, and the broker still knows the changes: `change_count` counts the changes of the
topics, and the newest few thousand are kept. Otherwise, and when the nameserver asks for it, they have all.
"""

from __future__ import annotations

from trovemq_broker.cluster.view import BrokerDescription, BrokerView, broker_info, topic_routes
from trovemq_proto.v1 import route_pb2


class Announced:
    """The state of one stream. For each heartbeat `next()`, then `answered()` with its reply."""

    def __init__(self, view: BrokerView) -> None:
        self._view = view
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
            heartbeat.topics.extend(topic_routes(self._view, self._view.topics()))
            all_topics = len(heartbeat.topics)
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
        if reply.all_topics and not self._sent_all:
            self._version = None

    def _changed(self) -> list[str] | None:
        """Names of the topics that changed since the last heartbeat; None: all must be sent."""
        if self._version is None or not self._understands_changes:
            return None
        changed = self._view.changed_since(self._change_count)
        return None if changed is None else list(changed)

    def _add_changes(self, heartbeat: route_pb2.Heartbeat, names: list[str]) -> None:
        assert self._version is not None, "changes have a base"
        heartbeat.base_version = self._version
        topics = [(name, self._view.find(name)) for name in names]
        heartbeat.topics.extend(topic_routes(self._view, [topic for _, topic in topics if topic is not None]))
        heartbeat.removed_topics.extend(name for name, topic in topics if topic is None)
