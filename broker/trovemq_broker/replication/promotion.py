"""The choice of the next leader by an operator, from the promises of enough nodes.

Enough are N - in_sync_min + 1 of N voters that still have their state: any set that was ever confirmed has
one of them. Of their stored sets the newest is that one or a later one, and each copy in the newest has all
that was committed: it was in the sets that counted, or had synced it all before it was added.

A node that promised takes no frame of a lower epoch any more, so that the former leader commits nothing that
the choice does not know. Nor does the leader of another gathering, also of one at the same time: of two, one
has the lower epochs, and no leader's epoch of it reaches the other's promise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from trovemq_broker.replication.frames import Epoch, Identity, InSyncSet, Node, Offset
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_store.replica.epochs import Epochs

_PLACES: Final = 8
"""Above NODES_MAX: a digit for a node's place among the voters."""
EPOCH_STEP: Final = _PLACES * _PLACES
"""The last two digits of an epoch, to that base: who gathered the promises, and who leads."""


class Promised(NamedTuple):
    """A node's answer: its promise of that epoch is on disk, and its log is synced up to `end`."""

    identity: Identity
    promised: Epoch
    epochs: Epochs
    end: Offset
    in_sync: InSyncSet | None


def needed(voters: int, in_sync_min: int) -> int:
    """The number of promises that a choice needs."""
    return voters - in_sync_min + 1


def epoch_to_promise(highest: Epoch, gatherer: Node, voters: Sequence[Node]) -> Epoch:
    """`highest`: that was promised anywhere, as far as it is known. `gatherer`: the voter that asks for the
    promises. It promises first, and makes one choice for each epoch."""
    return (highest // EPOCH_STEP + 1) * EPOCH_STEP + _PLACES * sorted(voters).index(gatherer)


def epoch_of_leader(promised: Epoch, node: Node, voters: Sequence[Node]) -> Epoch:
    """Another one for each leader, and below each promise of another gathering with a higher one."""
    return promised + sorted(voters).index(node)


def choose(
    answers: Sequence[Promised],
    epoch: Epoch,
    *,
    voters: int,
    in_sync_min: int,
    wanted: Node | None = None,
) -> Node:
    """The node that leads in that epoch: of the copies of the newest set, each of which has all that is
    committed, the wanted one, else the one with the longest log.

    TroveError NOT_ENOUGH_REPLICAS: too few have promised and still have their state, or the one with the
    newest set has lost a part of its log. An operator who accepts that loss may name a node.
    """
    with_state = [one for one in answers if one.promised == epoch and one.in_sync is not None]
    if (found := len(with_state)) < (enough := needed(voters, in_sync_min)):
        raise TroveError(errors.NOT_ENOUGH_REPLICAS, f"{found} of {enough} nodes have promised epoch {epoch}")
    newest = max(_version(one) for one in with_state)
    able = [one for one in with_state if _version(one) == newest and _is_in_its_set(one)]
    if not able:
        raise TroveError(
            errors.NOT_ENOUGH_REPLICAS, "no node that promised is a copy of the newest in-sync set"
        )
    if wanted is not None and any(one.identity.node == wanted for one in able):
        return wanted
    return max(able, key=lambda one: (one.epochs.last, one.end, one.identity)).identity.node


def _version(one: Promised) -> tuple[Epoch, int]:
    assert one.in_sync is not None, "nodes without a set were left out"
    return one.in_sync.epoch, one.in_sync.version


def _is_in_its_set(one: Promised) -> bool:
    return one.in_sync is not None and one.identity in one.in_sync.copies
