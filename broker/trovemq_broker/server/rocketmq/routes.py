"""Routes to a topic's queues: QueryRoute, and QueryAssignment for push consumers (wire/routes.py).

A route has the queues of this broker and of the cluster's others that have the topic, each with the address
of its broker: that for TLS if the client came by TLS.

| queue of           | permission                                                                           |
|--------------------|--------------------------------------------------------------------------------------|
| this broker        | that of the topic and of its number: the counts for reading and writing may differ;  |
|                    | only for reading while the broker is drained                                         |
| another broker     | that of the topic here, if this broker has it, else for both; only for reading while |
|                    | that broker is drained                                                               |

A client that came by an address that no broker advertises (a forwarded port) may not reach the other ones. So
its route has the queues of this broker only, at the address by which it came.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_broker.server.core.other_brokers import NO_OTHERS, OtherBrokers, OtherQueues
from trovemq_broker.server.wire.conversion import converted
from trovemq_broker.server.wire.routes import (
    BrokerQueues,
    Route,
    RouteQuery,
    assignment_query,
    assignment_reply,
    route_query,
    route_reply,
    topic_route_data,
)
from trovemq_broker.server.wire.statuses import Context
from trovemq_daemon.addresses import Address
from trovemq_daemon.logging import get_logger
from trovemq_daemon.peers import came_by_tls
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import ANY_QUEUE, QueueId
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.queues import queue_ids
from trovemq_store.topics.topics import PERM_READ, PERM_WRITE, TopicConfig

WARNED_MAX: Final = 16
NAMES_SHOWN_MAX: Final = 5


def require_topic(store: MessageStore, name: str) -> TopicConfig:
    """The topic's configuration; a topic that is not in the table, but has queues, can be read.
    TOPIC_NOT_FOUND."""
    config = store.topics.get(name)
    if config is not None:
        return config
    count = max(queue_ids(store, name)) + 1
    return TopicConfig(name, count, 0, perm=PERM_READ, message_type="UNSPECIFIED")


class _Other(NamedTuple):
    """The queues of another broker, and the address at which the client reaches it."""

    queues: OtherQueues
    address: Address


class Routes:
    """`offers_writes`: whether routes may offer queues of this broker for writing. `tls_address`: the one it
    advertises for TLS, None if there is none."""

    def __init__(
        self,
        core: BrokerCore,
        offers_writes: Callable[[], bool],
        others: OtherBrokers = NO_OTHERS,
        tls_address: Address | None = None,
    ) -> None:
        self._core = core
        self._offers_writes = offers_writes
        self._others = others
        self._tls_address = tls_address
        self._warned: set[str] = set()

    @converted(route_query, route_reply)
    async def query_route(self, query: RouteQuery, context: Context) -> Route:
        """Raises TOPIC_ILLEGAL, TOPIC_NOT_FOUND, ILLEGAL_ACCESS_POINT."""
        config, others, address = self._found(query, context)
        found = [_queues_of(one, config, _numbers(one.queues.queue_count)) for one in others]
        if config is not None:
            count = max(config.queue_count, config.write_queue_count)
            found.append(self._own_queues(config, _numbers(count), address))
        return _by_name(found)

    @converted(assignment_query, assignment_reply)
    async def query_assignment(self, query: RouteQuery, context: Context) -> Route:
        """Every client of a group gets all queues: the receive decides which client gets a message.

        Raises TOPIC_ILLEGAL, GROUP_ILLEGAL, TOPIC_NOT_FOUND, GROUP_NOT_FOUND, PERMISSION_MISSING,
        ILLEGAL_ACCESS_POINT.
        """
        config, others, address = self._found(query, context)
        count = config.queue_count if config is not None and config.readable else 0
        readable = [one for one in others if one.queues.queue_count and (config is None or config.readable)]
        if not count and not readable:
            raise TroveError(
                errors.PERMISSION_MISSING, f"no queue of topic {query.topic} can be read", topic=query.topic
            )
        numbers = _numbers if self._is_orderly(query, config, readable) else _any_queue
        found = [_queues_of(one, config, numbers(one.queues.queue_count)) for one in readable]
        if config is not None and count:
            found.append(self._own_queues(config, numbers(count), address))
        return _by_name(found)

    def data_of(self, name: str) -> dict[str, object]:
        """RocketMQ's TopicRouteData, with the addresses of plain connections. Raises TOPIC_NOT_FOUND."""
        config, others = self._held(name)
        found = [_queues_of(_Other(one, one.address), config, _numbers(one.queue_count)) for one in others]
        if config is not None:
            count = max(config.queue_count, config.write_queue_count)
            found.append(self._own_queues(config, _numbers(count), self._core.advertised))
        cluster = self._core.store.settings.cluster
        return topic_route_data(cluster, _by_name(found).brokers)

    # --- the brokers ----------------------------------------------------------------------------------
    def _held(self, name: str) -> tuple[TopicConfig | None, Sequence[OtherQueues]]:
        """The topic here, and at the others. Raises TOPIC_NOT_FOUND if no broker has it."""
        others = self._others.holding(name)
        try:
            return require_topic(self._core.store, name), others
        except TroveError:
            if not others:
                raise
            return None, others

    def _found(
        self, query: RouteQuery, context: Context
    ) -> tuple[TopicConfig | None, Sequence[_Other], Address | None]:
        """The topic here, its queues at the other brokers that the client can reach, and the address of this
        broker for it: None is the one by which it came. Raises TOPIC_NOT_FOUND, ILLEGAL_ACCESS_POINT."""
        name = query.topic
        config, others = self._held(name)
        if query.endpoints_error is not None:
            raise query.endpoints_error
        by_tls = came_by_tls(context)
        address = self._own_address(by_tls)
        if not self._is_advertised(query.dialled, address, by_tls):
            return self._alone(query, config, others, address)
        reached = [
            _Other(one, at)
            for one in others
            if (at := self._tls_address_of(one) if by_tls else one.address) is not None
        ]
        if config is None and not reached:
            raise TroveError(
                errors.TOPIC_NOT_FOUND,
                f"topic {name} is on brokers without TLS only: give them tls_listen, or connect without TLS",
                topic=name,
            )
        return config, reached, address

    def _own_address(self, by_tls: bool) -> Address:
        return self._tls_address if by_tls and self._tls_address is not None else self._core.advertised

    def _is_advertised(self, dialled: Sequence[Address], own: Address, by_tls: bool) -> bool:
        return not dialled or any(
            one.canonical == own.canonical or self._others.advertises(one, by_tls=by_tls) for one in dialled
        )

    def _alone(
        self,
        query: RouteQuery,
        config: TopicConfig | None,
        others: Sequence[OtherQueues],
        address: Address,
    ) -> tuple[TopicConfig, Sequence[_Other], None]:
        """This broker only, for a client that came by an address that is not advertised."""
        dialled = "; ".join(map(str, query.dialled[:NAMES_SHOWN_MAX]))
        if others:
            self._warn(
                "route.address_not_advertised",
                dialled,
                advertised=str(address),
                message="clients that connect to this address get the queues of this broker only",
            )
        if config is None:
            names = ", ".join(one.broker for one in others[:NAMES_SHOWN_MAX])
            raise TroveError(
                errors.TOPIC_NOT_FOUND,
                f"topic {query.topic} is not on this broker but on {names}, and {dialled} is not advertised:"
                f" connect to an address that a broker advertises, such as {address}",
                topic=query.topic,
            )
        return config, (), None

    def _tls_address_of(self, one: OtherQueues) -> Address | None:
        if one.tls_address is None:
            self._warn(
                "route.no_tls_address",
                one.broker,
                message="clients that connect by TLS do not get this broker's queues: it has no tls_listen",
            )
        return one.tls_address

    def _warn(self, event: str, subject: str, **fields: str) -> None:
        """Logs once for each subject, as long as there is space to remember that."""
        if subject not in self._warned and len(self._warned) < WARNED_MAX:
            self._warned.add(subject)
            get_logger().warning(event, subject=subject, **fields)

    def _is_orderly(self, query: RouteQuery, config: TopicConfig | None, others: Sequence[_Other]) -> bool:
        """Whether the group receives each queue in its order. A group of a topic that is not here is not
        created here: only a broker that has the topic knows which kind of group it needs."""
        core = self._core
        if config is not None:
            return core.group_for_use(query.group, (query.topic,)).orderly
        group = core.groups.get(query.group)
        if group is not None:
            return group.orderly
        return core.settings.fifo_group_orderly and any(one.queues.message_type == "FIFO" for one in others)

    # --- their queues ---------------------------------------------------------------------------------
    def _own_queues(
        self, config: TopicConfig, numbers: Sequence[QueueId], address: Address | None
    ) -> BrokerQueues:
        queues = [(queue_id, self._permission(config, queue_id)) for queue_id in numbers]
        return BrokerQueues(self._core.broker, address, config, queues)

    def _permission(self, config: TopicConfig, queue_id: QueueId) -> int:
        """The permission of a queue; for ANY_QUEUE that of the topic."""
        bits = config.perm & PERM_READ if queue_id < config.queue_count else 0
        if queue_id < config.write_queue_count and self._offers_writes():
            bits |= config.perm & PERM_WRITE
        return bits


def _queues_of(other: _Other, config: TopicConfig | None, numbers: Sequence[QueueId]) -> BrokerQueues:
    """`config`: of the topic at this broker."""
    one = other.queues
    if config is None or config.message_type != one.message_type:
        config = TopicConfig("", message_type=one.message_type)
    topic = replace(config, queue_count=one.queue_count, write_queue_count=one.queue_count)
    bits = topic.perm & (PERM_READ if one.draining else PERM_READ | PERM_WRITE)
    return BrokerQueues(one.broker, other.address, topic, [(queue_id, bits) for queue_id in numbers])


def _numbers(count: int) -> Sequence[QueueId]:
    return list(map(QueueId, range(count)))


def _any_queue(_count: int) -> Sequence[QueueId]:
    return [ANY_QUEUE]


def _by_name(found: Sequence[BrokerQueues]) -> Route:
    return Route(sorted(found, key=lambda one: one.broker))
