"""A table of named configurations that is stored in a file: the topics, the consumer groups.

Invariants
- One change at a time. A change counts when its file has it; a change that cannot be saved is not made.
- `data_version` grows with every save.
- Members that we do not know are written back as they were read.
- `made_by` counts the existing entries by their creators.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar, Final, Generic, Protocol, TypeVar

from trovemq_proto import errors
from trovemq_proto.errors import DamagedError, TroveError
from trovemq_proto.positions import EpochMs
from trovemq_store.topics.creators import Creator, creator_of
from trovemq_store.topics.json_file import ADVICE
from trovemq_store.topics.lax_json import JsonObject, integer_member, object_member

T = TypeVar("T")
NEARLY_FULL: Final = 0.8
"""From this share of the most entries on, a table warns."""
CHANGES_KEPT: Final = 4_096
"""How many changed names are remembered. A reader that has missed more reads the whole table again."""


class Config(Protocol):
    """One entry of a table."""

    @property
    def name(self) -> str: ...

    @property
    def attributes(self) -> Mapping[str, str]: ...

    def to_json(self, base: Mapping[str, object]) -> JsonObject: ...


ConfigT = TypeVar("ConfigT", bound=Config)


class ConfigFile(Protocol):
    """The file of a table, as the table uses it."""

    @property
    def fault(self) -> str:
        """Why the second copy of the file was read; empty if the first one was."""
        ...

    def begin_save(self, changes: Mapping[str, JsonObject | None], version: JsonObject) -> Callable[[], None]:
        """Returns the function that saves the changes; a value of None deletes the entry. The function may
        block, may run in another thread, and raises the errors of Change.run()."""


@dataclass(frozen=True, slots=True)
class Changed(Generic[ConfigT]):
    """One entry of a change. `before` None: it is created; `after` None: it is deleted. `value`: RocketMQ's
    object for it."""

    name: str
    before: ConfigT | None
    after: ConfigT | None
    value: JsonObject | None


class Change(Generic[ConfigT]):
    """A change of the table that is ready to be saved: `run()` may block, and may run in another thread.

    `name` is empty if nothing is changed, and only entries are saved that were in memory alone.
    """

    def __init__(
        self, name: str, parts: Sequence[Changed[ConfigT]], save: Callable[[], None], version: JsonObject
    ) -> None:
        self.name = name
        self.parts = parts
        self._save = save
        self.version = version
        self.saved = False

    @property
    def before(self) -> ConfigT | None:
        """The entry called `name` before the change; None if it is created."""
        return next((part.before for part in self.parts if part.name == self.name), None)

    def run(self) -> None:
        """TroveError DISK_FULL, STORE_FAILED, UNKNOWN_ERROR; then the disk is as it was."""
        self._save()
        self.saved = True


class ConfigTable(ABC, Generic[ConfigT]):
    """The configurations by name; used from one thread.

    A method begin_…() leaves the saving to the caller. It returns a change: the caller calls run(), where it
    may block, and then finish() on the owner's thread, also if run() failed. Until finish() every other
    change is refused with SERVICE_NOT_AVAILABLE.
    """

    NOUN: ClassVar[str]
    """`topic` or `group`: in messages, and as the name of an error's detail."""

    NOT_FOUND: ClassVar[errors.ErrorSpec]

    REMEDY: ClassVar[str]
    """The advice to an operator before the table is full."""

    def __init__(
        self,
        file: ConfigFile,
        values: JsonObject,
        version: JsonObject,
        from_json: Callable[[str, JsonObject], ConfigT],
    ) -> None:
        self._file: Final = file
        self._values = values
        self._version = version
        self._configs = {name: from_json(name, object_member(values, name)) for name in values}
        self._made_by = Counter(creator_of(config.attributes) for config in self._configs.values())
        self._listeners: list[Callable[[], None]] = []
        self._change: Change[ConfigT] | None = None
        self._changed_names: deque[str] = deque(maxlen=CHANGES_KEPT)
        self.change_count = 0
        """How many entries were created, altered or deleted since the start."""

    @property
    def fault(self) -> str:
        """Why the table was read from the second copy of its file; empty if the first one was read."""
        return self._file.fault

    @property
    def data_version(self) -> int:
        """RocketMQ's dataVersion.counter."""
        return integer_member(self._version, "counter", 0)

    def __len__(self) -> int:
        return len(self._configs)

    def __contains__(self, name: str) -> bool:
        return name in self._configs

    def get(self, name: str) -> ConfigT | None:
        return self._configs.get(name)

    def require(self, name: str) -> ConfigT:
        """TroveError TOPIC_NOT_FOUND, GROUP_NOT_FOUND if there is none."""
        config = self._configs.get(name)
        if config is None:
            shown = name[:200]
            what = f"{self.NOUN} {shown!r} does not exist here"
            raise TroveError(self.NOT_FOUND, what, **{self.NOUN: shown})
        return config

    def names(self, include_system: bool = False) -> list[str]:
        """The names, sorted; without `include_system` only those of entries that users created."""
        return sorted(name for name in self._configs if include_system or not self.is_system(name))

    def made_by(self, creator: str) -> int:
        """How many of the existing entries this creator has created."""
        return self._made_by[creator]

    def limit_warning(self) -> str:
        """How many entries there are and what to do, once few more may be created; else an empty text."""
        count, most = len(self._configs), self._count_max()
        if count < most * NEARLY_FULL:
            return ""
        return f"{count:,} of at most {most:,} {self.NOUN}s exist: {self.REMEDY}"

    def add_change_listener(self, listener: Callable[[], None]) -> None:
        """`listener()` is called after every change."""
        self._listeners.append(listener)

    def finish(self, change: Change[ConfigT]) -> None:
        """Call after run(). The table has the change if the file has it, otherwise it is as before."""
        assert change is self._change, "one change at a time"
        assert change.parts or not change.name, "a change with a name changes an entry"
        self._change = None
        for part in change.parts:
            self._finish_part(part, saved=change.saved)
        if change.saved:
            self._version = change.version
            if change.name:
                self._changed_names.extend(part.name for part in change.parts)
                self.change_count += len(change.parts)
                self._notify()

    def begin_put_all(
        self, wanted: Sequence[ConfigT], *, now_ms: EpochMs | None = None
    ) -> tuple[Change[ConfigT] | None, list[TroveError | None]]:
        """Begins to create or replace entries of different names in one change, as the cluster's
        configuration has them: its owner has checked their settings. None if nothing is to be changed. The
        list has, for each entry, its refusal or None: TOPIC_ILLEGAL, GROUP_ILLEGAL for a name that is the
        broker's own, LIMIT_EXCEEDED. TroveError SERVICE_NOT_AVAILABLE."""
        parts: list[Changed[ConfigT]] = []
        refusals: list[TroveError | None] = []
        added = 0
        for config in wanted:
            before = self._configs.get(config.name)
            try:
                self._check_not_own(config.name)
                if before is None:
                    self._check_count(added)
                    added += 1
            except TroveError as error:
                refusals.append(error)
                continue
            refusals.append(None)
            if config != before:
                parts.append(self._put(before, config))
        if not parts:
            return None, refusals
        return self._begin(parts[0].name, parts, now_ms, versions=len(parts)), refusals

    def changed_since(self, change_count: int) -> list[str] | None:
        """Names of the entries that changed since `change_count` had that value, each once; None if that is
        too long ago."""
        count = self.change_count - change_count
        kept = len(self._changed_names)
        if count > kept:
            return None
        return list(dict.fromkeys(islice(self._changed_names, kept - count, None)))

    @abstractmethod
    def is_system(self, name: str) -> bool:
        """Whether the entry is the broker's own, not a user's."""

    @abstractmethod
    def _check_not_own(self, name: str) -> None:
        """TroveError TOPIC_ILLEGAL, GROUP_ILLEGAL if the name is one of the broker's own."""

    @abstractmethod
    def _count_max(self) -> int:
        """The most entries that the table may have."""

    def _finish_part(self, part: Changed[ConfigT], *, saved: bool) -> None:
        config = part.after if saved else part.before
        if config is not None:
            self._place(part.name, config)
        if saved and part.value is not None:
            self._values[part.name] = part.value
        elif saved:
            self._values.pop(part.name, None)

    def _place(self, name: str, config: ConfigT) -> None:
        before = self._configs.get(name)
        if before is not None:
            self._count_creator(before, -1)
        self._configs[name] = config
        self._count_creator(config, 1)

    def _remove(self, name: str) -> None:
        self._count_creator(self._configs.pop(name), -1)

    def _count_creator(self, config: ConfigT, number: int) -> None:
        creator = creator_of(config.attributes)
        self._made_by[creator] += number
        if not self._made_by[creator]:
            del self._made_by[creator]

    def _check_creator(self, creator: Creator, added: int = 0) -> None:
        """TroveError LIMIT_EXCEEDED unless the creator may create another entry after `added` more."""
        creator.check(self.NOUN, self._made_by[creator.name] + added)

    def _check_count(self, added: int = 0) -> None:
        """TroveError LIMIT_EXCEEDED unless another entry may follow `added` more."""
        if len(self._configs) + added >= self._count_max():
            what = f"this broker has {self._count_max()} {self.NOUN}s, and that is the most: {self.REMEDY}"
            raise TroveError(errors.LIMIT_EXCEEDED, what)

    def _put(self, before: ConfigT | None, after: ConfigT) -> Changed[ConfigT]:
        value = after.to_json(object_member(self._values, after.name))
        return Changed(after.name, before, after, value)

    def _begin(
        self, name: str, parts: Sequence[Changed[ConfigT]], now_ms: EpochMs | None, *, versions: int = 1
    ) -> Change[ConfigT]:
        """Begins a change that counts as `versions` versions."""
        if self._change is not None:
            busy = self._change.name
            doing = f"{self.NOUN} {busy} is being changed" if busy else f"{self.NOUN}s are being saved"
            raise TroveError(errors.SERVICE_NOT_AVAILABLE, f"{doing}; try again")
        version: JsonObject = {
            "counter": self.data_version + versions,
            "stateVersion": integer_member(self._version, "stateVersion", 0),
            "timestamp": integer_member(self._version, "timestamp", 0) if now_ms is None else now_ms,
        }
        save = self._file.begin_save({part.name: part.value for part in parts}, version)
        self._change = Change(name, parts, save, version)
        return self._change

    def _begin_put(self, before: ConfigT | None, after: ConfigT, now_ms: EpochMs | None) -> Change[ConfigT]:
        return self._begin(after.name, [self._put(before, after)], now_ms)

    def _begin_delete(self, before: ConfigT, now_ms: EpochMs | None) -> Change[ConfigT]:
        """Begins a deletion. The entry is gone from now on; it is back if run() fails."""
        change = self._begin(before.name, [Changed(before.name, before, None, None)], now_ms)
        self._remove(before.name)
        return change

    def _carry_out(self, change: Change[ConfigT] | None) -> None:
        if change is not None:
            try:
                change.run()
            finally:
                self.finish(change)

    def _notify(self) -> None:
        for listener in self._listeners:
            listener()


def read_table(path: str, read: Callable[[], T]) -> T:
    """The result of `read`, which reads the table from the file. TroveError STORE_FAILED if a value is
    illegal."""
    try:
        return read()
    except ValueError as error:
        raise DamagedError(errors.STORE_FAILED, f"{path}: {error}: {ADVICE}", file=path) from error
