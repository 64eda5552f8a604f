"""The values of a group with a coordinator that no election writes: the first ones, and changes of members.

Members change one node at a time, by the rules of members.py. A change is one compare-and-swap of
`config` and of `state`: it counts when it is done. Each later change of the in-sync set compares `config`, so
no set of a former list is written after it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final, NamedTuple, TypeAlias

from msgspec.structs import replace

from trovemq_broker.replication.election_actions import OwnLog
from trovemq_broker.replication.election_records import GroupConfig, GroupState, NodeRecord
from trovemq_broker.replication.election_view import View, counted_end, not_electable
from trovemq_broker.replication.frames import Epoch, Identity, Offset
from trovemq_broker.replication.members import MemberChanges
from trovemq_broker.replication.promotion import EPOCH_STEP
from trovemq_store.replica.membership import Members

MemberChange: TypeAlias = Callable[[MemberChanges], Members]
"""One of the changes of MemberChanges. It is made again on the list that is there when it is written."""
NO_RECORD: Final = NodeRecord(node="-", store_id="-", incarnation=0)


class LogEnd(NamedTuple):
    """Of a node's log. Ends can be compared within one epoch."""

    last_epoch: Epoch
    end: Offset


def founded(config: GroupConfig, me: Identity, epoch: Epoch, version: int) -> GroupState:
    """The state of a new group: the founder is alone in the set. `epoch`, `version`: of its log and of the
    set that it has stored, where it comes from a group without a coordinator."""
    assert config.member(me.node) is not None, "the founder is a member"
    return GroupState(
        epoch=epoch, leader=me.node, version=max(1, version), in_sync=(me,), reason="the group was founded"
    )


def recovered(
    config: GroupConfig, me: Identity, epoch: Epoch, version: int, copies: Collection[Identity], reason: str
) -> GroupState:
    """The state on a new coordinator, after the old one is lost for ever. `epoch`: that enough nodes have
    promised; `version`: above all that are known; `copies`: each has all that is committed
    (promotion.longest). `me`: that is to lead, one of them."""
    assert config.member(me.node) is not None, "a member leads"
    assert me in copies, "it has all that is committed"
    in_sync = tuple(sorted(copies))
    return GroupState(epoch=epoch, leader=me.node, version=version, in_sync=in_sync, reason=reason)


def unclean(
    view: View,
    me: Identity,
    own: OwnLog,
    promised: Epoch,
    *,
    others: Mapping[Identity, LogEnd],
    accept_loss: int,
    reason: str,
) -> GroupState:
    """The state in which this copy, which is not in sync, is the whole in-sync set. `others`: the ends of the
    other nodes' logs, of those that answer. ValueError: an in-sync copy may still lead, a node that answers
    has records of a later epoch, or more would be lost than an operator accepts; the text says which."""
    state, member = view.state, view.config.member(me.node)
    if member is None or not member.is_voter:
        raise ValueError(f"node {me.node} is not a voter of the group")
    if not not_electable(view, me, own):
        raise ValueError(f"node {me.node} is in sync: it is elected without a command")
    if view.lock is not None:
        raise ValueError(f"node {view.lock.node} leads, or did until a moment ago: wait for its lease to end")
    records = {one.identity: one.held for one in view.nodes.values() if one is not None}
    unread = [one for one in state.in_sync if view.nodes.get(one.node, NO_RECORD) is None]
    if here := sorted(one.node for one in {*records, *others, *unread}.intersection(state.in_sync)):
        raise ValueError(f"{', '.join(here)} of the in-sync set is there, and will lead")
    if later := sorted(one.node for one, log in others.items() if log.last_epoch > own.last_epoch):
        raise ValueError(
            f"{', '.join(later)} has records of a later epoch than node {me.node}, which lacks more of that"
            f" log than the difference of the ends: elect {later[0]}, or stop it for good first"
        )
    end = counted_end(own, is_sync=view.config.is_sync)
    ends = [log.end for log in others.values()]
    lost = max(1, max((state.commit_floor, *records.values(), *ends)) - end)
    if lost > accept_loss:
        raise ValueError(
            f"at least {lost} bytes of the log would be lost, with all that was acknowledged in the last 10 s"
            f" before the in-sync copies were, and {accept_loss} are accepted: start one of"
            f" {', '.join(one.node for one in state.in_sync)}, elect one that has more, or accept it"
        )
    highest = max(state.epoch, promised, own.last_epoch)
    return GroupState(
        epoch=(highest // EPOCH_STEP + 1) * EPOCH_STEP,
        leader=me.node,
        version=state.version + 1,
        in_sync=(me,),
        commit_floor=end,
        former=state.leader,
        reason=reason,
    )


def members_changed(config: GroupConfig, state: GroupState, change: MemberChange) -> GroupConfig:
    """With one change by the rules of members.py. The list before it counts: it is in the coordinator.
    ValueError: the change is refused; the text says why."""
    changes = MemberChanges(config.listed, state.epoch, state.leader)
    changes.counts = True
    listed = change(changes)
    if gone := sorted(one.node for one in state.in_sync if one.node not in listed.places):
        away = "stop it, and wait until the set is without it"
        if len(state.in_sync) <= config.listed.needed(config.in_sync_min):
            away = (
                f"the set, with in_sync_min = {config.in_sync_min}, has no copy to spare. Start it at its"
                " addresses, with an empty disk if its own is lost, or let another voter come in sync"
            )
        raise ValueError(f"{', '.join(gone)} of the in-sync set would be no voter: {away}")
    return replace(config, listed=listed)
