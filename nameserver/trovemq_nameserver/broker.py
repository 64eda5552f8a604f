"""A broker's description of itself, and its checks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from trovemq_daemon.addresses import parse_address
from trovemq_daemon.errors import SettingsError
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import GROUP_EPOCH_MAX

NAME_LENGTH_MAX: Final = 127
ADDRESS_LENGTH_MAX: Final = 262
TEXT_LENGTH_MAX: Final = 64
NODES_MAX: Final = 7
"""Of a replica group."""
LEADER: Final = "leader"
"""The role of a node that registers."""


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
    """The node that leads a replica group; the fields are those of GroupLeader in common.proto."""

    group_id: str
    node: str
    epoch: int
    role: str = LEADER
    nodes: tuple[GroupNode, ...] = ()


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker's description of itself; the fields are those of BrokerInfo in common.proto."""

    cluster: str
    name: str
    address: str
    store_host_ipv6: bool = False
    append_property_crc: bool = False
    body_size_max: int = 0
    batch_size_max: int = 0
    flush_mode: str = ""
    version: str = ""
    tls_address: str = ""
    draining: bool = False
    drained: bool = False
    config: ConfigSummary | None = None
    leader: GroupLeader | None = None
    topics_left_out: int = 0
    """Of its topics, those that the nameserver's limits leave out of the routes; the nameserver sets it."""

    @property
    def epoch(self) -> int:
        """Of its leadership; 0 without a replica group."""
        return 0 if self.leader is None else self.leader.epoch


def check_broker(broker: Broker) -> None:
    """Raises TroveError REQUEST_ILLEGAL if names are too long or the address cannot be dialled."""
    for problem in _broker_problems(broker):
        raise TroveError(errors.REQUEST_ILLEGAL, problem)


def name_problem(what: str, text: str, length_min: int = 1, length_max: int = NAME_LENGTH_MAX) -> str | None:
    """Why a broker's text of that kind is refused; None if it is not."""
    if length_min <= len(text) <= length_max and text.isprintable():
        return None
    return f"a broker's {what} must have {length_min} to {length_max} printable characters"


def _broker_problems(broker: Broker) -> Iterator[str]:
    for what, text, length_min, length_max in (
        ("name", broker.name, 1, NAME_LENGTH_MAX),
        ("cluster", broker.cluster, 1, NAME_LENGTH_MAX),
        ("address", broker.address, 1, ADDRESS_LENGTH_MAX),
        ("tls_address", broker.tls_address, 0, ADDRESS_LENGTH_MAX),
        ("flush_mode", broker.flush_mode, 0, TEXT_LENGTH_MAX),
        ("version", broker.version, 0, TEXT_LENGTH_MAX),
        *_config_texts(broker.config),
        *_leader_texts(broker.leader),
    ):
        if problem := name_problem(what, text, length_min, length_max):
            yield problem
            return
    if broker.leader is not None:
        yield from _leader_problems(broker.leader)
    nodes = () if broker.leader is None else broker.leader.nodes
    for text in filter(None, (broker.address, broker.tls_address, *(one.address for one in nodes))):
        try:
            address = parse_address(text)
        except SettingsError as error:
            yield f"a broker's address must be HOST:PORT: {error}"
            return
        if address.port == 0 or address.is_unspecified:
            yield f"a broker's address {text} cannot be dialled"


def _leader_problems(leader: GroupLeader) -> Iterator[str]:
    if not 1 <= leader.epoch <= GROUP_EPOCH_MAX:
        yield f"the epoch of a leader is 1 to {GROUP_EPOCH_MAX}, not {leader.epoch}"
    if leader.role != LEADER:
        yield f"a node of a replica group registers as {LEADER}, not as {leader.role[:TEXT_LENGTH_MAX]!a}"
    if len(leader.nodes) > NODES_MAX:
        yield f"a replica group has at most {NODES_MAX} nodes"


def _config_texts(config: ConfigSummary | None) -> Iterator[tuple[str, str, int, int]]:
    if config is not None:
        yield "configuration's id", config.id, 1, TEXT_LENGTH_MAX
        yield "configuration's owner", config.owner, 1, NAME_LENGTH_MAX
        yield "configuration's mark", config.mark, 1, TEXT_LENGTH_MAX


def _leader_texts(leader: GroupLeader | None) -> Iterator[tuple[str, str, int, int]]:
    if leader is not None:
        yield "group's id", leader.group_id, 1, TEXT_LENGTH_MAX
        yield "node", leader.node, 1, NAME_LENGTH_MAX
        for one in leader.nodes[: NODES_MAX + 1]:
            yield "group's node", one.node, 1, NAME_LENGTH_MAX
            yield "group's address", one.address, 1, ADDRESS_LENGTH_MAX
