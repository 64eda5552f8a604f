"""One broker of a walk: its disk, which may fail, and the parts that are there while it is up."""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tests.unit.cluster_config.config_parts import SEAL
from trovemq_broker.cluster_config.entries import (
    NO_GENERATION,
    ChangeKind,
    ClockMs,
    ConfigChange,
    Entry,
    Generation,
    Key,
)
from trovemq_broker.cluster_config.follower import Follower
from trovemq_broker.cluster_config.messages import Report, TablePart
from trovemq_broker.cluster_config.owner import FollowerStream, Owner
from trovemq_broker.cluster_config.reconcile import Action, ActionKind, LocalEntry
from trovemq_broker.cluster_config.stored import StoredTable
from trovemq_broker.cluster_config.table import Head
from trovemq_proto.errors import TroveError
from trovemq_store.files.faulty import FaultyFileSystem
from trovemq_store.files.memory import MemoryFileSystem


@dataclass
class Stream:
    """One open stream from a follower to the owner."""

    follower: str
    owner: str
    link: FollowerStream
    parts: deque[TablePart] = field(default_factory=deque)
    reports: deque[Report] = field(default_factory=deque)


@dataclass
class Disk:
    """The disk of a broker. `lineage`: another one after the disk was lost or put back from an older copy."""

    lineage: int
    store_id: str
    files: MemoryFileSystem = field(default_factory=MemoryFileSystem)
    local: dict[Key, LocalEntry] = field(default_factory=dict)
    withheld: set[Key] = field(default_factory=set)


class Node:
    """One broker. Its parts are there while it is up."""

    def __init__(self, name: str, disk: Disk) -> None:
        self.name = name
        self.disk = disk
        self.up = False
        self.fails = False
        self.old = False
        """Its disk was put back from an older copy, and no take-over has followed."""
        self.stored: StoredTable
        self.owner: Owner | None = None
        self.compared: Owner | None = None
        """The owner that has compared all of this broker's tables."""
        self.follower: Follower | None = None

    @property
    def head(self) -> Head:
        return self.stored.head

    def start(self, now_ms: int) -> None:
        def decide(operation: str, _path: str) -> int | None:
            return errno.ENOSPC if self.fails and operation in ("write", "write_atomic") else None

        self.stored = StoredTable.load(FaultyFileSystem(self.disk.files, decide), SEAL)
        self.up, self.owner, self.follower = True, None, None
        self.choose_role(now_ms)

    def choose_role(self, now_ms: int) -> None:
        """The owner of its table is the owner, unless it has promised a later generation."""
        head = self.head
        if head.owner == self.name and self.stored.promised == head.generation:
            self.owner, self.follower = Owner(self.stored, self.name, ClockMs(now_ms)), None
        elif self.follower is None:
            self.owner = None
            self.follower = Follower(self.stored, self.name, self.disk.store_id, ClockMs(now_ms))

    def stop(self, files: MemoryFileSystem) -> None:
        self.disk.files = files
        self.up, self.owner, self.follower = False, None, None


@dataclass
class Acknowledged:
    """A change that was acknowledged to its caller. `holders`: names and lineages. `lost`: in a take-over no
    holder took part, or no disk has it any more."""

    entry: Entry
    holders: set[tuple[str, int]]
    lost: bool = False


def tables_on_disk(nodes: Iterable[Node]) -> list[Head]:
    """The heads of the tables on the disks that have one."""
    heads = [StoredTable.load(node.disk.files, SEAL).head for node in nodes]
    return [head for head in heads if head.generation != NO_GENERATION]


def note_lost(acknowledged: Iterable[Acknowledged], nodes: Iterable[Node]) -> None:
    """A disk was lost. An acknowledged change that is on no other one is lost, too, even if no take-over
    follows: an owner of an earlier generation may be there, which has not seen that of the lost disk."""
    heads = tables_on_disk(nodes)
    for one in acknowledged:
        one.lost = one.lost or not any(head.contains(one.entry.version) for head in heads)


def knows_no_take_over(nodes: Iterable[Node], newest: Generation) -> bool:
    """Whether there is an owner of an older copy that has not seen the generation which followed it."""
    owners = [node.owner for node in nodes if node.owner is not None]
    return any(owner.contradicted and owner.head.generation < newest for owner in owners)


def check_forgotten(owner: Node, nodes: Mapping[str, Node]) -> None:
    """Every member has the forgotten deletions on its disk, unless it has lost that."""
    for name in owner.stored.table.members():
        node = nodes[name]
        on_disk = StoredTable.load(node.disk.files.after_power_cut(), SEAL)
        if node.disk.lineage <= len(nodes):
            assert on_disk.head.version >= owner.head.horizon, f"{name} lacks deletions"


def check_refusal(change: ConfigChange, before: Entry | None, refusal: TroveError | None) -> None:
    """A change is made for the version that its caller has seen, and for no other."""
    if change.action is ChangeKind.CREATE:
        expected = before is None or (
            dict(before.settings) == dict(change.settings)
            and dict(before.placement) == dict(change.placement)
            and before.secrets == change.secrets
        )
    else:
        expected = before is not None and before.version == change.seen
    assert (refusal is None) == expected, (change, before, refusal)


def check_slot(node: Node, entry: Entry) -> None:
    present = node.stored.table.get(*entry.key)
    if present is None:
        assert entry.version.version <= node.head.horizon, f"{entry} is lost"
        return
    assert present.version.version >= entry.version.version, f"{entry} is older: {present}"
    if entry.deleted and not present.deleted:
        assert present.id != entry.id, f"{entry.key} came back"


def apply_actions(node: Node, actions: list[Action]) -> None:
    """To the broker's own tables."""
    local, withheld = node.disk.local, node.disk.withheld
    for action in actions:
        if action.kind is ActionKind.WITHHOLD:
            withheld.add(action.key)
            continue
        if action.kind is ActionKind.DELETE:
            gone = local.pop(action.key)
            assert gone.id == action.id
            assert node.stored.table.get(*action.key) is not None, "deleted because it is absent"
            withheld.discard(action.key)
            continue
        entry = action.entry
        assert entry is not None
        assert (action.key in local) == (action.kind is not ActionKind.CREATE)
        queues = entry.queues_on(node.name)
        local[action.key] = LocalEntry(entry.key, entry.id, entry.settings, queues, entry.secrets)
