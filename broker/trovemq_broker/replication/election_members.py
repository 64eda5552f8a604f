"""Changes of a group's members with a coordinator: one node at a time, by the rules of members.py.

A change is one compare-and-swap of `config` and of `state`: it counts when it is done. Each later change of
the in-sync set compares `config`, so no set of a former list is written after it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from msgspec.structs import replace

from trovemq_broker.replication.election_records import GroupConfig, GroupState
from trovemq_broker.replication.frames import Epoch, Identity, InSyncSet
from trovemq_broker.replication.members import MemberChanges
from trovemq_store.replica.membership import Members

MemberChange: TypeAlias = Callable[[MemberChanges], Members]
"""One of the changes of MemberChanges. It is made again on the list that is there when it is written."""


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


def members_changed(config: GroupConfig, state: GroupState, change: MemberChange) -> GroupConfig:
    """With one change by the rules of members.py. The list before it counts: it is in the coordinator.
    ValueError: the change is refused; the text says why."""
    changes = MemberChanges(config.listed, state.epoch, state.leader)
    changes.counts = True
    listed = change(changes)
    if gone := sorted(one.node for one in state.in_sync if one.node not in listed.places):
        raise ValueError(f"{', '.join(gone)} of the in-sync set would be no voter: stop it, and wait")
    return replace(config, listed=listed)
