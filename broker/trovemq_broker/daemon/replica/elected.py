"""The election of a node (`coordination = etcd`), as its roles see it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from trovemq_broker.daemon.replica.gathering import Gathering
from trovemq_broker.daemon.replica.open_node import OpenNode
from trovemq_broker.replication.election_members import MemberChange
from trovemq_broker.replication.frames import Epoch, InSyncSet, Node
from trovemq_broker.replication.status import NodeStatus, Promoted, PromotionAsked
from trovemq_store.replica.membership import Members


class Elected(Protocol):
    """For use on the event loop only."""

    @property
    def leader(self) -> tuple[Node, Epoch] | None:
        """The node that leads, and its epoch; None: that is not known."""

    @property
    def problem(self) -> str:
        """For readiness; empty if there is none."""

    @property
    def no_founding(self) -> str:
        """Why this node, which has no group, must not found one; empty: it may."""

    def lost(self, node: Node) -> None:
        """The stream to that leader has ended, or could not be opened."""

    def promise_seen(self, epoch: Epoch) -> None:
        """Another node has promised a higher epoch than this leader's."""

    def in_sync_wanted(self, in_sync: InSyncSet) -> None:
        """The leader proposes that set. Role.confirm() is the answer."""

    @property
    def listed(self) -> Members | None:
        """The newest list of members that this leader has written; None: it has written none."""

    async def change_members(self, change: MemberChange) -> Members:
        """Writes a later list of members, at its leader. TroveError REPLICA_STATE_ILLEGAL,
        COORDINATION_UNAVAILABLE: it may be written later."""

    async def promote(
        self, asked: PromotionAsked, node: OpenNode, gathering: Gathering, statuses: Mapping[Node, NodeStatus]
    ) -> Promoted:
        """By an operator, at a follower: of a group that etcd has lost, or of a copy that is not in sync.
        TroveError REPLICA_STATE_ILLEGAL, NOT_ENOUGH_REPLICAS, NOT_A_MEMBER, COORDINATION_UNAVAILABLE."""

    def held(self) -> None:
        """The target of Role.hold() has all of the log, and nothing is appended."""

    def may_append(self) -> bool:
        """Whether this leader may take messages, and hand them out, now."""

    def may_deliver_in_order(self) -> bool:
        """Whether no leader before can hold a message for a consumer of an ordered group."""
