"""Routes to a topic's queues: QueryRoute, and QueryAssignment for push consumers.

| field                | value                                                                               |
|----------------------|-------------------------------------------------------------------------------------|
| topic                | as in the request                                                                   |
| id                   | 0, 1, … in this order: clients map message groups to positions in the list          |
| permission           | permission of topic and queue number; the counts for reading and writing may        |
|                      | differ; only reading while the broker is drained                                    |
| broker.name, id      | this broker's name; 0, because clients skip other ids                               |
| broker.endpoints     | those of the request, because the client has just reached this broker by them;      |
|                      | if it has none, the address that the broker advertises                              |
| accept_message_types | by the topic's type; never empty, because no client would send then                 |

The route has this broker's queues only: it does not have the v2 addresses of other brokers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_broker.server.wire.resources import (
    check_endpoints,
    endpoints_of,
    group_name,
    message_types,
    topic_to_read,
)
from trovemq_broker.server.wire.statuses import OK_STATUS, Context
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import ANY_QUEUE, QueueId
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.queues import queue_ids
from trovemq_store.topics.topics import PERM_READ, PERM_WRITE, TopicConfig

MASTER_ID: Final = 0

_PERMISSIONS: Final = {
    0: v2.NONE,
    PERM_READ: v2.READ,
    PERM_WRITE: v2.WRITE,
    PERM_READ | PERM_WRITE: v2.READ_WRITE,
}


def require_topic(store: MessageStore, name: str) -> TopicConfig:
    """The topic's configuration; a topic that is not in the table, but has queues, can be read.
    TOPIC_NOT_FOUND."""
    config = store.topics.get(name)
    if config is not None:
        return config
    count = max(queue_ids(store, name)) + 1
    return TopicConfig(name, count, 0, perm=PERM_READ, message_type="UNSPECIFIED")


class Routes:
    """`offers_writes`: whether routes may offer queues for writing."""

    def __init__(self, parts: BrokerCore, offers_writes: Callable[[], bool]) -> None:
        self._parts = parts
        self._offers_writes = offers_writes
        self._advertised = endpoints_of(parts.advertised)

    async def query_route(
        self, request: service_pb2.QueryRouteRequest, _context: Context
    ) -> service_pb2.QueryRouteResponse:
        """Raises TOPIC_ILLEGAL, TOPIC_NOT_FOUND, ILLEGAL_ACCESS_POINT."""
        config = require_topic(self._parts.store, topic_to_read(request.topic))
        broker = self._broker(request.endpoints)
        types = message_types(config)
        return service_pb2.QueryRouteResponse(
            status=OK_STATUS,
            message_queues=[
                v2.MessageQueue(
                    topic=request.topic,
                    id=queue_id,
                    permission=self._permission(config, queue_id),
                    broker=broker,
                    accept_message_types=types,
                )
                for queue_id in map(QueueId, range(max(config.queue_count, config.write_queue_count)))
            ],
        )

    async def query_assignment(
        self, request: service_pb2.QueryAssignmentRequest, _context: Context
    ) -> service_pb2.QueryAssignmentResponse:
        """Every client of a group gets all queues: the receive decides which client gets a message.

        Raises TOPIC_ILLEGAL, GROUP_ILLEGAL, TOPIC_NOT_FOUND, GROUP_NOT_FOUND, PERMISSION_MISSING,
        ILLEGAL_ACCESS_POINT.
        """
        name, group = topic_to_read(request.topic), group_name(request.group)
        config = require_topic(self._parts.store, name)
        broker = self._broker(request.endpoints)
        if not config.readable or not config.queue_count:
            raise TroveError(errors.PERMISSION_MISSING, f"no queue of topic {name} can be read", topic=name)
        orderly = self._parts.group_for_use(group, (name,)).orderly
        numbers = list(map(QueueId, range(config.queue_count))) if orderly else [ANY_QUEUE]
        types = message_types(config)
        return service_pb2.QueryAssignmentResponse(
            status=OK_STATUS,
            assignments=[
                v2.Assignment(
                    message_queue=v2.MessageQueue(
                        topic=request.topic,
                        id=queue_id,
                        permission=self._permission(config, queue_id),
                        broker=broker,
                        accept_message_types=types,
                    )
                )
                for queue_id in numbers
            ],
        )

    def _permission(self, config: TopicConfig, queue_id: QueueId) -> v2.Permission:
        """The permission of a queue; for ANY_QUEUE that of the topic."""
        bits = config.perm & PERM_READ if queue_id < config.queue_count else 0
        if queue_id < config.write_queue_count and self._offers_writes():
            bits |= config.perm & PERM_WRITE
        return _PERMISSIONS[bits]

    def _broker(self, came_by: v2.Endpoints) -> v2.Broker:
        if came_by.ByteSize():
            check_endpoints(came_by)
            endpoints = came_by
        else:
            endpoints = self._advertised
        return v2.Broker(name=self._parts.broker, id=MASTER_ID, endpoints=endpoints)
