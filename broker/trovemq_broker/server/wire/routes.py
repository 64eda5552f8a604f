"""QueryRoute and QueryAssignment: requests to commands, results to replies.

| field                | value                                                                               |
|----------------------|-------------------------------------------------------------------------------------|
| topic                | as in the request                                                                   |
| broker.name, id      | the broker's name; 0, because clients skip other ids                                |
| broker.endpoints     | the address that the broker advertises; those of the request if the client came by  |
|                      | others                                                                              |
| accept_message_types | by the topic's type; never empty, because no client would send then                 |

The queues are ordered by id, then by broker: clients take one after the other, and so change the broker.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from operator import or_
from typing import Final, NamedTuple

from trovemq_broker.server.wire.resources import (
    check_endpoints,
    endpoints_of,
    group_name,
    message_types,
    topic_to_read,
)
from trovemq_broker.server.wire.statuses import OK_STATUS, ProtocolError
from trovemq_daemon.addresses import Address
from trovemq_proto.positions import QueueId
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2
from trovemq_store.topics.topics import PERM_READ, PERM_WRITE, TopicConfig

MASTER_ID: Final = 0

_PERMISSIONS: Final = {
    0: v2.NONE,
    PERM_READ: v2.READ,
    PERM_WRITE: v2.WRITE,
    PERM_READ | PERM_WRITE: v2.READ_WRITE,
}


class RouteQuery(NamedTuple):
    """topic: the stored name. group: "" in a QueryRoute. dialled: the addresses that the client was given, of
    which one has reached this broker; () if it names none. endpoints_error: why they are illegal."""

    topic: str
    group: str
    dialled: Sequence[Address]
    endpoints_error: ProtocolError | None


class BrokerQueues(NamedTuple):
    """A topic on one broker. queues: ids, each with its bits of PERM_READ and PERM_WRITE. address: None for
    the endpoints of the request."""

    broker: str
    address: Address | None
    topic: TopicConfig
    queues: Sequence[tuple[QueueId, int]]


class Route(NamedTuple):
    """The brokers are ordered by name."""

    brokers: Sequence[BrokerQueues]


def route_query(request: service_pb2.QueryRouteRequest) -> RouteQuery:
    """Raises TroveError TOPIC_ILLEGAL."""
    return _query(topic_to_read(request.topic), "", request.endpoints)


def assignment_query(request: service_pb2.QueryAssignmentRequest) -> RouteQuery:
    """Raises TroveError TOPIC_ILLEGAL, GROUP_ILLEGAL."""
    topic, group = topic_to_read(request.topic), group_name(request.group)
    return _query(topic, group, request.endpoints)


def _query(topic: str, group: str, endpoints: v2.Endpoints) -> RouteQuery:
    try:
        if endpoints.ByteSize():
            check_endpoints(endpoints)
    except ProtocolError as error:
        return RouteQuery(topic, group, (), error)
    return RouteQuery(topic, group, [Address(one.host, one.port) for one in endpoints.addresses], None)


def route_reply(request: service_pb2.QueryRouteRequest, route: Route) -> service_pb2.QueryRouteResponse:
    """All queues of the topic, in their order: clients map message groups to positions in the list."""
    return service_pb2.QueryRouteResponse(
        status=OK_STATUS, message_queues=list(_queues(request.topic, request.endpoints, route))
    )


def assignment_reply(
    request: service_pb2.QueryAssignmentRequest, route: Route
) -> service_pb2.QueryAssignmentResponse:
    """The queues that the client receives from."""
    return service_pb2.QueryAssignmentResponse(
        status=OK_STATUS,
        assignments=[
            v2.Assignment(message_queue=queue) for queue in _queues(request.topic, request.endpoints, route)
        ],
    )


def _queues(topic: v2.Resource, came_by: v2.Endpoints, route: Route) -> Iterator[v2.MessageQueue]:
    brokers = [
        v2.Broker(
            name=one.broker,
            id=MASTER_ID,
            endpoints=came_by if one.address is None else endpoints_of(one.address),
        )
        for one in route.brokers
    ]
    types = [message_types(one.topic) for one in route.brokers]
    places = sorted(
        (queue_id, place, permission)
        for place, one in enumerate(route.brokers)
        for queue_id, permission in one.queues
    )
    for queue_id, place, permission in places:
        yield v2.MessageQueue(
            topic=topic,
            id=queue_id,
            permission=_PERMISSIONS[permission],
            broker=brokers[place],
            accept_message_types=types[place],
        )


def topic_route_data(cluster: str, brokers: Sequence[BrokerQueues]) -> dict[str, object]:
    """RocketMQ's TopicRouteData, as its JSON has it."""
    return {
        "brokerDatas": [
            {
                "brokerAddrs": {str(MASTER_ID): str(one.address)},
                "brokerName": one.broker,
                "cluster": cluster,
            }
            for one in brokers
        ],
        "filterServerTable": {},
        "queueDatas": [
            {
                "brokerName": one.broker,
                "perm": _all_bits(one.queues),
                "readQueueNums": one.topic.queue_count,
                "topicSysFlag": one.topic.topic_sys_flag,
                "writeQueueNums": one.topic.write_queue_count,
            }
            for one in brokers
        ],
    }


def _all_bits(queues: Sequence[tuple[QueueId, int]]) -> int:
    return reduce(or_, (bits for _, bits in queues), 0)
