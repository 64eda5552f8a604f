"""The interface of both roles to the rest of a node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from trovemq_broker.cluster.view import GroupLeader, GroupNode
from trovemq_broker.daemon.replica.gathering import Leadership
from trovemq_broker.daemon.replica.open_node import OpenNode
from trovemq_broker.replica_streams.leader_streams import LeaderStreams
from trovemq_broker.replication.frames import Epoch, Identity, Node
from trovemq_broker.replication.promotion import Promised
from trovemq_broker.replication.status import MembersChange, NodeStatus, Promoted, PromotionAsked
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_store.replica.membership import Member, Membership


@dataclass(frozen=True, slots=True)
class Ended:
    """How a role ended: `lead`: this node leads next; `leaves`: its store is a single broker's from now on.
    Neither: it follows next, or the process was asked to stop."""

    lead: Leadership | None = None
    leaves: bool = False


class Role(Protocol):
    """A role whose store is open. Each call raises TroveError."""

    @property
    def node(self) -> OpenNode: ...
    @property
    def not_kept(self) -> frozenset[Node]:
        """A leader's: the nodes for which it keeps no log any more."""
        ...

    def status(self) -> NodeStatus: ...
    def leading(self) -> LeaderStreams: ...
    async def promise(self, epoch: Epoch) -> Promised | None:
        """None: the role ends, and the next one is to be asked."""
        ...

    async def init_group(self) -> None: ...
    async def leave_group(self) -> None: ...
    async def add_node(self, member: Member) -> None: ...
    async def remove_node(self, node: str) -> None: ...
    async def promote(self, asked: PromotionAsked) -> Promoted: ...
    async def store_members(self, change: MembersChange) -> Identity: ...


def illegal(text: str) -> TroveError:
    return TroveError(errors.REPLICA_STATE_ILLEGAL, text)


def not_leader(text: str, leader: str = "", address: str = "", epoch: Epoch = 0) -> TroveError:
    """The fields name the leader, where it is known."""
    fields = {"leader": leader, "address": address, "epoch": str(epoch)} if leader else {}
    where = f"; node {leader} at {address} leads" if leader else ""
    return TroveError(errors.NOT_LEADER, text + where, **fields)


def group_leader(place: Membership, node: str, epoch: Epoch) -> GroupLeader:
    """For clients: that node leads, and these are the nodes of its group."""
    nodes = tuple(GroupNode(one.node, one.address) for one in place.members)
    return GroupLeader(place.cluster, node, epoch, nodes)
