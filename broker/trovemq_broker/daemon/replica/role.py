"""The interface of both roles to the rest of a node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from trovemq_broker.cluster.view import GroupLeader, GroupNode
from trovemq_broker.daemon.replica.gathering import Leadership
from trovemq_broker.daemon.replica.open_node import OpenNode
from trovemq_broker.replica_streams.leader_streams import LeaderStreams
from trovemq_broker.replication.frames import Epoch, Identity, InSyncSet, Node, NowMs
from trovemq_broker.replication.promotion import Promised
from trovemq_broker.replication.status import MembersChange, NodeStatus, Promoted, PromotionAsked
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_store.replica.membership import Member, Membership

ELECTED: Final = (
    "the nodes of this group choose their leader by etcd: trovemq cluster switch-over GROUP --to NODE"
)


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

    @property
    def cannot_lead(self) -> str:
        """Why this node must not be chosen as the leader; empty: it may."""

    def cannot_take_over(self, node: Node) -> str:
        """A leader's: why that node must not be chosen, as it says itself; empty: it may, or that is not
        known."""
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

    # --- for the election; the leader's calls do nothing on a follower, and the other way round ---------
    @property
    def leads(self) -> Epoch | None:
        """The epoch that it leads; None: it follows."""

    @property
    def reported_ms(self) -> NowMs:
        """When it last sent a report to a leader; 0: it sent none."""

    def answered_ms(self, now_ms: NowMs) -> NowMs | None:
        """All copies that count have answered a heartbeat that was sent then; None: it does not lead."""

    async def unfollow(self) -> None:
        """No report leaves this node afterwards."""

    async def promise_own(self, epoch: Epoch) -> None:
        """On disk when it returns, with the whole log. SERVICE_NOT_AVAILABLE: this role has ended."""

    def lead(self, leadership: Leadership) -> None:
        """This role ends, and this node leads next."""

    def step_down(self, reason: str) -> None:
        """Nothing is acknowledged from now on."""

    def retarget(self) -> None:
        """Another node leads."""

    def confirm(self, in_sync: InSyncSet) -> None:
        """The proposed set counts."""

    def hold(self, target: Node | None) -> None:
        """Nothing is appended until that node has all of the log; None: appends continue."""


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
