"""Routes by RocketMQ's remoting protocol, for its clients and tools.

A topic of a draining broker may only be read there: producers leave it, consumers stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trovemq_daemon.remoting.request import Request
from trovemq_daemon.remoting.server import Handler
from trovemq_nameserver.routes import BrokerRoute
from trovemq_nameserver.service import Registry
from trovemq_proto.remoting.bodies import (
    PERM_READ,
    PERM_READ_WRITE,
    RoutedBroker,
    RoutedQueues,
    cluster_info,
    topic_list,
    topic_route_data,
)
from trovemq_proto.remoting.codes import RequestCode, ResponseCode
from trovemq_proto.remoting.json_text import json_text

STARTING_MS: Final = 3_000
"""A nameserver that has just started knows no brokers yet: its answer says so, and not that topics do not
exist, for as long as brokers need to register."""


class RemotingRoutes:
    """For use on the event loop only."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.handlers: Final[Mapping[int, Handler]] = {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self.topic,
            RequestCode.GET_BROKER_CLUSTER_INFO: self.cluster,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self.topics,
        }

    def topic(self, request: Request) -> None:
        """GET_ROUTEINFO_BY_TOPIC."""
        request.run(self._topic(request, request.fields.text("topic")))

    async def _topic(self, request: Request, name: str) -> None:
        registry = self._registry
        routes = await registry.turns.run_from_now(registry.table.routes_of([name]))
        if routes:
            request.answer(body=json_text(topic_route_data([_queues(one, name) for one in routes])))
        elif registry.clock() - registry.started < STARTING_MS:
            request.answer(ResponseCode.SYSTEM_ERROR, "name server not ready")
        else:
            text = f"No topic route info in name server for the topic: {name}"
            request.answer(ResponseCode.TOPIC_NOT_EXIST, text)

    def cluster(self, request: Request) -> None:
        """GET_BROKER_CLUSTER_INFO."""
        brokers = [one.broker for one in self._registry.table.routes()]
        found = cluster_info(RoutedBroker(one.cluster, one.name, one.address) for one in brokers)
        request.answer(body=json_text(found))

    def topics(self, request: Request) -> None:
        """GET_ALL_TOPIC_LIST_FROM_NAMESERVER."""
        request.answer(body=json_text(topic_list(self._registry.table.names)))


def _queues(route: BrokerRoute, topic: str) -> RoutedQueues:
    broker, count = route.broker, route.topics[topic].queue_count
    perm = PERM_READ if broker.draining else PERM_READ_WRITE
    return RoutedQueues(broker.cluster, broker.name, broker.address, perm, count, count)
