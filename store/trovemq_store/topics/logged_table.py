"""A table whose entries are records of the log, as the log sees it (engine/table_log.py): a ConfigTable, the
offsets of the groups, and others of the broker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from trovemq_proto.positions import PhysicalOffset
from trovemq_store.topics.config_table import ConfigLog
from trovemq_store.topics.lax_json import JsonObject


class ChangedPart(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def value(self) -> JsonObject | None: ...


class PendingChange(Protocol):
    """A change that has begun: the first len(places) parts are in the log."""

    @property
    def parts(self) -> Sequence[ChangedPart]: ...
    @property
    def places(self) -> Sequence[PhysicalOffset]: ...


class LoggedFile(Protocol):
    """The file of a table, as the log writes it."""

    @property
    def crc(self) -> int | None:
        """CRC-32 of the content; None if there is no file."""

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


class LoggedTable(Protocol):
    """Used from the engine's thread."""

    @property
    def NOUN(self) -> str:  # noqa: N802
        """The kind of its records."""
        ...

    @property
    def file(self) -> LoggedFile: ...

    @property
    def values(self) -> Mapping[str, object]:
        """The value of each saved entry, by name."""
        ...

    @property
    def version(self) -> JsonObject:
        """RocketMQ's dataVersion."""
        ...

    @property
    def places(self) -> Mapping[str, PhysicalOffset]:
        """Where the last record of each entry lies in the log, or an offset before it."""
        ...

    log_end: PhysicalOffset
    """The table has all of its records that end at or below this offset."""

    @property
    def pending_change(self) -> PendingChange | None: ...

    def value_of(self, name: str) -> JsonObject | None:
        """The saved value; None if there is no such entry."""

    def restore(self, values: JsonObject, version: JsonObject, /) -> None:
        """Sets the whole table. ValueError if a value is illegal."""

    def connect(self, log: ConfigLog, places: dict[str, PhysicalOffset], log_end: PhysicalOffset, /) -> None:
        """From now on changes are records of this log. places, log_end: see the members."""

    def set_place(self, name: str, place: PhysicalOffset | None) -> None:
        """The last record of the entry lies there; None: it is deleted."""

    def below(self, physical_offset: PhysicalOffset, count_max: int) -> list[str]:
        """Up to count_max entries that must be appended again before the log may begin there."""
        ...

    def lacks(self, written: PhysicalOffset | None) -> bool:
        """Whether the file lacks a change. written: the end of the content that it has; None: unknown."""
        ...

    def content_end(self, log_end: PhysicalOffset) -> PhysicalOffset:
        """The present content has all records of the table that end at or below this offset. log_end: of
        the records that all tables have."""
        ...

    def begin_write(self) -> Callable[[], None]:
        """Call before the content is captured, and the result when the file has it."""
        ...

    def follow(
        self,
        name: str,
        value: JsonObject | None,
        version: JsonObject,
        place: PhysicalOffset,
        end: PhysicalOffset,
        /,
    ) -> None:
        """Makes the change of another node's record, which lies at `place`; None: the entry is deleted.
        ValueError if the value is illegal."""
