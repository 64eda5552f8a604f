"""A node's place in its replica group, as `trovemq/replica.json` keeps it (replica_file.py).

Invariants
- A store belongs to one group: `cluster` and `group` never change; a node that leaves forgets all of it.
- An in-sync set is replaced by a later one only, by (epoch, version).
- The list of members is replaced by one with a higher version only.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

MEMBERS_MAX: Final = 7


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
    `is_voter`: whether its copy may count, and its promise is asked for."""

    node: str
    address: str
    replication: str
    is_voter: bool = True


class Membership(msgspec.Struct, frozen=True, kw_only=True):
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
    version: int = 1
    members: tuple[Member, ...] = ()
    in_sync: InSyncSet | None = None
    leads: bool = False
    is_synced: bool = False

    def __post_init__(self) -> None:
        names = [one.node for one in self.members]
        if len({*names}) < len(names) or len(names) > MEMBERS_MAX:
            raise ValueError(f"a group has at most {MEMBERS_MAX} nodes, each once: {names}")
        if not all((self.cluster, self.group, self.node, self.store_id)) or self.incarnation < 1:
            raise ValueError("a node has a cluster, a group, a name and a store's id")
        if not 1 <= self.in_sync_min <= MEMBERS_MAX:
            raise ValueError(f"in_sync_min {self.in_sync_min}")

    @property
    def identity(self) -> Identity:
        """Of this node's log."""
        return Identity(self.node, self.store_id, self.incarnation)

    @property
    def voters(self) -> list[str]:
        """The nodes whose promises count, sorted."""
        return sorted(one.node for one in self.members if one.is_voter)

    @property
    def in_sync_needed(self) -> int:
        """`in_sync_min`, or the number of voters where that is lower: a group of one commits alone."""
        return max(1, min(self.in_sync_min, len(self.voters)))

    def member(self, node: str) -> Member | None:
        """None: the node is not a member."""
        return next((one for one in self.members if one.node == node), None)

    def with_set(self, in_sync: InSyncSet) -> Membership:
        """With a later in-sync set. ValueError."""
        if self.in_sync is not None and in_sync[:2] < self.in_sync[:2]:
            raise ValueError(f"in-sync set {in_sync[:2]} follows {self.in_sync[:2]}")
        return msgspec.structs.replace(self, in_sync=in_sync)

    def with_members(self, version: int, members: tuple[Member, ...]) -> Membership:
        """With a later list of members. ValueError."""
        if version < self.version or (version == self.version and set(members) != set(self.members)):
            raise ValueError(f"version {version} of the members follows {self.version}")
        return msgspec.structs.replace(self, version=version, members=members)
