"""Results of the client's calls besides messages: brokers, routes, topics, offsets, statistics.

All are frozen values; none of them holds a connection.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from trovemq_proto.errors import TroveError

NO_PLACEMENT: Final[Mapping[str, int]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ConfigSummary:
    """The cluster's configuration that a broker has: its topics, groups, users, rules and quotas.

    Attributes:
        id: Its id, the same on all of its brokers.
        owner: The broker that changes it.
        generation: Rises when another broker takes it over.
    """

    id: str
    owner: str
    generation: int


class GroupNode(NamedTuple):
    """A node of a replica group.

    Attributes:
        node: Its name.
        address: HOST:PORT of its services, without TLS.
    """

    node: str
    address: str


@dataclass(frozen=True, slots=True)
class GroupLeader:
    """The node that leads a replica group.

    Attributes:
        group_id: The group's id, made by chance when it was founded.
        node: The node's name.
        epoch: The number of its leadership: the highest one counts.
        nodes: All nodes of the group.
    """

    group_id: str
    node: str
    epoch: int
    nodes: tuple[GroupNode, ...] = ()


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """The information about a broker that a client needs to send to it.

    Attributes:
        cluster: The name of the broker's cluster.
        name: The broker's name, unique among the live brokers of a nameserver.
        address: HOST:PORT or [IPV6]:PORT to dial; also the STOREHOST of its records.
        store_host_ipv6: Records must reserve 20 instead of 8 bytes for STOREHOST.
        append_property_crc: Records must end their properties with RocketMQ's whole-record CRC.
        body_size_max: Largest body, in bytes.
        batch_size_max: Largest batch of records in one frame, in bytes.
        data_version: Rises whenever the broker's topics change.
        flush_mode: `sync` or `async`.
        version: The broker's version.
        tls_address: HOST:PORT of the TLS port; empty if it has none.
        draining: Whether it is drained or is about to be, so that messages are sent to other brokers.
        drained: Whether it refuses new messages. (Of an older server: False.)
        config: The cluster's configuration, if it has that; None if its configuration is its own.
        topics_left_out: Of its topics, those that the nameserver's limits leave out of the routes.
        leader: Of a replica group: the node that this is; None for a broker without one.
    """

    cluster: str
    name: str
    address: str
    store_host_ipv6: bool = False
    append_property_crc: bool = False
    body_size_max: int = 4 << 20
    batch_size_max: int = 4 << 20
    data_version: int = 0
    flush_mode: str = ""
    version: str = ""
    tls_address: str = ""
    draining: bool = False
    drained: bool = False
    config: ConfigSummary | None = None
    topics_left_out: int = 0
    leader: GroupLeader | None = None

    @property
    def epoch(self) -> int:
        """The epoch of its leadership; 0 without a replica group."""
        return 0 if self.leader is None else self.leader.epoch


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """One topic on one broker: its queues are 0 .. queue_count-1.

    Attributes:
        topic: Its name.
        queue_count: The number of its queues on this broker.
        message_type: NORMAL, FIFO, DELAY, TRANSACTION, PRIORITY, MIXED or UNSPECIFIED.
        placement: Where the cluster's configuration has an owner, the queues of a FIFO topic by broker,
            whichever brokers are live. Of other topics only if this broker is none of them any more, so that
            it gets no new messages.
    """

    topic: str
    queue_count: int
    message_type: str = "NORMAL"
    placement: Mapping[str, int] = field(default_factory=lambda: NO_PLACEMENT, hash=False)


@dataclass(frozen=True, slots=True)
class BrokerRoute:
    """A broker with the topics it has."""

    broker: BrokerInfo
    topics: tuple[TopicRoute, ...]

    def topic(self, name: str) -> TopicRoute | None:
        """The route of one topic; None if this broker does not have it."""
        return next((route for route in self.topics if route.topic == name), None)


@dataclass(frozen=True, slots=True)
class LostBroker:
    """A broker that a nameserver no longer hears, and that did not end with a regular stop.

    Attributes:
        name: Its name.
        cluster: The name of its cluster.
        address: Its last HOST:PORT.
        lost_ms: For how long it was out of the routes when the nameserver answered.
        topics: How many topics it had, without system topics.
        topics_alone: How many of them no live broker has.
    """

    name: str
    cluster: str
    address: str
    lost_ms: int
    topics: int
    topics_alone: int


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The routes of every live broker, as one server knew them; `version` rises with each change. `lost`:
    brokers that nameservers lost in the last 24 hours and since their own start. `refusal`: why there are no
    brokers, of a node that does not lead its replica group: NOT_LEADER. `other_brokers`: of a broker, as in
    ServerInfo; None if it does not say. `removed`: brokers that were removed for good, by name."""

    brokers: tuple[BrokerRoute, ...]
    version: int = 0
    lost: tuple[LostBroker, ...] = ()
    refusal: TroveError | None = field(default=None, compare=False)
    other_brokers: int | None = None
    removed: tuple[str, ...] = ()

    def broker(self, name: str) -> BrokerRoute | None:
        """The broker of that name; None if it is not in the routes."""
        return next((route for route in self.brokers if route.broker.name == name), None)


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """The server that answered: `role` is `nameserver` or `broker`. `now`: the time of its clock, epoch ms; 0
    if it does not say. `up_ms`: of a nameserver, since its start; 0 if it does not say. `other_brokers`: of a
    broker, how many others of its cluster it knows; `other_names`: those to which it forwards look-ups.
    `node`: of a node of a replica group, its name; `leader`: the node that leads the group, itself or
    another, None where it does not know one."""

    role: str
    version: str
    name: str
    now: int = 0
    up_ms: int = 0
    other_brokers: int = 0
    node: str = ""
    leader: GroupLeader | None = None
    other_names: tuple[str, ...] = ()

    @property
    def leads(self) -> bool:
        """Whether it is a node that leads its replica group."""
        return self.leader is not None and self.leader.node == self.node


@dataclass(frozen=True, slots=True)
class TopicQueue:
    """One queue: messages [min_offset, max_offset); last_store_timestamp is 0 if it is empty."""

    queue_id: int
    min_offset: int
    max_offset: int
    last_store_timestamp: int
    bytes: int | None = None
    """Bytes of the broker's log that these messages take; None if it was not requested or is not known."""


@dataclass(frozen=True, slots=True)
class TopicHold:
    """The part of a broker's log that a topic with `retention = until_acknowledged` keeps.

    Attributes:
        bytes: The bytes from the first message that it keeps to the end of the log.
        group: The consumer group with the largest lag; "" if no group reads the topic.
        queue_id: The queue of that message.
        queue_offset: Its queue offset.
        until: Epoch ms at which the topic's age limit allows its removal; 0 if its age is not known.
    """

    bytes: int
    group: str
    queue_id: int
    queue_offset: int
    until: int


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic as one broker describes it; `queues` is empty in lists of topics."""

    topic: str
    queue_count: int
    message_type: str
    system: bool
    queues: tuple[TopicQueue, ...]
    broker: str
    options: Mapping[str, str] = field(default_factory=dict)
    """The options that are set, by name: deduplicate, order, retention, retention_age_max,
    indexed_properties, writes."""
    hold: TopicHold | None = None
    """In the result of describe_topic: the part of the log that the topic keeps until it is acknowledged, or
    None."""
    placement: Mapping[str, int] = field(default_factory=dict)
    """Where the cluster's configuration has the topic: the number of its queues on each broker."""
    pending: tuple[str, ...] = ()
    """Of a change: brokers that make it later."""


@dataclass(frozen=True, slots=True)
class QueueRemainder:
    """`count` messages of a queue that a group has not consumed. Of a broker that does not answer, and so may
    have some: no group, queue_id -1."""

    group: str
    broker: str
    queue_id: int
    count: int


@dataclass(frozen=True, slots=True)
class TopicSpread:
    """A step of `Admin.spreading`.

    Attributes:
        topic: The topic.
        state: `closing`, `waiting`, `moving`, `settling` or `done`; a topic that is not FIFO has the last one
            alone.
        placement: Its queues by broker: from `moving` on the new ones.
        left: While `waiting`, the messages that groups have not consumed.
        pending: Brokers that have not made the change yet.
    """

    topic: str
    state: str
    placement: Mapping[str, int]
    left: tuple[QueueRemainder, ...] = ()
    pending: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class QueueOffsets:
    """The valid offsets of one queue: [min_offset, max_offset).

    `topic_identity` says which topic of that name on that broker they are of; it changes when the topic is
    deleted and recreated. None from a broker that does not know it.
    """

    broker: str
    queue_id: int
    min_offset: int
    max_offset: int
    topic_identity: int | None = None


@dataclass(frozen=True, slots=True)
class OffsetReset:
    """A reset's change of one queue; `offset_before` is None if the group had no offset."""

    broker: str
    queue_id: int
    offset_before: int | None
    offset: int


@dataclass(frozen=True, slots=True)
class TopicTraffic:
    """The messages of a topic on one broker since the broker's start, and the bytes of their records: those
    that were stored (in), and those that consumers got (out)."""

    topic: str
    messages_in: int
    bytes_in: int
    messages_out: int
    bytes_out: int


@dataclass(frozen=True, slots=True)
class BrokerStatistics:
    """A broker's own counters by name.

    Attributes:
        broker: The broker.
        counters: Its counters.
        topics: If they were asked for, the topics that had traffic, the busiest 10,000.
        topics_left_out: How many other topics had traffic.
    """

    broker: BrokerInfo
    counters: dict[str, int]
    topics: tuple[TopicTraffic, ...] = ()
    topics_left_out: int = 0
