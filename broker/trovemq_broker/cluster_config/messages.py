"""The messages between the owner and the brokers that follow it, in parts of a bounded size.

A stream opens with the follower's Hello. The owner answers with parts: of all entries (`base` None), or of
the changes since the follower's position. The follower answers each whole update with the position that it
has stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from trovemq_broker.cluster_config.entries import (
    NO_GENERATION,
    ORIGIN,
    TABLE_SIZE_MAX,
    Entry,
    Generation,
    Position,
)
from trovemq_broker.cluster_config.table import Head, Update
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

PART_SIZE_MAX: Final = 256 << 10
"""Of the content of its entries, except for a part of one entry."""
PART_ENTRIES_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class Hello:
    """`store_id` is another one after a broker has lost its disk. `promised`: the highest generation that
    the broker has seen or promised to wait for."""

    broker: str
    store_id: str
    cluster: str = ""
    position: Position = ORIGIN
    digest: str = ""
    promised: Generation = NO_GENERATION


@dataclass(frozen=True, slots=True)
class TablePart:
    """Part `number`, from 0, of one update."""

    base: Position | None
    head: Head
    number: int
    is_last: bool
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """The follower has everything up to `position` on its disk."""

    position: Position


def parts_of(update: Update) -> Iterator[TablePart]:
    """The update in parts; at least one."""
    number, begin, size = 0, 0, 0
    for at, entry in enumerate(update.entries):
        if at > begin and (size + entry.size > PART_SIZE_MAX or at - begin >= PART_ENTRIES_MAX):
            yield TablePart(update.base, update.head, number, False, update.entries[begin:at])
            number, begin, size = number + 1, at, 0
        size += entry.size
    yield TablePart(update.base, update.head, number, True, update.entries[begin:])


@dataclass(slots=True)
class UpdateAssembly:
    """The parts of the update that is being received."""

    _entries: list[Entry] = field(default_factory=list)
    _next: int = 0
    _size: int = 0
    _of: tuple[Position | None, Head] | None = None

    def add(self, part: TablePart) -> Update | None:
        """The update when this was its last part. TroveError CONFIG_GAP, LIMIT_EXCEEDED."""
        if part.number != self._next or (part.number and self._of != (part.base, part.head)):
            self.clear()
            what = f"part {part.number} of an update came, part {self._next} was expected"
            raise TroveError(errors.CONFIG_GAP, what)
        self._size += sum(entry.size for entry in part.entries)
        if self._size > TABLE_SIZE_MAX:
            self.clear()
            raise TroveError(errors.LIMIT_EXCEEDED, f"an update of more than {TABLE_SIZE_MAX} bytes came")
        self._entries.extend(part.entries)
        self._next, self._of = part.number + 1, (part.base, part.head)
        if not part.is_last:
            return None
        update = Update(part.base, part.head, tuple(self._entries))
        self.clear()
        return update

    def clear(self) -> None:
        self._entries, self._next, self._size, self._of = [], 0, 0, None
