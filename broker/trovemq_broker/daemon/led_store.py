"""The store of a replica group's leader, as its broker gets it: open, and closed by another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from prometheus_client.registry import Collector
from starlette.routing import BaseRoute

from trovemq_broker.cluster.view import GroupLeader
from trovemq_broker.produce.replicated_commit import ReplicaAckSettings
from trovemq_broker.replica_streams.leader_streams import LeaderStreams
from trovemq_broker.server.native.replica_service import ReplicaCalls
from trovemq_daemon.addresses import Address
from trovemq_store.engine.message_store import MessageStore


@dataclass(frozen=True, slots=True)
class LedStore:
    """`acks`: of the acknowledgements, which wait for `replicated`. `attach`: is called when they do.
    `leaves`: whether the store is to be a single broker's: its state is exported then. `routes`, `collector`:
    of the operations HTTP. `leader`: this node and the group's others, for routes; `tls_nodes`: the
    addresses of those others for clients by TLS."""

    store: MessageStore
    replicated: LeaderStreams
    node: ReplicaCalls
    acks: ReplicaAckSettings
    attach: Callable[[], None]
    leaves: Callable[[], bool]
    routes: Sequence[BaseRoute]
    collector: Collector
    leader: Callable[[], GroupLeader]
    tls_nodes: Callable[[], list[Address]]

    def attached(self) -> tuple[LeaderStreams, ReplicaAckSettings]:
        """For the broker, whose acknowledgements wait for these from now on."""
        self.attach()
        return self.replicated, self.acks
