"""The nameserver's service for brokers: they register, and send heartbeats with their topics, or with those
that changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, TypeAlias

from grpc.aio import Server, ServicerContext

from trovemq_daemon.grpc_services import add_service
from trovemq_daemon.handler_guard import error_to_wire
from trovemq_daemon.logging import get_logger
from trovemq_nameserver.heartbeats import HeartbeatReader, LargeHeartbeat, read_large
from trovemq_nameserver.routes import TopicChanges, check_topic_count
from trovemq_nameserver.service import Registry
from trovemq_nameserver.topics import TopicRoute, checked_topics
from trovemq_nameserver.wire import broker_from_wire, topics_from_wire
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.v1 import route_pb2

REGISTRATION_SERVICE: Final = route_pb2.DESCRIPTOR.services_by_name["RegistrationService"]

Received: TypeAlias = route_pb2.Heartbeat | LargeHeartbeat
Topics: TypeAlias = Mapping[str, TopicRoute]
Reply = route_pb2.HeartbeatReply


class RegistrationService:
    """The service for brokers, one stream each. An error is the stream's last reply."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._reading = asyncio.Lock()

    def add_to(self, server: Server) -> None:
        add_service(server, REGISTRATION_SERVICE, self, {"Register": HeartbeatReader()})

    async def register(
        self, request_iterator: AsyncIterator[Received], context: ServicerContext[Any, Any]
    ) -> None:
        session = self._registry.new_session()
        try:
            await self._serve(session, request_iterator, context)
        except TroveError as error:
            self._registry.refusals += 1
            get_logger().warning(
                "registration.refused", symbol=error.symbol, message=error.message, peer=context.peer()
            )
            await context.write(Reply(error=error_to_wire(error)))
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
        self, session: int, heartbeats: AsyncIterator[Received], context: ServicerContext[Any, Any]
    ) -> None:
        while (received := await self._next(session, heartbeats)) is not None:
            leaving, reply = await self._heard(session, received)
            self._registry.changed()
            await context.write(reply)
            if leaving:
                return

    async def _heard(self, session: int, received: Received) -> tuple[bool, Reply]:
        """Handles a message. Returns whether the broker leaves, and the reply. Raises TroveError."""
        if not isinstance(received, LargeHeartbeat):
            return received.leaving, await self._handle(session, received, None)
        registry = self._registry
        with registry.reading(session, len(received.data)):
            async with self._reading:  # one at a time: so the first is done soonest, and the names are shared
                reading = read_large(received.data, registry.limits, registry.table.names)
                heartbeat, topics = await registry.turns.run(reading)
                received.check(heartbeat)
                return heartbeat.leaving, await self._handle(session, heartbeat, topics)

    async def _handle(self, session: int, heartbeat: route_pb2.Heartbeat, topics: Topics | None) -> Reply:
        """`topics`: the heartbeat's, if they are read already."""
        table, is_held = self._registry.table, True
        if heartbeat.leaving:
            self._leave(session)
        elif table.registered(session):
            is_held = await self._heartbeat(session, heartbeat, topics)
        elif heartbeat.HasField("base_version"):
            is_held = False
        else:
            await self._register(session, heartbeat, topics)
        if heartbeat.HasField("base_version"):
            self._registry.changes += 1
            self._registry.all_topics_asked += not is_held
        return Reply(data_version=heartbeat.data_version, changes=True, all_topics=not is_held)

    async def _next(self, session: int, heartbeats: AsyncIterator[Received]) -> Received | None:
        """The next message; None if the broker ended its stream. TroveError SERVICE_NOT_AVAILABLE: the broker
        is silent, and has left the routes."""
        try:
            async with self._registry.awaiting(session):
                return await anext(heartbeats, None)
        except TimeoutError:
            silent_ms = self._registry.limits.broker_silent_ms
            raise TroveError(errors.SERVICE_NOT_AVAILABLE, f"nothing was heard for {silent_ms} ms") from None

    async def _register(self, session: int, heartbeat: route_pb2.Heartbeat, topics: Topics | None) -> None:
        if not heartbeat.HasField("broker"):
            # A broker that expired while its stream was idle gets this error, too; it then registers again.
            raise TroveError(errors.BROKER_NOT_FOUND, "the stream's first message must describe the broker")
        broker, registry = broker_from_wire(heartbeat.broker), self._registry
        if topics is None:
            topics = await self._topics(heartbeat)
        registry.table.register(session, broker, topics, heartbeat.data_version, registry.clock())
        registry.registrations += 1
        get_logger().info("broker.registered", broker=broker.name, address=broker.address, topics=len(topics))

    async def _heartbeat(self, session: int, heartbeat: route_pb2.Heartbeat, topics: Topics | None) -> bool:
        """Whether the nameserver holds the base of the heartbeat's changes, if it has any."""
        registry = self._registry
        before = registry.table.route_of(session)
        if topics is None and before is not None and before.data_version != heartbeat.data_version:
            topics = await self._topics(heartbeat)
        changes = None
        if topics is not None and heartbeat.HasField("base_version"):
            changes = TopicChanges(heartbeat.base_version, topics, heartbeat.removed_topics)
        return registry.table.heartbeat(
            session,
            registry.clock(),
            broker=broker_from_wire(heartbeat.broker) if heartbeat.HasField("broker") else None,
            topics=topics if changes is None else changes,
            data_version=heartbeat.data_version,
        )

    async def _topics(self, heartbeat: route_pb2.Heartbeat) -> Topics:
        registry = self._registry
        check_topic_count(len(heartbeat.topics), registry.limits)
        topics = checked_topics(topics_from_wire(heartbeat.topics), registry.table.names)
        return await registry.turns.run_from_now(topics)

    def _leave(self, session: int) -> None:
        name = self._registry.table.leave(session)
        if name is not None:
            get_logger().info("broker.left", broker=name)
