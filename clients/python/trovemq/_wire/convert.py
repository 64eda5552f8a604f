"""Protobuf messages to the SDK's own values, a function a message."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trovemq.fetched import FetchedBatch
from trovemq.model import (
    BrokerInfo,
    BrokerRoute,
    BrokerStatistics,
    ClusterState,
    OffsetReset,
    QueueOffsets,
    ServerInfo,
    TopicDescription,
    TopicHold,
    TopicQueue,
    TopicRoute,
)
from trovemq.receipts import AppendOutcome, Duplicate
from trovemq_proto.errors import TroveError
from trovemq_proto.v1 import admin_pb2, common_pb2, message_pb2, query_pb2, route_pb2

from .failures import error_from_wire
from .frames import split_fetch_reply


@dataclass(frozen=True, slots=True)
class FetchAnswer:
    """One reply of a Fetch stream: a batch, or the error of that request alone."""

    fetch_id: int
    error: TroveError | None
    batch: FetchedBatch


@dataclass(frozen=True, slots=True)
class FoundRecords:
    """A GetMessage reply: `kind` is offset_msg_id, unique_key or queue_location."""

    kind: str
    records: bytes
    queue_offsets: NDArray[np.int64] | None
    more: bool = False


@dataclass(frozen=True, slots=True)
class QueryPageAnswer:
    """One page of a key query; the fields after `last` are set on the last page only."""

    records: bytes
    last: bool
    complete: bool
    cursor: str
    index_last_update_timestamp: int
    index_last_update_physical_offset: int
    notes: tuple[str, ...]
    queue_offsets: None = None  # each record says its own


def broker_info(info: common_pb2.BrokerInfo) -> BrokerInfo:
    return BrokerInfo(
        cluster=info.cluster,
        name=info.name,
        address=info.address,
        store_host_ipv6=info.store_host_ipv6,
        append_property_crc=info.append_property_crc,
        body_size_max=info.body_size_max or 4 << 20,
        batch_size_max=info.batch_size_max or 4 << 20,
        data_version=info.data_version,
        flush_mode=info.flush_mode,
        version=info.version,
    )


def broker_route(route: common_pb2.BrokerRoute) -> BrokerRoute:
    topics = (TopicRoute(topic.topic, topic.queue_count, topic.message_type) for topic in route.topics)
    return BrokerRoute(broker_info(route.broker), tuple(topics))


def cluster_state(reply: route_pb2.ClusterReply) -> ClusterState:
    return ClusterState(tuple(broker_route(route) for route in reply.brokers), reply.version)


def server_info(info: route_pb2.ServerInfo) -> ServerInfo:
    role = route_pb2.ServerRole.Name(info.role).lower()
    return ServerInfo(role, info.version, info.name)


def append_outcome(data: bytes) -> AppendOutcome:
    """Deserialises an AppendReply."""
    reply = message_pb2.AppendReply.FromString(data)
    return AppendOutcome(
        reply.frame_id,
        _STATUS_NAMES[reply.status],
        error_from_wire(reply.error) if reply.HasField("error") else None,
        reply.first_queue_offset,
        reply.physical_offset,
        reply.record_count,
        reply.store_timestamp,
        "disk" if reply.durability == common_pb2.DISK else "memory",
        reply.store_host,
        reply.broker,
        tuple(
            Duplicate(
                each.index, each.queue_id, each.queue_offset, each.physical_offset, each.store_timestamp
            )
            for each in reply.duplicates
        ),
        {each.index: range(each.first, each.last + 1) for each in reply.sequence_gaps},
    )


_STATUS_NAMES = {value: name for name, value in common_pb2.PutMessageStatus.items()}


def fetch_answer(data: bytes) -> FetchAnswer:
    """Deserialises a FetchReply; the records stay where they are."""
    records, rest = split_fetch_reply(data)
    reply = message_pb2.FetchReply.FromString(rest)
    batch = FetchedBatch(
        data=records,
        next_offset=reply.next_offset,
        min_offset=reply.min_offset,
        max_offset=reply.max_offset,
        queue_offsets=offsets_column(reply.queue_offsets),
        damaged_offsets=tuple(reply.damaged_offsets),
    )
    return FetchAnswer(
        reply.fetch_id, error_from_wire(reply.error) if reply.HasField("error") else None, batch
    )


def fetch_request(
    fetch_id: int,
    topic: str,
    queue_id: int,
    *,
    offset: int,
    messages_max: int,
    bytes_max: int,
    wait_ms: int,
    tags: tuple[str, ...],
) -> bytes:
    """A serialised FetchRequest."""
    return message_pb2.FetchRequest(
        fetch_id=fetch_id,
        topic=topic,
        queue_id=queue_id,
        offset=offset,
        messages_max=messages_max,
        bytes_max=bytes_max,
        wait_ms=wait_ms,
        tags=tags,
    ).SerializeToString()


def offsets_column(data: bytes) -> NDArray[np.int64] | None:
    """Queue offsets as the wire carries them (little-endian int64); None where it carries none."""
    return np.frombuffer(data, "<i8").astype(np.int64) if data else None


def found_records(reply: query_pb2.GetMessageReply) -> FoundRecords:
    kind = query_pb2.IdentifierKind.Name(reply.kind).lower()
    return FoundRecords(kind, reply.records, offsets_column(reply.queue_offsets), reply.more)


def query_page(page: query_pb2.QueryPage) -> QueryPageAnswer:
    return QueryPageAnswer(
        page.records,
        page.last,
        page.complete,
        page.cursor,
        page.index_last_update_timestamp,
        page.index_last_update_physical_offset,
        tuple(page.notes),
    )


def queue_offsets(reply: query_pb2.QueueOffsetsReply, broker: str) -> list[QueueOffsets]:
    return [
        QueueOffsets(broker, queue.queue_id, queue.min_offset, queue.max_offset) for queue in reply.queues
    ]


def topic_description(topic: admin_pb2.TopicDescription) -> TopicDescription:
    queues = (
        TopicQueue(queue.queue_id, queue.min_offset, queue.max_offset, queue.last_store_timestamp)
        for queue in topic.queues
    )
    return TopicDescription(
        topic.topic,
        topic.queue_count,
        topic.message_type,
        topic.system,
        tuple(queues),
        topic.broker,
        dict(topic.options),
        _topic_hold(topic.hold) if topic.HasField("hold") else None,
    )


def _topic_hold(hold: admin_pb2.TopicHold) -> TopicHold:
    return TopicHold(hold.bytes, hold.group, hold.queue_id, hold.queue_offset, hold.until)


def offset_resets(reply: admin_pb2.ResetOffsetReply, broker: str) -> list[OffsetReset]:
    return [
        OffsetReset(
            broker, entry.queue_id, None if entry.offset_before < 0 else entry.offset_before, entry.offset
        )
        for entry in reply.entries
    ]


def statistics(reply: admin_pb2.Statistics) -> BrokerStatistics:
    return BrokerStatistics(broker_info(reply.broker), dict(reply.counters))
