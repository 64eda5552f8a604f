"""Changes of a group's members with a coordinator: one node at a time, by the rules of members.py.

A change is one compare-and-swap of `config` and of `state`: it counts when it is done. Each later change of
the in-sync set compares `config`, so no set of a former list is written after it.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

from trovemq_broker.replication.election_records import GroupConfig, GroupState
from trovemq_broker.replication.frames import Epoch, Identity, InSyncSet, Node
from trovemq_broker.replication.members import MemberChanges
from trovemq_store.replica.membership import Member


def founded(config: GroupConfig, me: Identity, epoch: Epoch, version: int) -> GroupState:
    """The state of a new group: the founder is alone in the set. `epoch`, `version`: of its log and of the
    set that it has stored, where it comes from a group without a coordinator."""
    assert config.member(me.node) is not None, "the founder is a member"
    return GroupState(
        epoch=epoch, leader=me.node, version=max(1, version), in_sync=(me,), reason="the group was founded"
    )


def recovered(config: GroupConfig, me: Identity, epoch: Epoch, in_sync: InSyncSet, reason: str) -> GroupState:
    """The state on a new coordinator, after the old one is lost for ever, or was restored. `epoch`: the
    highest that any node has promised. `in_sync`: the newest set that any node has stored: each of its copies
    has all that is committed. `me`: that is to lead, one of them; another one only where an operator accepts
    the loss, and then it is alone in the set."""
    assert config.member(me.node) is not None, "a member leads"
    copies = tuple(sorted(in_sync.copies)) if me in in_sync.copies else (me,)
    version = in_sync.version + 1
    return GroupState(epoch=epoch, leader=me.node, version=version, in_sync=copies, reason=reason)


def with_node(config: GroupConfig, state: GroupState, member: Member) -> GroupConfig:
    """The node is a learner. ValueError: the change is refused; the text says why. So do all."""
    return replace(config, listed=_changes(config, state).add(member))


def with_voter(config: GroupConfig, state: GroupState, node: Node, store_id: str) -> GroupConfig:
    """The learner has all that is committed, and may come into the set."""
    return replace(config, listed=_changes(config, state).make_voter(node, store_id))


def without_node(
    config: GroupConfig,
    state: GroupState,
    node: Node,
    store_ids: Collection[str],
    counted: Collection[Identity],
) -> GroupConfig:
    """`store_ids`: of its stores, which never return. `counted`: the copies that a commit waits for."""
    removed = _changes(config, state).remove(node, store_ids, {*counted, *state.in_sync})
    return replace(config, listed=removed)


def with_in_sync_min(config: GroupConfig, state: GroupState, in_sync_min: int) -> GroupConfig:
    """It is raised only while the set has as many copies."""
    if in_sync_min > len(state.in_sync):
        raise ValueError(f"{len(state.in_sync)} copies are in sync, fewer than {in_sync_min}")
    listed = replace(config.listed, version=config.listed.version + 1)
    return replace(config, in_sync_min=in_sync_min, listed=listed)


def _changes(config: GroupConfig, state: GroupState) -> MemberChanges:
    """For one change. The list counts: it is in the coordinator."""
    epoch = state.epoch
    changes = MemberChanges(config.listed, epoch, state.leader, in_sync_min=config.in_sync_min)
    changes.counts = True
    return changes
