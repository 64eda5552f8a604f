"""A new owner, where the former one is lost: by an operator's command, never without one.

    1. status of every reachable broker           choose_cluster(), next_generation()
    2. each of that cluster promises it            StoredTable.begin_promise(): no older owner is obeyed
    3. the highest copy among them                 choose_copy()
    4. the new owner stores it                     begin_take_over()

All brokers that hold a copy should take part: a change is lost if no holder of it does. The former owner
obeys when it is back: its later changes are dropped and reported one by one (follower.py).

A take-over that ends after step 2 leaves no owner: brokers refuse the former one. It is repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trovemq_broker.cluster_config.entries import Entry, Generation, check_mark
from trovemq_broker.cluster_config.stored import StoredTable, StoredWork
from trovemq_broker.cluster_config.table import Head, Update, dropped_by
from trovemq_proto import errors
from trovemq_proto.errors import TroveError


@dataclass(frozen=True, slots=True)
class CopyStatus:
    """The copy of one broker; its head is NO_TABLE if it has none."""

    broker: str
    head: Head
    promised: Generation


def status_of(stored: StoredTable, broker: str) -> CopyStatus:
    return CopyStatus(broker, stored.head, stored.promised)


def next_generation(copies: Sequence[CopyStatus], mark: str) -> Generation:
    """A generation above all that any of the brokers has seen; `mark` is drawn by chance by the caller."""
    return Generation(max((copy.promised.number for copy in copies), default=0) + 1, check_mark(mark))


def choose_cluster(copies: Sequence[CopyStatus]) -> str:
    """The cluster of the copies. To be called before any broker promises: from then on it has no owner.
    TroveError CONFIG_OTHER_CLUSTER if they are of several, of which the operator names one."""
    clusters = sorted({copy.head.cluster for copy in copies if copy.head.cluster})
    if len(clusters) > 1:
        of = {c: [copy.broker for copy in copies if copy.head.cluster == c] for c in clusters}
        text = "; ".join(f"cluster {c}: {', '.join(brokers)}" for c, brokers in of.items())
        raise TroveError(
            errors.CONFIG_OTHER_CLUSTER, f"the copies are of several clusters ({text}): name one"
        )
    if not clusters:
        raise TroveError(errors.BROKER_NOT_FOUND, "no reachable broker has a copy")
    return clusters[0]


def choose_copy(
    copies: Sequence[CopyStatus], generation: Generation, cluster: str, *, source: str = ""
) -> CopyStatus:
    """The copy that continues: the one of the highest (generation, version) among those that have promised.

    `source`: the broker whose copy it is to be, where copies contradict each other. TroveError
    CONFIG_OWNER_OLD, BROKER_NOT_FOUND.
    """
    usable = [copy for copy in copies if copy.head.cluster == cluster and copy.promised == generation]
    named = [copy for copy in usable if copy.broker == source]
    if not usable or (source and not named):
        what = f"no reachable broker has a copy of cluster {cluster}"
        raise TroveError(errors.BROKER_NOT_FOUND, f"broker {source} has no copy" if source else what)
    if source:
        return named[0]
    best = max(usable, key=lambda copy: copy.head.position)
    for copy in usable:
        if contradict(copy.head, best.head):
            what = (
                f"the copies of {copy.broker} and {best.broker} contradict each other: one of the stores was"
            )
            raise TroveError(
                errors.CONFIG_OWNER_OLD,
                f"{what} put back from an older copy. Name the broker whose copy continues; changes that it"
                " lacks are dropped and reported",
            )
    return best


def contradict(one: Head, other: Head) -> bool:
    """Whether the two heads cannot be of one history. Only copies that end at the same position show it."""
    return one.position == other.position and one.digest != other.digest


def begin_take_over(
    stored: StoredTable, broker: str, copy: Update, generation: Generation
) -> tuple[StoredWork, tuple[Entry, ...]]:
    """Begins to make this broker the owner, with all entries of the chosen copy. Then Owner(stored) is the
    owner. Returns also the entries of this broker's own table that are dropped.

    TroveError CONFIG_GENERATION_OLD unless the generation is the one that this broker has promised last, and
    above that of the copy, whose broker may have promised another one meanwhile; SERVICE_NOT_AVAILABLE.
    """
    if stored.promised != generation or copy.head.generation >= generation:
        seen = max(stored.promised, copy.head.generation)
        what = f"generation {seen} was promised, not {generation}: repeat the take-over"
        raise TroveError(errors.CONFIG_GENERATION_OLD, what, promised=str(seen))
    head = copy.head.taken_over(generation, broker)
    update = Update(None, head, copy.entries)
    return stored.begin(update), dropped_by(update, stored.table)
