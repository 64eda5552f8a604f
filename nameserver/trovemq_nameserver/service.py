"""The nameserver's gRPC services on one route table: brokers register, clients ask for routes and watch
them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final

from grpc.aio import Server, ServicerContext

from trovemq_daemon.grpc_services import add_service
from trovemq_daemon.handler_guard import error_to_wire
from trovemq_daemon.logging import get_logger
from trovemq_daemon.request_bounds import BoundedReader
from trovemq_daemon.turns import Turns
from trovemq_daemon.watchers import Watch, Watchers
from trovemq_nameserver.replies import ClusterReplies
from trovemq_nameserver.routes import (
    BrokerRoute,
    RouteLimits,
    RouteTable,
    TopicRoute,
    check_topic_count,
    checked_topics,
)
from trovemq_nameserver.wire import broker_from_wire, route_to_wire, topics_from_wire
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.v1 import route_pb2

Clock = Callable[[], int]
"""Returns the milliseconds of a monotonic clock."""

EXPIRY_INTERVAL_MS: Final = 100
TOPICS_ASKED_MAX: Final = 1_024
HEARTBEAT_PARTS: Final = 64
"""The most parts of a heartbeat beside its topics."""
ROUTE_SERVICE: Final = route_pb2.DESCRIPTOR.services_by_name["RouteService"]
REGISTRATION_SERVICE: Final = route_pb2.DESCRIPTOR.services_by_name["RegistrationService"]


class Registry:
    """The route table and the common state of the services: sessions, watchers, expiry, counters."""

    def __init__(self, limits: RouteLimits, watchers_max: int, clock: Clock) -> None:
        self.table = RouteTable(limits)
        self.limits = limits
        self.clock = clock
        self.turns = Turns()
        self.replies = ClusterReplies(self.table, clock, self.turns)
        self.watchers = Watchers(watchers_max)
        self.registrations = 0
        self.refusals = 0
        self.expirations = 0
        self._sessions = 0
        self._version_notified = 0
        self._awaited: dict[int, tuple[int, asyncio.Timeout]] = {}
        """Sessions whose next message is awaited: when they count as silent, and the timeout that then ends
        the wait."""

    def new_session(self) -> int:
        self._sessions += 1
        return self._sessions

    def changed(self) -> None:
        """Wakes the watchers if the table's version has changed."""
        if self.table.version != self._version_notified:
            self._version_notified = self.table.version
            self.watchers.notify()

    @asynccontextmanager
    async def awaiting(self, session: int) -> AsyncIterator[None]:
        """The block waits for the session's next message. TimeoutError: none came for `broker_silent_ms`."""
        async with asyncio.timeout(None) as timeout:
            self._awaited[session] = self.clock() + self.limits.broker_silent_ms, timeout
            try:
                yield
            finally:
                self._awaited.pop(session, None)

    def expire(self) -> None:
        """Removes overdue brokers, and ends the wait for the messages of silent sessions."""
        now = self.clock()
        for name in self.table.expire(now):
            self.expirations += 1
            get_logger().warning("broker.lost", broker=name)
        self.changed()
        silent = [session for session, (silent_at, _) in self._awaited.items() if silent_at <= now]
        for session in silent:
            _, timeout = self._awaited.pop(session)
            timeout.reschedule(asyncio.get_running_loop().time())

    async def run_expiry(self) -> None:
        """Removes overdue brokers, until it is cancelled.

        If this process did not run for a time, unread heartbeats wait: they get one more interval first. So
        no other timer decides that a broker is silent.
        """
        last = self.clock()
        while True:
            await asyncio.sleep(EXPIRY_INTERVAL_MS / 1000)
            now = self.clock()
            stalled, last = now - last > 5 * EXPIRY_INTERVAL_MS, now
            if not stalled:
                self.expire()


class RouteService:
    """The service for clients. The reply for a topic without brokers is empty: that is not an error."""

    def __init__(self, registry: Registry, *, name: Callable[[], str], version: str) -> None:
        self._registry = registry
        self._name = name
        self._version = version

    def add_to(self, server: Server) -> None:
        add_service(server, ROUTE_SERVICE, self)

    async def get_server_info(
        self, request: route_pb2.GetServerInfoRequest, context: ServicerContext[Any, Any]
    ) -> route_pb2.ServerInfo:
        return route_pb2.ServerInfo(role=route_pb2.NAMESERVER, version=self._version, name=self._name())

    async def get_route(
        self, request: route_pb2.GetRouteRequest, context: ServicerContext[Any, Any]
    ) -> route_pb2.RouteReply:
        if not request.topic:
            raise TroveError(errors.REQUEST_ILLEGAL, "topic is missing")
        registry = self._registry
        routes = await registry.turns.run_from_now(registry.table.routes_of([request.topic]))
        lost = await registry.replies.lost(request.topic)
        return route_pb2.RouteReply(brokers=map(route_to_wire, routes), lost=lost)

    async def get_cluster(
        self, request: route_pb2.GetClusterRequest, context: ServicerContext[Any, Any]
    ) -> bytes:
        _, reply = await self._registry.replies.of_everything()
        return reply

    async def watch_routes(
        self, request: route_pb2.WatchRoutesRequest, context: ServicerContext[Any, Any]
    ) -> AsyncIterator[bytes]:
        """The present state, and after each change of the requested topics the latest one."""
        topics = list(request.topics)
        if len(topics) > TOPICS_ASKED_MAX:
            raise TroveError(
                errors.LIMIT_EXCEEDED, f"at most {TOPICS_ASKED_MAX} topics can be watched at once"
            )
        with self._registry.watchers.watch() as watch:
            states = self._some(topics, watch) if topics else self._all(watch)
            async with aclosing(states):
                async for state in states:
                    yield state
        raise TroveError(errors.SERVICE_NOT_AVAILABLE, "this nameserver is stopping")

    async def _all(self, watch: Watch) -> AsyncGenerator[bytes]:
        sent, reply = await self._registry.replies.of_everything()
        yield reply
        while await watch.changed():
            version, reply = await self._registry.replies.of_everything()
            if version != sent:
                sent = version
                yield reply

    async def _some(self, topics: Sequence[str], watch: Watch) -> AsyncGenerator[bytes]:
        table, registry = self._registry.table, self._registry
        sent: list[BrokerRoute] | None = None
        while True:
            version = table.version
            routes = await registry.turns.run(table.routes_of(topics))
            if routes != sent:
                sent = routes
                yield await registry.replies.of(routes, version)
            if not await watch.changed():
                return


class RegistrationService:
    """The service for brokers, one stream each. An error is the stream's last reply."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def add_to(self, server: Server) -> None:
        topics_max = self._registry.limits.topics_per_broker_max
        reader = BoundedReader(
            route_pb2.Heartbeat,
            topics_max + HEARTBEAT_PARTS,
            f"; this nameserver's topics_per_broker_max is {topics_max}",
        )
        add_service(server, REGISTRATION_SERVICE, self, {"Register": reader})

    async def register(
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

    async def forget(
        self, request: route_pb2.ForgetRequest, context: ServicerContext[Any, Any]
    ) -> route_pb2.ForgetReply:
        was_lost = self._registry.table.forget(request.broker)
        if was_lost:
            self._registry.changed()
            get_logger().info("broker.forgotten", broker=request.broker, peer=context.peer())
        return route_pb2.ForgetReply(was_lost=was_lost)

    async def _serve(
        self, session: int, heartbeats: AsyncIterator[route_pb2.Heartbeat], context: ServicerContext[Any, Any]
    ) -> None:
        registry = self._registry
        while (heartbeat := await self._next(session, heartbeats)) is not None:
            if heartbeat.leaving:
                self._leave(session)
            elif registry.table.registered(session):
                await self._heartbeat(session, heartbeat)
            else:
                await self._register(session, heartbeat)
            registry.changed()
            await context.write(route_pb2.HeartbeatReply(data_version=heartbeat.data_version))
            if heartbeat.leaving:
                return

    async def _next(
        self, session: int, heartbeats: AsyncIterator[route_pb2.Heartbeat]
    ) -> route_pb2.Heartbeat | None:
        """The next message; None if the broker ended its stream. TroveError SERVICE_NOT_AVAILABLE: the broker
        is silent, and has left the routes."""
        try:
            async with self._registry.awaiting(session):
                return await anext(heartbeats, None)
        except TimeoutError:
            silent_ms = self._registry.limits.broker_silent_ms
            raise TroveError(errors.SERVICE_NOT_AVAILABLE, f"nothing was heard for {silent_ms} ms") from None

    async def _register(self, session: int, heartbeat: route_pb2.Heartbeat) -> None:
        if not heartbeat.HasField("broker"):
            # A broker that expired while its stream was idle gets this error, too; it then registers again.
            raise TroveError(errors.BROKER_NOT_FOUND, "the stream's first message must describe the broker")
        broker, registry = broker_from_wire(heartbeat.broker), self._registry
        topics = await self._topics(heartbeat, registry.table.topics_of(broker.name))
        registry.table.register(session, broker, topics, heartbeat.data_version, registry.clock())
        registry.registrations += 1
        get_logger().info(
            "broker.registered", broker=broker.name, address=broker.address, topics=len(heartbeat.topics)
        )

    async def _heartbeat(self, session: int, heartbeat: route_pb2.Heartbeat) -> None:
        registry = self._registry
        before, topics = registry.table.route_of(session), None
        if before is not None and before.data_version != heartbeat.data_version:
            topics = await self._topics(heartbeat, before.topics)
        registry.table.heartbeat(
            session,
            registry.clock(),
            broker=broker_from_wire(heartbeat.broker) if heartbeat.HasField("broker") else None,
            topics=topics,
            data_version=heartbeat.data_version,
        )

    async def _topics(
        self, heartbeat: route_pb2.Heartbeat, known: Mapping[str, TopicRoute]
    ) -> dict[str, TopicRoute]:
        check_topic_count(len(heartbeat.topics), self._registry.limits)
        topics = checked_topics(topics_from_wire(heartbeat.topics), known)
        return await self._registry.turns.run(topics)

    def _leave(self, session: int) -> None:
        name = self._registry.table.leave(session)
        if name is not None:
            get_logger().info("broker.left", broker=name)
