"""The nameserver's service for brokers: they register, and send heartbeats with their topics, or with those
that changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, Final, TypeAlias

from grpc.aio import Server, ServicerContext

from trovemq_daemon.grpc_services import add_service
from trovemq_daemon.handler_guard import error_to_wire
from trovemq_daemon.logging import get_logger
from trovemq_nameserver.broker import Broker, name_problem
from trovemq_nameserver.heartbeats import HeartbeatReader, LargeHeartbeat, read_large
from trovemq_nameserver.leaders import epoch_stale
from trovemq_nameserver.routes import TopicChanges, check_topics_read
from trovemq_nameserver.service import Registry
from trovemq_nameserver.topics import TopicRoute, checked_topics
from trovemq_nameserver.wire import broker_from_wire, topics_from_wire
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.v1 import route_pb2

REGISTRATION_SERVICE: Final = route_pb2.DESCRIPTOR.services_by_name["RegistrationService"]

NAMED_MAX: Final = 3
"""Topics that an error names."""

Received: TypeAlias = route_pb2.Heartbeat | LargeHeartbeat
Topics: TypeAlias = Mapping[str, TopicRoute]
Reply = route_pb2.HeartbeatReply


class RegistrationService:
    """The service for brokers, one stream each. An error is the stream's last reply."""

    def __init__(self, registry: Registry, heartbeat_size_max: int = 0) -> None:
        self._registry = registry
        self._size_max = heartbeat_size_max
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
            self._registry.ended(session)

    async def forget(
        self, request: route_pb2.ForgetRequest, context: ServicerContext[Any, Any]
    ) -> route_pb2.ForgetReply:
        if problem := name_problem("name", request.broker):
            raise TroveError(errors.REQUEST_ILLEGAL, problem)
        was_lost = self._registry.table.forget(request.broker, self._registry.clock())
        self._registry.changed()
        if was_lost:
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
        table = self._registry.table
        reply = Reply(data_version=heartbeat.data_version, changes=True, heartbeat_size_max=self._size_max)
        if not heartbeat.leaving:
            self._registry.check_current(session)
        if heartbeat.leaving:
            self._leave(session)
        elif table.registered(session):
            await self._heartbeat(session, heartbeat, topics, reply)
        elif heartbeat.HasField("base_version"):
            reply.all_topics = True
        else:
            await self._register(session, heartbeat, topics, reply)
        if heartbeat.HasField("base_version"):
            self._registry.changes += 1
            self._registry.all_topics_asked += reply.all_topics
        return reply

    async def _next(self, session: int, heartbeats: AsyncIterator[Received]) -> Received | None:
        """The next message; None if the broker ended its stream. TroveError SERVICE_NOT_AVAILABLE: the broker
        is silent, and has left the routes; EPOCH_STALE: a later leader of its group has its name."""
        self._registry.check_current(session)
        try:
            async with self._registry.awaiting(session):
                return await anext(heartbeats, None)
        except TimeoutError:
            self._registry.check_current(session)
            silent_ms = self._registry.limits.broker_silent_ms
            raise TroveError(errors.SERVICE_NOT_AVAILABLE, f"nothing was heard for {silent_ms} ms") from None

    async def _register(
        self, session: int, heartbeat: route_pb2.Heartbeat, topics: Topics | None, reply: Reply
    ) -> None:
        if not heartbeat.HasField("broker"):
            # A broker that expired while its stream was idle gets this error, too; it then registers again.
            raise TroveError(errors.BROKER_NOT_FOUND, "the stream's first message must describe the broker")
        broker, registry = broker_from_wire(heartbeat.broker), self._registry
        if topics is None:
            topics = await self._topics(heartbeat)
        broker, topics = self._fitting(broker, topics, reply)
        table, version = registry.table, heartbeat.data_version
        before = table.route_named(broker.name)
        former = table.register(session, broker, topics, version, registry.clock())
        if former is not None and before is not None:
            registry.supersede(former, epoch_stale(before.broker, broker))
        registry.registrations += 1
        get_logger().info(
            "broker.registered",
            broker=broker.name,
            address=broker.address,
            topics=len(topics),
            **({} if broker.leader is None else {"node": broker.leader.node, "epoch": broker.epoch}),
        )

    async def _heartbeat(
        self, session: int, heartbeat: route_pb2.Heartbeat, topics: Topics | None, reply: Reply
    ) -> None:
        """Asks for all topics where changes do not continue those that are held, or do not fit."""
        table, now, version = self._registry.table, self._registry.clock, heartbeat.data_version
        before = table.route_of(session)
        left_out = 0 if before is None else before.broker.topics_left_out
        has_news = before is not None and before.data_version != version
        has_topics = bool(topics) or len(heartbeat.topics) > 0
        has_news |= has_topics and table.may_hold_more(session)  # else the same ones are left out
        if topics is None and has_news:
            topics = await self._topics(heartbeat)
            before = table.route_of(session)
        broker = broker_from_wire(heartbeat.broker) if heartbeat.HasField("broker") else None
        if heartbeat.HasField("base_version") and topics is not None and left_out:
            table.heard(session, now())
            reply.all_topics = True  # it holds a part of them
        elif heartbeat.HasField("base_version") and topics is not None:
            reply.all_topics = not self._changed(session, broker, topics, heartbeat)
        elif before is None or topics is None or not has_news:
            broker = None if broker is None else replace(broker, topics_left_out=left_out)
            table.heartbeat(session, now(), broker=broker, data_version=version)
            reply.all_topics = table.may_hold_more(session)
        else:
            broker, topics = self._fitting(broker or before.broker, topics, reply)
            table.heartbeat(session, now(), broker=broker, topics=topics, data_version=version)

    def _changed(
        self, session: int, broker: Broker | None, topics: Topics, heartbeat: route_pb2.Heartbeat
    ) -> bool:
        """Applies changes. False: their base is not held, or they are beyond a limit."""
        table, now = self._registry.table, self._registry.clock()
        changes = TopicChanges(heartbeat.base_version, topics, heartbeat.removed_topics)
        try:
            return table.heartbeat(
                session, now, broker=broker, topics=changes, data_version=heartbeat.data_version
            )
        except TroveError as error:
            if error.spec is not errors.LIMIT_EXCEEDED:
                raise
            table.heard(session, now)
            return False

    def _fitting(self, broker: Broker, topics: Topics, reply: Reply) -> tuple[Broker, Topics]:
        """The broker with the topics that the limits allow. The reply names a limit that leaves out some."""
        kept, limit = self._registry.table.fitting(broker.name, topics)
        left_out = len(topics) - len(kept)
        if limit:
            some = ", ".join(islice((name for name in topics if name not in kept), NAMED_MAX))
            text = (
                f"{left_out} of {len(topics)} topics are not in the routes of this nameserver ({some}, …): "
                f"its limit is {limit}; raise it there, or delete topics. Meanwhile clients find them only "
                "at the broker's own address"
            )
            reply.left_out.CopyFrom(error_to_wire(TroveError(errors.LIMIT_EXCEEDED, text, limit=limit)))
            if left_out != self._left_out(broker.name):
                get_logger().warning("broker.topics_left_out", broker=broker.name, message=text)
        return replace(broker, topics_left_out=left_out), kept

    def _left_out(self, broker: str) -> int:
        before = self._registry.table.route_named(broker)
        return 0 if before is None else before.broker.topics_left_out

    async def _topics(self, heartbeat: route_pb2.Heartbeat) -> Topics:
        registry = self._registry
        check_topics_read(len(heartbeat.topics), registry.limits)
        topics = checked_topics(topics_from_wire(heartbeat.topics), registry.table.names)
        return await registry.turns.run_from_now(topics)

    def _leave(self, session: int) -> None:
        name = self._registry.table.leave(session)
        if name is not None:
            get_logger().info("broker.left", broker=name)
