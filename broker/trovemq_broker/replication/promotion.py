"""The choice of the next leader by an operator, from the promises of enough nodes.

Enough are N - in_sync_min + 1 of N voters that still have their state: any set that was ever confirmed has
one of them. Of their stored sets the newest is that one or a later one, and each copy in the newest has all
that was committed: it was in the sets that counted, or had synced it all before it was added.

A node that promised takes no frame of a lower epoch any more, so that the former leader commits nothing that
the choice does not know. Nor does the leader of another gathering, also of one at the same time: of two, one
has the lower epochs, and no leader's epoch of it reaches the other's promise.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from trovemq_broker.replication.frames import Epoch, Identity, InSyncSet, Node, Offset
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_store.replica.epochs import Epochs
from trovemq_store.replica.membership import PLACES, Members

EPOCH_STEP: Final = PLACES * PLACES
"""The last two digits of an epoch, to that base: who gathered the promises, and who leads."""


class Promised(NamedTuple):
    """A node's answer: its promise of that epoch is on disk, and its log is synced up to `end`. `listed`: the
    members that it has stored."""

    identity: Identity
    promised: Epoch
    epochs: Epochs
    end: Offset
    in_sync: InSyncSet | None
    listed: Members = Members()


def needed(voters: int, in_sync_min: int) -> int:
    """The number of promises that a choice needs."""
    return voters - in_sync_min + 1


def epoch_to_promise(highest: Epoch, gatherer: Node, voters: Sequence[Node] | Mapping[Node, int]) -> Epoch:
    """`highest`: that was promised anywhere, as far as it is known. `gatherer`: the voter that asks for the
    promises. It promises first, and makes one choice for each epoch. `voters`: their places (members.py), or
    names in a group whose members never change."""
    return (highest // EPOCH_STEP + 1) * EPOCH_STEP + PLACES * _place(gatherer, voters)


def epoch_of_leader(promised: Epoch, node: Node, voters: Sequence[Node] | Mapping[Node, int]) -> Epoch:
    """Another one for each leader, and below each promise of another gathering with a higher one."""
    return promised + _place(node, voters)


def choose(
    answers: Sequence[Promised],
    epoch: Epoch,
    *,
    voters: int | Collection[Node],
    in_sync_min: int,
    wanted: Node | None = None,
    stores: Mapping[Node, str] | None = None,
) -> Node:
    """The node that leads in that epoch: of the copies of the newest set, each of which has all that is
    committed, the wanted one, else the one with the longest log. `voters`: of the newest list of members
    among the answers: only their promises count. Their number will do in a group whose members never change.
    `stores`: those with which nodes became voters; such a one has its state before it is in any set.

    All stores that answered have to be there still at the end: a disk that was replaced meanwhile has lost
    its promise. So the answers are those of a second asking, after all have promised.

    TroveError NOT_ENOUGH_REPLICAS: too few have promised and still have their state, or the one with the
    newest set has lost a part of its log. An operator who accepts that loss may name a node.
    """
    with_state = [one for one in answers if one.promised == epoch and _has_state(one, stores or {})]
    count = voters if isinstance(voters, int) else len(voters)
    if not isinstance(voters, int):
        with_state = [one for one in with_state if one.identity.node in voters]
    if (found := len(with_state)) < (enough := needed(count, in_sync_min)):
        raise TroveError(errors.NOT_ENOUGH_REPLICAS, f"{found} of {enough} nodes have promised epoch {epoch}")
    newest = max((_version(one) for one in with_state), default=(0, 0))
    able = [one for one in with_state if _version(one) == newest and _is_in_its_set(one)]
    if not able:
        raise TroveError(
            errors.NOT_ENOUGH_REPLICAS, "no node that promised is a copy of the newest in-sync set"
        )
    if wanted is not None and any(one.identity.node == wanted for one in able):
        return wanted
    return max(able, key=lambda one: (one.epochs.last, one.end, one.identity)).identity.node


def longest(
    answers: Sequence[Promised],
    epoch: Epoch,
    *,
    voters: Collection[Node],
    in_sync_min: int,
    stores: Mapping[Node, str],
) -> frozenset[Identity]:
    """The copies with the longest log, where the newest in-sync set may be known to no node that answers: it
    was at a coordinator that is lost. The arguments are those of choose().

    Any set had `in_sync_min` voters, so one of those that promised, and that one has all that is committed.
    A log whose newest epoch is the same or a later one, and that is as long, has it, too: each leader of a
    later epoch had it. A store or, with async flush, a run that is not the listed one may have lost its end.

    A group with fewer voters than its minimum commits with all of them, and new voters alone may be enough
    promises afterwards. So one of those that promised was in a set: as one of the former voters, or added
    since, with all that was committed by then.

    TroveError NOT_ENOUGH_REPLICAS.
    """
    sets = [one.in_sync for one in answers if one.in_sync is not None]
    newest = max(sets, key=lambda one: one[:2], default=InSyncSet(0, 0, frozenset()))
    replaced = {one.node for one in newest.copies} - {
        one.identity.node for one in answers if one.identity in newest.copies
    }
    counted = [
        one
        for one in answers
        if one.promised == epoch and _has_state(one, stores)
        if one.identity.node in voters and one.identity.node not in replaced
    ]
    if len(counted) < (enough := needed(len(voters), in_sync_min)):
        text = f"{len(counted)} of {enough} nodes that still have their log have promised epoch {epoch}"
        raise TroveError(errors.NOT_ENOUGH_REPLICAS, text)
    if all(one.in_sync is None for one in counted):
        text = "no node that promised was ever in sync, so that each may lack acknowledged messages of others"
        raise TroveError(errors.NOT_ENOUGH_REPLICAS, text)
    ends = {one.identity: (one.epochs.last, one.end) for one in counted}
    last = max(ends.values())
    return frozenset(one for one, end in ends.items() if end == last)


def _place(node: Node, voters: Sequence[Node] | Mapping[Node, int]) -> int:
    return voters[node] if isinstance(voters, Mapping) else sorted(voters).index(node)


def _version(one: Promised) -> tuple[Epoch, int]:
    return (0, 0) if one.in_sync is None else (one.in_sync.epoch, one.in_sync.version)


def _has_state(one: Promised, stores: Mapping[Node, str]) -> bool:
    return one.in_sync is not None or stores.get(one.identity.node) == one.identity.store_id


def _is_in_its_set(one: Promised) -> bool:
    return one.in_sync is not None and one.identity in one.in_sync.copies
