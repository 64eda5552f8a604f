"""RouteService of a broker, with routes to itself only, so that a client needs no nameserver to use one
broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, Final

from grpc.aio import Server, ServicerContext

from trovemq_broker.cluster.view import (
    BrokerView,
    GroupLeader,
    TopicSummary,
    broker_info,
    group_leader,
    spacing_s,
    topic_routes,
)
from trovemq_daemon.grpc_services import add_service
from trovemq_daemon.watchers import Watchers
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs
from trovemq_proto.v1 import route_pb2

SERVICE: Final = route_pb2.DESCRIPTOR.services_by_name["RouteService"]

_Fields = tuple[tuple[bool, bool, GroupLeader | None], list[tuple[str, int, str, dict[str, int]]]]

WATCHERS_MAX: Final = 10_000
TOPICS_ASKED_MAX: Final = 1_024
TOPICS_OF_STEP: Final = 1_000
"""Topics that are written into a reply before other requests run."""


class SelfRouteService:
    """Answers as a nameserver that knows this broker only; `version` is the topics' data version. `others`:
    how many other brokers of the cluster are live; `other_names`: those to which look-ups are forwarded, also
    those that are away. `others_changed()` after each change of these."""

    def __init__(
        self,
        view: BrokerView,
        clock_ms: Callable[[], EpochMs],
        watchers_max: int = WATCHERS_MAX,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        others: Callable[[], int] = lambda: 0,
        other_names: Callable[[], Sequence[str]] = lambda: (),
    ) -> None:
        self._view = view
        self._clock_ms = clock_ms
        self._sleep = sleep
        self._others = others
        self._other_names = other_names
        self._watchers = Watchers(watchers_max)
        view.add_change_listener(self._watchers.notify)

    def add_to(self, server: Server) -> None:
        add_service(server, SERVICE, self)

    def others_changed(self) -> None:
        """The cluster has other brokers now."""
        self._watchers.notify()

    def _others_known(self) -> int:
        return max(self._others(), len(self._other_names()))

    def close(self) -> None:
        """Ends the watchers' streams; call before the server is stopped."""
        self._watchers.close()

    async def get_server_info(
        self, request: route_pb2.GetServerInfoRequest, context: ServicerContext[Any, Any]
    ) -> route_pb2.ServerInfo:
        description = self._view.description()
        return route_pb2.ServerInfo(
            role=route_pb2.BROKER,
            version=description.version,
            name=description.name,
            now=self._clock_ms(),
            other_brokers=self._others_known(),
            other_names=self._other_names(),
            node="" if description.leader is None else description.leader.node,
            leader=None if description.leader is None else group_leader(description.leader),
        )

    async def get_route(
        self, request: route_pb2.GetRouteRequest, context: ServicerContext[Any, Any]
    ) -> route_pb2.RouteReply:
        if not request.topic:
            raise TroveError(errors.REQUEST_ILLEGAL, "topic is missing")
        reply = await self._reply(self._topics([request.topic]))
        return route_pb2.RouteReply(brokers=reply.brokers)

    async def get_cluster(
        self, request: route_pb2.GetClusterRequest, context: ServicerContext[Any, Any]
    ) -> route_pb2.ClusterReply:
        return await self._reply(self._view.topics(), always=True)

    async def watch_routes(
        self, request: route_pb2.WatchRoutesRequest, context: ServicerContext[Any, Any]
    ) -> AsyncGenerator[route_pb2.ClusterReply, None]:
        """The present state, and after each change the latest one: of the requested topics their whole state,
        of all topics only the changes."""
        asked = list(request.topics)
        if len(asked) > TOPICS_ASKED_MAX:
            raise TroveError(
                errors.LIMIT_EXCEEDED, f"at most {TOPICS_ASKED_MAX} topics can be watched at once"
            )
        with self._watchers.watch() as watch:
            seen, topics = self._view.change_count, self._topics(asked)
            sent: _Fields | None = self._fields(topics)
            yield await self._reply(topics, always=not asked)
            while await watch.changed():
                changed = self._view.changed_since(seen) if request.changes and not asked else None
                seen = self._view.change_count
                if changed is not None:
                    sent = None  # the state that the peer has is newer than this
                    yield self._changes(changed)
                    continue
                topics = self._topics(asked)
                if (fields := self._fields(topics)) != sent:
                    sent = fields
                    yield await self._reply(topics, always=not asked)
                    if not asked:
                        await self._sleep(spacing_s(len(topics)))
        raise TroveError(errors.SERVICE_NOT_AVAILABLE, "this broker is stopping")

    def _topics(self, asked: Sequence[str]) -> Sequence[TopicSummary]:
        """The existing topics among these names; all topics if no name is given."""
        if not asked:
            return self._view.topics()
        return [topic for name in dict.fromkeys(asked) if (topic := self._view.find(name)) is not None]

    def _changes(self, names: Sequence[str]) -> route_pb2.ClusterReply:
        """This broker with those of the named topics that exist, and the names that do not."""
        reply = self._empty()
        reply.changes = True
        topics = [(name, self._view.find(name)) for name in names]
        route = reply.brokers.add(broker=broker_info(self._view))
        route.topics.extend(topic_routes(self._view, [topic for _, topic in topics if topic is not None]))
        route.removed_topics.extend(name for name, topic in topics if topic is None)
        return reply

    def _empty(self) -> route_pb2.ClusterReply:
        return route_pb2.ClusterReply(version=self._view.data_version, other_brokers=self._others_known())

    def _fields(self, topics: Sequence[TopicSummary]) -> _Fields:
        """The parts of a route that can change."""
        fields = [
            (topic.name, topic.queue_count, topic.message_type, dict(self._view.placement(topic)))
            for topic in topics
        ]
        description = self._view.description()
        return (description.draining, description.drained, description.leader), fields

    async def _reply(self, topics: Sequence[TopicSummary], *, always: bool = False) -> route_pb2.ClusterReply:
        """This broker with the present state of these topics; an empty reply if there are none, unless
        `always`."""
        reply = self._empty()
        if not topics and not always:
            return reply
        route = reply.brokers.add(broker=broker_info(self._view))
        for begin in range(0, len(topics), TOPICS_OF_STEP):
            if begin:
                await asyncio.sleep(0)
            route.topics.extend(topic_routes(self._view, topics[begin : begin + TOPICS_OF_STEP]))
        return reply
