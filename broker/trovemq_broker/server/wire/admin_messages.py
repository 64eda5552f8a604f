"""Reads the requests of AdminService as commands, and makes its replies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from trovemq_broker.fetch.offsets import ResetEntry, ResetTarget
from trovemq_broker.server.wire.resets import offset_or_none, reset_queue, reset_target
from trovemq_broker.state.held_log import TopicHold
from trovemq_proto.positions import QueueId, QueueOffset
from trovemq_proto.v1 import admin_pb2, common_pb2
from trovemq_store.topics.topics import QUEUE_COUNT_DEFAULT

SERVICE: Final = admin_pb2.DESCRIPTOR.services_by_name["AdminService"]


@dataclass(frozen=True, slots=True)
class CreateTopic:
    """A new topic."""

    topic: str
    queue_count: int
    message_type: str
    options: Mapping[str, str]
    brokers: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class AlterTopic:
    """Changes of a topic; None keeps the value, and so does an empty placement. `queues_on`: of the brokers
    whose part of the placement is changed."""

    topic: str
    queue_count: int | None
    message_type: str | None
    options: Mapping[str, str]
    placement: Mapping[str, int]
    queues_on: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class DescribeTopic:
    """`with_sizes`: with the bytes of each queue."""

    topic: str
    with_sizes: bool


class TopicTraffic(Protocol):
    """The traffic of one topic; see server/monitoring."""

    @property
    def topic(self) -> str: ...
    @property
    def messages_in(self) -> int: ...
    @property
    def bytes_in(self) -> int: ...
    @property
    def messages_out(self) -> int: ...
    @property
    def bytes_out(self) -> int: ...


@dataclass(frozen=True, slots=True)
class CommitOffset:
    """A commit of a group; `offset`: the next one to consume."""

    group: str
    topic: str
    queue_id: QueueId
    offset: QueueOffset


@dataclass(frozen=True, slots=True)
class GetOffset:
    """A look-up of the committed offset of a group."""

    group: str
    topic: str
    queue_id: QueueId


@dataclass(frozen=True, slots=True)
class ResetOffset:
    """A reset of a group in one queue, or in all queues of the topic (None)."""

    group: str
    topic: str
    queue_id: QueueId | None
    target: ResetTarget


@dataclass(frozen=True, slots=True)
class DescribedQueue:
    """A queue with messages [min_offset, max_offset). Time in epoch ms, 0 of an empty queue."""

    queue_id: QueueId
    min_offset: int
    max_offset: int
    last_store_timestamp: int


@dataclass(frozen=True, slots=True)
class DescribedTopic:
    """A topic. `options`: those that are set, as they were given. `placement`: queues by broker, where the
    cluster's configuration has the topic; `pending`: brokers that make a change later."""

    topic: str
    queue_count: int
    message_type: str
    system: bool
    queues: Sequence[DescribedQueue]
    broker: str
    options: Mapping[str, str]
    placement: Mapping[str, int]
    pending: Sequence[str] = ()


# --- requests -------------------------------------------------------------------------------------------
def create_of(request: admin_pb2.CreateTopicRequest) -> CreateTopic:
    """The command of a CreateTopic, with the defaults where it has no value."""
    queue_count = request.queue_count or QUEUE_COUNT_DEFAULT
    message_type, options = request.message_type or "NORMAL", dict(request.options)
    return CreateTopic(request.topic, queue_count, message_type, options, list(request.brokers))


def alter_of(request: admin_pb2.AlterTopicRequest) -> AlterTopic:
    """The command of an AlterTopic."""
    return AlterTopic(
        request.topic,
        request.queue_count or None,
        request.message_type or None,
        dict(request.options),
        dict(request.placement),
        dict(request.queues_on),
    )


def describe_of(request: admin_pb2.DescribeTopicRequest) -> DescribeTopic:
    """The command of a DescribeTopic."""
    return DescribeTopic(request.topic, request.with_sizes)


def lists_topics_elsewhere(request: admin_pb2.ListTopicsRequest) -> bool:
    """Whether topics that lie on other brokers alone are asked for, too."""
    return request.elsewhere


def lists_system_topics(request: admin_pb2.ListTopicsRequest) -> bool:
    """Whether a ListTopics asks for system topics, too."""
    return request.include_system


def deleted_topic(request: admin_pb2.DeleteTopicRequest) -> str:
    """The name in a DeleteTopic."""
    return request.topic


def commit_of(request: admin_pb2.CommitOffsetRequest) -> CommitOffset:
    """The command of a CommitOffset."""
    return CommitOffset(request.group, request.topic, QueueId(request.queue_id), QueueOffset(request.offset))


def get_offset_of(request: admin_pb2.GetOffsetRequest) -> GetOffset:
    """The command of a GetOffset."""
    return GetOffset(request.group, request.topic, QueueId(request.queue_id))


def reset_of(request: admin_pb2.ResetOffsetRequest) -> ResetOffset:
    """The command of a ResetOffset. Raises TroveError REQUEST_ILLEGAL if it has no target."""
    return ResetOffset(request.group, request.topic, reset_queue(request), reset_target(request))


# --- replies --------------------------------------------------------------------------------------------
def topic_reply(
    described: DescribedTopic, sizes: Mapping[QueueId, int] | None = None, hold: TopicHold | None = None
) -> admin_pb2.TopicDescription:
    """`sizes`: the bytes of queues, where they are known."""
    known = sizes or {}
    return admin_pb2.TopicDescription(
        topic=described.topic,
        queue_count=described.queue_count,
        message_type=described.message_type,
        system=described.system,
        queues=[
            admin_pb2.TopicQueue(
                queue_id=queue.queue_id,
                min_offset=queue.min_offset,
                max_offset=queue.max_offset,
                last_store_timestamp=queue.last_store_timestamp,
                bytes=known.get(queue.queue_id),
            )
            for queue in described.queues
        ],
        broker=described.broker,
        options=described.options,
        hold=None if hold is None else _hold(hold),
        placement=described.placement,
        pending=described.pending,
    )


def _hold(hold: TopicHold) -> admin_pb2.TopicHold:
    return admin_pb2.TopicHold(
        bytes=hold.byte_count,
        group=hold.holder.group,
        queue_id=hold.holder.queue_id,
        queue_offset=hold.holder.queue_offset,
        until=hold.until_ms,
    )


class TopicList:
    """A reply to ListTopics, which is made topic by topic: it may have many."""

    __slots__ = ("reply",)

    def __init__(self) -> None:
        self.reply: Final = admin_pb2.ListTopicsReply()

    def add(self, described: DescribedTopic) -> None:
        self.reply.topics.append(topic_reply(described))


def deleted_reply(
    physical_offset: int, deleted_on: Iterable[str] = (), pending: Iterable[str] = ()
) -> admin_pb2.DeleteTopicReply:
    """The reply to DeleteTopic; `physical_offset`: of the deletion. `deleted_on`, `pending`: of a topic of
    the cluster's configuration, the brokers that have made it, and those that make it later."""
    return admin_pb2.DeleteTopicReply(physical_offset=physical_offset, deleted_on=deleted_on, pending=pending)


def commit_reply() -> admin_pb2.CommitOffsetReply:
    return admin_pb2.CommitOffsetReply()


def offset_reply(offset: QueueOffset | None) -> admin_pb2.GetOffsetReply:
    return admin_pb2.GetOffsetReply(offset=offset_or_none(offset))


def reset_reply(entries: Iterable[ResetEntry]) -> admin_pb2.ResetOffsetReply:
    return admin_pb2.ResetOffsetReply(
        entries=[
            admin_pb2.ResetOffsetReply.Entry(
                queue_id=entry.queue_id,
                offset_before=offset_or_none(entry.offset_before),
                offset=entry.offset,
            )
            for entry in entries
        ]
    )


def statistics_reply(broker: common_pb2.BrokerInfo, counters: Mapping[str, int]) -> admin_pb2.Statistics:
    return admin_pb2.Statistics(broker=broker, counters=counters)


def asks_topics(request: admin_pb2.GetStatisticsRequest) -> bool:
    """Whether a GetStatistics asks for the traffic of each topic."""
    return request.topics


def add_traffic(reply: admin_pb2.Statistics, rows: Iterable[TopicTraffic]) -> None:
    """Adds topics to a reply."""
    for row in rows:
        reply.topics.add(
            topic=row.topic,
            messages_in=row.messages_in,
            bytes_in=row.bytes_in,
            messages_out=row.messages_out,
            bytes_out=row.bytes_out,
        )


def left_out(reply: admin_pb2.Statistics, count: int) -> admin_pb2.Statistics:
    """The same reply, with the number of topics that it lacks."""
    reply.topics_left_out = count
    return reply
