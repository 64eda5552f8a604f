"""A table of named configurations that is stored: the topics, the consumer groups.

A broker's tables are records of the log (engine/table_log.py): a change appends them, and the table's file
follows later. A table that is not connected to a log, as in tools, writes its file with each change.

Invariants
- One change at a time. A change counts when its records or its file have it; a change that cannot be saved
  is not made.
- `data_version` grows with every save.
- Members that we do not know are written back as they were read.
- `made_by` counts the existing entries by their creators.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import ClassVar, Final, Generic, Protocol, TypeVar

from trovemq_proto import errors
from trovemq_proto.errors import DamagedError, TroveError
from trovemq_proto.positions import LOG_ORIGIN, EpochMs, PhysicalOffset
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

    @property
    def crc(self) -> int | None:
        """CRC-32 of the content; None if there is no file."""
        ...

    @property
    def whole(self) -> bool:
        """Whether the table was read from the file alone: not from its second copy, nor from a journal."""
        ...

    @property
    def is_second_copy(self) -> bool:
        """Whether the table was read from the file's second copy, which may lack the last changes."""
        ...

    def put(self, name: str, value: JsonObject | None) -> None:
        """The next content has this entry; None: it has not."""

    def capture(self, version: JsonObject) -> Callable[[], bytes]:
        """Returns the function that renders the present content; it may run in another thread."""
        ...

    def write(self, content: bytes) -> None:
        """Replaces the file; durable when it returns. May block, may run in another thread. TroveError
        DISK_FULL, STORE_FAILED, UNKNOWN_ERROR; StorageError."""


@dataclass(frozen=True, slots=True)
class Appended:
    """Records of a change that lie together in the log: how many, where the first begins, the end of the
    last."""

    count: int
    begin: PhysicalOffset
    end: PhysicalOffset


class ConfigLog(Protocol):
    """The log that a table is connected to."""

    def append(
        self,
        kind: str,
        entries: Sequence[tuple[str, JsonObject | None]],
        version: JsonObject,
        *,
        internal: bool,
        deleted_below: PhysicalOffset | None = None,
    ) -> Iterator[Appended]:
        """Appends a record for each entry; a value of None deletes it. Few entries lie in one run, which is
        in the log whole or not at all. internal: accepted also while the disk reserve refuses new messages.
        deleted_below: of a topic's deletion (table_records.py). The errors of MessageStore.append(), after
        the runs that were yielded."""
        ...


@dataclass(frozen=True, slots=True)
class Changed(Generic[ConfigT]):
    """One entry of a change. `before` None: it is created; `after` None: it is deleted. `value`: RocketMQ's
    object for it."""

    name: str
    before: ConfigT | None
    after: ConfigT | None
    value: JsonObject | None


class Change(Generic[ConfigT]):
    """A change of the table that is ready to be saved: `run()` may block, and may run in another thread,
    unless the change is `logged`: then it appends records, on the engine's thread, and does not block.

    `name` is empty if nothing is changed, and only entries are saved that were in memory alone.
    """

    def __init__(
        self,
        name: str,
        parts: Sequence[Changed[ConfigT]],
        save: Callable[[], None] | Callable[[], Iterator[Appended]],
        version: JsonObject,
        *,
        logged: bool = False,
    ) -> None:
        self.name = name
        self.parts = parts
        self._save = save
        self.version = version
        self.logged: Final = logged
        self.saved = False
        self.places: list[PhysicalOffset] = []
        """Of a logged change: where the record of each of the first parts lies, or the run that it is in."""
        self.end = LOG_ORIGIN
        """Of a logged change: it is durable when the log is on disk up to here."""

    @property
    def before(self) -> ConfigT | None:
        """The entry called `name` before the change; None if it is created."""
        return next((part.before for part in self.parts if part.name == self.name), None)

    def run(self) -> None:
        """TroveError DISK_FULL, STORE_FAILED, UNKNOWN_ERROR; then the disk is as it was. A logged change
        has the errors of MessageStore.append(); of one that is too large for one run, the first parts may
        then be in the log, and finish() makes them."""
        for appended in self._save() or ():
            self.places += [appended.begin] * appended.count
            self.end = appended.end
        self.saved = True

    @property
    def saved_parts(self) -> int:
        """How many of the parts, from the first on, are saved."""
        return len(self.parts) if self.saved else len(self.places)


class ConfigTable(ABC, Generic[ConfigT]):
    """The configurations by name; used from one thread.

    A method begin_…() leaves the saving to the caller. It returns a change: the caller calls run(), where it
    may block, and then finish() on the owner's thread, also if run() failed. Until finish() every other
    change is refused with SERVICE_NOT_AVAILABLE. The other methods that change the table append a logged
    change and finish it at once: messages of a topic lie after its record in the log, so that a crash takes
    them first.
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
        self.file: Final = file
        self._from_json = from_json
        self._log: ConfigLog | None = None
        self.restore(values, version)
        self.places: dict[str, PhysicalOffset] = {}
        """Where the last record of each entry lies in the log, or an offset before it."""
        self.log_end = LOG_ORIGIN
        """The table has all of its records that end at or below this offset."""
        self._listeners: list[Callable[[], None]] = []
        self._change: Change[ConfigT] | None = None
        self._changed_names: deque[str] = deque(maxlen=CHANGES_KEPT)
        self.change_count = 0
        """How many entries were created, altered or deleted since the start."""

    def restore(self, values: JsonObject, version: JsonObject) -> None:
        """Sets the whole table: RocketMQ's object for each entry. ValueError if one is illegal."""
        self._configs = {name: self._from_json(name, object_member(values, name)) for name in values}
        self._values = values
        self._version = version
        self._made_by = Counter(creator_of(config.attributes) for config in self._configs.values())

    def connect(self, log: ConfigLog, places: dict[str, PhysicalOffset], log_end: PhysicalOffset) -> None:
        """From now on changes are records of this log. places, log_end: see the members."""
        assert self._change is None, "one change at a time"
        assert places.keys() <= self._values.keys(), "each place is of an entry"
        self._log, self.places, self.log_end = log, places, log_end

    @property
    def values(self) -> Mapping[str, object]:
        """RocketMQ's object for each saved entry, by name."""
        return self._values

    def value_of(self, name: str) -> JsonObject | None:
        """RocketMQ's object for the saved entry; None if there is none."""
        return object_member(self._values, name) if name in self._values else None

    @property
    def version(self) -> JsonObject:
        """RocketMQ's dataVersion."""
        return self._version

    @property
    def pending_change(self) -> Change[ConfigT] | None:
        """The change that has begun and is not finished."""
        return self._change

    @property
    def fault(self) -> str:
        """Why the table was read from the second copy of its file; empty if the first one was read."""
        return self.file.fault

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
        """Call after run(). The table has the change if it is saved, otherwise it is as before."""
        assert change is self._change, "one change at a time"
        assert change.parts or not change.name, "a change with a name changes an entry"
        self._change = None
        saved = change.saved_parts
        for number, part in enumerate(change.parts):
            self._finish_part(part, saved=number < saved)
        for part, place in zip(change.parts, change.places, strict=False):
            self.file.put(part.name, part.value)
            self.set_place(part.name, None if part.value is None else place)
        self.log_end = max(self.log_end, change.end)
        if change.saved or saved:
            self._version = change.version
            if change.name:
                self._changed_names.extend(part.name for part in change.parts[:saved])
                self.change_count += saved
                self._notify()

    # --- for the log: LoggedTable -------------------------------------------------------------------
    def set_place(self, name: str, place: PhysicalOffset | None) -> None:
        """The last record of the entry lies there; None: it is deleted."""
        self.places.pop(name, None)
        if place is not None:
            self.places[name] = place

    def below(self, physical_offset: PhysicalOffset, count_max: int) -> list[str]:
        """Up to count_max entries whose last record lies below that offset."""
        below = (name for name, place in self.places.items() if place < physical_offset)
        return list(islice(below, count_max))

    def lacks(self, written: PhysicalOffset | None) -> bool:
        """Whether the file, which has the records up to `written`, lacks a change."""
        return written != self.log_end

    def content_end(self, _log_end: PhysicalOffset) -> PhysicalOffset:
        """A change that is under way is in the log, perhaps, and not in the content."""
        return self.log_end

    def begin_write(self) -> Callable[[], None]:
        return _saved

    def follow(
        self,
        name: str,
        value: JsonObject | None,
        version: JsonObject,
        place: PhysicalOffset,
        end: PhysicalOffset,
    ) -> None:
        """Makes the change of another node's record, which lies at `place`; None: the entry is deleted.
        ValueError if the value is illegal."""
        assert self._change is None, "a table that follows has no change of another caller"
        before = self._configs.get(name)
        after = None if value is None else self._from_json(name, value)
        change = Change(name, (Changed(name, before, after, value),), _saved, version, logged=True)
        assert place < end, "a record has a size"
        change.places, change.end, change.saved = [place], end, True
        if after is None and before is not None:
            self._remove(name)
        self._change = change
        self.finish(change)

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
        self,
        name: str,
        parts: Sequence[Changed[ConfigT]],
        now_ms: EpochMs | None,
        *,
        versions: int = 1,
        deleted_below: PhysicalOffset | None = None,
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
        if self._log is None:
            save = self.file.begin_save({part.name: part.value for part in parts}, version)
            self._change = Change(name, parts, save, version)
            return self._change
        entries = [(part.name, part.value) for part in parts]
        internal = all(part.value is None or self.is_system(part.name) for part in parts)
        append = partial(
            self._log.append, self.NOUN, entries, version, internal=internal, deleted_below=deleted_below
        )
        self._change = Change(name, parts, append, version, logged=True)
        return self._change

    def _begin_put(self, before: ConfigT | None, after: ConfigT, now_ms: EpochMs | None) -> Change[ConfigT]:
        return self._begin(after.name, [self._put(before, after)], now_ms)

    def _begin_delete(
        self, before: ConfigT, now_ms: EpochMs | None, deleted_below: PhysicalOffset | None = None
    ) -> Change[ConfigT]:
        """Begins a deletion. The entry is gone from now on; it is back if run() fails."""
        gone = [Changed(before.name, before, None, None)]
        change = self._begin(before.name, gone, now_ms, deleted_below=deleted_below)
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


def _saved() -> None:
    """Of a change that is in the log, and of a file that has it."""


def read_table(path: str, read: Callable[[], T]) -> T:
    """The result of `read`, which reads the table from the file. TroveError STORE_FAILED if a value is
    illegal."""
    try:
        return read()
    except ValueError as error:
        raise DamagedError(errors.STORE_FAILED, f"{path}: {error}: {ADVICE}", file=path) from error
