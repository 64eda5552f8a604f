"""Translates between the route table's values and protobuf messages; the table itself has no protobuf."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from sys import intern
from typing import Final

from trovemq_nameserver.broker import NODES_MAX, Broker, ConfigSummary, GroupLeader, GroupNode
from trovemq_nameserver.lost import LostBroker
from trovemq_nameserver.routes import BrokerRoute
from trovemq_nameserver.topics import TOPICS_A_STEP, Placement, TopicFields, TopicRoute, work_of
from trovemq_proto.v1 import common_pb2, route_pb2
from trovemq_proto.varints import write_varint

_BROKERS_TAG: Final = write_varint(route_pb2.ClusterReply.BROKERS_FIELD_NUMBER << 3 | 2)


def broker_from_wire(info: common_pb2.BrokerInfo) -> Broker:
    return Broker(
        cluster=info.cluster,
        name=info.name,
        address=info.address,
        store_host_ipv6=info.store_host_ipv6,
        append_property_crc=info.append_property_crc,
        body_size_max=info.body_size_max,
        batch_size_max=info.batch_size_max,
        flush_mode=info.flush_mode,
        version=info.version,
        tls_address=info.tls_address,
        draining=info.draining,
        drained=info.drained,
        config=_config_from_wire(info.config) if info.HasField("config") else None,
        leader=_leader_from_wire(info.leader) if info.HasField("leader") else None,
    )


def _leader_from_wire(leader: common_pb2.GroupLeader) -> GroupLeader:
    """`check_broker` refuses one of more than NODES_MAX nodes."""
    nodes = tuple(GroupNode(one.node, one.address) for one in leader.nodes[: NODES_MAX + 1])
    return GroupLeader(leader.group_id, leader.node, leader.epoch, leader.role, nodes)


def _config_from_wire(config: common_pb2.ConfigSummary) -> ConfigSummary:
    return ConfigSummary(config.id, config.owner, config.generation, config.mark, config.version)


def topics_from_wire(topics: Iterable[common_pb2.TopicRoute]) -> Iterator[TopicFields]:
    return (
        (topic.topic, topic.queue_count, topic.message_type, _placement_from_wire(topic)) for topic in topics
    )


def _placement_from_wire(topic: common_pb2.TopicRoute) -> Placement:
    """Equal names are one object, as long as there is a route with them."""
    found = topic.placement
    return tuple(sorted((intern(broker), queues) for broker, queues in found.items())) if found else ()


def route_to_wire(route: BrokerRoute) -> common_pb2.BrokerRoute:
    return common_pb2.BrokerRoute(broker=_broker_to_wire(route), topics=_topics_to_wire(route.topics.items()))


def changed_route_to_wire(route: BrokerRoute, names: Iterable[str]) -> common_pb2.BrokerRoute:
    """The broker with those of the named topics that it has, and the names of the others."""
    topics = [(name, route.topics.get(name)) for name in names]
    return common_pb2.BrokerRoute(
        broker=_broker_to_wire(route),
        topics=_topics_to_wire((name, topic) for name, topic in topics if topic is not None),
        removed_topics=[name for name, topic in topics if topic is None],
    )


def routes_to_wire(routes: Iterable[BrokerRoute]) -> Generator[None, None, bytes]:
    """The bytes of a ClusterReply with the routes, made in steps: protobuf joins messages of one type that
    follow each other."""
    wire = bytearray()
    for route in routes:
        wire += yield from _route_to_wire(route)
    return bytes(wire)


def _route_to_wire(route: BrokerRoute) -> Generator[None, None, bytes]:
    parts = [common_pb2.BrokerRoute(broker=_broker_to_wire(route)).SerializeToString()]
    for some in _in_steps(dict(route.topics).items()):  # others may run, and change them, between two steps
        parts.append(common_pb2.BrokerRoute(topics=_topics_to_wire(some)).SerializeToString())
        yield
    whole = b"".join(parts)
    return _BROKERS_TAG + write_varint(len(whole)) + whole


def _in_steps(topics: Iterable[tuple[str, TopicRoute]]) -> Iterator[list[tuple[str, TopicRoute]]]:
    some, work = list[tuple[str, TopicRoute]](), 0
    for name, route in topics:
        some.append((name, route))
        work += work_of(route)
        if work >= TOPICS_A_STEP:
            yield some
            some, work = [], 0
    if some:
        yield some


def _topics_to_wire(topics: Iterable[tuple[str, TopicRoute]]) -> Iterator[common_pb2.TopicRoute]:
    return (
        common_pb2.TopicRoute(
            topic=name,
            queue_count=route.queue_count,
            message_type=route.message_type,
            placement=dict(route.placement) if route.placement else None,
        )
        for name, route in topics
    )


def _broker_to_wire(route: BrokerRoute) -> common_pb2.BrokerInfo:
    broker = route.broker
    return common_pb2.BrokerInfo(
        cluster=broker.cluster,
        name=broker.name,
        address=broker.address,
        store_host_ipv6=broker.store_host_ipv6,
        append_property_crc=broker.append_property_crc,
        body_size_max=broker.body_size_max,
        batch_size_max=broker.batch_size_max,
        data_version=route.data_version,
        flush_mode=broker.flush_mode,
        version=broker.version,
        tls_address=broker.tls_address,
        draining=broker.draining,
        drained=broker.drained,
        topics_left_out=broker.topics_left_out,
        config=None if broker.config is None else _config_to_wire(broker.config),
        leader=None if broker.leader is None else _leader_to_wire(broker.leader),
    )


def _leader_to_wire(leader: GroupLeader) -> common_pb2.GroupLeader:
    return common_pb2.GroupLeader(
        group_id=leader.group_id,
        node=leader.node,
        epoch=leader.epoch,
        role=leader.role,
        nodes=[common_pb2.GroupNode(node=one.node, address=one.address) for one in leader.nodes],
    )


def _config_to_wire(config: ConfigSummary) -> common_pb2.ConfigSummary:
    return common_pb2.ConfigSummary(
        id=config.id,
        owner=config.owner,
        generation=config.generation,
        mark=config.mark,
        version=config.version,
    )


def lost_to_wire(lost: LostBroker, topic_counts: tuple[int, int], now: int) -> route_pb2.LostBroker:
    topics, topics_alone = topic_counts
    return route_pb2.LostBroker(
        name=lost.broker.name,
        cluster=lost.broker.cluster,
        address=lost.broker.address,
        lost_ms=now - lost.lost_at,
        topics=topics,
        topics_alone=topics_alone,
    )
