"""Settings of a broker that is a node of a replica group.

Times in milliseconds. The members of a group are in each node's state (trovemq_store.replica.membership);
`replica_nodes` gives the first ones, and the addresses at which a node without a state looks for its group.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Final, Literal, NamedTuple

from trovemq_broker.daemon.coordination_settings import CoordinationSettings
from trovemq_broker.replication.frames import NODES_MAX
from trovemq_daemon.addresses import Address, advertised_address, check_advertise, parse_address
from trovemq_daemon.errors import SettingsError
from trovemq_daemon.settings import setting
from trovemq_proto.tls import TlsOptions

NODE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
ACK_MARGIN_MS: Final = 1_000
"""A copy that does not answer is removed from the in-sync set within replica_lag_max_ms and a change's time;
an acknowledgement that gives up earlier fails for each copy that is lost."""


class NamedNode(NamedTuple):
    """One of `replica_nodes`. `address`: of its gRPC services, `replication`: of its copies' streams."""

    node: str
    address: Address
    replication: Address


@dataclass(frozen=True, kw_only=True)
class ReplicaSettings(CoordinationSettings):
    """`replica_problems()` reports contradictions."""

    coordination: Annotated[Literal["none", "manual", "etcd"], setting()] = "none"
    """How the nodes of a replica group agree: `none` for a broker with one copy of its log; `manual`: an
    operator promotes another node (`trovemq cluster promote`); `etcd`: the nodes choose another leader."""
    node_name: Annotated[str, setting()] = ""
    """Name of this node, unique in its group. `name` is that of the group: clients see one broker."""
    replication_listen: Annotated[str, setting("HOST:PORT")] = ""
    """Address for the streams of the group's other nodes, while this node leads."""
    replication_advertise: Annotated[str, setting("HOST:PORT or HOST")] = ""
    """Address of replication_listen for the other nodes; empty = that address."""
    replication_tls_certificate: Annotated[str, setting("FILE")] = ""
    """PEM file with this node's certificate for the streams, which must have node_name as a DNS name; without
    it nodes reach each other on loopback only."""
    replication_tls_key: Annotated[str, setting("FILE")] = ""
    """PEM file with that certificate's private key, not encrypted."""
    replication_tls_ca: Annotated[str, setting("FILE")] = ""
    """PEM file with the authority of all nodes' certificates."""
    replica_nodes: Annotated[tuple[str, ...], setting("NODE@HOST:PORT/HOST:PORT")] = ()
    """The first nodes of the group, this one too, separated by commas, each with the addresses of its
    `listen` and of its `replication_listen`. The first of them founds a group whose nodes are all new, and
    leads it. Later `trovemq cluster add` and `remove` change the members."""
    replica_role: Annotated[Literal["voter", "learner"], setting()] = "voter"
    """A learner has a copy that never counts: it is in no in-sync set, and is not promoted."""
    ack: Annotated[Literal["leader", "replicated"], setting()] = "replicated"
    """A message of a group is acknowledged once it is on the leader (`leader`), or on every copy of the
    in-sync set (`replicated`)."""
    in_sync_min: Annotated[int, setting("copies", 1, NODES_MAX, rocketmq="minInSyncReplicas")] = 2
    """The least number of copies in the in-sync set, the leader's included. While fewer nodes answer,
    replicated messages are refused with NOT_ENOUGH_REPLICAS. A group keeps the value with which it was
    founded."""
    replica_ack_timeout_ms: Annotated[int, setting("ms", 1_000, 600_000, rocketmq="slaveTimeout")] = 3_000
    """An acknowledgement waits for the copies this long; then the send ends with REPLICA_TIMEOUT."""
    replica_lag_max_ms: Annotated[int, setting("ms", 500, 600_000, rocketmq="haMaxTimeSlaveNotCatchup")] = (
        1_500
    )
    """A copy that has lacked a part of the leader's log for this long is removed from the in-sync set."""
    replica_retention_bytes_max: Annotated[int, setting("bytes", 0, 1 << 50)] = 16 << 30
    """How much of its log a leader keeps for a member of the group that lags. A member that needs records
    which retention has removed joins again with an empty store."""
    replica_retention_ms: Annotated[int, setting("ms", 0, 31_536_000_000)] = 3_600_000
    """How long a leader keeps its log for a member that is away."""
    catch_up_bytes_per_s: Annotated[
        int, setting("bytes", 0, 1 << 40, rocketmq="maxHaTransferByteInSecond")
    ] = 100_000_000
    """The most bytes a second that a leader sends to a copy that catches up; 0 = no limit. The limit does not
    apply to a copy in the in-sync set, nor to one that lacks less than 16 MiB."""
    replica_scrub_bytes_per_s: Annotated[int, setting("bytes", 0, 1 << 40)] = 8 << 20
    """Once a day a follower reads its whole log, this many bytes a second, and repairs damaged records from
    another node; 0 = never."""

    read_from_replicas: Annotated[bool, setting(rocketmq="slaveReadEnable")] = False
    """A follower also answers pulls by offset, queries, searches and tracks, from its copy; its replies say
    how far it lags. `trovemq --replica store scrub` scrubs it."""

    @property
    def is_node(self) -> bool:
        """Whether this broker is a node of a replica group."""
        return self.coordination != "none"

    @property
    def is_elected(self) -> bool:
        """Whether the nodes choose their leader."""
        return self.coordination == "etcd"

    @property
    def named_nodes(self) -> tuple[NamedNode, ...]:
        """`replica_nodes`. SettingsError."""
        return tuple(map(_named_node, self.replica_nodes))

    @property
    def replication_address(self) -> Address:
        """SettingsError."""
        return parse_address(self.replication_listen)

    @property
    def replication_tls(self) -> TlsOptions | None:
        """Of the streams; None: they are plain."""
        if not self.replication_tls_certificate:
            return None
        return TlsOptions(
            ca=self.replication_tls_ca,
            certificate=self.replication_tls_certificate,
            key=self.replication_tls_key,
        )

    def replication_advertised(self, bound: Address) -> Address:
        """The address for other nodes, once replication_listen is bound (its real port)."""
        return advertised_address(bound, self.replication_advertise)

    def replica_problems(self) -> Iterator[str]:
        """The contradictions, one sentence each."""
        if not self.is_node:
            given = [
                one for one in ("node_name", "replication_listen", "replica_nodes") if getattr(self, one)
            ]
            if given:
                yield f"{', '.join(given)}: of a group's node, which needs coordination = manual, or etcd"
            return
        if not NODE_NAME.fullmatch(self.node_name):
            yield "node_name must name this node of the group: at most 63 letters, digits, '.', '_' and '-'"
        least = self.replica_lag_max_ms + ACK_MARGIN_MS
        if self.replica_ack_timeout_ms < least:
            yield (
                f"replica_ack_timeout_ms {self.replica_ack_timeout_ms} must be at least replica_lag_max_ms +"
                f" {ACK_MARGIN_MS}, {least}: else sends fail whenever a copy is lost"
            )
        try:
            listen = self.replication_address
            if not listen.is_loopback and self.replication_tls is None:
                yield (
                    f"replication_listen {listen} is open to other machines: give this node a certificate"
                    " (replication_tls_certificate, _key, _ca), or listen on loopback"
                )
            check_advertise(listen, self.replication_advertise)
        except SettingsError as error:
            yield from (f"replication_listen: {one}" for one in error.problems)
        files = (self.replication_tls_certificate, self.replication_tls_key, self.replication_tls_ca)
        if any(files) and not all(files):
            yield "replication_tls_certificate, _key and _ca are given together or not at all"
        yield from self._node_problems()

    def _node_problems(self) -> Iterator[str]:
        try:
            named = self.named_nodes
        except SettingsError as error:
            yield f"replica_nodes: {error}"
            return
        names = [one.node for one in named]
        if len({*names}) < len(names):
            yield "replica_nodes names a node twice"
        if len(names) > NODES_MAX:
            yield f"replica_nodes has {len(names)} nodes, the limit is {NODES_MAX}"
        if names and self.node_name not in names:
            yield f"replica_nodes must have this node, {self.node_name}, too"
        if len(names) > 1 and self.in_sync_min > len(names):
            yield f"in_sync_min {self.in_sync_min} is more than the {len(names)} nodes of replica_nodes"


def _named_node(text: str) -> NamedNode:
    node, _, addresses = text.strip().partition("@")
    client, slash, replication = addresses.partition("/")
    if not NODE_NAME.fullmatch(node) or not slash:
        raise SettingsError(f"{text!r} is not NODE@HOST:PORT/HOST:PORT")
    found = NamedNode(node, parse_address(client), parse_address(replication))
    for address in found[1:]:
        if not address.port or address.is_unspecified:
            raise SettingsError(f"{text!r} cannot be dialled")
    return found
