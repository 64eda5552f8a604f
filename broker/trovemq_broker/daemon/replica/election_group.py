"""The group of a node in etcd, before its election begins: it is founded there, or found."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from trovemq_broker.coordination.coordinator import Compare, Coordinator, Delete, Put, Snapshot
from trovemq_broker.daemon.replica.gathering import Gathering
from trovemq_broker.daemon.replica.open_node import OpenNode
from trovemq_broker.daemon.replica.role import ELECTED, Role, illegal
from trovemq_broker.daemon.settings import BrokerSettings
from trovemq_broker.replication.election import Election, ElectionSettings
from trovemq_broker.replication.election_actions import OwnLog
from trovemq_broker.replication.election_members import LogEnd, founded, recovered, unclean
from trovemq_broker.replication.election_records import (
    CONFIG,
    LOCK,
    STATE,
    GroupConfig,
    from_bytes,
    to_bytes,
)
from trovemq_broker.replication.election_view import View, viewed
from trovemq_broker.replication.frames import Identity, InSyncSet, Node, NowMs, Offset
from trovemq_broker.replication.status import (
    RECOVER,
    UNCLEAN,
    NodeStatus,
    Promoted,
    PromotionAsked,
)
from trovemq_daemon.logging import get_logger
from trovemq_proto.errors import TroveError
from trovemq_store.replica.conversion import FIRST_EPOCH
from trovemq_store.replica.membership import Members

LOOK_S: Final = 0.2
FORGET_TRIES: Final = 5
ABSENT: Final = (Compare(CONFIG, 0), Compare(STATE, 0))
"""A group is written once, also by two nodes at the same time."""


class ElectionGroup:
    """Of one node. `version`: of this software, for other nodes. `prefix`: of the group's keys, for logs."""

    def __init__(
        self, settings: BrokerSettings, coordinator: Coordinator, version: str, prefix: str = ""
    ) -> None:
        self._settings = settings
        self._coordinator = coordinator
        self._version = version
        self.prefix: Final = prefix
        self.problem = "etcd was not asked yet"
        self.no_founding = self.problem
        self.is_absent = False
        """Whether etcd has answered, and has nothing of the group that this node belongs to."""

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
                self.is_absent = False
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
                self.is_absent = True  # until a reading has another answer: a promise may be asked meanwhile
                return (
                    "etcd has nothing of the group that this node belongs to: is it another etcd, or another"
                    f" etcd_prefix? If the group's is lost for ever: trovemq cluster recover {self.me}"
                )
            snapshot = await self._found(node)
        self.is_absent = False
        config = _config_of(snapshot)
        if (config.cluster, config.group) != (place.cluster, place.group):
            return (
                f"etcd has another group {config.group} ({config.cluster}) than this node's"
                f" ({place.cluster}): give it another etcd_prefix"
            )
        return ""

    async def _found(self, node: OpenNode) -> Snapshot:
        """Once for each group: by two nodes at the same time, too."""
        place, config = node.place, self._config(node, node.place.listed)
        state = founded(config, place.identity, max(FIRST_EPOCH, node.state.promised), 1)
        changes = [Put(CONFIG, to_bytes(config)), Put(STATE, to_bytes(state))]
        return (await self._coordinator.swap(ABSENT, changes)).snapshot

    def _config(self, node: OpenNode, listed: Members) -> GroupConfig:
        place, settings = node.place, self._settings
        return GroupConfig(
            cluster=place.cluster,
            group=place.group,
            in_sync_min=place.in_sync_min,
            is_sync=settings.flush_mode == "sync",
            segment_size=node.store.settings.commit_log_file_size,
            listed=listed,
            ack=settings.ack,
        )

    # --- by an operator -----------------------------------------------------------------------------------
    async def promote(
        self, asked: PromotionAsked, node: OpenNode, gathering: Gathering, statuses: Mapping[Node, NodeStatus]
    ) -> Promoted:
        """TroveError REPLICA_STATE_ILLEGAL, NOT_ENOUGH_REPLICAS, NOT_A_MEMBER, COORDINATION_UNAVAILABLE."""
        if asked.how == RECOVER:
            return await self._recover(asked, node, gathering, statuses)
        if asked.how == UNCLEAN:
            return await self._elect_unclean(asked, node, statuses)
        raise illegal(ELECTED)

    async def _recover(
        self, asked: PromotionAsked, node: OpenNode, gathering: Gathering, statuses: Mapping[Node, NodeStatus]
    ) -> Promoted:
        """Writes the group's keys, which this etcd lacks, by the durable state of enough nodes."""
        try:
            values = (await self._coordinator.read()).values
        except TroveError as error:
            text = f"{error.message}: start the nodes with the endpoints of a new etcd"
            raise TroveError(error.spec, text) from None
        if CONFIG in values or STATE in values:
            raise illegal(
                "etcd has this group, and there is nothing to recover; where no in-sync node can come back:"
                f" trovemq cluster elect {self.me} --unclean"
            )
        found = await gathering.recover(asked, statuses)
        me, config = node.place.identity, self._config(node, found.listed)
        reason = f"recovered: {asked.fenced}" if asked.fenced else "recovered by promises"
        state = recovered(config, me, found.promoted.epoch, found.version, found.copies, reason)
        changes = [Put(CONFIG, to_bytes(config)), Put(STATE, to_bytes(state))]
        if not (await self._coordinator.swap(ABSENT, changes)).done:
            raise illegal("another node has written the group's keys meanwhile")
        in_sync = ",".join(one.node for one in state.in_sync)
        get_logger().warning("replica.recovered", epoch=state.epoch, in_sync=in_sync, reason=reason)
        return found.promoted

    async def _elect_unclean(
        self, asked: PromotionAsked, node: OpenNode, statuses: Mapping[Node, NodeStatus]
    ) -> Promoted:
        """This copy is the whole in-sync set, and its election follows."""
        if (view := viewed(await self._coordinator.read())) is None:
            raise illegal(f"etcd has nothing of this group: trovemq cluster recover {self.me}")
        promised, cluster = node.state.promised, node.place.cluster
        others = {
            one.identity: LogEnd(one.last_epoch, Offset(one.end))
            for one in statuses.values()
            if one.cluster == cluster
        }
        try:
            state = unclean(
                view,
                node.place.identity,
                own_log(node),
                promised,
                others=others,
                accept_loss=asked.accept_loss,
                reason=f"unclean: {asked.fenced}",
            )
        except ValueError as error:
            raise illegal(str(error)) from None
        compares = (
            Compare(STATE, view.state_changed),
            Compare(LOCK, view.lock_changed),
            Compare(CONFIG, view.config_changed),
        )
        if not (await self._coordinator.swap(compares, [Put(STATE, to_bytes(state))])).done:
            raise illegal("the group has changed meanwhile: look at trovemq cluster status")
        get_logger().error("replica.unclean", epoch=state.epoch, end=state.commit_floor, reason=state.reason)
        return Promoted(state.epoch, (self.me,), _away(view, others, self.me), _beyond(others, node.log.end))

    async def forget(self) -> None:
        """The group is over: its last node is a single broker's. TroveError COORDINATION_UNAVAILABLE;
        REPLICA_STATE_ILLEGAL where its keys change all the time."""
        values = (await self._coordinator.read()).values
        for _ in range(FORGET_TRIES):
            compares = [Compare(key, values[key].changed) for key in (CONFIG, STATE) if key in values]
            swapped = await self._coordinator.swap(compares, [Delete(key) for key in values])
            if swapped.done:
                return
            values = swapped.snapshot.values
        raise illegal("the group's keys in etcd change all the time: delete them by hand")

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


def own_log(node: OpenNode, reported_ms: NowMs = 0, cannot_lead: str = "") -> OwnLog:
    """For an election. `reported_ms`: when the node last sent a report to a leader. `cannot_lead`: why it
    must not be chosen."""
    state, log = node.state, node.log
    return OwnLog(
        end=log.end,
        flushed=log.flushed,
        commit=state.commit,
        last_epoch=state.epochs.last,
        in_sync=state.in_sync,
        reported_ms=reported_ms,
        cannot_lead=cannot_lead,
    )


def _away(view: View, others: Mapping[Identity, LogEnd], me: Node) -> tuple[Node, ...]:
    return tuple(sorted(set(view.config.listed.places) - {one.node for one in others} - {me}))


def _beyond(others: Mapping[Identity, LogEnd], end: int) -> int:
    """Bytes of the other nodes' logs after that end."""
    return max((0, *(one.end - end for one in others.values())))


def _config_of(snapshot: Snapshot) -> GroupConfig:
    """TroveError COORDINATION_ILLEGAL."""
    found = snapshot.values.get(CONFIG)
    return from_bytes(CONFIG, b"" if found is None else found.value, GroupConfig)


def _has_just_founded(node: OpenNode) -> bool:
    """Whether this node has founded its group, and no node ever led it: etcd does not know it yet."""
    place = node.place
    first = InSyncSet(FIRST_EPOCH, 1, frozenset({place.identity}))
    return place.leads and place.in_sync == first
