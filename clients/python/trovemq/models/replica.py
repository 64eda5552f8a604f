"""Replica groups and their nodes. Frozen values; none of them holds a connection."""

from __future__ import annotations

from dataclasses import dataclass

from trovemq_proto.records import Message


@dataclass(frozen=True, slots=True)
class ReplicaLag:
    """The lag of a replica that answered a read.

    Attributes:
        lag_bytes: Bytes of the log that the leader's readers saw, and the replica's did not; None if the
            replica has not heard from a leader yet.
        lag_ms: How long ago the replica had all that the leader's readers saw; None if it never had.
    """

    lag_bytes: int | None
    lag_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaNode:
    """A node of a replica group.

    Attributes:
        node: Its name.
        role: `leader`; `opening`: it leads, and its first record is not committed yet; `follower`; `new`: it
            has no group yet; `unknown`: it does not answer.
        address: HOST:PORT of its gRPC services.
        is_voter: Whether its copy may count.
        is_joining: Whether it becomes a voter once it has all of the log.
        epoch: The leadership that it leads or follows; 0: none.
        end: Where its log ends, in bytes; None if it does not answer.
        flushed: Up to where its log is synced.
        commit: Up to where the log is committed, as it knows.
        lag_bytes: Bytes of the leader's log that it lacks; None if that is not known.
        lag_ms: How long ago it had all of the leader's log, as the leader sees it; as it sees that itself
            where no leader answers; None if that is not known.
        problem: Why it does not answer, lead or follow; empty if there is none.
        clock_ahead_ms: By how much its clock is before this machine's; None if that is not known.
        sealing_key_id: The key by which it reads the users; empty: it has none.
        etcd_members: The number of etcd's members; 0 if that is not known.
        etcd_version: Of the member of etcd that answered it; empty if that is not known.
        etcd_problem: Why etcd does not answer it, or why etcd's values cannot be right
            (COORDINATION_ILLEGAL); empty if there is nothing, and without etcd.
        failover_paused: Whether an operator has paused the failover, as it knows.
    """

    node: str
    role: str
    address: str
    is_voter: bool
    is_joining: bool = False
    epoch: int = 0
    end: int | None = None
    flushed: int | None = None
    commit: int | None = None
    lag_bytes: int | None = None
    lag_ms: int | None = None
    problem: str = ""
    clock_ahead_ms: int | None = None
    sealing_key_id: str = ""
    etcd_members: int = 0
    etcd_version: str = ""
    etcd_problem: str = ""
    failover_paused: bool = False

    @property
    def is_reachable(self) -> bool:
        """Whether it answers."""
        return self.end is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaGroup:
    """A replica group, by the answers of its nodes.

    Attributes:
        group: Its name, which clients see as the broker's.
        leader: The node that leads; None if none that answers does.
        epoch: The number of its leadership, the highest that is known.
        in_sync: The nodes whose copies count, sorted.
        in_sync_min: The number of copies below which messages are refused.
        ack: `replicated`: a message is acknowledged by every copy that counts; `leader`.
        nodes: Its nodes, by name.
        coordination: How its nodes agree: `manual`, `etcd`.
        lease_left_ms: How long its leader may lead without an answer of etcd; None without a lease.
    """

    group: str
    leader: str | None
    epoch: int
    in_sync: tuple[str, ...]
    in_sync_min: int
    ack: str
    nodes: tuple[ReplicaNode, ...]
    coordination: str = "manual"
    lease_left_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Promotion:
    """A promotion of a node.

    Attributes:
        group: Its group.
        node: The node that leads.
        epoch: Its leadership.
        promised: The nodes that have promised it.
        away: The voters that have not.
        cut_bytes: Bytes at the ends of other nodes' logs that the leader lacks: they are cut, and kept in
            files (`cut_records`).
    """

    group: str
    node: str
    epoch: int
    promised: tuple[str, ...]
    away: tuple[str, ...]
    cut_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CutRecords:
    """Records that a node has cut from the end of its log, because a later leader lacks them.

    Attributes:
        node: The node.
        path: The file within its store.
        epoch: The leadership of the first one.
        offset: Where the log ends since.
        end: Where it ended before.
        records: How many the file has.
        dropped_bytes: Bytes of this node's cuts of which no file is kept any more.
    """

    node: str
    path: str
    epoch: int
    offset: int
    end: int
    records: int
    dropped_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CutMessage:
    """A message among the records that a node has cut.

    Attributes:
        offset: Where it lay in that node's log.
        message: The message as it was stored.
    """

    offset: int
    message: Message
