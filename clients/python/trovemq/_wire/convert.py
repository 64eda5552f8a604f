"""Converts protobuf messages to the SDK's own values, with one function per message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from struct import iter_unpack
from typing import Final

from trovemq.models.all_brokers import TopicDeletion
from trovemq.models.cluster import (
    BrokerInfo,
    BrokerRoute,
    BrokerStatistics,
    ClusterState,
    ConfigSummary,
    GroupLeader,
    GroupNode,
    LostBroker,
    OffsetReset,
    QueueOffsets,
    ServerInfo,
    TopicDescription,
    TopicHold,
    TopicQueue,
    TopicRoute,
    TopicTraffic,
)
from trovemq.models.replica import ReplicaLag
from trovemq_proto.positions import GROUP_EPOCH_MAX
from trovemq_proto.v1 import admin_pb2, common_pb2, query_pb2, route_pb2

from .failures import error_from_wire
from .replica_lags import replica_lag

_KINDS: Final = {
    query_pb2.OFFSET_MSG_ID: "offset_msg_id",
    query_pb2.UNIQUE_KEY: "message_id",
    query_pb2.QUEUE_LOCATION: "queue_location",
}
NODES_MAX = 7
"""Of a replica group."""


@dataclass(frozen=True, slots=True)
class FoundRecords:
    """A GetMessage reply: `kind` is offset_msg_id, message_id or queue_location."""

    kind: str
    records: bytes
    queue_offsets: Sequence[int] | None
    more: bool = False
    replica: ReplicaLag | None = None


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
    replica: ReplicaLag | None
    queue_offsets: None = None  # each record has its own


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
        tls_address=info.tls_address,
        draining=info.draining,
        drained=info.drained,
        config=_config(info.config) if info.HasField("config") else None,
        topics_left_out=info.topics_left_out,
        leader=_group_leader(info.leader) if info.HasField("leader") else None,
    )


def _group_leader(leader: common_pb2.GroupLeader) -> GroupLeader | None:
    """None if it is none that a server has sent."""
    if not 1 <= leader.epoch <= GROUP_EPOCH_MAX:
        return None
    nodes = tuple(GroupNode(one.node, one.address) for one in leader.nodes[:NODES_MAX])
    return GroupLeader(leader.group_id, leader.node, leader.epoch, nodes)


def _config(config: common_pb2.ConfigSummary) -> ConfigSummary:
    return ConfigSummary(config.id, config.owner, config.generation)


def broker_route(route: common_pb2.BrokerRoute) -> BrokerRoute:
    return BrokerRoute(broker_info(route.broker), tuple(map(_topic_route, route.topics)))


def _topic_route(topic: common_pb2.TopicRoute) -> TopicRoute:
    if topic.placement:
        return TopicRoute(topic.topic, topic.queue_count, topic.message_type, dict(topic.placement))
    return TopicRoute(topic.topic, topic.queue_count, topic.message_type)


def cluster_state(reply: route_pb2.ClusterReply) -> ClusterState:
    routes = tuple(broker_route(route) for route in reply.brokers)
    refusal = error_from_wire(reply.refusal) if reply.HasField("refusal") else None
    state = ClusterState(routes, reply.version, lost_brokers(reply), refusal)
    return _with_names(state, reply)


def _with_names(state: ClusterState, reply: route_pb2.ClusterReply) -> ClusterState:
    others = reply.other_brokers if reply.HasField("other_brokers") else None
    return replace(state, other_brokers=others, removed=tuple(reply.forgotten_brokers))


def lost_brokers(reply: route_pb2.ClusterReply | route_pb2.RouteReply) -> tuple[LostBroker, ...]:
    return tuple(
        LostBroker(one.name, one.cluster, one.address, one.lost_ms, one.topics, one.topics_alone)
        for one in reply.lost
    )


def changed_state(before: ClusterState, reply: route_pb2.ClusterReply) -> ClusterState:
    """The state after a reply that has only changes."""
    routes = {route.broker.name: route for route in before.brokers}
    for name in reply.removed_brokers:
        routes.pop(name, None)
    for changed in reply.brokers:
        route = broker_route(changed)
        known = routes.get(route.broker.name)
        topics = {topic.topic: topic for topic in (known.topics if known is not None else ())}
        topics.update((topic.topic, topic) for topic in route.topics)
        for name in changed.removed_topics:
            topics.pop(name, None)
        routes[route.broker.name] = BrokerRoute(route.broker, tuple(topics.values()))
    return _with_names(ClusterState(tuple(routes.values()), reply.version, lost_brokers(reply)), reply)


def server_info(info: route_pb2.ServerInfo) -> ServerInfo:
    role = route_pb2.ServerRole.Name(info.role).lower()
    leader = _group_leader(info.leader) if info.HasField("leader") else None
    return ServerInfo(
        *(role, info.version, info.name, info.now, info.up_ms, info.other_brokers, info.node, leader),
        tuple(info.other_names),
    )


def queue_offsets_of(data: bytes) -> Sequence[int] | None:
    """Queue offsets from the wire (little-endian int64); None if there are none."""
    return [offset for (offset,) in iter_unpack("<q", data)] or None


def found_records(reply: query_pb2.GetMessageReply) -> FoundRecords:
    kind = _KINDS.get(reply.kind, "")
    return FoundRecords(
        kind, reply.records, queue_offsets_of(reply.queue_offsets), reply.more, replica_lag(reply)
    )


def query_page(page: query_pb2.QueryPage) -> QueryPageAnswer:
    return QueryPageAnswer(
        page.records,
        page.last,
        page.complete,
        page.cursor,
        page.index_last_update_timestamp,
        page.index_last_update_physical_offset,
        tuple(page.notes),
        replica_lag(page),
    )


def queue_offsets(reply: query_pb2.QueueOffsetsReply, broker: str) -> list[QueueOffsets]:
    identity = reply.topic_identity if reply.HasField("topic_identity") else None
    return [
        QueueOffsets(broker, queue.queue_id, queue.min_offset, queue.max_offset, identity)
        for queue in reply.queues
    ]


def topic_description(topic: admin_pb2.TopicDescription) -> TopicDescription:
    queues = (
        TopicQueue(
            queue.queue_id,
            queue.min_offset,
            queue.max_offset,
            queue.last_store_timestamp,
            queue.bytes if queue.HasField("bytes") else None,
        )
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
        dict(topic.placement),
        tuple(topic.pending),
    )


def topic_deletion(reply: admin_pb2.DeleteTopicReply, broker: str) -> TopicDeletion:
    """`broker`: the one that has answered."""
    if not (reply.deleted_on or reply.pending):
        return TopicDeletion({broker: reply.physical_offset})
    deleted = {name: reply.physical_offset if name == broker else 0 for name in reply.deleted_on}
    return TopicDeletion(deleted, later=reply.pending)


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
    topics = tuple(
        TopicTraffic(one.topic, one.messages_in, one.bytes_in, one.messages_out, one.bytes_out)
        for one in reply.topics
    )
    return BrokerStatistics(broker_info(reply.broker), dict(reply.counters), topics, reply.topics_left_out)
