"""The values of the cluster's configuration: entries, their ids and versions, and the changes of them.

A position is (generation, version). One owner gives out all positions of a generation, each once, and the
version also rises over generations. So the position of a change identifies it in the whole cluster: the id
of an entry is the position at which it was created, its version the position of its last change. Nothing is
drawn by chance except for the mark of a generation, which keeps two brokers that took over on both sides of
a partition from sharing one.

As JSON, in the file of the table (stored.py):

    position  [number, mark, version]                        generation  [number, mark]
    entry     {"kind": "topic", "name": "orders", "id": position, "version": position, "deleted": bool,
               "settings": {"message_type": "FIFO"}, "placement": {"broker-a": 8}, "sealed": "text"}

`sealed`: the secrets of a user, by a SecretSeal, whose key is not in the store.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple, NewType, Protocol

from trovemq_proto import errors
from trovemq_proto.errors import ErrorSpec, TroveError

ClockMs = NewType("ClockMs", int)
"""Milliseconds of a clock that never goes back (time.monotonic): the time of day may be set back by hours."""

NAME_SIZE_MAX: Final = 512
ENTRY_SIZE_MAX: Final = 64 << 10
"""Of name, settings, placement and secrets together, in characters and bytes."""
TABLE_SIZE_MAX: Final = 64 << 20
"""Of all entries together."""
PLACEMENT_MAX: Final = 1_000
QUEUES_MAX: Final = 1_024

_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
_NO_PLACEMENT: Final[Mapping[str, int]] = MappingProxyType({})
_MARK: Final = re.compile(r"[0-9a-f]{16}")


class Kind(StrEnum):
    """`BROKER`: the members of the cluster; its settings have `store_id`, and more that is not read here."""

    TOPIC = "topic"
    GROUP = "group"
    USER = "user"
    RULE = "rule"
    QUOTA = "quota"
    BROKER = "broker"


COUNT_MAX: Final[Mapping[Kind, int]] = {
    Kind.TOPIC: 65_536,
    Kind.GROUP: 10_000,
    Kind.USER: 10_000,
    Kind.RULE: 10_000,
    Kind.QUOTA: 1_000,
    Kind.BROKER: 1_000,
}
"""Entries of a kind that are not deleted."""
DELETIONS_MAX: Final = 65_536

EXISTS: Final[Mapping[Kind, ErrorSpec]] = {
    Kind.TOPIC: errors.TOPIC_EXISTS,
    Kind.GROUP: errors.GROUP_EXISTS,
    Kind.USER: errors.USER_EXISTS,
    Kind.BROKER: errors.BROKER_NAME_TAKEN,
}
NOT_FOUND: Final[Mapping[Kind, ErrorSpec]] = {
    Kind.TOPIC: errors.TOPIC_NOT_FOUND,
    Kind.GROUP: errors.GROUP_NOT_FOUND,
    Kind.USER: errors.USER_NOT_FOUND,
    Kind.RULE: errors.RULE_NOT_FOUND,
    Kind.BROKER: errors.BROKER_NOT_FOUND,
}


class Generation(NamedTuple):
    """Rises with each take-over. `mark`: 16 random hex digits, drawn by the caller for each generation."""

    number: int
    mark: str

    def __str__(self) -> str:
        return f"{self.number}.{self.mark[:4]}"


class Position(NamedTuple):
    generation: Generation
    version: int

    def __str__(self) -> str:
        return f"{self.generation}:{self.version}"


NO_GENERATION: Final = Generation(0, "")
ORIGIN: Final = Position(NO_GENERATION, 0)
"""Before the first change; of a broker without a table."""


class Key(NamedTuple):
    kind: Kind
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry, or the deletion of one (`deleted`), which keeps the entry's id and nothing else.

    `settings` are texts that this package does not interpret: the caller renders equal settings equally.
    `secrets` of a user are opaque bytes. `placement`: queues of a topic by broker.
    """

    kind: Kind
    name: str
    id: Position
    version: Position
    settings: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    placement: Mapping[str, int] = field(default_factory=lambda: _NO_PLACEMENT)
    secrets: bytes = field(default=b"", repr=False)
    deleted: bool = False

    @property
    def key(self) -> Key:
        return Key(self.kind, self.name)

    @property
    def size(self) -> int:
        """Characters and bytes of its content."""
        return _size_of(self.name, self.settings, self.placement, self.secrets)

    def queues_on(self, broker: str) -> int:
        return self.placement.get(broker, 0)


class ChangeKind(StrEnum):
    CREATE = "create"
    ALTER = "alter"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """A change of one entry. `seen`: the version of the entry that the caller has read; None to create one.

    ALTER replaces settings, placement and secrets as a whole.
    """

    action: ChangeKind
    kind: Kind
    name: str
    seen: Position | None = None
    settings: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    placement: Mapping[str, int] = field(default_factory=lambda: _NO_PLACEMENT)
    secrets: bytes = field(default=b"", repr=False)

    @property
    def key(self) -> Key:
        return Key(self.kind, self.name)

    def check(self) -> None:
        """TroveError REQUEST_ILLEGAL. Names and settings of each kind are checked by the caller."""
        if not 0 < len(self.name) <= NAME_SIZE_MAX:
            raise _illegal(self.key, f"a name has 1 to {NAME_SIZE_MAX} characters")
        if (self.seen is None) != (self.action is ChangeKind.CREATE):
            raise _illegal(self.key, "a change names the version that it has seen, a creation names none")
        if self.kind is not Kind.TOPIC and self.placement:
            raise _illegal(self.key, "only topics have a placement")
        if self.kind is not Kind.USER and self.secrets:
            raise _illegal(self.key, "only users have secrets")
        if len(self.placement) > PLACEMENT_MAX:
            raise _illegal(self.key, f"it may lie on at most {PLACEMENT_MAX} brokers")
        if not all(0 < queues <= QUEUES_MAX for queues in self.placement.values()):
            raise _illegal(self.key, f"it has 1 to {QUEUES_MAX} queues on a broker")
        size = _size_of(self.name, self.settings, self.placement, self.secrets)
        if size > ENTRY_SIZE_MAX:
            raise _illegal(self.key, f"its settings take {size} characters, more than {ENTRY_SIZE_MAX}")


def _size_of(name: str, settings: Mapping[str, str], placement: Mapping[str, int], secrets: bytes) -> int:
    texts = (name, *settings, *settings.values(), *placement)
    return sum(map(len, texts)) + len(secrets)


def _illegal(key: Key, what: str) -> TroveError:
    return TroveError(errors.REQUEST_ILLEGAL, f"{key}: {what}", kind=key.kind, name=key.name)


def check_mark(mark: str) -> str:
    """TroveError REQUEST_ILLEGAL unless it is 16 hex digits."""
    if not _MARK.fullmatch(mark):
        raise TroveError(errors.REQUEST_ILLEGAL, "the mark of a generation has 16 hex digits")
    return mark


# --- as JSON ----------------------------------------------------------------------------------------------
_MEMBERS: Final = frozenset(("kind", "name", "id", "version", "deleted", "settings", "placement", "sealed"))


class SecretSeal(Protocol):
    """Seals the secrets of users for the file. `key_id` identifies the key without revealing it."""

    @property
    def key_id(self) -> str: ...

    def seal(self, name: str, secrets: bytes) -> str: ...

    def open(self, name: str, sealed: str) -> bytes:
        """ValueError if it was sealed with another key or for another name, or is damaged."""
        ...


def check_known(document: Mapping[str, object], known: frozenset[str], what: str) -> None:
    """TroveError STORE_NEWER for a member that this version of TroveMQ does not know: it would be lost when
    the file is replaced."""
    unknown = sorted(document.keys() - known)
    if unknown:
        raise TroveError(errors.STORE_NEWER, f"{what} has {unknown[0]!a}, written by a newer TroveMQ")


def generation_json(generation: Generation) -> list[object]:
    return list(generation)


def generation_from(value: object) -> Generation:
    """ValueError."""
    if isinstance(value, list) and len(value) == 2:
        number, mark = value
        if isinstance(number, int) and isinstance(mark, str):
            return Generation(number, mark)
    raise ValueError(f"not a generation: {value!a:.80}")


def position_json(position: Position) -> list[object]:
    return [*position.generation, position.version]


def position_from(value: object) -> Position:
    """ValueError."""
    if isinstance(value, list) and len(value) == 3 and isinstance(value[2], int):
        return Position(generation_from(value[:2]), value[2])
    raise ValueError(f"not a position: {value!a:.80}")


def entry_json(entry: Entry, seal: SecretSeal | None = None) -> dict[str, object]:
    """`seal` is needed for an entry with secrets."""
    document: dict[str, object] = {
        "kind": str(entry.kind),
        "name": entry.name,
        "id": position_json(entry.id),
        "version": position_json(entry.version),
    }
    if entry.deleted:
        document["deleted"] = True
    if entry.settings:
        document["settings"] = dict(entry.settings)
    if entry.placement:
        document["placement"] = dict(entry.placement)
    if entry.secrets:
        assert seal is not None, "secrets are never written in the clear"
        document["sealed"] = seal.seal(entry.name, entry.secrets)
    return document


def entry_from(value: object, seal: SecretSeal | None = None) -> Entry:
    """ValueError; TroveError STORE_NEWER. `seal` is needed for an entry with secrets."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise ValueError(f"not an entry: {value!a:.80}")
    settings, placement = value.get("settings", {}), value.get("placement", {})
    sealed = value.get("sealed", "")
    if not (isinstance(settings, dict) and isinstance(placement, dict) and isinstance(sealed, str)):
        raise ValueError(f"entry {value['name']!a:.80} is damaged")
    kind = str(value.get("kind"))
    check_known(value, _MEMBERS, f"{kind} {value['name']!a:.80}")
    if kind not in Kind.__members__.values():
        raise TroveError(errors.STORE_NEWER, f"{kind!a:.80} is a kind of entry of a newer TroveMQ")
    if sealed and seal is None:
        raise ValueError(f"{kind} {value['name']!a:.80} has secrets, and the file names no key")
    return Entry(
        Kind(kind),
        value["name"],
        position_from(value.get("id")),
        position_from(value.get("version")),
        {str(name): str(text) for name, text in settings.items()},
        {str(broker): int(queues) for broker, queues in placement.items()},
        seal.open(value["name"], sealed) if seal is not None and sealed else b"",
        bool(value.get("deleted", False)),
    )
