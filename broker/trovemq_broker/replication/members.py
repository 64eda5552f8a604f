"""The members of a group, and how a leader changes them: one node at a time.

    add(node)         a learner: it gets the log, and counts for nothing; the list says whether it is to vote
    join(node)        a learner is to become a voter
    refuse(node)      it is not, any more
    make_voter(node)  it may come into the in-sync set, and its promise counts
    remove(node)      a voter is out of the in-sync set before; its store's id never returns

Each gives a new list, which the leader sends to its followers. Each node stores it durably, replaced by a
later one only, and refuses one of a leader whose epoch is below its promise. The list counts once the leader
and all other copies of the in-sync sets that count have stored it (confirm()); until then no other change
begins, and a node that it makes a voter is in no set. A promotion goes by the newest list among its answers.

docs/internals/replication.md says why that is safe.

Invariants
- Versions rise, over leaderships, too: an epoch's are above all of lower epochs, and begin with the list
  that the leader found.
- A place among the voters is never another node's while both may have a list: it is in the epochs that the
  node asks for or leads (promotion.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from msgspec.structs import replace

from trovemq_broker.replication.frames import NODES_MAX, Epoch, Identity, Node
from trovemq_store.replica.membership import NO_PLACE, PLACES, REMOVED_MAX, Member, Members

CHANGES_MAX: Final = 1 << 16
"""Of one leadership."""


class MemberChanges:
    """Of one leadership. `stored`: the newest list among the promises that made this node the leader. It may
    not have counted before, so it has to be stored by the copies again, as this epoch's first version: a copy
    may have a later list of the leader before, which counts for nothing. `in_sync`: the nodes of the set with
    which the leadership begins. A voter of it came in by a list that counted."""

    def __init__(self, stored: Members, epoch: Epoch, me: Node, in_sync: Collection[Node] = ()) -> None:
        assert me in stored.places, "a voter leads"
        self._epoch: Final = epoch
        self._me: Final = me
        self.newest = replace(stored, version=max(stored.version, epoch * CHANGES_MAX))
        """That followers are to store."""
        self.counts = False
        """Whether the newest list counts: a next change may begin."""
        self._waits: Node = "" if stored.newest in in_sync else stored.newest
        """The voter that may not be in a set before the list counts."""

    @property
    def voters(self) -> dict[Node, bool]:
        """For GroupSettings: by node, whether it may be in the in-sync set now."""
        waits = "" if self.counts else self._waits
        return {one.node: one.is_voter and one.node != waits for one in sorted(self.newest.nodes)}

    def add(self, member: Member) -> Members:
        """ValueError: the change is refused; the text says why. So do all."""
        if self.newest.member(member.node) is not None:
            raise ValueError(f"node {member.node} is a member")
        if len(self.newest.nodes) >= NODES_MAX:
            raise ValueError(f"the group has {NODES_MAX} nodes, the most that it may have")
        learner = member._replace(is_voter=False, place=NO_PLACE, store_id="")
        joining = (*self.newest.joining, member.node) if member.is_voter else self.newest.joining
        return self._changed(nodes=(*self.newest.nodes, learner), joining=joining)

    def join(self, node: Node) -> Members:
        """Any later leader makes it a voter, too."""
        learner = self.newest.member(node)
        if learner is None or learner.is_voter or node in self.newest.joining:
            raise ValueError(f"node {node} is no learner, or joins already")
        return self._changed(joining=(*self.newest.joining, node))

    def refuse(self, node: Node) -> Members:
        """It stays a learner."""
        if node not in self.newest.joining:
            raise ValueError(f"node {node} does not join")
        return self._changed(joining=self._joining_without(node))

    def make_voter(self, node: Node, store_id: str) -> Members:
        """It should have all of the log: with more voters more promises are needed. With this store its
        promises count before it is in any set, because it cannot have lost one."""
        learner = self.newest.member(node)
        if learner is None or learner.is_voter:
            raise ValueError(f"node {node} is no learner")
        taken = set(self.newest.places.values())
        after = ((self.newest.last_place + step) % PLACES for step in range(1, PLACES + 1))
        place = next(one for one in after if one not in taken)
        voter = learner._replace(is_voter=True, place=place, store_id=store_id)
        nodes = tuple(voter if one.node == node else one for one in self.newest.nodes)
        joining = self._joining_without(node)
        return self._changed(nodes=nodes, newest=node, last_place=place, joining=joining)

    def remove(self, node: Node, store_ids: Collection[str], counted: Collection[Identity]) -> Members:
        """`store_ids`: of the node's stores; `counted`: the copies of the sets that count (InSyncChanges)."""
        if self.newest.member(node) is None:
            raise ValueError(f"node {node} is no member")
        if node == self._me:
            raise ValueError(f"node {node} leads: promote another one first")
        if any(one.node == node for one in counted):
            raise ValueError(f"node {node} is in the in-sync set, and has to be out of it first")
        nodes = tuple(one for one in self.newest.nodes if one.node != node)
        removed = (*self.newest.removed, *sorted(set(store_ids) - set(self.newest.removed)))
        if len(removed) > REMOVED_MAX:
            raise ValueError(f"{REMOVED_MAX} stores were removed, the most that a group remembers")
        return self._changed(nodes=nodes, removed=removed, joining=self._joining_without(node))

    def take(self, written: Members) -> bool:
        """A list that this leader has written to the coordinator, also without an answer. Whether it is
        later."""
        if written.version <= self.newest.version:
            return False
        self.newest, self.counts, self._waits = written, False, written.newest
        return True

    def confirm(self, stored: Mapping[Identity, int], counted: Collection[Identity]) -> bool:
        """`stored`: versions of the lists that the copies have on disk, the leader's among them. Whether the
        newest list counts from now on."""
        if self.counts or not all(stored.get(one, 0) >= self.newest.version for one in counted):
            return False
        self.counts = True
        return True

    def _joining_without(self, node: Node) -> tuple[Node, ...]:
        return tuple(one for one in self.newest.joining if one != node)

    def _changed(self, *, newest: Node = "", **fields: object) -> Members:
        if not self.counts:
            raise ValueError(f"version {self.newest.version} of the members is not stored by all copies yet")
        version = self.newest.version + 1
        if version >= (self._epoch + 1) * CHANGES_MAX:
            raise ValueError(f"{CHANGES_MAX} changes in one leadership")
        self.newest = replace(self.newest, version=version, newest=newest, **fields)
        self.counts, self._waits = False, newest
        return self.newest
