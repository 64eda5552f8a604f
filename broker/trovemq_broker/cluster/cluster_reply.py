"""Reads the nameservers' answers to WatchRoutes.

A nameserver sends the routes of all brokers, and after each change the changes alone, or all again. A broker
whose bytes are those of the answer before is not read again.

Invariants
- Brokers of other clusters, and this broker itself, are not among the routes.
- The routes have at most `brokers_max` brokers with at most `topics_max` topics together; further brokers are
  left out whole. Changes of a broker that was left out are not applied: its other topics are not known.
- A topic has at most QUEUE_COUNT_MAX queues on a broker: each is an entry of every client's route.
- Addresses can be dialled.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from typing import Final, NamedTuple

from trovemq_broker.cluster.view import ConfigSummary, GroupLeader, GroupNode
from trovemq_daemon.addresses import Address, parse_address
from trovemq_daemon.errors import SettingsError
from trovemq_daemon.turns import Steps
from trovemq_proto.positions import GROUP_EPOCH_MAX
from trovemq_proto.v1 import common_pb2, route_pb2
from trovemq_proto.varints import read_varint
from trovemq_store.replica.membership import MEMBERS_MAX
from trovemq_store.topics.topics import QUEUE_COUNT_MAX

TOPICS_A_STEP: Final = 512
BROKERS_MAX: Final = 1_024
TOPICS_MAX: Final = 2_000_000
_BROKERS: Final = route_pb2.ClusterReply.BROKERS_FIELD_NUMBER << 3 | 2
_DIGEST_SIZE: Final = 16
_MARK: Final = re.compile("[0-9a-f]{16}")


class TopicQueues(NamedTuple):
    """A topic on one broker: queues 0 .. queue_count - 1. `placement`: brokers and their numbers of queues,
    by name, as common.proto has it."""

    queue_count: int
    message_type: str
    placement: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class RoutedBroker:
    """Another broker of the cluster, with its topics by name. `tls_address`: None if it has none. `config`:
    None if its configuration is its own. `leader`: None if it has no replica group."""

    name: str
    address: Address
    tls_address: Address | None
    draining: bool
    data_version: int
    topics: Mapping[str, TopicQueues] = field(repr=False)
    config: ConfigSummary | None = None
    leader: GroupLeader | None = None

    @property
    def epoch(self) -> int:
        """Of its leadership; 0 without a replica group."""
        return 0 if self.leader is None else self.leader.epoch


class Routes(NamedTuple):
    """The brokers by name; `lost`: names of those that the nameserver has lost; `left_out`: number of brokers
    beyond the limits; `lost_at`: addresses of the cluster's lost brokers, by name."""

    brokers: Mapping[str, RoutedBroker]
    lost: Sequence[str] = ()
    left_out: int = 0
    lost_at: Mapping[str, Address] = {}


_queues: Final = lru_cache(1_024)(TopicQueues)  # most topics have the same few


class ReplyReader:
    """The replies of one stream, in their order."""

    def __init__(
        self, cluster: str, broker: str, *, brokers_max: int = BROKERS_MAX, topics_max: int = TOPICS_MAX
    ) -> None:
        self._cluster = cluster
        self._broker = broker
        self._brokers_max = brokers_max
        self._topics_max = topics_max
        self._by_digest: dict[bytes, RoutedBroker] = {}
        self._routes = Routes({})
        self._left_out: set[str] = set()
        self.brokers_read = 0
        """Brokers whose topics were read, since the start."""
        self.lacks_brokers = False
        """Whether there may be space again for brokers that were left out: only a new stream has them."""

    def read(self, data: bytes) -> Steps[Routes]:
        """The routes after this reply. Raises ValueError, DecodeError for bytes that are no ClusterReply."""
        parts, rest = _split(data)
        reply = route_pb2.ClusterReply.FromString(rest)
        lost = [one.name for one in reply.lost]
        if reply.changes:
            self._by_digest = {}  # of former states
            before = self._routes.brokers
            brokers = yield from self._changed(parts, reply.removed_brokers)
            for name in lost:
                brokers.pop(name, None)
                self._left_out.discard(name)
            self._routes = self._limited(brokers, lost, self._addresses_of(reply.lost))
            self.lacks_brokers = bool(self._left_out) and not before.keys() <= self._routes.brokers.keys()
        else:
            self._left_out = set()
            brokers = yield from self._all(parts)
            self._routes = self._limited(brokers, lost, self._addresses_of(reply.lost))
        return self._routes

    def _addresses_of(self, lost: Iterable[route_pb2.LostBroker]) -> dict[str, Address]:
        found: dict[str, Address] = {}
        for one in lost:
            if one.cluster == self._cluster and one.name != self._broker and len(found) < self._brokers_max:
                with suppress(SettingsError):
                    found[one.name] = _dialled(one.address)
        return found

    def _all(self, parts: Sequence[bytes]) -> Steps[dict[str, RoutedBroker]]:
        """The brokers of a reply with all of them."""
        found: dict[str, RoutedBroker] = {}
        by_digest: dict[bytes, RoutedBroker] = {}
        for part in parts:
            digest = blake2b(part, digest_size=_DIGEST_SIZE).digest()
            one = self._by_digest.get(digest)
            if one is None:
                one = yield from self._broker_of(common_pb2.BrokerRoute.FromString(part), {})
            if one is not None:
                by_digest[digest] = found[one.name] = one
            yield
        self._by_digest = by_digest
        return found

    def _changed(self, parts: Sequence[bytes], removed: Sequence[str]) -> Steps[dict[str, RoutedBroker]]:
        """The brokers of the reply before with these changes. `removed`: the reply may have them whole."""
        found = dict(self._routes.brokers)
        for name in removed:
            found.pop(name, None)
            self._left_out.discard(name)
        for part in parts:
            route = common_pb2.BrokerRoute.FromString(part)
            name = route.broker.name
            if name not in self._left_out:
                known = found.get(name)
                one = yield from self._broker_of(route, {} if known is None else known.topics)
                if one is not None:
                    found[name] = one
                else:
                    found.pop(name, None)
            yield
        return found

    def _is_other(self, broker: common_pb2.BrokerInfo) -> bool:
        return broker.cluster == self._cluster and broker.name != self._broker

    def _broker_of(
        self, route: common_pb2.BrokerRoute, known: Mapping[str, TopicQueues]
    ) -> Steps[RoutedBroker | None]:
        """The broker with the known topics and those of the route; None if it is no other one of the cluster,
        or has an address that cannot be dialled."""
        broker, topics = route.broker, dict(known)
        try:
            address = _dialled(broker.address)
            tls_address = _dialled(broker.tls_address) if broker.tls_address else None
        except SettingsError:
            return None
        if not self._is_other(broker):
            return None
        self.brokers_read += 1
        for number, topic in enumerate(route.topics, 1):
            count = min(max(topic.queue_count, 0), QUEUE_COUNT_MAX)
            placement = tuple(sorted(topic.placement.items())) if topic.placement else ()
            topics[topic.topic] = _queues(count, topic.message_type, placement)
            if number % TOPICS_A_STEP == 0:
                yield
        for name in route.removed_topics:
            topics.pop(name, None)
        config = _config_of(broker.config) if broker.HasField("config") else None
        version = broker.data_version
        leader = _leader_of(broker.leader) if broker.HasField("leader") else None
        return RoutedBroker(
            broker.name, address, tls_address, broker.draining, version, topics, config, leader
        )

    def _limited(
        self, brokers: Mapping[str, RoutedBroker], lost: Sequence[str], lost_at: Mapping[str, Address]
    ) -> Routes:
        kept: dict[str, RoutedBroker] = {}
        topics = 0
        for name, one in brokers.items():
            if len(kept) < self._brokers_max and topics + len(one.topics) <= self._topics_max:
                kept[name] = one
                topics += len(one.topics)
            else:
                self._left_out.add(name)
        return Routes(kept, lost, len(self._left_out), lost_at)


def _config_of(config: common_pb2.ConfigSummary) -> ConfigSummary | None:
    """None if it is none that a broker has sent."""
    if not _MARK.fullmatch(config.id) or not _MARK.fullmatch(config.mark):
        return None
    return ConfigSummary(config.id, config.owner, config.generation, config.mark, config.version)


def _leader_of(leader: common_pb2.GroupLeader) -> GroupLeader | None:
    """None if it is none that a broker has sent. Nodes whose address cannot be dialled are left out."""
    if not 1 <= leader.epoch <= GROUP_EPOCH_MAX:
        return None
    nodes = []
    for one in leader.nodes[:MEMBERS_MAX]:
        with suppress(SettingsError):
            nodes.append(GroupNode(one.node, str(_dialled(one.address))))
    return GroupLeader(leader.group_id, leader.node, leader.epoch, tuple(nodes))


def _dialled(text: str) -> Address:
    """Raises SettingsError unless clients can dial this address."""
    address = parse_address(text)
    if not address.port or address.is_unspecified:
        raise SettingsError(f"{text!r} cannot be dialled")
    return address


def _split(data: bytes) -> tuple[list[bytes], bytes]:
    """The bytes of each BrokerRoute of a ClusterReply, and those of its other fields. Raises ValueError."""
    parts: list[bytes] = []
    rest: list[bytes] = []
    at, end = 0, len(data)
    try:
        while at < end:
            begin = at
            tag, at = read_varint(data, at)
            match tag & 7:
                case 0:
                    _, at = read_varint(data, at)
                case 1:
                    at += 8
                case 2:
                    size, at = read_varint(data, at)
                    at += size
                case 5:
                    at += 4
                case kind:
                    raise ValueError(f"a field of wire type {kind}")
            if at > end:
                raise ValueError("a field is cut")
            if tag == _BROKERS:
                parts.append(data[at - size : at])
            else:
                rest.append(data[begin:at])
    except IndexError:
        raise ValueError("a field is cut") from None
    return parts, b"".join(rest)
