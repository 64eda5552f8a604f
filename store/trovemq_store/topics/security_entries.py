"""Users, rules and quotas as a table of the log, sealed as in their file. The store has no key: the broker
reads the values (broker/trovemq_broker/security/table.py, with the form of the file).

| entry           | value                                    | in the file      |
|-----------------|------------------------------------------|------------------|
| `user/NAME`     | the user's object, with sealed secrets   | `users`          |
| `rule/NUMBER`   | the rule's object                        | `rules`          |
| `quota/SUBJECT` | the quota's object                       | `quotas`         |
| `table`         | `version`, `sealingKey`, `nextRule`      | the same members |

Invariants
- Both copies of the file have the same content, so that a damaged one never restores an earlier user or rule.
- The entries of a change lie in one record, unless they are more than table_records.PARTS_MAX: then a crash
  may leave the first of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_store.files.files import FileSystem
from trovemq_store.files.sealed_json import seal
from trovemq_store.topics.config_table import Change, Changed, ConfigTable
from trovemq_store.topics.json_file import JsonFile
from trovemq_store.topics.lax_json import JsonObject, object_member, render
from trovemq_store.topics.table_records import SECURITY_KIND, Entry

SECURITY_PATH: Final = "config/trovemq-security.json"
TABLE: Final = "table"
USER: Final = "user/"
RULE: Final = "rule/"
QUOTA: Final = "quota/"
_TABLE_MEMBERS: Final = ("version", "sealingKey", "nextRule")


@dataclass(frozen=True, slots=True)
class SealedEntry:
    """One entry as it is stored."""

    name: str
    value: JsonObject

    @property
    def attributes(self) -> Mapping[str, str]:
        return {}

    def to_json(self, _base: Mapping[str, object]) -> JsonObject:
        return self.value


SealedChange = Change[SealedEntry]


class SecurityFile:
    """The file, whose second copy is equal. Call load() first."""

    def __init__(self, files: FileSystem) -> None:
        self._file = JsonFile(files, SECURITY_PATH, mirror=True, sealed=True)
        self._values: JsonObject = {}
        self.lost = ""
        """Why neither copy counts, where the table is made from the log alone."""

    @property
    def fault(self) -> str:
        return self.lost or self._file.fault

    @property
    def crc(self) -> int | None:
        return self._file.crc

    @property
    def whole(self) -> bool:
        return not self._file.is_second_copy

    @property
    def is_second_copy(self) -> bool:
        return self._file.is_second_copy

    def load(self) -> JsonObject:
        """The entries. TroveError STORE_FAILED."""
        document = self._file.load()
        try:
            self._values = {} if document is None else entries_of(document)
        except (ValueError, TypeError) as error:
            what = f"{SECURITY_PATH}: {error}: put it back from a backup of the store"
            raise TroveError(errors.STORE_FAILED, what, file=SECURITY_PATH) from error
        return dict(self._values)

    def begin_save(
        self, changes: Mapping[str, JsonObject | None], _version: JsonObject
    ) -> Callable[[], None]:
        """Returns the function that saves the changes, which may block and may run in another thread; a value
        of None deletes the entry."""
        after = {**self._values, **changes}
        kept: JsonObject = {name: value for name, value in after.items() if value is not None}
        return partial(self._save, kept)

    def _save(self, values: JsonObject) -> None:
        """TroveError DISK_FULL, STORE_FAILED, UNKNOWN_ERROR: the file is unchanged."""
        self._file.save(document_of(values))
        self._values = values

    def put(self, name: str, value: JsonObject | None) -> None:
        """The next content has this entry; None: it has not."""
        if value is None:
            self._values.pop(name, None)
        else:
            self._values[name] = value

    def capture(self, _version: JsonObject) -> Callable[[], bytes]:
        """Returns the function that renders the present content; it may run in another thread."""
        return partial(_content, dict(self._values))

    def write(self, content: bytes) -> None:
        """TroveError DISK_FULL, STORE_FAILED, UNKNOWN_ERROR."""
        self._file.save_content(content)


class SecurityEntries(ConfigTable[SealedEntry]):
    """The entries of one store."""

    NOUN = SECURITY_KIND
    NOT_FOUND = errors.USER_NOT_FOUND
    REMEDY = ""

    def __init__(self, file: SecurityFile, values: JsonObject) -> None:
        super().__init__(file, values, {}, SealedEntry)

    @classmethod
    def load(cls, files: FileSystem) -> SecurityEntries:
        """Reads the file; empty if there is none. TroveError STORE_FAILED if it cannot be read."""
        file = SecurityFile(files)
        return cls(file, file.load())

    @property
    def have_users(self) -> bool:
        """Whether there is any. For any thread."""
        return any(name.startswith(USER) for name in list(self.values))

    @classmethod
    def without_file(cls, files: FileSystem, fault: str) -> SecurityEntries:
        """Empty: the log gives the entries, and the file is written again. `fault`: why its copies do not
        count."""
        file = SecurityFile(files)
        file.lost = fault
        return cls(file, {})

    def begin_change(self, entries: Sequence[Entry]) -> SealedChange:
        """Begins to set entries, or to delete them (None). TroveError SERVICE_NOT_AVAILABLE."""
        parts = []
        for name, value in entries:
            after = None if value is None else SealedEntry(name, value)
            parts.append(Changed(name, self._configs.get(name), after, value))
        change = self._begin(parts[0].name if parts else "", parts, None)
        for part in parts:
            if part.after is None and part.before is not None:
                self._remove(part.name)
        return change

    def is_system(self, name: str) -> bool:
        """A user may be changed on a full disk, too."""
        return True

    def _check_not_own(self, name: str) -> None:
        """All are users'."""

    def _count_max(self) -> int:
        """The broker has its limits."""
        return 1 << 30


def entries_of(document: Mapping[str, object]) -> JsonObject:
    """The entries of the file's content. ValueError, TypeError if it is another document."""
    members: JsonObject = {name: document[name] for name in _TABLE_MEMBERS if name in document}
    values: JsonObject = {TABLE: members} if members else {}
    rules = document.get("rules")
    if not isinstance(rules, list):
        raise TypeError("it has no list of rules")
    for kind, members in (
        (USER, object_member(document, "users")),
        (RULE, {str(object_member({"rule": rule}, "rule").get("number")): rule for rule in rules}),
        (QUOTA, object_member(document, "quotas")),
    ):
        values |= {kind + name: object_member(members, name) for name in members}
    if sum(name.startswith(RULE) for name in values) != len(rules):
        raise ValueError("the numbers of its rules contradict each other")
    return values


def document_of(values: Mapping[str, object]) -> JsonObject:
    """The file's content."""
    rules = sorted(members_of(values, RULE).items(), key=lambda rule: (len(rule[0]), rule[0]))
    return {
        **object_member(values, TABLE),
        "users": dict(sorted(members_of(values, USER).items())),
        "rules": [rule for _, rule in rules],
        "quotas": dict(sorted(members_of(values, QUOTA).items())),
    }


def members_of(values: Mapping[str, object], kind: str) -> JsonObject:
    """The values of one kind, by the rest of their names."""
    return {name.removeprefix(kind): value for name, value in values.items() if name.startswith(kind)}


def _content(values: JsonObject) -> bytes:
    return seal(render(document_of(values)))
