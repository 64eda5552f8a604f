"""One reading of the coordinator, and the decisions that follow from it alone.

Invariants
- Only a copy of the in-sync set may be elected: with the store and the incarnation that are listed there.
- An election drops copies as far as `in_sync_min` allows, and adds none.
- A reading that is older than this node's knowledge when it asked is of a restored coordinator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from trovemq_broker.coordination.coordinator import LeaseId, Revision, Snapshot
from trovemq_broker.replication.election_actions import OwnLog
from trovemq_broker.replication.election_records import (
    CONFIG,
    LOCK,
    NODES,
    PAUSE,
    STATE,
    SWITCH,
    GroupConfig,
    GroupState,
    LeaderLock,
    NodeRecord,
    SwitchWanted,
    from_bytes,
)
from trovemq_broker.replication.frames import Epoch, Identity, Node, Offset
from trovemq_proto import errors
from trovemq_proto.errors import TroveError


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """`..._changed`: the revisions to compare with; 0 where the key is absent. `nodes`: that are there; None
    for a record that this version cannot read."""

    revision: Revision
    config: GroupConfig
    config_changed: Revision
    state: GroupState
    state_changed: Revision
    lock: LeaderLock | None
    lock_changed: Revision
    lock_lease: LeaseId
    nodes: Mapping[Node, NodeRecord | None]
    node_leases: Mapping[Node, LeaseId]
    switch: SwitchWanted | None
    switch_changed: Revision
    is_paused: bool

    def has_lock(self, me: Identity) -> bool:
        """Whether this store holds the lock, in this run or a former one."""
        return self.lock is not None and (self.lock.node, self.lock.store_id) == (me.node, me.store_id)


class Known(NamedTuple):
    """A reading that is asked for now may not be older. `epoch`, `version`: of the group's state."""

    revision: Revision
    epoch: Epoch
    version: int


def viewed(snapshot: Snapshot) -> View | None:
    """None: there is no group yet. TroveError COORDINATION_ILLEGAL."""
    values = snapshot.values
    config, state = values.get(CONFIG), values.get(STATE)
    if config is None and state is None:
        return None
    if config is None or state is None:
        missing = CONFIG if config is None else STATE
        raise TroveError(errors.COORDINATION_ILLEGAL, f"the key {missing} is absent, and the other is there")
    lock, switch = values.get(LOCK), values.get(SWITCH)
    nodes = {key.removeprefix(NODES): one for key, one in values.items() if key.startswith(NODES)}
    return View(
        revision=snapshot.revision,
        config=from_bytes(CONFIG, config.value, GroupConfig),
        config_changed=config.changed,
        state=from_bytes(STATE, state.value, GroupState),
        state_changed=state.changed,
        lock=None if lock is None else from_bytes(LOCK, lock.value, LeaderLock),
        lock_changed=0 if lock is None else lock.changed,
        lock_lease=0 if lock is None else lock.lease,
        nodes={node: _record(one.value) for node, one in nodes.items()},
        node_leases={node: one.lease for node, one in nodes.items()},
        switch=None if switch is None else from_bytes(SWITCH, switch.value, SwitchWanted),
        switch_changed=0 if switch is None else switch.changed,
        is_paused=PAUSE in values,
    )


def went_back(view: View | None, known: Known) -> str:
    """Why the reading cannot be of the coordinator that this node knew when it asked; empty if it can."""
    if view is None:
        return "the group's keys are gone" if known.version else ""
    state = view.state
    if state.epoch < known.epoch or state.version < known.version:
        return (
            f"epoch {state.epoch} with version {state.version} of the in-sync set, after epoch {known.epoch}"
            f" with version {known.version}: was an older backup restored?"
        )
    if view.revision < known.revision:
        return f"revision {view.revision} after {known.revision}: was an older backup restored?"
    return ""


def counted_end(own: OwnLog, *, is_sync: bool) -> Offset:
    """Up to there this node's copy counts."""
    return own.flushed if is_sync else own.end


def not_electable(view: View, me: Identity, own: OwnLog) -> str:
    """Why this node may not be elected; empty if it may."""
    state, member = view.state, view.config.member(me.node)
    if member is None or not member.is_voter:
        return f"node {me.node} is not a voter of the group"
    if me not in state.in_sync and not _is_alone(state, me):
        return f"this copy of node {me.node} is not in the in-sync set"
    if (reached := counted_end(own, is_sync=view.config.is_sync)) < state.commit_floor:
        return f"this log ends at {reached}, and {state.commit_floor} is committed: was an old disk restored?"
    return own.cannot_lead


def rank(view: View, me: Identity, own: OwnLog, priority: int, dead: Node) -> int:
    """How many other copies of the set, which are there, should lead before this one: those with longer logs.
    By the records that all nodes see, although they are a second old: by its log each would be first. That
    saves records which are not acknowledged; nothing else depends on it."""
    records = {one.node: view.nodes.get(one.node) for one in view.state.in_sync if one.node != dead}
    mine = (-counted_end(own, is_sync=view.config.is_sync), -priority, me.node)
    if (record := records.pop(me.node, None)) is not None:
        mine = (-record.held, -record.priority, me.node)
    others = [one for one in records.values() if one is not None]
    return sum((-one.held, -one.priority, one.node) < mine for one in others)


def set_of_winner(view: View, me: Identity, dead: Node) -> frozenset[Identity]:
    """The in-sync set after this node's election: without the leader that is known to be dead, and without
    the nodes that are not there, while enough copies remain."""
    others = [one for one in view.state.in_sync if one.node != me.node]
    copies = frozenset([me, *others])
    gone = [one for one in others if one.node == dead or one.node not in view.nodes]
    for one in sorted(gone, key=lambda one: (one.node != dead, one)):
        if len(copies) > view.config.in_sync_needed:
            copies -= {one}
    return copies


def _is_alone(state: GroupState, me: Identity) -> bool:
    """Whether its former incarnation is the whole set: no other copy has more."""
    (one, *others) = state.in_sync
    return not others and (one.node, one.store_id) == (me.node, me.store_id)


def _record(data: bytes) -> NodeRecord | None:
    try:
        return from_bytes(NODES, data, NodeRecord)
    except TroveError:
        return None  # of a later version: the node is there, and that counts
