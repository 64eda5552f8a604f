"""Translates between the route table's values and protobuf messages; the table itself has no protobuf."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from itertools import islice
from typing import Final

from trovemq_nameserver.routes import TOPICS_A_STEP, Broker, BrokerRoute, LostBroker, TopicRoute
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
    )


def topics_from_wire(topics: Iterable[common_pb2.TopicRoute]) -> Iterator[TopicRoute]:
    return (TopicRoute(topic.topic, topic.queue_count, topic.message_type) for topic in topics)


def route_to_wire(route: BrokerRoute) -> common_pb2.BrokerRoute:
    topics = map(_topic_to_wire, route.topics.values())
    return common_pb2.BrokerRoute(broker=_broker_to_wire(route), topics=topics)


def routes_to_wire(routes: Iterable[BrokerRoute]) -> Generator[None, None, bytes]:
    """The bytes of a ClusterReply with the routes, made in steps: protobuf joins messages of one type that
    follow each other."""
    wire = bytearray()
    for route in routes:
        wire += yield from _route_to_wire(route)
    return bytes(wire)


def _route_to_wire(route: BrokerRoute) -> Generator[None, None, bytes]:
    parts = [common_pb2.BrokerRoute(broker=_broker_to_wire(route)).SerializeToString()]
    topics = iter(route.topics.values())
    while some := list(islice(topics, TOPICS_A_STEP)):
        parts.append(common_pb2.BrokerRoute(topics=map(_topic_to_wire, some)).SerializeToString())
        yield
    whole = b"".join(parts)
    return _BROKERS_TAG + write_varint(len(whole)) + whole


def _topic_to_wire(topic: TopicRoute) -> common_pb2.TopicRoute:
    return common_pb2.TopicRoute(
        topic=topic.topic, queue_count=topic.queue_count, message_type=topic.message_type
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
    )


def lost_to_wire(lost: LostBroker, topics_alone: int, now: int) -> route_pb2.LostBroker:
    return route_pb2.LostBroker(
        name=lost.broker.name,
        cluster=lost.broker.cluster,
        address=lost.broker.address,
        lost_ms=now - lost.lost_at,
        topics=len(lost.topics),
        topics_alone=topics_alone,
    )
