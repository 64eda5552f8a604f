"""The topics that this broker has in the routes of RocketMQ's own nameservers."""

from __future__ import annotations

from trovemq_broker.cluster.rocketmq_registration import RegisteredBroker
from trovemq_broker.cluster.view import BrokerView
from trovemq_broker.daemon.routed_topics import RoutedTopics
from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_broker.server.remoting.members import retry_topic
from trovemq_broker.server.remoting.routing import MADE_BY_USE, MADE_BY_USE_PERM
from trovemq_broker.server.remoting.topic_admin import shown_topic
from trovemq_proto.remoting.bodies import PERM_READ, PERM_READ_WRITE, REPLY_SUFFIX
from trovemq_store.topics.topics import TopicConfig


class TopicsForRocketmq:
    """The topics of the routes; a retry topic for each group, by which tools find the groups; the topic of
    replies; the names of cluster and broker, which tools look up. A draining broker offers them for reading
    only."""

    def __init__(self, core: BrokerCore, view: BrokerView) -> None:
        self._core = core
        self._view = view
        self._topics = RoutedTopics(core.store)

    def broker(self) -> RegisteredBroker:
        about = self._view.description()
        epoch = 0 if about.leader is None else about.leader.epoch
        return RegisteredBroker(about.cluster, about.name, about.address, epoch)

    def mark(self) -> object:
        core = self._core
        return self._view.data_version, core.groups.data_version, len(core.groups)

    def table(self) -> dict[str, object]:
        core = self._core
        cluster, draining = core.store.settings.cluster, self._view.description().draining
        found = {
            core.broker: _topic(core.broker, PERM_READ),
            cluster: _topic(cluster, PERM_READ),
            cluster + REPLY_SUFFIX: _topic(cluster + REPLY_SUFFIX, PERM_READ_WRITE),
        }
        if count := core.appender.queues_of_made_topic:
            found[MADE_BY_USE] = _topic(MADE_BY_USE, MADE_BY_USE_PERM, count)
        for retries in map(retry_topic, core.groups.names()):
            found[retries] = _topic(retries, PERM_READ_WRITE)
        for name in self._topics.names(include_system=True):
            found[name] = shown_topic(self._topics.require(name))
        if draining:
            for topic in found.values():
                topic["perm"] = PERM_READ
        return dict(found)


def _topic(name: str, perm: int, queue_count: int = 1) -> dict[str, object]:
    """Of one that the store does not have."""
    return shown_topic(TopicConfig(name, queue_count, queue_count, perm))
