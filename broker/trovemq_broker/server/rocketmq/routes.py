"""Routes to a topic's queues: QueryRoute, and QueryAssignment for push consumers (wire/routes.py).

A route has the queues of this broker and of the cluster's others that have the topic, each with the address
of its broker: that for TLS if the client came by TLS.

| queue of           | permission                                                                           |
|--------------------|--------------------------------------------------------------------------------------|
| this broker        | that of the topic and of its number: the counts for reading and writing may differ;  |
|                    | only for reading while the broker is drained                                         |
| another broker     | that of the topic here, if this broker has it, else for both; only for reading while |
|                    | that broker is drained                                                               |
| of a FIFO topic    | for writing wherever its placement says so, also while a broker is drained or away:  |
| with a placement   | clients map message groups to places in the list, so the list stays, and sends wait  |
| a broker without a | only for reading                                                                     |
| place              |                                                                                      |

A broker that is away keeps its places, but not its address: clients in Java and Go do not start while an
address of a route does not answer. So its queues are at this broker, with ids from AWAY_FIRST on, by which a
send is refused with FIFO_BROKER_AWAY. Three languages differ:

| client | its sends for a broker that is away                                                              |
|--------|--------------------------------------------------------------------------------------------------|
| Python | name no queue; it starts without that address: so it gets the address, and they fail             |
| Go     | name no queue: they are stored here, so that these message groups move while the broker is away  |
| NodeJS | it uses queues with id 0 alone: it gets the plain ids, and these message groups move as for Go   |

An assignment has no queues of brokers that are away: there is nothing to receive there now.

A client that came by an address that no broker advertises (a forwarded port) may not reach the other ones. So
its route has every queue at the address by which it came, and this broker forwards its calls (forwards.py).
A broker that cannot forward shows its own queues only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_broker.server.core.other_brokers import (
    NO_OTHERS,
    NO_PLACEMENT,
    OtherBrokers,
    OtherQueues,
    no_placement,
)
from trovemq_broker.server.rocketmq.forwards import Forwards
from trovemq_broker.server.wire.conversion import converted
from trovemq_broker.server.wire.routes import (
    AWAY_FIRST,
    BrokerQueues,
    Route,
    RouteQuery,
    assignment_query,
    assignment_reply,
    route_query,
    route_reply,
    routed_queues,
)
from trovemq_broker.server.wire.statuses import Context, metadata_value
from trovemq_daemon.addresses import Address
from trovemq_daemon.logging import get_logger
from trovemq_daemon.peers import came_by_tls
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import ANY_QUEUE, QueueId
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.queues import queue_ids
from trovemq_store.topics.topics import PERM_READ, PERM_WRITE, TopicConfig

FIFO: Final = "FIFO"
LANGUAGE_KEY: Final = "x-mq-language"
STARTS_ALONE: Final = "PYTHON"
READS_ID_0: Final = "HTTP"
"""The language that clients for NodeJS name."""
SEVERAL_BY_TLS: Final = ("JAVA", "GO")
"""Clients that call a broker of several addresses by TLS; others look for all of them in its certificate."""
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
    """The queues of another broker, and the address at which the client reaches it: None is the one by which
    it came. first_id: the id of its queue 0."""

    queues: OtherQueues
    address: Address | None
    first_id: int = 0


class _Away(NamedTuple):
    """A broker of a placement that is away."""

    broker: str
    address: Address
    placement: Mapping[str, int]
    tls_address: Address | None = None
    draining: bool = False
    queue_count: int = 0
    message_type: str = FIFO


class Routes:
    """`offers_writes`: whether routes may offer queues of this broker for writing. `tls_address`: the one it
    advertises for TLS, None if there is none. `forwards`: to other brokers, None: this broker cannot.
    `nodes`: the addresses of the other nodes of its replica group; by TLS: those that are known."""

    def __init__(
        self,
        core: BrokerCore,
        offers_writes: Callable[[], bool],
        others: OtherBrokers = NO_OTHERS,
        tls_address: Address | None = None,
        placement_of: Callable[[str], Mapping[str, int]] = no_placement,
        forwards: Forwards | None = None,
        nodes: Callable[[bool], Sequence[Address]] = lambda _by_tls: (),
    ) -> None:
        self._core = core
        self._forwards = forwards
        self._nodes = nodes
        self._placement_of = placement_of
        self._offers_writes = offers_writes
        self._others = others
        self._tls_address = tls_address
        self._warned: set[str] = set()

    @converted(route_query, route_reply)
    async def query_route(self, query: RouteQuery, context: Context) -> Route:
        """Raises TOPIC_ILLEGAL, TOPIC_NOT_FOUND, ILLEGAL_ACCESS_POINT."""
        config, others, address = self._found(query, context)
        return self._route(query.topic, config, others, address)

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
        there = self._elsewhere(query.topic, config)
        found = [_queues_of(one, there, numbers(one.queues.queue_count), NO_PLACEMENT) for one in readable]
        if config is not None and count:
            found.append(self._own_queues(config, numbers(count), address, NO_PLACEMENT))
        return _by_name(found)

    def data_of(self, name: str) -> dict[str, object]:
        """RocketMQ's TopicRouteData, with the addresses of plain connections. Raises TOPIC_NOT_FOUND."""
        config, others = self._held(name)
        reached = [_Other(one, one.address) for one in others]
        cluster = self._core.store.settings.cluster
        return routed_queues(cluster, self._route(name, config, reached, self._core.advertised).brokers)

    # --- the brokers ----------------------------------------------------------------------------------
    def _held(self, name: str) -> tuple[TopicConfig | None, Sequence[OtherQueues]]:
        """The topic here, and at the others. Raises TOPIC_NOT_FOUND if no broker has it."""
        others = self._others.holding(name)
        placement = self._placement(name, others)
        others = [*others, *self._others.without(name, placement)] if placement else others
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
        broker for it: None is the one by which it came. Raises TOPIC_NOT_FOUND, ILLEGAL_ACCESS_POINT.

        Clients that cannot call a broker of several addresses get the one that they called: each node of a
        replica group leads them to its leader, also to the next one."""
        name = query.topic
        config, others = self._held(name)
        if query.endpoints_error is not None:
            raise query.endpoints_error
        by_tls = came_by_tls(context)
        address = self._own_address(by_tls)
        if self._forwards is not None:
            self._forwards.note(context, query.dialled)
        if not self._is_advertised(query.dialled, address, by_tls):
            if self._forwards is None:
                return self._alone(query, config, others, address)
            return config, self._forwarded(name, config, others, self._forwards, by_tls), None
        language = metadata_value(context, LANGUAGE_KEY)
        reached = self._reached(others, by_tls)
        reached += self._away(name, others, reached, address, language)
        if config is None and not reached:
            raise _without_tls(name)
        takes_one = language not in SEVERAL_BY_TLS if by_tls else language == READS_ID_0
        is_own = takes_one and query.dialled and self._nodes(by_tls)
        return config, reached, None if is_own else address

    def _forwarded(
        self,
        topic: str,
        config: TopicConfig | None,
        others: Sequence[OtherQueues],
        forwards: Forwards,
        by_tls: bool,
    ) -> list[_Other]:
        """The other brokers to which the client's calls can be forwarded, at the address by which it came.
        TroveError TOPIC_NOT_FOUND."""
        reached = []
        for one in others:
            if forwards.reaches(one.tls_address, by_tls=by_tls):
                reached.append(_Other(one, None))
            else:
                self._warn(
                    "route.not_forwarded_by_tls",
                    one.broker,
                    message="clients that come by TLS and a forwarded port do not get its queues: it"
                    " needs tls_listen, and this broker nameserver_tls",
                )
        if config is None and not reached:
            raise _without_tls(topic)
        return reached

    def _placement(self, topic: str, others: Sequence[OtherQueues]) -> Mapping[str, int]:
        """The placement of a FIFO topic: as this broker has it, else as most of the others do."""
        config = self._core.store.topics.get(topic)
        if config is not None and config.message_type != FIFO:
            return NO_PLACEMENT
        if own := self._placement_of(topic):
            return own
        known = [one.placement for one in others if one.message_type == FIFO and one.placement]
        return max(known, key=known.count, default=NO_PLACEMENT)

    def _elsewhere(self, topic: str, config: TopicConfig | None) -> TopicConfig | None:
        """The topic as other brokers have it; None if it has no place here, and so may not be written."""
        placement = self._placement_of(topic)
        return None if placement and self._core.broker not in placement else config

    def _route(
        self, topic: str, config: TopicConfig | None, others: Sequence[_Other], address: Address | None
    ) -> Route:
        """Every queue of the topic on these brokers and on this one."""
        placement = self._placement(topic, [one.queues for one in others])
        there = self._elsewhere(topic, config)
        found = []
        for one in others:
            count = max(one.queues.queue_count, placement.get(one.queues.broker, 0))
            found.append(_queues_of(one, there, _numbers(count), placement))
        if config is not None:
            count = max(config.queue_count, config.write_queue_count, placement.get(self._core.broker, 0))
            found.append(self._own_queues(config, _numbers(count), address, placement))
        return _by_name(found)

    def _reached(self, others: Sequence[OtherQueues], by_tls: bool) -> list[_Other]:
        return [
            _Other(one, at)
            for one in others
            if (at := self._tls_address_of(one) if by_tls else one.address) is not None
        ]

    def _away(
        self,
        topic: str,
        others: Sequence[OtherQueues],
        reached: list[_Other],
        address: Address,
        language: str,
    ) -> list[_Other]:
        """The brokers of the placement that are away, as the client may see them. Takes those that are seen
        otherwise out of `reached`."""
        placement = self._placement(topic, others)
        live = {self._core.broker, *self._others.names()}
        away = placement.keys() - live
        if language == STARTS_ALONE:
            away -= {one.queues.broker for one in reached}
        reached[:] = [one for one in reached if one.queues.broker not in away]
        first_id = 0 if language == READS_ID_0 else AWAY_FIRST
        return [_Other(_Away(name, address, placement), address, first_id) for name in sorted(away)]

    def _own_address(self, by_tls: bool) -> Address:
        return self._tls_address if by_tls and self._tls_address is not None else self._core.advertised

    def _is_advertised(self, dialled: Sequence[Address], own: Address, by_tls: bool) -> bool:
        nodes = [one.canonical for one in self._nodes(by_tls)]
        return not dialled or any(
            one.canonical == own.canonical
            or one.canonical in nodes
            or self._others.advertises(one, by_tls=by_tls)
            for one in dialled
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
        self,
        config: TopicConfig,
        numbers: Sequence[QueueId],
        address: Address | None,
        placement: Mapping[str, int],
    ) -> BrokerQueues:
        written = config.write_queue_count if self._offers_writes() else 0
        written = placement.get(self._core.broker, 0) if placement else written
        queues = _with_permissions(config, numbers, config.queue_count, written)
        is_own = address in (self._core.advertised, self._tls_address)
        nodes = tuple(self._nodes(address == self._tls_address)) if is_own and address is not None else ()
        return BrokerQueues(self._core.broker, address, config, queues, nodes=nodes)


def _without_tls(topic: str) -> TroveError:
    return TroveError(
        errors.TOPIC_NOT_FOUND,
        f"topic {topic} is on brokers without TLS only: give them tls_listen, or connect without TLS",
        topic=topic,
    )


def _queues_of(
    other: _Other, config: TopicConfig | None, numbers: Sequence[QueueId], placement: Mapping[str, int]
) -> BrokerQueues:
    """`config`: of the topic at this broker. `placement`: of a FIFO topic that has one."""
    one = other.queues
    if config is None or config.message_type != one.message_type:
        config = TopicConfig("", message_type=one.message_type)
    if placement or one.placement:
        written = (placement or one.placement).get(one.broker, 0)
    else:
        written = one.queue_count
    topic = replace(config, queue_count=one.queue_count, write_queue_count=written)
    if one.draining and not placement:
        written = 0
    queues = _with_permissions(topic, numbers, one.queue_count, written)
    return BrokerQueues(one.broker, other.address, topic, queues, other.first_id)


def _with_permissions(
    config: TopicConfig, numbers: Sequence[QueueId], readable: int, writable: int
) -> list[tuple[QueueId, int]]:
    """The queues with their bits. `readable`, `writable`: how many of the topic's queues may be read, and
    written. ANY_QUEUE has those of the topic."""
    read, write = config.perm & PERM_READ, config.perm & PERM_WRITE
    return [
        (number, (read if number < readable else 0) | (write if number < writable else 0))
        for number in numbers
    ]


def _numbers(count: int) -> Sequence[QueueId]:
    return list(map(QueueId, range(count)))


def _any_queue(_count: int) -> Sequence[QueueId]:
    return [ANY_QUEUE]


def _by_name(found: Sequence[BrokerQueues]) -> Route:
    return Route(sorted(found, key=lambda one: one.broker))
