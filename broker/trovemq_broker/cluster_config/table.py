"""The table of the cluster's configuration in memory: one entry, or one deletion, for each kind and name.

Invariants
- Entries lie in the order of their versions, so that the changes since a version are the last entries.
- Absence deletes nothing: an entry that was deleted stays as a deletion until it may be forgotten.
- A deletion is forgotten by a change of the table, `horizon`: all deletions up to that version are gone, but
  for that of the rule with the highest number. The owner makes it when every member has stored that version
  (owner.py). A table that ends before the horizon gets all entries and not the changes since, and its entries
  that are missing there are kept out of service (reconcile.py).
- `history` has the last version of each generation before the present one. A position that is not in it was
  never part of this table: it was given out by an owner whose last changes a take-over has dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Final

from trovemq_broker.cluster_config.entries import (
    COUNT_MAX,
    DELETIONS_MAX,
    ENTRY_SIZE_MAX,
    EXISTS,
    NO_GENERATION,
    NOT_FOUND,
    ORIGIN,
    TABLE_SIZE_MAX,
    ChangeKind,
    ConfigChange,
    Entry,
    Generation,
    Key,
    Kind,
    Position,
)
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

HISTORY_MAX: Final = 1_000
"""Generations before the present one; take-overs are made by hand."""


@dataclass(frozen=True, slots=True)
class Head:
    """Where a table is. `digest` is a digest of all changes up to the version: tables of one position and
    another digest have come from an owner whose store was put back from an older copy."""

    cluster: str = ""
    owner: str = ""
    generation: Generation = NO_GENERATION
    version: int = 0
    digest: str = ""
    horizon: int = 0
    history: tuple[Position, ...] = ()

    @property
    def position(self) -> Position:
        return Position(self.generation, self.version)

    def end_of(self, generation: Generation) -> int:
        """The last version of a generation in this table; -1 if it is not part of it."""
        if generation == self.generation:
            return self.version
        return next((end.version for end in self.history if end.generation == generation), -1)

    def contains(self, position: Position) -> bool:
        """Whether the change at that position is part of this table's history."""
        return position == ORIGIN or position.version <= self.end_of(position.generation)

    def may_have_forgotten(self, since: Head) -> bool:
        """Whether this table, whole, may lack entries of a table with the other head because they were
        deleted, and the deletions are forgotten. If not, they were never part of it."""
        common = min(since.version, self.end_of(since.generation))
        return self.horizon > max(common, 0)

    def next_digest(self, entries: Sequence[Entry], version: int, horizon: int) -> str:
        state = sha256(f"{self.digest} {version} {horizon}".encode())
        for entry in entries:
            parts = (entry.kind, entry.name, entry.id, entry.deleted, sorted(entry.settings.items()))
            state.update(repr((*parts, sorted(entry.placement.items()), entry.secrets)).encode())
        return state.hexdigest()[:16]

    def taken_over(self, generation: Generation, owner: str) -> Head:
        """The head of the table in a new generation."""
        ended = (*self.history, self.position)[-HISTORY_MAX:]
        return replace(self, generation=generation, owner=owner, history=ended)


CREATOR: Final = "creator"
"""The setting of a topic or group with the user who made it."""

NO_TABLE: Final = Head()


@dataclass(frozen=True, slots=True)
class Update:
    """Changes from `base` to `head`, in the order of their versions; base None: all entries of the table."""

    base: Position | None
    head: Head
    entries: tuple[Entry, ...] = ()


class ConfigTable:
    """The entries by kind and name. Changed by apply() alone."""

    def __init__(self) -> None:
        self.head = NO_TABLE
        self._entries: dict[Key, Entry] = {}
        self._counts: Counter[Kind] = Counter()
        self._deletions = 0
        self._members: set[str] = set()
        self._creators: Counter[tuple[Kind, str]] = Counter()
        self.size = 0
        """Bytes of all entries."""

    def __iter__(self) -> Iterator[Entry]:
        """Entries and deletions, in the order of their versions."""
        return iter(self._entries.values())

    @property
    def exists(self) -> bool:
        """Whether there is a table; False on a broker that has not joined a cluster."""
        return self.head.generation != NO_GENERATION

    @property
    def entry_count(self) -> int:
        """Entries and deletions."""
        return len(self._entries)

    @property
    def deletion_count(self) -> int:
        return self._deletions

    def count(self, kind: Kind) -> int:
        """Entries of the kind that are not deleted."""
        return self._counts[kind]

    def get(self, kind: Kind, name: str) -> Entry | None:
        """The entry or its deletion; None if there is neither."""
        return self._entries.get(Key(kind, name))

    def live(self, kind: Kind, name: str) -> Entry | None:
        """The entry; None if there is none, or it is deleted."""
        entry = self.get(kind, name)
        return None if entry is None or entry.deleted else entry

    def made_by(self, kind: Kind, creator: str) -> int:
        """Entries of the kind with that creator."""
        return self._creators[kind, creator]

    def members(self) -> list[str]:
        """The brokers of the cluster."""
        return sorted(self._members)

    # --- changes --------------------------------------------------------------------------------------
    def apply(self, update: Update) -> None:
        """The update's base is this table's position, or None."""
        if update.base is None:
            self._entries, self._counts, self._deletions = {}, Counter(), 0
            self._members, self._creators, self.size = set(), Counter(), 0
        else:
            assert update.base == self.head.position, "an update continues the table"
        for entry in update.entries:
            self._put(entry)
        if update.head.horizon > self.head.horizon and update.base is not None:
            self._forget(update.head.horizon)
        self.head = update.head

    def _put(self, entry: Entry) -> None:
        self._remove(entry.key)
        self.size += entry.size
        self._entries[entry.key] = entry  # at the end: in the order of versions
        if entry.deleted:
            self._deletions += 1
        else:
            self._counts[entry.kind] += 1
            self._count_creator(entry, 1)
            if entry.kind is Kind.BROKER:
                self._members.add(entry.name)

    def _remove(self, key: Key) -> None:
        before = self._entries.pop(key, None)
        if before is None:
            return
        self.size -= before.size
        if before.deleted:
            self._deletions -= 1
        else:
            self._counts[before.kind] -= 1
            self._count_creator(before, -1)
            if before.kind is Kind.BROKER:
                self._members.discard(before.name)

    def _count_creator(self, entry: Entry, by: int) -> None:
        creator = entry.settings.get(CREATOR, "")
        if creator:
            self._creators[entry.kind, creator] += by
            if not self._creators[entry.kind, creator]:
                del self._creators[entry.kind, creator]

    def _forget(self, horizon: int) -> None:
        last_rule = Key(Kind.RULE, str(self.rule_number_max()))
        for key in [e.key for e in self if e.deleted and e.version.version <= horizon]:
            if key != last_rule:
                self._remove(key)

    def rule_number_max(self) -> int:
        """The highest number of a rule that is or was in the table; 0 if there was none. The deletion of that
        rule is never forgotten: no number is used twice."""
        names = (key.name for key in self._entries if key.kind is Kind.RULE)
        return max((int(name) for name in names if name.isdecimal()), default=0)

    def since(self, version: int) -> tuple[Entry, ...]:
        """The entries that were changed after that version, in the order of their versions."""
        found = []
        for entry in reversed(self._entries.values()):
            if entry.version.version <= version:
                break
            found.append(entry)
        return tuple(reversed(found))

    def image(self) -> Update:
        """All entries."""
        return Update(None, self.head, tuple(self))

    # --- checks of the owner --------------------------------------------------------------------------
    def entry_after(
        self, change: ConfigChange, position: Position, earlier: Sequence[Entry] = ()
    ) -> Entry | None:
        """The entry that the change makes at that position; None if the entry is as the change wants it.
        `earlier`: those that the changes before it in its batch make, of other keys.

        TroveError TOPIC_EXISTS, GROUP_EXISTS, USER_EXISTS, BROKER_NAME_TAKEN, TOPIC_NOT_FOUND,
        GROUP_NOT_FOUND, USER_NOT_FOUND, RULE_NOT_FOUND, BROKER_NOT_FOUND, CONFIG_VERSION_CONFLICT,
        REQUEST_ILLEGAL, LIMIT_EXCEEDED.
        """
        change.check()
        before = self.live(change.kind, change.name)
        if change.action is ChangeKind.CREATE:
            return self._created(change, before, position, earlier)
        if before is None:
            what = f"{change.key} is not in the cluster's configuration"
            raise TroveError(NOT_FOUND.get(change.kind, errors.REQUEST_ILLEGAL), what, name=change.name)
        if before.version != change.seen:
            what = f"{change.key} has version {before.version}, the change was made for {change.seen}"
            raise TroveError(
                errors.CONFIG_VERSION_CONFLICT, what, name=change.name, version=str(before.version)
            )
        if change.action is ChangeKind.DELETE:
            if change.kind is not Kind.BROKER:  # the remedy; there are at most COUNT_MAX of them
                self._check_deletions(earlier)
            return Entry(change.kind, change.name, before.id, position, deleted=True)
        return None if _equal(change, before) else self._made(change, before.id, position, earlier)

    def _created(
        self, change: ConfigChange, before: Entry | None, position: Position, earlier: Sequence[Entry]
    ) -> Entry | None:
        if before is not None and _equal(change, before):
            return None  # a creation whose answer was lost
        if before is not None:
            what = f"{change.key} exists with other settings, version {before.version}: alter it"
            raise TroveError(EXISTS.get(change.kind, errors.REQUEST_ILLEGAL), what, name=change.name)
        free = COUNT_MAX[change.kind] - self.count(change.kind)
        same = (one for one in earlier if one.kind is change.kind and one.id == one.version)
        if free <= len(earlier) and free <= sum(1 for _ in same):
            what = (
                f"the cluster may have {COUNT_MAX[change.kind]} entries of kind {change.kind}, and has them"
            )
            raise TroveError(errors.LIMIT_EXCEEDED, f"{what}: delete those that no program uses")
        return self._made(change, position, position, earlier)

    def _made(
        self, change: ConfigChange, id_: Position, version: Position, earlier: Sequence[Entry]
    ) -> Entry:
        placement, secrets = dict(change.placement), change.secrets
        entry = Entry(change.kind, change.name, id_, version, dict(change.settings), placement, secrets)
        free = TABLE_SIZE_MAX - self.size - entry.size
        if free < len(earlier) * ENTRY_SIZE_MAX and free < sum(one.size for one in earlier):
            what = f"the cluster's configuration takes {self.size} bytes, and may take {TABLE_SIZE_MAX}"
            raise TroveError(errors.LIMIT_EXCEEDED, f"{what}: delete topics, groups and users without use")
        return entry

    def _check_deletions(self, earlier: Sequence[Entry]) -> None:
        if self._deletions + sum(one.deleted for one in earlier) >= DELETIONS_MAX:
            raise TroveError(
                errors.LIMIT_EXCEEDED,
                f"{DELETIONS_MAX} deletions wait for a broker that has not stored them: start those that are"
                " away (trovemq cluster), or remove them (trovemq broker remove NAME)",
            )


def _equal(change: ConfigChange, entry: Entry) -> bool:
    return (dict(change.settings), dict(change.placement), change.secrets) == (
        dict(entry.settings),
        dict(entry.placement),
        entry.secrets,
    )


def dropped_by(update: Update, table: ConfigTable) -> tuple[Entry, ...]:
    """The entries of the table that the one of the update never had: they are gone when it is stored, and to
    be reported one by one."""
    if update.base is not None:
        return ()
    if update.head.cluster != table.head.cluster:
        return tuple(table)
    new = {entry.key: entry for entry in update.entries}
    forgets = update.head.may_have_forgotten(table.head)
    return tuple(entry for entry in table if _is_dropped(entry, new.get(entry.key), update.head, forgets))


def _is_dropped(old: Entry, new: Entry | None, head: Head, forgets: bool) -> bool:
    if not head.contains(old.version):
        return True
    if new is None:
        return not (forgets or old.deleted)
    return new.version == old.version and new != old
