# ruff: noqa: N802  the methods have the names of their RPCs
"""The nameserver's gRPC services on one route table: brokers register, clients ask for routes and watch
them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

from grpc.aio import ServicerContext

from nameserver.routes import RouteLimits, RouteTable
from nameserver.wire import broker_from_wire, lost_to_wire, route_to_wire, topics_from_wire
from trovemq_daemon.handler_guard import error_to_wire
from trovemq_daemon.logging import get_logger
from trovemq_daemon.watchers import Watchers
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.v1 import route_pb2, route_pb2_grpc

Clock = Callable[[], int]
"""Returns the milliseconds of a monotonic clock."""

EXPIRY_INTERVAL_MS: Final = 100
TOPICS_ASKED_MAX: Final = 1_024


class Registry:
    """The route table and the common state of the services: sessions, watchers, expiry, counters."""

    def __init__(self, limits: RouteLimits, watchers_max: int, clock: Clock) -> None:
        self.table = RouteTable(limits)
        self.limits = limits
        self.clock = clock
        self.watchers = Watchers(watchers_max)
        self.registrations = 0
        self.refusals = 0
        self.expirations = 0
        self._sessions = 0
        self._version_notified = 0

    def new_session(self) -> int:
        self._sessions += 1
        return self._sessions

    def changed(self) -> None:
        """Wakes the watchers if the table's version has changed."""
        if self.table.version != self._version_notified:
            self._version_notified = self.table.version
            self.watchers.notify()

    def expire(self) -> None:
        for name in self.table.expire(self.clock()):
            self.expirations += 1
            get_logger().warning("broker.lost", broker=name)
        self.changed()

    async def run_expiry(self) -> None:
        """Removes overdue brokers, until it is cancelled.

        If this process did not run for a time, heartbeats wait to be read: they get one more turn first.
        """
        last = self.clock()
        while True:
            await asyncio.sleep(EXPIRY_INTERVAL_MS / 1000)
            now = self.clock()
            stalled, last = now - last > 5 * EXPIRY_INTERVAL_MS, now
            if not stalled:
                self.expire()

    def reply(self, topics: Sequence[str] = ()) -> route_pb2.ClusterReply:
        brokers = [route_to_wire(route) for route in self.table.routes(topics)]
        reply = route_pb2.ClusterReply(brokers=brokers, version=self.table.version)
        if not topics:
            reply.lost.extend(self.lost())
        return reply

    def lost(self, topic: str | None = None) -> list[route_pb2.LostBroker]:
        """The lost brokers; with `topic`, those that had it."""
        now = self.clock()
        lost = self.table.lost(now, topic)
        live = self.table.topic_names if lost else set()
        return [lost_to_wire(one, live, now) for one in lost]


class RouteService(route_pb2_grpc.RouteServiceServicer):
    """The service for clients. The reply for a topic without brokers is empty: that is not an error."""

    def __init__(self, registry: Registry, *, name: Callable[[], str], version: str) -> None:
        self._registry = registry
        self._name = name
        self._version = version

    async def GetServerInfo(
        self, request: route_pb2.GetServerInfoRequest, context: ServicerContext[Any, Any]
    ) -> route_pb2.ServerInfo:
        return route_pb2.ServerInfo(role=route_pb2.NAMESERVER, version=self._version, name=self._name())

    async def GetRoute(
        self, request: route_pb2.GetRouteRequest, context: ServicerContext[Any, Any]
    ) -> route_pb2.RouteReply:
        if not request.topic:
            raise TroveError(errors.REQUEST_ILLEGAL, "topic is missing")
        brokers = self._registry.reply([request.topic]).brokers
        return route_pb2.RouteReply(brokers=brokers, lost=self._registry.lost(request.topic))

    async def GetCluster(
        self, request: route_pb2.GetClusterRequest, context: ServicerContext[Any, Any]
    ) -> route_pb2.ClusterReply:
        return self._registry.reply()

    async def WatchRoutes(
        self, request: route_pb2.WatchRoutesRequest, context: ServicerContext[Any, Any]
    ) -> AsyncIterator[route_pb2.ClusterReply]:
        """The present state, and after each change of the requested topics the latest one."""
        topics = list(request.topics)
        if len(topics) > TOPICS_ASKED_MAX:
            raise TroveError(
                errors.LIMIT_EXCEEDED, f"at most {TOPICS_ASKED_MAX} topics can be watched at once"
            )
        with self._registry.watchers.watch() as watch:
            sent = self._registry.table.routes(topics)
            yield self._registry.reply(topics)
            while await watch.changed():
                routes = self._registry.table.routes(topics)
                if routes != sent:
                    sent = routes
                    yield self._registry.reply(topics)
        raise TroveError(errors.SERVICE_NOT_AVAILABLE, "this nameserver is stopping")


class RegistrationService(route_pb2_grpc.RegistrationServiceServicer):
    """The service for brokers, one stream each. An error is the stream's last reply."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def Register(
        self, request_iterator: AsyncIterator[route_pb2.Heartbeat], context: ServicerContext[Any, Any]
    ) -> None:
        session = self._registry.new_session()
        try:
            await self._serve(session, request_iterator, context)
        except TroveError as error:
            self._registry.refusals += 1
            get_logger().warning(
                "registration.refused", symbol=error.symbol, message=error.message, peer=context.peer()
            )
            await context.write(route_pb2.HeartbeatReply(error=error_to_wire(error)))
        finally:
            self._registry.table.stream_broken(session, self._registry.clock())
            self._registry.changed()

    async def _serve(
        self, session: int, heartbeats: AsyncIterator[route_pb2.Heartbeat], context: ServicerContext[Any, Any]
    ) -> None:
        registry = self._registry
        while (heartbeat := await self._next(session, heartbeats)) is not None:
            if heartbeat.leaving:
                self._leave(session)
            elif registry.table.registered(session):
                self._heartbeat(session, heartbeat)
            else:
                self._register(session, heartbeat)
            registry.changed()
            await context.write(route_pb2.HeartbeatReply(data_version=heartbeat.data_version))
            if heartbeat.leaving:
                return

    async def _next(
        self, session: int, heartbeats: AsyncIterator[route_pb2.Heartbeat]
    ) -> route_pb2.Heartbeat | None:
        """The next message; None if the broker ended its stream. A silent broker's registration is
        removed."""
        silent_ms = self._registry.limits.silent_ms
        try:
            async with asyncio.timeout(silent_ms / 1000):
                return await anext(heartbeats, None)
        except TimeoutError:
            self._registry.expire()
            self._registry.table.lose(session, self._registry.clock())
            raise TroveError(errors.SERVICE_NOT_AVAILABLE, f"nothing was heard for {silent_ms} ms") from None

    def _register(self, session: int, heartbeat: route_pb2.Heartbeat) -> None:
        if not heartbeat.HasField("broker"):
            # A broker that expired while its stream was idle gets this error, too; it then registers again.
            raise TroveError(errors.BROKER_NOT_FOUND, "the stream's first message must describe the broker")
        broker = broker_from_wire(heartbeat.broker)
        registry = self._registry
        registry.table.register(
            session, broker, topics_from_wire(heartbeat.topics), heartbeat.data_version, registry.clock()
        )
        registry.registrations += 1
        get_logger().info(
            "broker.registered", broker=broker.name, address=broker.address, topics=len(heartbeat.topics)
        )

    def _heartbeat(self, session: int, heartbeat: route_pb2.Heartbeat) -> None:
        self._registry.table.heartbeat(
            session,
            self._registry.clock(),
            broker=broker_from_wire(heartbeat.broker) if heartbeat.HasField("broker") else None,
            topics=topics_from_wire(heartbeat.topics),
            data_version=heartbeat.data_version,
        )

    def _leave(self, session: int) -> None:
        name = self._registry.table.leave(session)
        if name is not None:
            get_logger().info("broker.left", broker=name)
