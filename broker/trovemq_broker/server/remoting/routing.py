"""Routes at the broker: a client may name it instead of a nameserver.

The answers are those of a nameserver; they have the brokers that this one knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_daemon.remoting.request import Request
from trovemq_proto.errors import TroveError
from trovemq_proto.remoting.bodies import (
    RoutedBroker,
    RoutedQueues,
    cluster_info,
    topic_list,
    topic_route_data,
)
from trovemq_proto.remoting.codes import ResponseCode
from trovemq_proto.remoting.json_text import json_text

RouteData: TypeAlias = Callable[[str], Mapping[str, object]]
MADE_BY_USE: Final = "TBW102"
"""RocketMQ's topic whose route a producer asks for where the topic itself has none: it then sends, and the
broker makes the topic."""
MADE_BY_USE_PERM: Final = 7


class RouteAnswers:
    """`route_data`: RocketMQ's TopicRouteData of a topic; raises TOPIC_NOT_FOUND. `addresses`: of the brokers
    that this one knows, by name."""

    def __init__(
        self, core: BrokerCore, route_data: RouteData, addresses: Callable[[], Mapping[str, str]]
    ) -> None:
        self._core = core
        self._route_data = route_data
        self._addresses = addresses

    def topic(self, request: Request) -> None:
        """GET_ROUTEINFO_BY_TOPIC."""
        name = request.fields.text("topic")
        try:
            request.answer(body=json_text(self._route_data(name)))
        except TroveError:
            if name != MADE_BY_USE or not self._core.appender.queues_of_made_topic:
                text = f"No topic route info in name server for the topic: {name}"
                request.answer(ResponseCode.TOPIC_NOT_EXIST, text)
                return
            request.answer(body=json_text(self._made_by_use()))

    def cluster(self, request: Request) -> None:
        """GET_BROKER_CLUSTER_INFO."""
        cluster = self._core.store.settings.cluster
        brokers = [RoutedBroker(cluster, name, address) for name, address in self._addresses().items()]
        request.answer(body=json_text(cluster_info(brokers)))

    def topics(self, request: Request) -> None:
        """GET_ALL_TOPIC_LIST_FROM_NAMESERVER."""
        request.answer(body=json_text(topic_list(self._core.store.topics.names(include_system=True))))

    def _made_by_use(self) -> dict[str, object]:
        core = self._core
        count = core.appender.queues_of_made_topic
        cluster, address = core.store.settings.cluster, str(core.advertised)
        queues = RoutedQueues(cluster, core.broker, address, MADE_BY_USE_PERM, count, count)
        return topic_route_data([queues])
