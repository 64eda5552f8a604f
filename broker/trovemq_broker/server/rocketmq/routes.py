"""Routes to a topic's queues: QueryRoute, and QueryAssignment for push consumers (wire/routes.py).

The ids are 0, 1, … in this order. A queue's permission is that of the topic and of its number: the counts for
reading and writing may differ; while the broker is drained it is only for reading.

The route has this broker's queues only: it does not have the v2 addresses of other brokers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_broker.server.wire.conversion import converted
from trovemq_broker.server.wire.routes import (
    Route,
    RouteQuery,
    assignment_query,
    assignment_reply,
    route_query,
    route_reply,
)
from trovemq_broker.server.wire.statuses import Context
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import ANY_QUEUE, QueueId
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.queues import queue_ids
from trovemq_store.topics.topics import PERM_READ, PERM_WRITE, TopicConfig


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

    def __init__(self, core: BrokerCore, offers_writes: Callable[[], bool]) -> None:
        self._core = core
        self._offers_writes = offers_writes

    @converted(route_query, route_reply)
    async def query_route(self, query: RouteQuery, _context: Context) -> Route:
        """Raises TOPIC_ILLEGAL, TOPIC_NOT_FOUND, ILLEGAL_ACCESS_POINT."""
        config = require_topic(self._core.store, query.topic)
        _check_endpoints(query)
        count = max(config.queue_count, config.write_queue_count)
        return self._route(config, list(map(QueueId, range(count))))

    @converted(assignment_query, assignment_reply)
    async def query_assignment(self, query: RouteQuery, _context: Context) -> Route:
        """Every client of a group gets all queues: the receive decides which client gets a message.

        Raises TOPIC_ILLEGAL, GROUP_ILLEGAL, TOPIC_NOT_FOUND, GROUP_NOT_FOUND, PERMISSION_MISSING,
        ILLEGAL_ACCESS_POINT.
        """
        name = query.topic
        config = require_topic(self._core.store, name)
        _check_endpoints(query)
        if not config.readable or not config.queue_count:
            raise TroveError(errors.PERMISSION_MISSING, f"no queue of topic {name} can be read", topic=name)
        orderly = self._core.group_for_use(query.group, (name,)).orderly
        return self._route(config, list(map(QueueId, range(config.queue_count))) if orderly else [ANY_QUEUE])

    def _route(self, config: TopicConfig, numbers: Sequence[QueueId]) -> Route:
        queues = [(queue_id, self._permission(config, queue_id)) for queue_id in numbers]
        return Route(config, queues, self._core.broker, self._core.advertised)

    def _permission(self, config: TopicConfig, queue_id: QueueId) -> int:
        """The permission of a queue; for ANY_QUEUE that of the topic."""
        bits = config.perm & PERM_READ if queue_id < config.queue_count else 0
        if queue_id < config.write_queue_count and self._offers_writes():
            bits |= config.perm & PERM_WRITE
        return bits


def _check_endpoints(query: RouteQuery) -> None:
    if query.endpoints_error is not None:
        raise query.endpoints_error
