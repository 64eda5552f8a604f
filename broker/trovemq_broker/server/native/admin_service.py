"""AdminService: topics, consumer offsets, statistics of this broker."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import grpc

from trovemq_broker.admin.shared_topics import ChangedTopic, SharedTopics
from trovemq_broker.security.creators import present_creator
from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_broker.server.native.shared_changes import SharedChanges, shared_change
from trovemq_broker.server.native.topic_reads import TOPICS_STEP, TopicReads
from trovemq_broker.server.wire import admin_messages as wire
from trovemq_broker.server.wire.native_calls import Reply, Request
from trovemq_broker.server.wire.statuses import Context
from trovemq_broker.state.held_log import TopicHold
from trovemq_daemon.grpc_services import add_service
from trovemq_store.engine.steps import Steps
from trovemq_store.topics.topics import NewTopic

TRAFFIC_TOPICS_MAX = 10_000


class AdminService(TopicReads):
    """The methods are those of admin.proto; every refusal is a TroveError."""

    def __init__(
        self,
        core: BrokerCore,
        *,
        topic_hold: Callable[[str], TopicHold | None],
        broker_info: Callable[[], Any],
        counters: Callable[[], Steps[dict[str, int]]],
        shared: SharedChanges | None = None,
        draining: Callable[[], Collection[str]] = tuple,
        holding: Callable[[str], Collection[str]] = lambda _topic: (),
    ) -> None:
        """`broker_info`: a common_pb2.BrokerInfo, which is passed on. `draining`: the brokers that ask for no
        new messages. `holding`: the other brokers that have a topic."""
        self.shared = shared or SharedChanges()
        topics = SharedTopics(self.shared.config, core.broker, core.store.topics, draining, holding)
        super().__init__(core, topics, topic_hold)
        self._changes = core.topic_changes
        self._offsets = core.offsets
        self._traffic = core.traffic
        self._broker_info = broker_info
        self._counters = counters
        self.shared.add(wire.SERVICE, self)

    def add_to(self, server: grpc.aio.Server) -> None:
        add_service(server, wire.SERVICE, self)

    # --- topics -------------------------------------------------------------------------------------
    @shared_change
    async def create_topic(self, request: Request, _context: Context) -> Reply:
        command = wire.create_of(request)
        if self.shared.config.is_shared:
            self._changes.check_index(command.topic, command.options)
            return self._changed(await self._cluster.create(_new_topic(command), command.brokers))
        config = await self._changes.create(
            command.topic, command.queue_count, command.message_type, command.options
        )
        return wire.topic_reply(self._described(config.name, config, with_queues=True))

    @shared_change
    async def alter_topic(self, request: Request, _context: Context) -> Reply:
        command = wire.alter_of(request)
        if self._is_in_table(command.topic):
            self._changes.check_index(command.topic, command.options)
            changed = await self._cluster.alter(
                command.topic,
                queue_count=command.queue_count,
                message_type=command.message_type,
                options=command.options,
                placement=command.placement,
                queues_on=command.queues_on,
            )
            return self._changed(changed)
        config = await self._changes.alter(
            command.topic,
            queue_count=command.queue_count,
            message_type=command.message_type,
            options=command.options,
        )
        return wire.topic_reply(self._described(config.name, config, with_queues=True))

    @shared_change
    async def delete_topic(self, request: Request, _context: Context) -> Reply:
        topic = wire.deleted_topic(request)
        if self._is_in_table(topic):
            changed = await self._cluster.delete(topic)
            result = changed.result
            deleted_on = [broker for broker in result.held_by if broker in changed.placement]
            physical_offset = self._store.deleted_below(topic) if self._broker in deleted_on else 0
            return wire.deleted_reply(physical_offset, deleted_on, result.pending)
        physical_offset = await self._changes.delete(topic)
        return wire.deleted_reply(physical_offset)

    def forwarded_as(self, name: str, request: Request, _context: Context) -> str:
        """A topic that is this broker's own is altered and deleted here."""
        if name == "create_topic":
            command = wire.create_of(request)
            self._cluster.check_free(_new_topic(command), command.brokers)
            return name
        return name if self._is_in_table(request.topic) else ""

    def _is_in_table(self, topic: str) -> bool:
        """Whether the call is about the cluster's configuration."""
        return self.shared.config.is_shared and not self._cluster.is_own(topic)

    def _changed(self, changed: ChangedTopic) -> Reply:
        """The reply to a change of the cluster's configuration."""
        name = changed.config.name
        config = self._store.topics.get(name) if self._broker in changed.placement else None
        described = (
            self._elsewhere(changed.config)
            if config is None
            else self._described(name, config, with_queues=True)
        )
        pending = changed.result.pending
        return wire.topic_reply(replace(described, placement=changed.placement, pending=pending))

    # --- consumer offsets ---------------------------------------------------------------------------
    async def commit_offset(self, request: Request, _context: Context) -> Reply:
        command = wire.commit_of(request)
        await self._offsets.commit(command.group, command.topic, command.queue_id, command.offset)
        return wire.commit_reply()

    async def get_offset(self, request: Request, _context: Context) -> Reply:
        command = wire.get_offset_of(request)
        return wire.offset_reply(self._offsets.get(command.group, command.topic, command.queue_id))

    async def reset_offset(self, request: Request, _context: Context) -> Reply:
        command = wire.reset_of(request)
        entries = await self._offsets.reset(command.group, command.topic, command.queue_id, command.target)
        return wire.reset_reply(entries)

    # --- statistics ---------------------------------------------------------------------------------
    async def get_statistics(self, request: Request, _context: Context) -> Reply:
        return await self._turns.run(self._statistics(with_topics=wire.asks_topics(request)))

    def _statistics(self, *, with_topics: bool) -> Steps[Reply]:
        reply = wire.statistics_reply(self._broker_info(), (yield from self._counters()))
        if not with_topics:
            return reply
        rows, left_out = yield from self._traffic.busiest(TRAFFIC_TOPICS_MAX)
        for part in (rows[at : at + TOPICS_STEP] for at in range(0, len(rows), TOPICS_STEP)):
            yield
            wire.add_traffic(reply, part)
        return wire.left_out(reply, left_out)


def _new_topic(command: wire.CreateTopic) -> NewTopic:
    return NewTopic(
        command.topic, command.queue_count, command.message_type, command.options, present_creator()
    )
