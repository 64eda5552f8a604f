"""Routes at the broker: a client may name it instead of a nameserver.

The answers are those of a nameserver; they have the brokers that this one knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from trovemq_broker.security.actions import Kind
from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_broker.server.remoting.members import retry_topic
from trovemq_broker.server.remoting.native_calls import NativeCalls
from trovemq_daemon.remoting.request import Request
from trovemq_proto.errors import TroveError
from trovemq_proto.remoting.bodies import (
    PERM_READ_WRITE,
    REPLY_SUFFIX,
    RoutedBroker,
    RoutedQueues,
    cluster_info,
    topic_list,
    topic_route_data,
)
from trovemq_proto.remoting.codes import ResponseCode
from trovemq_proto.remoting.json_text import json_text
from trovemq_store.topics.names import RETRY_PREFIX

RouteData: TypeAlias = Callable[[str], Mapping[str, object]]
MADE_BY_USE: Final = "TBW102"
"""RocketMQ's topic whose route a producer asks for where the topic itself has none: it then sends, and the
broker makes the topic."""
MADE_BY_USE_PERM: Final = 7


class RouteAnswers:
    """`route_data`: RocketMQ's TopicRouteData of a topic; raises TOPIC_NOT_FOUND. `addresses`: of the brokers
    that this one knows, by name."""

    def __init__(
        self,
        core: BrokerCore,
        calls: NativeCalls,
        route_data: RouteData,
        addresses: Callable[[], Mapping[str, str]],
    ) -> None:
        self._core = core
        self._calls = calls
        self._route_data = route_data
        self._addresses = addresses

    def topic(self, request: Request) -> None:
        """GET_ROUTEINFO_BY_TOPIC."""
        name = request.fields.text("topic")
        try:
            request.answer(body=json_text(self._route_data(name)))
        except TroveError:
            count = self._core.appender.queues_of_made_topic
            if name == MADE_BY_USE and count:
                request.answer(body=json_text(self._here(MADE_BY_USE_PERM, count)))
            elif self._is_not_stored(name):
                request.answer(body=json_text(self._here(PERM_READ_WRITE, 1)))
            else:
                text = f"No topic route info in name server for the topic: {name}"
                request.answer(ResponseCode.TOPIC_NOT_EXIST, text)

    def cluster(self, request: Request) -> None:
        """GET_BROKER_CLUSTER_INFO."""
        cluster = self._core.store.settings.cluster
        brokers = [RoutedBroker(cluster, name, address) for name, address in self._addresses().items()]
        request.answer(body=json_text(cluster_info(brokers)))

    def topics(self, request: Request) -> None:
        """GET_ALL_TOPIC_LIST_FROM_NAMESERVER, GET_TOPICS_BY_CLUSTER. Tools find the groups by the names of
        their retry topics: so each has one, also where none is stored."""
        core = self._core
        names = {*core.store.topics.names(include_system=True), *map(retry_topic, core.groups.names())}
        request.answer(body=json_text(topic_list(self._calls.seen(request, Kind.TOPIC, names))))

    def system(self, request: Request) -> None:
        """GET_SYSTEM_TOPIC_LIST_FROM_NS: the names of cluster and brokers; the tool then asks the broker."""
        names = {self._core.store.settings.cluster, *self._addresses()}
        body = {**topic_list(names), "brokerAddr": str(self._core.advertised)}
        request.answer(body=json_text(body))

    @staticmethod
    def forget(request: Request) -> None:
        """DELETE_TOPIC_IN_NAMESRV, DELETE_KV_CONFIG: the routes follow the topics, and no topic has a
        key of its order."""
        request.answer()

    @staticmethod
    def no_entry(request: Request) -> None:
        """GET_KV_CONFIG, GET_KVLIST_BY_NAMESPACE."""
        request.answer(ResponseCode.QUERY_NOT_FOUND, "No config item")

    def _is_not_stored(self, name: str) -> bool:
        """Whether it is the topic of replies, or the retry topic of a group that has none yet."""
        core = self._core
        if name.startswith(RETRY_PREFIX):
            return name.removeprefix(RETRY_PREFIX) in core.groups
        return name == core.store.settings.cluster + REPLY_SUFFIX

    def _here(self, perm: int, count: int) -> dict[str, object]:
        """The route of a topic of this broker that is not stored yet."""
        core = self._core
        cluster, address = core.store.settings.cluster, str(core.advertised)
        return topic_route_data([RoutedQueues(cluster, core.broker, address, perm, count, count)])
