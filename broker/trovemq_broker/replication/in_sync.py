"""The in-sync set of a leader, and its changes.

A change is proposed, stored by the leader, then by the other members of the new set, and so confirmed: a set
counts once every member of it has stored it. There may be several proposals; each was made because a member
of the one before does not answer. A confirmed one ends all that were made before it.

With a coordinator (failover.md) a set counts once the coordinator has it: confirm_written(). A proposal that
got no answer may be written at any time, until a later one is; the copies of all of them count till then.

Invariants
- A set has at least `in_sync_min` copies, and the leader's. At that size a copy is replaced, not dropped.
- One that begins with fewer (of a recovery, of a forced choice) commits nothing until others are in it: the
  nodes that choose the next leader need not have one of its copies.
- A copy is added once it holds all that is committed, and this epoch's first record.
- Until the first set of an epoch is confirmed, nothing is committed: a set of the epoch before, which this
  leader does not know, may be stored elsewhere, and would win a promotion.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from math import inf
from typing import Final, NamedTuple

from trovemq_broker.replication.frames import Epoch, Identity, InSyncSet, Node, NowMs, Offset

CHANGE_INTERVAL_MS: Final = 1_000
FLAPS_MAX: Final = 3
FLAPS_WITHIN_MS: Final = 60_000
HELD_OUT_MS: Final = 30_000
PROPOSALS_MAX: Final = 16


class Copy(NamedTuple):
    """A follower, as its leader sees it. `lag_ms`: how long ago it had all that the leader had then.
    `held`: up to there it counts: synced, or with async flush appended.
    `silent_ms`: how long ago it sent a frame. `is_dead`: its machine refuses connections: the process has
    ended. `is_witnessed`: its node has lost no promise that counts (peers.py)."""

    identity: Identity
    is_voter: bool
    is_connected: bool
    is_dead: bool
    lag_ms: int
    held: Offset
    is_witnessed: bool = True
    silent_ms: int = 0


class InSyncChanges:
    """Of one leadership. `stored`: the set that the leader had stored when it was promoted; with
    `is_coordinated` that of its election."""

    def __init__(
        self,
        stored: InSyncSet,
        epoch: Epoch,
        me: Identity,
        *,
        in_sync_min: int,
        lag_max_ms: int,
        is_coordinated: bool = False,
    ) -> None:
        assert stored.epoch <= epoch, "epochs rise"
        assert is_coordinated == (stored.epoch == epoch), "each leadership has a new epoch"
        assert me in stored.copies, "only a copy of the set becomes the leader"
        self.in_sync_min = in_sync_min
        self._lag_max_ms: Final = lag_max_ms
        self._epoch: Final = epoch
        self._me: Final = me
        self._is_coordinated: Final = is_coordinated
        self.confirmed: InSyncSet | None = stored if is_coordinated else None
        first = InSyncSet(epoch, stored.version + 1, stored.copies)
        self.proposed: list[InSyncSet] = [] if is_coordinated else [first]
        """Not yet confirmed, oldest first."""
        self._changed_ms: NowMs | None = None
        self._removals: dict[Node, deque[NowMs]] = {}

    @property
    def newest(self) -> InSyncSet:
        """The last that was proposed, or confirmed."""
        return self.proposed[-1] if self.proposed else self._confirmed

    @property
    def to_store(self) -> InSyncSet:
        """The set that followers are to store."""
        return self._confirmed if self._is_coordinated else self.newest

    @property
    def may_commit(self) -> bool:
        """Whether a set is confirmed, and is no smaller than the minimum."""
        return self.confirmed is not None and len(self.confirmed.copies) >= self.in_sync_min

    @property
    def counted(self) -> frozenset[Identity]:
        """The copies that must hold a record before it is committed."""
        sets = [*self.proposed, *([self.confirmed] if self.confirmed is not None else [])]
        return frozenset().union(*(one.copies for one in sets))

    def confirm(self, versions: Mapping[Identity, int]) -> bool:
        """`versions`: of the sets of this epoch that the copies have stored. Whether a set was confirmed."""
        if self._is_coordinated:
            return False
        for at in range(len(self.proposed) - 1, -1, -1):
            one = self.proposed[at]
            if all(versions.get(copy, 0) >= one.version for copy in one.copies):
                self.confirmed = one
                del self.proposed[: at + 1]
                return True
        return False

    def confirm_written(self, in_sync: InSyncSet) -> bool:
        """The coordinator has that set: no proposal before it can be written any more. Whether it is news."""
        if in_sync.version <= self._confirmed.version:
            return False
        assert in_sync in self.proposed, "only this leader changes the set of its epoch"
        self.confirmed = in_sync
        self.proposed = [one for one in self.proposed if one.version > in_sync.version]
        return True

    def propose(
        self, copies: Collection[Copy], now_ms: NowMs, *, commit: Offset, epoch_end: Offset
    ) -> InSyncSet | None:
        """The next change, where one is needed and permitted: the caller stores it, and sends it to all."""
        if len(self.proposed) >= PROPOSALS_MAX:
            return None
        known = {copy.identity: copy for copy in copies}
        present = self.newest.copies
        lost = [one for one in present if one != self._me and self._is_lost(known.get(one))]
        waited = self._changed_ms is None or now_ms - self._changed_ms >= CHANGE_INTERVAL_MS
        at_once = any(self._is_dead(known.get(one), one, known) for one in lost)
        if not waited and not at_once:
            return None
        if self.proposed and not lost:
            return None  # its members answer: it will be confirmed
        ready = [one for one in known.values() if self._is_ready(one, now_ms, max(commit, epoch_end))]
        lost.sort(key=lambda one: (-_silent_ms(known.get(one)), one))
        copies_next = self._next(present, lost, [one.identity for one in ready])
        if copies_next == present:
            return None
        for gone in sorted(present - copies_next):
            self._note_removal(gone, known.get(gone), now_ms)
        self._changed_ms = now_ms
        change = InSyncSet(self._epoch, self.newest.version + 1, copies_next)
        self.proposed.append(change)
        return change

    # --- helpers ----------------------------------------------------------------------------------------
    @property
    def _confirmed(self) -> InSyncSet:
        assert self.confirmed is not None, "a leadership has a set, proposed or confirmed"
        return self.confirmed

    def _is_lost(self, copy: Copy | None) -> bool:
        return copy is None or copy.is_dead or copy.lag_ms > self._lag_max_ms

    @staticmethod
    def _is_dead(copy: Copy | None, identity: Identity, known: Mapping[Identity, Copy]) -> bool:
        """Its process has ended, or its node has another log now."""
        if copy is not None:
            return copy.is_dead
        return any(other.node == identity.node for other in known)

    def is_waited_for(self, copy: Copy, now_ms: NowMs) -> bool:
        """Whether a commit waits for a copy that is in no set: it keeps up, and may be added."""
        if not copy.is_voter or not copy.is_witnessed or not copy.is_connected or self._is_lost(copy):
            return False
        at_minimum = len(self.newest.copies) <= self.in_sync_min
        return at_minimum or not self._is_held_out(copy.identity.node, now_ms)

    def _is_ready(self, copy: Copy, now_ms: NowMs, needed: Offset) -> bool:
        is_new = copy.identity not in self.newest.copies
        return is_new and copy.held >= needed and self.is_waited_for(copy, now_ms)

    def _next(
        self, present: frozenset[Identity], lost: list[Identity], ready: list[Identity]
    ) -> frozenset[Identity]:
        """All that are ready come in, each in place of another copy of its node. Lost ones go, the first of
        them first, while enough remain."""
        nodes = {one.node for one in ready}
        copies = frozenset(one for one in present if one.node not in nodes).union(ready)
        for one in lost:
            if len(copies) > self.in_sync_min:
                copies -= {one}
        return copies

    def _note_removal(self, gone: Identity, copy: Copy | None, now_ms: NowMs) -> None:
        """Only a lag counts: a process that has ended may come back at once."""
        if copy is None or copy.is_dead:
            return
        times = self._removals.setdefault(gone.node, deque(maxlen=FLAPS_MAX))
        times.append(now_ms)

    def _is_held_out(self, node: Node, now_ms: NowMs) -> bool:
        times = self._removals.get(node)
        if times is None or len(times) < FLAPS_MAX or times[-1] - times[0] > FLAPS_WITHIN_MS:
            return False
        return now_ms - times[-1] < HELD_OUT_MS


def _silent_ms(copy: Copy | None) -> float:
    """A copy whose disk is slow stays, rather than one that does not answer at all."""
    return inf if copy is None or copy.is_dead else copy.silent_ms
