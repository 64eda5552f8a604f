"""The group of a node in etcd, before its election begins: it is founded there, or found."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from trovemq_broker.coordination.coordinator import Compare, Coordinator, Put, Snapshot
from trovemq_broker.daemon.replica.open_node import OpenNode
from trovemq_broker.daemon.replica.role import Role
from trovemq_broker.daemon.settings import BrokerSettings
from trovemq_broker.replication.election import Election, ElectionSettings
from trovemq_broker.replication.election_actions import OwnLog
from trovemq_broker.replication.election_members import founded
from trovemq_broker.replication.election_records import (
    CONFIG,
    STATE,
    GroupConfig,
    from_bytes,
    to_bytes,
)
from trovemq_broker.replication.frames import InSyncSet, Node, NowMs
from trovemq_daemon.logging import get_logger
from trovemq_proto.errors import TroveError
from trovemq_store.replica.conversion import FIRST_EPOCH

LOOK_S: Final = 0.2


class ElectionGroup:
    """Of one node. `version`: of this software, for other nodes."""

    def __init__(self, settings: BrokerSettings, coordinator: Coordinator, version: str) -> None:
        self._settings = settings
        self._coordinator = coordinator
        self._version = version
        self.problem = "etcd was not asked yet"
        self.no_founding = self.problem

    @property
    def me(self) -> Node:
        return self._settings.node_name

    async def ready(self, role: Callable[[], Role | None]) -> OpenNode:
        """The node, once it has a place in a group that etcd has."""
        while True:
            here = role()
            node = None if here is None else here.node
            try:
                if (problem := await self._problem(node)) != self.problem:
                    self.problem = problem
                    get_logger().info("replica.coordination", message=problem or "etcd has the group")
            except TroveError as error:
                self.problem = self.no_founding = error.message
            if node is not None and not self.problem and role() is here:
                return node
            await asyncio.sleep(LOOK_S)

    async def _problem(self, node: OpenNode | None) -> str:
        """Why the election cannot begin; empty: it can. TroveError."""
        snapshot = await self._coordinator.read()
        is_there = CONFIG in snapshot.values or STATE in snapshot.values
        self.no_founding = (
            "etcd has this group already: its leader adds this node, or has it" if is_there else ""
        )
        place = None if node is None else node.place_if_any
        if node is None or place is None:
            return "the node has no group yet"
        if not is_there:
            if not _has_just_founded(node):
                return (
                    "etcd has nothing of the group that this node belongs to: is it another etcd, or another"
                    " etcd_prefix?"
                )
            snapshot = await self._found(node)
        config = _config_of(snapshot)
        if (config.cluster, config.group) != (place.cluster, place.group):
            return (
                f"etcd has another group {config.group} ({config.cluster}) than this node's"
                f" ({place.cluster}): give it another etcd_prefix"
            )
        return ""

    async def _found(self, node: OpenNode) -> Snapshot:
        """Once for each group: by two nodes at the same time, too."""
        place, settings = node.place, self._settings
        config = GroupConfig(
            cluster=place.cluster,
            group=place.group,
            in_sync_min=place.in_sync_min,
            is_sync=settings.flush_mode == "sync",
            segment_size=node.store.settings.commit_log_file_size,
            listed=place.listed,
            ack=settings.ack,
        )
        state = founded(config, place.identity, max(FIRST_EPOCH, node.state.promised), 1)
        absent = [Compare(CONFIG, 0), Compare(STATE, 0)]
        changes = [Put(CONFIG, to_bytes(config)), Put(STATE, to_bytes(state))]
        return (await self._coordinator.swap(absent, changes)).snapshot

    def election(self, node: OpenNode, own: OwnLog, now_ms: NowMs) -> Election:
        """Of the node, which has its place."""
        place, settings = node.place, self._settings
        member = place.member(place.node)
        election = ElectionSettings(
            address="" if member is None else member.address,
            replication="" if member is None else member.replication,
            version=self._version,
            priority=settings.replica_priority,
            ttl_s=settings.leader_lease_ms // 1_000,
        )
        return Election(election, place.identity, node.state.promised, own, now_ms)


def _config_of(snapshot: Snapshot) -> GroupConfig:
    """TroveError COORDINATION_ILLEGAL."""
    found = snapshot.values.get(CONFIG)
    return from_bytes(CONFIG, b"" if found is None else found.value, GroupConfig)


def _has_just_founded(node: OpenNode) -> bool:
    """Whether this node has founded its group, and no node ever led it: etcd does not know it yet."""
    place = node.place
    first = InSyncSet(FIRST_EPOCH, 1, frozenset({place.identity}))
    return place.leads and place.in_sync == first
