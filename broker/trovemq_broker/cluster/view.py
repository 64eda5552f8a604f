"""This broker's description of itself for nameservers and clients: without protobuf, and in protobuf."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from trovemq_proto.v1 import common_pb2

SPACED_FROM: Final = 1_000
TOPICS_SENT_PER_S: Final = 20_000
SPACING_MAX_S: Final = 1.0
PLACEMENTS_KEPT: Final = 4_096
"""Changes of placements that are known one by one."""
NO_PLACEMENT: Final[Mapping[str, int]] = MappingProxyType({})
FIFO: Final = "FIFO"

PlacementOf = Callable[[str], Mapping[str, int]]
"""The queues of a topic by broker; nothing where the cluster's configuration has no owner or no such one."""


def no_placement(_topic: str) -> Mapping[str, int]:
    """Of a broker whose configuration is its own."""
    return NO_PLACEMENT


@dataclass(frozen=True, slots=True)
class ConfigSummary:
    """Which configuration of the cluster a broker has; the fields are those of ConfigSummary in
    common.proto."""

    id: str
    owner: str
    generation: int
    mark: str
    version: int


class GroupNode(NamedTuple):
    """A node of a replica group. `address`: HOST:PORT of its gRPC services."""

    node: str
    address: str


@dataclass(frozen=True, slots=True)
class GroupLeader:
    """The node that leads a replica group, and all of its nodes; the fields are those of GroupLeader in
    common.proto."""

    group_id: str
    node: str
    epoch: int
    nodes: tuple[GroupNode, ...] = ()

    @property
    def address(self) -> str:
        """Where it is; empty if that is not known."""
        return next((one.address for one in self.nodes if one.node == self.node), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerDescription:
    """The fields are those of BrokerInfo in common.proto. `address` is the advertised HOST:PORT."""

    cluster: str
    name: str
    address: str
    store_host_ipv6: bool
    append_property_crc: bool
    body_size_max: int
    batch_size_max: int
    flush_mode: str
    version: str
    tls_address: str = ""
    draining: bool = False
    drained: bool = False
    config: ConfigSummary | None = None
    leader: GroupLeader | None = None


class TopicSummary(Protocol):
    """A topic in a route (`trovemq_store.topics.topics.TopicConfig` is one)."""

    @property
    def name(self) -> str: ...

    @property
    def queue_count(self) -> int: ...

    @property
    def message_type(self) -> str: ...


class BrokerView(Protocol):
    """The broker as its cluster sees it."""

    def description(self) -> BrokerDescription: ...

    def topics(self) -> Sequence[TopicSummary]:
        """All topics, system topics too: clients can read and query each of them."""
        ...

    def find(self, name: str) -> TopicSummary | None:
        """The topic of this name, in constant time."""
        ...

    def placement(self, topic: TopicSummary) -> Mapping[str, int]:
        """The placement in its route: that of a FIFO topic, and that of a topic which has no place
        on this broker any more, so that it gets no new messages here."""
        ...

    @property
    def change_count(self) -> int:
        """How often topics were created, altered, placed or deleted."""
        ...

    def changed_since(self, change_count: int) -> Sequence[str] | None:
        """Names of the topics that changed since `change_count` had that value; None if that is too long
        ago."""
        ...

    @property
    def data_version(self) -> int:
        """Changes whenever `topics()` or the description changes."""
        ...

    def add_change_listener(self, listener: Callable[[], None]) -> None:
        """`listener()` is called on the event loop after the topics or the description changed."""
        ...


class Topics(Protocol):
    """The part of `trovemq_store.topics.topics.TopicTable` that a view needs."""

    @property
    def data_version(self) -> int: ...

    def names(self, include_system: bool = False) -> list[str]: ...

    def require(self, name: str) -> TopicSummary: ...

    def find(self, name: str) -> TopicSummary | None: ...

    @property
    def change_count(self) -> int: ...

    def changed_since(self, change_count: int) -> Sequence[str] | None: ...

    def add_change_listener(self, listener: Callable[[], None]) -> None: ...


class LocalBroker:
    """The BrokerView of a description and a topic table."""

    def __init__(
        self,
        description: BrokerDescription,
        topics: Topics,
        placement_of: PlacementOf = no_placement,
    ) -> None:
        self._description = description
        self._described = description
        """The last one of which the listeners have heard."""
        self._topics = topics
        self._placement_of = placement_of
        self._changes = 0
        self._placed = 0
        self._newly_placed: deque[tuple[int, str]] = deque()
        """The change count after each change of a placement, and its topic; the oldest first."""
        self._placed_known_from = 0
        self._listeners: list[Callable[[], None]] = []

    def description(self) -> BrokerDescription:
        return self._description

    def withdraw(self, draining: bool, drained: bool) -> None:
        """Sets whether the description asks writers to use other brokers, and whether it refuses them."""
        self._change(replace(self._description, draining=draining, drained=drained))

    def set_config(self, config: ConfigSummary | None, now: bool) -> None:
        """Sets the summary of the configuration. It is sent now, or with the next change of the topics or the
        description: a version that rises with each change would else be a message to all."""
        changed = replace(self._description, config=config)
        if now:
            self._change(changed)
        else:
            self._description = changed

    def set_leader(self, leader: GroupLeader) -> None:
        """Sets the nodes of the replica group that this broker leads."""
        if leader != self._description.leader:
            self._change(replace(self._description, leader=leader))

    def placements_changed(self, topics: Iterable[str]) -> None:
        """The placements of these topics are other ones now."""
        placed_before = self._placed
        for topic in topics:
            self._placed += 1
            self._newly_placed.append((self.change_count, topic))
            if len(self._newly_placed) > PLACEMENTS_KEPT:
                self._placed_known_from, _ = self._newly_placed.popleft()
        if self._placed != placed_before:
            self._tell()

    def _change(self, changed: BrokerDescription) -> None:
        self._description = changed
        if changed != self._described:
            self._described = changed
            self._tell()

    def _tell(self) -> None:
        self._changes += 1
        for listener in self._listeners:
            listener()

    def topics(self) -> Sequence[TopicSummary]:
        return [self._topics.require(name) for name in self._topics.names(include_system=True)]

    def find(self, name: str) -> TopicSummary | None:
        return self._topics.find(name)

    def placement(self, topic: TopicSummary) -> Mapping[str, int]:
        placement = self._placement_of(topic.name)
        is_told = topic.message_type == FIFO or self._description.name not in placement
        return placement if is_told else NO_PLACEMENT

    @property
    def change_count(self) -> int:
        return self._topics.change_count + self._placed

    def changed_since(self, change_count: int) -> Sequence[str] | None:
        if change_count < self._placed_known_from:
            return None
        placed = [topic for count, topic in self._newly_placed if count > change_count]
        changed = self._topics.changed_since(change_count - (self._placed - len(placed)))
        return changed if changed is None or not placed else list(dict.fromkeys([*changed, *placed]))

    @property
    def data_version(self) -> int:
        return self._topics.data_version + self._changes

    def add_change_listener(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)
        self._topics.add_change_listener(listener)


def broker_info(view: BrokerView) -> common_pb2.BrokerInfo:
    """The description as a protobuf message, with the present data version."""
    description = view.description()
    return common_pb2.BrokerInfo(
        cluster=description.cluster,
        name=description.name,
        address=description.address,
        store_host_ipv6=description.store_host_ipv6,
        append_property_crc=description.append_property_crc,
        body_size_max=description.body_size_max,
        batch_size_max=description.batch_size_max,
        data_version=view.data_version,
        flush_mode=description.flush_mode,
        version=description.version,
        tls_address=description.tls_address,
        draining=description.draining,
        drained=description.drained,
        config=None if description.config is None else config_summary(description.config),
        leader=None if description.leader is None else group_leader(description.leader),
    )


def group_leader(leader: GroupLeader) -> common_pb2.GroupLeader:
    return common_pb2.GroupLeader(
        group_id=leader.group_id,
        node=leader.node,
        epoch=leader.epoch,
        role="leader",
        nodes=[common_pb2.GroupNode(node=one.node, address=one.address) for one in leader.nodes],
    )


def config_summary(config: ConfigSummary) -> common_pb2.ConfigSummary:
    return common_pb2.ConfigSummary(
        id=config.id,
        owner=config.owner,
        generation=config.generation,
        mark=config.mark,
        version=config.version,
    )


def spacing_s(topic_count: int) -> float:
    """The least time between two messages to one peer with all topics. It grows with their number, so that
    creating a topic costs the same however many there are."""
    return min(SPACING_MAX_S, topic_count / TOPICS_SENT_PER_S) if topic_count >= SPACED_FROM else 0.0


def topic_routes(view: BrokerView, topics: Sequence[TopicSummary]) -> list[common_pb2.TopicRoute]:
    return [
        common_pb2.TopicRoute(
            topic=topic.name,
            queue_count=topic.queue_count,
            message_type=topic.message_type,
            placement=view.placement(topic),
        )
        for topic in topics
    ]
