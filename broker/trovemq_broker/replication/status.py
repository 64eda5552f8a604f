"""The state of a node, as operators and the group's other nodes see it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from trovemq_broker.replication.frames import Epoch, Identity, InSyncSet, Node, Offset
from trovemq_store.replica.membership import Member, Members

NO_MEMBERS: Final = Members(version=0)
RECOVER: Final = "recover"
"""The group's keys are written again, in an etcd that has none of them."""
UNCLEAN: Final = "unclean"
"""A copy that is not in sync leads, because none that is can come back."""
PROMOTIONS: Final = ("", RECOVER, UNCLEAN)


class Role(Enum):
    """`OPENING`: it leads, and its first record is not committed yet. `NEW`: it has no group yet."""

    NEW = "new"
    FOLLOWER = "follower"
    OPENING = "opening"
    LEADER = "leader"


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyStatus:
    """A follower, as its leader sees it. `lag_ms`: how long ago it had all that the leader had then."""

    node: Node
    end: Offset
    flushed: Offset
    lag_ms: int
    is_connected: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """Of one node. `cluster`: the group's id; empty without a group. `epoch`: that it leads or follows; 0:
    none. `last_epoch`: the newest in its log. `leader`: the node that leads, empty where it is not known.
    `in_sync`: that it has stored. `in_sync_min`: of the group, also while it has fewer voters; a node that
    joins takes it over. `lag_ms`: of a follower's readers (ReadLag). `problem`: empty if there is none.
    `lease_left_ms`: of a leader that was elected. `cannot_lead`: why it must not be chosen as the leader;
    empty: it may. `clock_ms`: the node's time. `etcd_problem`: why etcd does not answer this node, or why
    its answer cannot be right. `failover_paused`: by an operator, as the node read it last.
    `tls_address`: of its port for clients by TLS, or empty. `checks_forwarded`: as a leader it knows the user
    of a native call that another node forwards; an earlier version takes the node for the caller."""

    group: str
    node: Node
    cluster: str = ""
    role: Role = Role.NEW
    epoch: Epoch = 0
    last_epoch: Epoch = 0
    promised: Epoch = 0
    leader: Node = ""
    begin: int = 0
    end: int = 0
    flushed: int = 0
    commit: int = 0
    in_sync: InSyncSet | None = None
    in_sync_min: int = 0
    listed: Members = NO_MEMBERS
    copies: tuple[CopyStatus, ...] = ()
    problem: str = ""
    lag_bytes: int = 0
    lag_ms: int | None = None
    ack: str = ""
    store_id: str = ""
    incarnation: int = 0
    coordination: str = "manual"
    lease_left_ms: int = 0
    cannot_lead: str = ""
    clock_ms: int = 0
    sealing_key_id: str = ""
    etcd_members: int = 0
    etcd_version: str = ""
    etcd_problem: str = ""
    failover_paused: bool = False
    tls_address: str = ""
    checks_forwarded: bool = False

    @property
    def members(self) -> tuple[Member, ...]:
        return self.listed.nodes

    @property
    def identity(self) -> Identity:
        """Of its log."""
        return Identity(self.node, self.store_id, self.incarnation)

    @property
    def leads(self) -> bool:
        """Also before it serves."""
        return self.role in (Role.LEADER, Role.OPENING)


@dataclass(frozen=True, slots=True)
class MembersChange:
    """A later list of members, from the leader of that epoch."""

    cluster: str
    group: str
    listed: Members
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class PromotionAsked:
    """By an operator. `fenced`: how the nodes that do not answer were stopped; empty: enough must answer.
    `accept_loss`: bytes of their logs that may be lost. `how`: one of PROMOTIONS."""

    fenced: str = ""
    accept_loss: int = 0
    how: str = ""


@dataclass(frozen=True, slots=True)
class Promoted:
    """This node leads that epoch. `cut_bytes`: of other nodes' logs, beyond this one's end."""

    epoch: Epoch
    promised: tuple[Node, ...]
    away: tuple[Node, ...]
    cut_bytes: int


@dataclass(frozen=True, slots=True)
class CutFile:
    """Records that a cut took from the end of a node's log."""

    path: str
    epoch: Epoch
    offset: int
    kept_from: int
    end: int
    records: int


@dataclass(frozen=True, slots=True)
class CutPart:
    """Whole records of a file, the first of which lay at `offset`; `next`: where to continue. No data: there
    are no more."""

    data: bytes
    offset: Offset
    next: Offset


@dataclass(frozen=True, slots=True)
class CutFiles:
    """`dropped_bytes`: of which no file is kept any more."""

    node: Node
    files: tuple[CutFile, ...]
    dropped_bytes: int
