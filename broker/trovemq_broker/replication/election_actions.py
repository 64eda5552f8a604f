"""The actions that an election asks its caller for, in this order. See election.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from trovemq_broker.coordination.coordinator import Change, Compare, LeaseId, Revision
from trovemq_broker.replication.election_records import GroupConfig
from trovemq_broker.replication.frames import Epoch, InSyncSet, Node, NowMs, Offset


# --- calls to the coordinator; each is answered by one input ------------------------------------
class Read(NamedTuple):
    """-> read_done(), or coordinator_failed("read")."""


class Swap(NamedTuple):
    """-> swap_done(tag, ...)."""

    tag: int
    compares: tuple[Compare, ...]
    changes: tuple[Change, ...]


class Grant(NamedTuple):
    """-> lease_granted(), or coordinator_failed("grant")."""

    ttl_s: int


class KeepAlive(NamedTuple):
    """-> lease_kept(), or coordinator_failed("keep_alive")."""

    lease: LeaseId


class Revoke(NamedTuple):
    """No answer."""

    lease: LeaseId


class Watch(NamedTuple):
    """-> watched() for each change, and watch_ended(). It replaces the watch before."""

    after: Revision


# --- of this node -----------------------------------------------------------------------
class Unfollow(NamedTuple):
    """The stream to the leader is to be ended, and an action of the follower that is under way to be waited
    for: after it no report leaves this node. The next action comes after it."""


class Promise(NamedTuple):
    """The epoch is to be promised on disk -> promised(epoch)."""

    epoch: Epoch


class Lead(NamedTuple):
    """This node leads that epoch, and promises it on disk with the first record. The in-sync set is
    confirmed."""

    epoch: Epoch
    in_sync: InSyncSet
    config: GroupConfig


class Follow(NamedTuple):
    """The leader to be followed, in place of the one before. Also below this node's promise: the leader sees
    the promise in the Hello, and takes a later epoch."""

    node: Node
    epoch: Epoch


class StepDown(NamedTuple):
    """This node leads no more: no appends, nothing is acknowledged."""

    reason: str


class ConfirmSet(NamedTuple):
    """For the leader's state machine: Leader.set_confirmed()."""

    in_sync: InSyncSet


class Regroup(NamedTuple):
    """The members have changed: for Leader.regroup(), and to be stored by the node."""

    config: GroupConfig


class Hold(NamedTuple):
    """New appends wait in memory. Once the target's log has all that this one has -> held()."""

    target: Node


class Release(NamedTuple):
    """The hold is over, and this node still leads: the appends continue."""


ElectionAction: TypeAlias = (
    Read
    | Swap
    | Grant
    | KeepAlive
    | Revoke
    | Watch
    | Unfollow
    | Promise
    | Lead
    | Follow
    | StepDown
    | ConfirmSet
    | Regroup
    | Hold
    | Release
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnLog:
    """This node's log. `last_epoch`: of its records. `commit`: as far as it is known here. `in_sync`: that
    it has stored. `cannot_lead`: why this node could not serve as the leader; empty: it could."""

    end: Offset
    flushed: Offset
    commit: Offset
    last_epoch: Epoch
    in_sync: InSyncSet | None = None
    reported_ms: NowMs = 0
    """When this node last sent a report to a leader; by the clock of the election."""
    cannot_lead: str = ""
