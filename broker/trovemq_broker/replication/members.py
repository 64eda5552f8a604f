"""The members of a group, and how a leader changes them: one node at a time.

    add(node)         a learner: it gets the log, and counts for nothing
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

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from trovemq_broker.replication.frames import NODES_MAX, Epoch, Identity, Node
from trovemq_store.replica.membership import NO_PLACE, PLACES, REMOVED_MAX, Member, Members

CHANGES_MAX: Final = 1 << 16
"""Of one leadership."""


@dataclass(frozen=True, slots=True)
class MemberList:
    """`voters`: their places. `newest`: the voter that this version has added, empty if none. `stores`: ids
    of the stores with which nodes became voters. `removed`: ids of stores that never return."""

    version: int
    voters: Mapping[Node, int]
    learners: frozenset[Node] = frozenset()
    newest: Node = ""
    stores: Mapping[Node, str] = field(default_factory=dict)
    removed: tuple[str, ...] = ()
    last_place: int = -1

    @classmethod
    def first(cls, voters: Iterable[Node]) -> MemberList:
        """Of a new group."""
        places = {node: place for place, node in enumerate(sorted(voters))}
        return cls(1, places, last_place=len(places) - 1)

    @classmethod
    def of(cls, listed: Members) -> MemberList:
        """The list that a node has stored."""
        return cls(
            listed.version,
            listed.places,
            frozenset(one.node for one in listed.nodes if not one.is_voter),
            listed.newest,
            listed.stores,
            listed.removed,
            listed.last_place,
        )

    def stored(self, known: Iterable[Member]) -> Members:
        """This list as nodes store it. `known`: has the addresses of all of its nodes."""
        return Members(
            version=self.version,
            nodes=tuple(
                one._replace(
                    is_voter=one.node in self.voters,
                    place=self.voters.get(one.node, NO_PLACE),
                    store_id=self.stores.get(one.node, ""),
                )
                for one in known
                if one.node in self.nodes
            ),
            newest=self.newest,
            removed=self.removed,
            last_place=self.last_place,
        )

    @property
    def nodes(self) -> frozenset[Node]:
        return self.learners.union(self.voters)


class MemberChanges:
    """Of one leadership. `stored`: the newest list among the promises that made this node the leader. It may
    not have counted before, so it has to be stored by the copies again, as this epoch's first version: a copy
    may have a later list of the leader before, which counts for nothing."""

    def __init__(self, stored: MemberList, epoch: Epoch, me: Node, *, in_sync_min: int) -> None:
        assert me in stored.voters, "a voter leads"
        self._epoch: Final = epoch
        self._me: Final = me
        self._in_sync_min: Final = in_sync_min
        self.newest = replace(stored, version=max(stored.version, epoch * CHANGES_MAX))
        """That followers are to store."""
        self.counts = False
        """Whether the newest list counts: a next change may begin."""

    @property
    def voters(self) -> dict[Node, bool]:
        """For GroupSettings: by node, whether it may be in the in-sync set now."""
        waits = "" if self.counts else self.newest.newest
        return {node: node in self.newest.voters and node != waits for node in sorted(self.newest.nodes)}

    def add(self, node: Node) -> MemberList:
        """ValueError: the change is refused; the text says why. So do all."""
        if node in self.newest.nodes:
            raise ValueError(f"node {node} is a member")
        if len(self.newest.nodes) >= NODES_MAX:
            raise ValueError(f"the group has {NODES_MAX} nodes, the most that it may have")
        return self._changed(replace(self.newest, learners=self.newest.learners | {node}, newest=""))

    def make_voter(self, node: Node, store_id: str) -> MemberList:
        """It should have all of the log: with more voters more promises are needed. With this store its
        promises count before it is in any set, because it cannot have lost one."""
        if node not in self.newest.learners:
            raise ValueError(f"node {node} is no learner")
        taken = set(self.newest.voters.values())
        after = ((self.newest.last_place + step) % PLACES for step in range(1, PLACES + 1))
        place = next(one for one in after if one not in taken)
        return self._changed(
            replace(
                self.newest,
                voters={**self.newest.voters, node: place},
                learners=self.newest.learners - {node},
                newest=node,
                stores={**self.newest.stores, node: store_id},
                last_place=place,
            )
        )

    def remove(self, node: Node, store_ids: Collection[str], counted: Collection[Identity]) -> MemberList:
        """`store_ids`: of the node's stores; `counted`: the copies of the sets that count (InSyncChanges)."""
        if node not in self.newest.nodes:
            raise ValueError(f"node {node} is no member")
        if node == self._me:
            raise ValueError(f"node {node} leads: promote another one first")
        if any(one.node == node for one in counted):
            raise ValueError(f"node {node} is in the in-sync set, and has to be out of it first")
        voters = {one: place for one, place in self.newest.voters.items() if one != node}
        if len(voters) < self._in_sync_min:
            raise ValueError(f"{len(voters)} voters are fewer than in_sync_min, {self._in_sync_min}")
        removed = (*self.newest.removed, *sorted(set(store_ids) - set(self.newest.removed)))
        if len(removed) > REMOVED_MAX:
            raise ValueError(f"{REMOVED_MAX} stores were removed, the most that a group remembers")
        return self._changed(
            replace(
                self.newest,
                voters=voters,
                learners=self.newest.learners - {node},
                newest="",
                stores={one: store for one, store in self.newest.stores.items() if one != node},
                removed=removed,
            )
        )

    def confirm(self, stored: Mapping[Identity, int], counted: Collection[Identity]) -> bool:
        """`stored`: versions of the lists that the copies have on disk, the leader's among them. Whether the
        newest list counts from now on."""
        if self.counts or not all(stored.get(one, 0) >= self.newest.version for one in counted):
            return False
        self.counts = True
        return True

    def _changed(self, later: MemberList) -> MemberList:
        if not self.counts:
            raise ValueError(f"version {self.newest.version} of the members is not stored by all copies yet")
        version = self.newest.version + 1
        if version >= (self._epoch + 1) * CHANGES_MAX:
            raise ValueError(f"{CHANGES_MAX} changes in one leadership")
        self.newest, self.counts = replace(later, version=version), False
        return self.newest
