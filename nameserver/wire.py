"""Translates between the route table's values and protobuf messages; the table itself has no protobuf."""

from __future__ import annotations

from collections.abc import Iterable

from nameserver.routes import Broker, BrokerRoute, LostBroker, TopicRoute
from trovemq_proto.v1 import common_pb2, route_pb2


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


def topics_from_wire(topics: Iterable[common_pb2.TopicRoute]) -> list[TopicRoute]:
    return [TopicRoute(topic.topic, topic.queue_count, topic.message_type) for topic in topics]


def route_to_wire(route: BrokerRoute) -> common_pb2.BrokerRoute:
    broker = route.broker
    info = common_pb2.BrokerInfo(
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
    topics = [
        common_pb2.TopicRoute(
            topic=topic.topic, queue_count=topic.queue_count, message_type=topic.message_type
        )
        for topic in route.topics.values()
    ]
    return common_pb2.BrokerRoute(broker=info, topics=topics)


def lost_to_wire(lost: LostBroker, live_topics: set[str], now: int) -> route_pb2.LostBroker:
    return route_pb2.LostBroker(
        name=lost.broker.name,
        cluster=lost.broker.cluster,
        address=lost.broker.address,
        lost_ms=now - lost.lost_at,
        topics=len(lost.topics),
        topics_alone=len(lost.topics - live_topics),
    )
