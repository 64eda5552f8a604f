"""AdminService: topics, consumer offsets, statistics of this broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import grpc

from trovemq_broker.admin.topic_changes import TopicChanges
from trovemq_broker.fetch.long_poll import LongPolls
from trovemq_broker.fetch.offsets import OffsetKeeper, ResetTarget
from trovemq_broker.query.queue_sizes import QueueSizes
from trovemq_broker.server.monitoring.traffic import Traffic
from trovemq_broker.state.held_log import TopicHold
from trovemq_daemon.grpc_services import add_service
from trovemq_daemon.turns import Turns
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueId, QueueOffset
from trovemq_proto.v1 import admin_pb2, common_pb2
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.queues import queue_ids, queue_range, topic_not_found
from trovemq_store.engine.steps import Steps
from trovemq_store.topics.names import is_system_topic
from trovemq_store.topics.topic_options import option_texts
from trovemq_store.topics.topics import QUEUE_COUNT_DEFAULT, TopicConfig

SERVICE: Final = admin_pb2.DESCRIPTOR.services_by_name["AdminService"]

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
NO_OFFSET = -1
TOPICS_STEP = 128


class AdminService:
    """The methods are those of admin.proto; every refusal is a TroveError."""

    def __init__(
        self,
        store: MessageStore,
        changes: TopicChanges,
        offsets: OffsetKeeper,
        long_polls: LongPolls,
        traffic: Traffic,
        *,
        turns: Turns,
        topic_hold: Callable[[str], TopicHold | None],
        broker_info: Callable[[], common_pb2.BrokerInfo],
        counters: Callable[[], Steps[dict[str, int]]],
    ) -> None:
        self._store = store
        self._changes = changes
        self._offsets = offsets
        self._long_polls = long_polls
        self._traffic = traffic
        self._turns = turns
        self._topic_hold = topic_hold
        self._broker_info = broker_info
        self._counters = counters
        self._sizes = QueueSizes()

    def add_to(self, server: grpc.aio.Server) -> None:
        add_service(server, SERVICE, self)

    # --- topics -------------------------------------------------------------------------------------
    async def create_topic(
        self, request: admin_pb2.CreateTopicRequest, _context: Context
    ) -> admin_pb2.TopicDescription:
        config = await self._changes.create(
            request.topic,
            request.queue_count or QUEUE_COUNT_DEFAULT,
            request.message_type or "NORMAL",
            request.options,
        )
        return self._description(config.name, config, with_queues=True)

    async def alter_topic(
        self, request: admin_pb2.AlterTopicRequest, _context: Context
    ) -> admin_pb2.TopicDescription:
        config = await self._changes.alter(
            request.topic,
            queue_count=request.queue_count or None,
            message_type=request.message_type or None,
            options=request.options,
        )
        return self._description(config.name, config, with_queues=True)

    async def describe_topic(
        self, request: admin_pb2.DescribeTopicRequest, _context: Context
    ) -> admin_pb2.TopicDescription:
        config = self._store.topics.get(request.topic)
        if config is None and not self._store.consume_queues.queues(request.topic):
            raise topic_not_found(request.topic)
        description = self._description(request.topic, config, with_queues=True)
        if request.with_sizes:
            await self._turns.run_from_now(self._add_sizes(description))
        hold = self._topic_hold(request.topic)
        if hold is not None:
            description.hold.CopyFrom(_wire_hold(hold))
        return description

    async def list_topics(
        self, request: admin_pb2.ListTopicsRequest, _context: Context
    ) -> admin_pb2.ListTopicsReply:
        """All topics of the table, and all others of which the store has queues."""
        return await self._turns.run(self._list_steps(include_system=request.include_system))

    def _list_steps(self, *, include_system: bool) -> Steps[admin_pb2.ListTopicsReply]:
        names = {*self._store.topics.names(include_system=True), *self._store.consume_queues.topics()}
        yield
        reply = admin_pb2.ListTopicsReply()
        for number, name in enumerate(sorted(names), 1):
            if number % TOPICS_STEP == 0:
                yield
            config = self._store.topics.get(name)
            if config is None and not self._store.consume_queues.has_topic(name):
                continue  # it was deleted meanwhile
            if include_system or not is_system_topic(name):
                reply.topics.append(self._description(name, config, with_queues=False))
        return reply

    async def delete_topic(
        self, request: admin_pb2.DeleteTopicRequest, _context: Context
    ) -> admin_pb2.DeleteTopicReply:
        physical_offset = await self._changes.delete(request.topic)
        self._traffic.forget(request.topic)
        self._long_polls.wake_topic(request.topic)
        return admin_pb2.DeleteTopicReply(physical_offset=physical_offset)

    def _description(
        self, topic: str, config: TopicConfig | None, *, with_queues: bool
    ) -> admin_pb2.TopicDescription:
        numbers = queue_ids(self._store, topic) if with_queues or config is None else []
        return admin_pb2.TopicDescription(
            topic=topic,
            queue_count=config.queue_count if config is not None else len(numbers),
            message_type=config.message_type if config is not None else "UNSPECIFIED",
            system=is_system_topic(topic),
            queues=[self._queue(topic, number) for number in numbers] if with_queues else (),
            broker=self._store.settings.broker,
            options=option_texts(config.attributes) if config is not None else {},
        )

    def _add_sizes(self, description: admin_pb2.TopicDescription) -> Steps[None]:
        for described in description.queues:
            queue = self._store.consume_queues.get(description.topic, QueueId(described.queue_id))
            size = 0 if queue is None else (yield from self._sizes.size_of(queue))
            if size is not None:
                described.bytes = size

    def _queue(self, topic: str, queue_id: QueueId) -> admin_pb2.TopicQueue:
        low, high = queue_range(self._store, topic, queue_id)
        return admin_pb2.TopicQueue(
            queue_id=queue_id,
            min_offset=low,
            max_offset=high,
            last_store_timestamp=self._last_store_timestamp(topic, queue_id, low, high),
        )

    def _last_store_timestamp(self, topic: str, queue_id: QueueId, low: int, high: int) -> int:
        queue = self._store.consume_queues.get(topic, queue_id)
        if queue is None or high <= low:
            return 0
        last = PhysicalOffset(int(queue.units(QueueOffset(high - 1), 1)["physical_offset"][0]))
        return self._store.store_timestamp_at(last) or 0

    # --- consumer offsets ---------------------------------------------------------------------------
    async def commit_offset(
        self, request: admin_pb2.CommitOffsetRequest, _context: Context
    ) -> admin_pb2.CommitOffsetReply:
        await self._offsets.commit(
            request.group, request.topic, QueueId(request.queue_id), QueueOffset(request.offset)
        )
        return admin_pb2.CommitOffsetReply()

    async def get_offset(
        self, request: admin_pb2.GetOffsetRequest, _context: Context
    ) -> admin_pb2.GetOffsetReply:
        offset = self._offsets.get(request.group, request.topic, QueueId(request.queue_id))
        return admin_pb2.GetOffsetReply(offset=NO_OFFSET if offset is None else offset)

    async def reset_offset(
        self, request: admin_pb2.ResetOffsetRequest, _context: Context
    ) -> admin_pb2.ResetOffsetReply:
        queue_id = QueueId(request.queue_id) if request.HasField("queue_id") else None
        entries = await self._offsets.reset(request.group, request.topic, queue_id, _reset_target(request))
        return admin_pb2.ResetOffsetReply(
            entries=[
                admin_pb2.ResetOffsetReply.Entry(
                    queue_id=entry.queue_id,
                    offset_before=NO_OFFSET if entry.offset_before is None else entry.offset_before,
                    offset=entry.offset,
                )
                for entry in entries
            ]
        )

    # --- statistics ---------------------------------------------------------------------------------
    async def get_statistics(
        self, _request: admin_pb2.GetStatisticsRequest, _context: Context
    ) -> admin_pb2.Statistics:
        return admin_pb2.Statistics(
            broker=self._broker_info(), counters=await self._turns.run(self._counters())
        )


def _wire_hold(hold: TopicHold) -> admin_pb2.TopicHold:
    return admin_pb2.TopicHold(
        bytes=hold.byte_count,
        group=hold.holder.group,
        queue_id=hold.holder.queue_id,
        queue_offset=hold.holder.queue_offset,
        until=hold.until_ms,
    )


def _reset_target(request: admin_pb2.ResetOffsetRequest) -> ResetTarget:
    match request.WhichOneof("target"):
        case "timestamp":
            return ResetTarget(timestamp=EpochMs(request.timestamp))
        case "offset":
            return ResetTarget(offset=QueueOffset(request.offset))
        case "to_min" if request.to_min:
            return ResetTarget(to_min=True)
        case "to_max" if request.to_max:
            return ResetTarget(to_max=True)
        case _:
            raise TroveError(errors.REQUEST_ILLEGAL, "give a timestamp, an offset, to_min or to_max")
