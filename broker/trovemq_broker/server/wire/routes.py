"""QueryRoute and QueryAssignment: requests to commands, results to replies.

| field                | value                                                                               |
|----------------------|-------------------------------------------------------------------------------------|
| topic                | as in the request                                                                   |
| broker.name, id      | the broker's name; 0, because clients skip other ids                                |
| broker.endpoints     | the address that the broker advertises; those of the request if the client came by  |
|                      | others                                                                              |
| accept_message_types | by the topic's type; never empty, because no client would send then                 |
| id                   | the queue's number; of a broker that is away AWAY_FIRST more, which its sends name  |

The queues are ordered by id, then by broker: clients take one after the other, and so change the broker.

A route may have thousands of queues, each with its topic and broker. So replies are put together from bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache, reduce
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
from trovemq_proto.remoting.bodies import RoutedQueues, topic_route_data
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2
from trovemq_proto.varints import write_varint
from trovemq_store.topics.topics import PERM_READ, PERM_WRITE, TopicConfig

MASTER_ID: Final = 0
AWAY_FIRST: Final = 1 << 30
"""More than any number of a queue. The first id of queues that belong to a broker which is away."""
NUMBERS_KEPT: Final = 4_096  # of queues, with their permission: 400 KB
BROKERS_KEPT: Final = 4_096  # with their addresses and types of topics: 2 MB

_QUEUES: Final = service_pb2.QueryRouteResponse.MESSAGE_QUEUES_FIELD_NUMBER
_ASSIGNMENTS: Final = service_pb2.QueryAssignmentResponse.ASSIGNMENTS_FIELD_NUMBER
_QUEUE: Final = v2.Assignment.MESSAGE_QUEUE_FIELD_NUMBER

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
    the endpoints of the request. first_id: the id of its queue 0. nodes: where the other nodes of its replica
    group are, which forward calls to it."""

    broker: str
    address: Address | None
    topic: TopicConfig
    queues: Sequence[tuple[QueueId, int]]
    first_id: int = 0
    nodes: tuple[Address, ...] = ()


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
    reply = service_pb2.QueryRouteResponse(status=OK_STATUS)
    reply.MergeFromString(_repeated(_QUEUES, _queues(request.topic, request.endpoints, route)))
    return reply


def assignment_reply(
    request: service_pb2.QueryAssignmentRequest, route: Route
) -> service_pb2.QueryAssignmentResponse:
    """The queues that the client receives from."""
    queues = _queues(request.topic, request.endpoints, route)
    reply = service_pb2.QueryAssignmentResponse(status=OK_STATUS)
    reply.MergeFromString(_repeated(_ASSIGNMENTS, (_repeated(_QUEUE, (queue,)) for queue in queues)))
    return reply


def _queues(topic: v2.Resource, came_by: v2.Endpoints, route: Route) -> Iterator[bytes]:
    """Each MessageQueue, in parts that are made once: those of the topic, the number, and the broker."""
    start = v2.MessageQueue(topic=topic).SerializeToString()
    ends = [
        _end_at(one.broker, came_by, message_types(one.topic))
        if one.address is None
        else _end(one.broker, (one.address, *one.nodes), message_types(one.topic))
        for one in route.brokers
    ]
    places = sorted(
        (queue_id, place, permission)
        for place, one in enumerate(route.brokers)
        for queue_id, permission in one.queues
    )
    for queue_id, place, permission in places:
        number = QueueId(queue_id + route.brokers[place].first_id)
        yield start + _number(number, permission) + ends[place]


@lru_cache(BROKERS_KEPT)
def _end(broker: str, addresses: tuple[Address, ...], types: tuple[v2.MessageType, ...]) -> bytes:
    """The first address is the broker's. Clients read several IP addresses of one family, and one name."""
    endpoints = endpoints_of(addresses[0])
    for other in addresses[1:]:
        more = endpoints_of(other)
        if more.scheme == endpoints.scheme != v2.DOMAIN_NAME:
            endpoints.addresses.extend(more.addresses)
    return _end_at(broker, endpoints, types)


def _end_at(broker: str, endpoints: v2.Endpoints, types: tuple[v2.MessageType, ...]) -> bytes:
    at = v2.Broker(name=broker, id=MASTER_ID, endpoints=endpoints)
    return v2.MessageQueue(broker=at, accept_message_types=types).SerializeToString()


@lru_cache(NUMBERS_KEPT)
def _number(queue_id: QueueId, permission: int) -> bytes:
    return v2.MessageQueue(id=queue_id, permission=_PERMISSIONS[permission]).SerializeToString()


def _repeated(field_number: int, messages: Iterable[bytes]) -> bytes:
    """The field with these messages."""
    tag = bytes([field_number << 3 | 2])
    return b"".join([tag + write_varint(len(one)) + one for one in messages])


def routed_queues(cluster: str, brokers: Sequence[BrokerQueues]) -> dict[str, object]:
    """RocketMQ's TopicRouteData, as its JSON has it."""
    return topic_route_data(
        [
            RoutedQueues(
                cluster,
                one.broker,
                str(one.address),
                _all_bits(one.queues),
                one.topic.queue_count,
                one.topic.write_queue_count,
                one.topic.topic_sys_flag,
            )
            for one in brokers
        ]
    )


def _all_bits(queues: Sequence[tuple[QueueId, int]]) -> int:
    return reduce(or_, (bits for _, bits in queues), 0)
