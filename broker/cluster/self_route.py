# ruff: noqa: N802  the methods have the names of their RPCs
"""RouteService of a broker about itself alone, so that a client needs no nameserver to use one broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final

from grpc.aio import ServicerContext

from broker.cluster.view import BrokerView, broker_info, spacing_s, topic_routes
from trovemq_daemon.watchers import Watchers
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.v1 import common_pb2, route_pb2, route_pb2_grpc

WATCHERS_MAX: Final = 10_000
TOPICS_ASKED_MAX: Final = 1_024


class SelfRouteService(route_pb2_grpc.RouteServiceServicer):
    """Answers as a nameserver would that knows this broker only; `version` is the topics' data version."""

    def __init__(
        self,
        view: BrokerView,
        watchers_max: int = WATCHERS_MAX,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._view = view
        self._sleep = sleep
        self._watchers = Watchers(watchers_max)
        view.add_change_listener(self._watchers.notify)

    def close(self) -> None:
        """Ends the watchers' streams; call before the server is stopped."""
        self._watchers.close()

    async def GetServerInfo(
        self, request: route_pb2.GetServerInfoRequest, context: ServicerContext[Any, Any]
    ) -> route_pb2.ServerInfo:
        description = self._view.description()
        return route_pb2.ServerInfo(role=route_pb2.BROKER, version=description.version, name=description.name)

    async def GetRoute(
        self, request: route_pb2.GetRouteRequest, context: ServicerContext[Any, Any]
    ) -> route_pb2.RouteReply:
        if not request.topic:
            raise TroveError(errors.REQUEST_ILLEGAL, "topic is missing")
        return route_pb2.RouteReply(brokers=self._routes([request.topic]))

    async def GetCluster(
        self, request: route_pb2.GetClusterRequest, context: ServicerContext[Any, Any]
    ) -> route_pb2.ClusterReply:
        return self._reply(self._routes(()))

    async def WatchRoutes(
        self, request: route_pb2.WatchRoutesRequest, context: ServicerContext[Any, Any]
    ) -> AsyncIterator[route_pb2.ClusterReply]:
        """The present state, then the latest one after each change of the requested topics."""
        topics = list(request.topics)
        if len(topics) > TOPICS_ASKED_MAX:
            raise TroveError(
                errors.LIMIT_EXCEEDED, f"at most {TOPICS_ASKED_MAX} topics can be watched at once"
            )
        with self._watchers.watch() as watch:
            sent = self._routes(topics)
            yield self._reply(sent)
            while await watch.changed():
                routes = self._routes(topics)
                if _topics_of(routes) != _topics_of(sent):
                    sent = routes
                    yield self._reply(routes)
                    if not topics:
                        await self._sleep(spacing_s(sum(len(route.topics) for route in routes)))
        raise TroveError(errors.SERVICE_NOT_AVAILABLE, "this broker is stopping")

    def _reply(self, routes: Sequence[common_pb2.BrokerRoute]) -> route_pb2.ClusterReply:
        return route_pb2.ClusterReply(brokers=routes, version=self._view.data_version)

    def _routes(self, asked: Sequence[str]) -> list[common_pb2.BrokerRoute]:
        """This broker, with `asked` topics (all where empty); nothing where it has none of those."""
        topics = (
            [topic for name in dict.fromkeys(asked) if (topic := self._view.find(name)) is not None]
            if asked
            else self._view.topics()
        )
        if asked and not topics:
            return []
        return [common_pb2.BrokerRoute(broker=broker_info(self._view), topics=topic_routes(topics))]


def _topics_of(routes: Sequence[common_pb2.BrokerRoute]) -> list[list[common_pb2.TopicRoute]]:
    return [list(route.topics) for route in routes]
