"""QueryRoute and QueryAssignment: requests to commands, results to replies.

| field                | value                                                                               |
|----------------------|-------------------------------------------------------------------------------------|
| topic                | as in the request                                                                   |
| broker.name, id      | this broker's name; 0, because clients skip other ids                               |
| broker.endpoints     | those of the request, because the client has just reached this broker by them;      |
|                      | if it has none, the address that the broker advertises                              |
| accept_message_types | by the topic's type; never empty, because no client would send then                 |
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    """topic: the stored name. group: "" in a QueryRoute. endpoints_error: why the addresses by which the
    client has reached the broker are illegal."""

    topic: str
    group: str
    endpoints_error: ProtocolError | None


class Route(NamedTuple):
    """queues: ids, each with its bits of PERM_READ and PERM_WRITE."""

    topic: TopicConfig
    queues: Sequence[tuple[QueueId, int]]
    broker: str
    advertised: Address


def route_query(request: service_pb2.QueryRouteRequest) -> RouteQuery:
    """Raises TroveError TOPIC_ILLEGAL."""
    return RouteQuery(topic_to_read(request.topic), "", _endpoints_error(request.endpoints))


def assignment_query(request: service_pb2.QueryAssignmentRequest) -> RouteQuery:
    """Raises TroveError TOPIC_ILLEGAL, GROUP_ILLEGAL."""
    topic, group = topic_to_read(request.topic), group_name(request.group)
    return RouteQuery(topic, group, _endpoints_error(request.endpoints))


def _endpoints_error(endpoints: v2.Endpoints) -> ProtocolError | None:
    try:
        if endpoints.ByteSize():
            check_endpoints(endpoints)
    except ProtocolError as error:
        return error
    return None


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
    endpoints = came_by if came_by.ByteSize() else endpoints_of(route.advertised)
    broker = v2.Broker(name=route.broker, id=MASTER_ID, endpoints=endpoints)
    types = message_types(route.topic)
    for queue_id, permission in route.queues:
        yield v2.MessageQueue(
            topic=topic,
            id=queue_id,
            permission=_PERMISSIONS[permission],
            broker=broker,
            accept_message_types=types,
        )
