"""AdminService: topics, consumer offsets, statistics of this broker."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import grpc

from trovemq_broker.admin.shared_topics import ChangedTopic, SharedTopics
from trovemq_broker.query.queue_sizes import QueueSizes
from trovemq_broker.security.creators import present_creator
from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_broker.server.native.shared_changes import SharedChanges, shared_change
from trovemq_broker.server.wire import admin_messages as wire
from trovemq_broker.server.wire.native_calls import Reply, Request
from trovemq_broker.server.wire.statuses import Context
from trovemq_broker.state.held_log import TopicHold
from trovemq_daemon.grpc_services import add_service
from trovemq_proto.positions import PhysicalOffset, QueueId, QueueOffset
from trovemq_store.engine.queues import queue_ids, queue_range, topic_not_found
from trovemq_store.engine.steps import Steps
from trovemq_store.topics.names import is_system_topic
from trovemq_store.topics.topic_options import option_texts
from trovemq_store.topics.topics import NewTopic, TopicConfig

TOPICS_STEP = 128
TRAFFIC_TOPICS_MAX = 10_000


class AdminService:
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
        self._store = core.store
        self._broker = core.broker
        self._changes = core.topic_changes
        self._offsets = core.offsets
        self._turns = core.turns
        self._traffic = core.traffic
        self._topic_hold = topic_hold
        self._broker_info = broker_info
        self._counters = counters
        self._sizes = QueueSizes()
        self.shared = shared or SharedChanges()
        self._cluster = SharedTopics(self.shared.config, core.broker, core.store.topics, draining, holding)
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
            )
            return self._changed(changed)
        config = await self._changes.alter(
            command.topic,
            queue_count=command.queue_count,
            message_type=command.message_type,
            options=command.options,
        )
        return wire.topic_reply(self._described(config.name, config, with_queues=True))

    async def describe_topic(self, request: Request, _context: Context) -> Reply:
        """Also of a topic of the cluster's configuration that lies on other brokers alone, without queues."""
        command = wire.describe_of(request)
        topic = command.topic
        config = self._store.topics.get(topic)
        if config is None and not self._store.consume_queues.queues(topic):
            config = self._cluster.find(topic)
            if config is None:
                raise topic_not_found(topic)
            return wire.topic_reply(self._elsewhere(config))
        described = self._described(topic, config, with_queues=True)
        sizes = await self._turns.run_from_now(self._sizes_of(described)) if command.with_sizes else None
        return wire.topic_reply(described, sizes, self._topic_hold(topic))

    async def list_topics(self, request: Request, _context: Context) -> Reply:
        """All topics of this broker, and all others of which the store has queues. Not those of the cluster's
        configuration that lie on other brokers alone: these list them."""
        steps = self._list_steps(include_system=wire.lists_system_topics(request))
        return await self._turns.run(steps)

    def _list_steps(self, *, include_system: bool) -> Steps[Reply]:
        names = {*self._store.topics.names(include_system=True), *self._store.consume_queues.topics()}
        yield
        topics = wire.TopicList()
        for number, name in enumerate(sorted(names), 1):
            if number % TOPICS_STEP == 0:
                yield
            config = self._store.topics.get(name)
            if config is None and not self._store.consume_queues.has_topic(name):
                continue  # it was deleted meanwhile
            if include_system or not is_system_topic(name):
                topics.add(self._described(name, config, with_queues=False))
        return topics.reply

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

    def _elsewhere(self, config: TopicConfig) -> wire.DescribedTopic:
        """A topic of the cluster's configuration of which this broker has no queues."""
        return wire.DescribedTopic(
            topic=config.name,
            queue_count=config.queue_count,
            message_type=config.message_type,
            system=False,
            queues=(),
            broker=self._broker,
            options=option_texts(config.attributes),
            placement=self._cluster.placement(config.name),
        )

    def _described(self, topic: str, config: TopicConfig | None, *, with_queues: bool) -> wire.DescribedTopic:
        numbers = queue_ids(self._store, topic) if with_queues or config is None else []
        return wire.DescribedTopic(
            topic=topic,
            queue_count=config.queue_count if config is not None else len(numbers),
            message_type=config.message_type if config is not None else "UNSPECIFIED",
            system=is_system_topic(topic),
            queues=[self._queue(topic, number) for number in numbers] if with_queues else (),
            broker=self._broker,
            options=option_texts(config.attributes) if config is not None else {},
            placement=self._cluster.placement(topic),
        )

    def _sizes_of(self, described: wire.DescribedTopic) -> Steps[dict[QueueId, int]]:
        sizes = {}
        for described_queue in described.queues:
            queue_id = described_queue.queue_id
            queue = self._store.consume_queues.get(described.topic, queue_id)
            size = 0 if queue is None else (yield from self._sizes.size_of(queue))
            if size is not None:
                sizes[queue_id] = size
        return sizes

    def _queue(self, topic: str, queue_id: QueueId) -> wire.DescribedQueue:
        low, high = queue_range(self._store, topic, queue_id)
        return wire.DescribedQueue(
            queue_id, low, high, self._last_store_timestamp(topic, queue_id, low, high)
        )

    def _last_store_timestamp(self, topic: str, queue_id: QueueId, low: int, high: int) -> int:
        queue = self._store.consume_queues.get(topic, queue_id)
        if queue is None or high <= low:
            return 0
        last = PhysicalOffset(int(queue.units(QueueOffset(high - 1), 1)["physical_offset"][0]))
        return self._store.store_timestamp_at(last) or 0

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
