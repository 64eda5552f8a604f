"""A node's place in its replica group, as `trovemq/replica.json` keeps it (replica_file.py).

Invariants
- A store belongs to one group: `cluster` and `group` never change; a node that leaves forgets all of it.
- An in-sync set is replaced by a later one only, by (epoch, version).
- The list of members is replaced by one with a higher version only.
- A place among the voters is another node's only once no list with the one before may be stored.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

MEMBERS_MAX: Final = 7
PLACES: Final = 8
"""Above MEMBERS_MAX: a digit of an epoch."""
REMOVED_MAX: Final = 1_024
NO_PLACE: Final = -1


class Identity(NamedTuple):
    """Of the log that a node keeps. `store_id`: another one after a loss of the disk. `incarnation`: another
    one after a start by which appended bytes may have been lost (async flush, no clean stop)."""

    node: str
    store_id: str
    incarnation: int


class InSyncSet(NamedTuple):
    """The copies that count; the leader's is always among them. Sets are ordered by (epoch, version), and the
    version rises by one with each change, over epochs, too."""

    epoch: int
    version: int
    copies: frozenset[Identity]

    @property
    def nodes(self) -> list[str]:
        """Sorted."""
        return sorted(one.node for one in self.copies)


class Member(NamedTuple):
    """A node of the group. `address`: HOST:PORT of its gRPC services, `replication`: of its streams.
    `is_voter`: whether its copy may count, and its promise is asked for. `place`: its digit of the epochs, as
    a voter. `store_id`: with which it became a voter; empty for a node that founded the group."""

    node: str
    address: str
    replication: str
    is_voter: bool = True
    place: int = NO_PLACE
    store_id: str = ""


class Members(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A group's list of members, with the nodes' addresses. `newest`: the voter that this version has added,
    empty if none. `removed`: ids of stores that never return. `last_place`: that was given last. `joining`:
    learners that become voters once they have all of the log; a version before this field drops it.
    ValueError where it breaks an invariant."""

    version: int = 1
    nodes: tuple[Member, ...] = ()
    newest: str = ""
    removed: tuple[str, ...] = ()
    last_place: int = NO_PLACE
    joining: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = [one.node for one in self.nodes]
        if len({*names}) < len(names) or len(names) > MEMBERS_MAX:
            raise ValueError(f"a group has at most {MEMBERS_MAX} nodes, each once: {names}")
        places = [one.place for one in self.nodes if one.is_voter]
        if len({*places}) < len(places) or not all(0 <= one < PLACES for one in places):
            raise ValueError(f"each voter has a place, 0 to {PLACES - 1}, and no other has it: {places}")
        if len(self.removed) > REMOVED_MAX:
            raise ValueError(f"a group remembers at most {REMOVED_MAX} removed stores")
        learners = {one.node for one in self.nodes if not one.is_voter}
        if len({*self.joining}) < len(self.joining) or not learners.issuperset(self.joining):
            raise ValueError(f"learners join, each once: {self.joining}")

    @classmethod
    def first(cls, nodes: Iterable[Member]) -> Members:
        """Of a new group, in which all are voters. ValueError."""
        ordered = sorted(nodes)
        placed = tuple(one._replace(place=place) for place, one in enumerate(ordered))
        return cls(nodes=placed, last_place=len(placed) - 1)

    def has(self, node: str, store_id: str) -> bool:
        """Whether the node is a member, and with that store, which was not removed."""
        return self.member(node) is not None and store_id not in self.removed

    @property
    def places(self) -> dict[str, int]:
        """Of the voters."""
        return {one.node: one.place for one in self.nodes if one.is_voter}

    @property
    def stores(self) -> dict[str, str]:
        """With which nodes became voters."""
        return {one.node: one.store_id for one in self.nodes if one.is_voter and one.store_id}

    def needed(self, in_sync_min: int) -> int:
        """`in_sync_min`, or the number of voters where that is lower: a group of one commits alone."""
        return max(1, min(in_sync_min, len(self.places)))

    def member(self, node: str) -> Member | None:
        """None: the node is not a member."""
        return next((one for one in self.nodes if one.node == node), None)


class Membership(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`cluster`: the group's id, by chance: two groups of one name are two. `directory`: a number of the
    store's directory; a copy of it has another one. `leads`: this node leads the newest epoch of its log, or
    did when it stopped. `is_synced`: it has stopped, and all that was appended is on disk. ValueError where
    it breaks an invariant."""

    cluster: str
    group: str
    node: str
    store_id: str
    incarnation: int = 1
    directory: int = 0
    in_sync_min: int = 1
    listed: Members = msgspec.field(name="members", default=Members())
    in_sync: InSyncSet | None = None
    leads: bool = False
    is_synced: bool = False

    def __post_init__(self) -> None:
        if not all((self.cluster, self.group, self.node, self.store_id)) or self.incarnation < 1:
            raise ValueError("a node has a cluster, a group, a name and a store's id")
        if not 1 <= self.in_sync_min <= MEMBERS_MAX:
            raise ValueError(f"in_sync_min {self.in_sync_min}")

    @property
    def identity(self) -> Identity:
        """Of this node's log."""
        return Identity(self.node, self.store_id, self.incarnation)

    @property
    def members(self) -> tuple[Member, ...]:
        return self.listed.nodes

    @property
    def voters(self) -> list[str]:
        """The nodes whose promises count, sorted."""
        return sorted(self.listed.places)

    @property
    def in_sync_needed(self) -> int:
        """Copies below which the in-sync set never shrinks."""
        return self.listed.needed(self.in_sync_min)

    def member(self, node: str) -> Member | None:
        """None: the node is not a member."""
        return self.listed.member(node)

    def with_set(self, in_sync: InSyncSet) -> Membership:
        """With a later in-sync set. ValueError."""
        if self.in_sync is not None and in_sync[:2] < self.in_sync[:2]:
            raise ValueError(f"in-sync set {in_sync[:2]} follows {self.in_sync[:2]}")
        return msgspec.structs.replace(self, in_sync=in_sync)

    def with_members(self, listed: Members) -> Membership:
        """With a later list of members. ValueError."""
        former, version = self.listed, listed.version
        # the list of a node of the version before lacks `joining`
        one, other = (msgspec.structs.replace(each, joining=()) for each in (former, listed))
        if version < former.version or (version == former.version and one != other):
            raise ValueError(f"version {version} of the members follows {former.version}")
        return msgspec.structs.replace(self, listed=listed)
