"""A follower as its leader sees it, and the copies that a commit has to wait for.

Invariants
- A report counts from the first one in this epoch, which the follower had promised before.
- A commit waits for each copy of the sets that count, and for each that keeps up and may be added: else one
  that is always the slowest would always lack a committed record, and never be added (Kafka does the same).
  One that does not keep up is waited for lag_max_ms at most.
- A store without any in-sync set may have replaced one that had promised a higher epoch. It is added only
  after in_sync_min - 1 other voters that have their state, or all others, answered a heartbeat that was sent
  after its Hello. Any choice of another leader before that Hello needed the promise of one of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from trovemq_broker.replication.frames import Identity, InSyncSet, Node, NowMs, Offset
from trovemq_broker.replication.in_sync import Copy
from trovemq_proto.positions import LOG_ORIGIN

Stream: TypeAlias = int


@dataclass(slots=True, eq=False)
class Peer:
    """`since_ms`: it had all that the leader had then. `sent`, `end`, `flushed`: of this stream."""

    identity: Identity
    is_voter: bool
    since_ms: NowMs
    stream: Stream | None = None
    is_dead: bool = False
    sent: Offset = LOG_ORIGIN
    end: Offset = LOG_ORIGIN
    flushed: Offset = LOG_ORIGIN
    has_reported: bool = False
    set_version: int = 0
    mark_end: Offset = LOG_ORIGIN
    mark_ms: NowMs = 0
    """The leader's end at that time: a report of it makes that time `since_ms`."""
    has_state: bool = True
    """It has stored an in-sync set, of any epoch, or became a voter with this store: its promises count."""
    hello_ms: NowMs = 0
    """The first Hello of this store."""
    beaten_ms: NowMs = 0
    """The last heartbeat of this stream; `answered_ms`: the last one that it answered."""
    answered_ms: NowMs = 0
    heard_ms: NowMs = 0
    """It has sent a frame."""
    commit_sent: Offset = LOG_ORIGIN
    left_ms: NowMs | None = None
    """When its last stream ended; None: it has one, or had none in this epoch."""
    paid_ms: float = 0.0
    """The data that it was sent while it catches up is paid for until then."""
    is_learner: bool = False
    """By its own wish: it never votes, whatever the list of members says."""

    def position(self, *, is_sync: bool) -> Offset:
        """Up to there it counts."""
        if not self.has_reported:
            return LOG_ORIGIN
        return self.flushed if is_sync else self.end

    def answered(self, sent_ms: NowMs) -> None:
        """A report that returns the time of a heartbeat; of another stream's it does not count."""
        if self.answered_ms < sent_ms <= self.beaten_ms:
            self.answered_ms = sent_ms

    def continues(self, former: Peer) -> None:
        """It is the same store as before, with another stream."""
        self.since_ms, self.hello_ms = former.since_ms, former.hello_ms


def as_copy(peer: Peer, now_ms: NowMs, *, is_sync: bool, is_witnessed: bool) -> Copy:
    """The follower, as the in-sync set's changes see it."""
    return Copy(
        peer.identity,
        peer.is_voter,
        peer.stream is not None,
        peer.is_dead,
        now_ms - peer.since_ms,
        peer.position(is_sync=is_sync),
        is_witnessed,
        now_ms - peer.heard_ms,
    )


def is_witnessed(
    peer: Peer, peers: Collection[Peer], others: Iterable[Node], newest: InSyncSet, in_sync_min: int
) -> bool:
    """Whether the store may be added, as to promises that its node may have lost. `others`: the voters
    besides it and the leader."""
    if peer.has_state:
        return True
    if len(newest.copies) == 1 < in_sync_min:
        return True  # the group begins: no other node ever had a set, so none was chosen
    names = frozenset(others)
    answers = [one for one in peers if one.identity.node in names and one.answered_ms > peer.hello_ms]
    return len(answers) == len(names) or sum(one.has_state for one in answers) >= in_sync_min - 1
