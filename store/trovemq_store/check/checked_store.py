"""The part of a store that the checks need, whether it is in use or stopped."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from trovemq_proto.positions import PhysicalOffset, QueueId
from trovemq_proto.records import RecordBatch
from trovemq_store.check.layouts import IndexView, Records
from trovemq_store.log.projection import DispatchBatch
from trovemq_store.log.reader import Damage
from trovemq_store.log.whole_runs import UnfinishedRun


class QueueUnits(Protocol):
    """The units of one consume queue; an index is a queue offset."""

    @property
    def topic(self) -> str: ...

    @property
    def queue_id(self) -> int: ...

    @property
    def first(self) -> int:
        """The first unit that has a file."""
        ...

    @property
    def end(self) -> int:
        """One past the last written unit."""
        ...

    def units(self, begin: int, end: int) -> Records:
        """The units [begin, end) that have files; a copy."""
        ...

    def at(self, indexes: NDArray[np.int64]) -> Records:
        """The units at these indexes; zeros if there is no file."""
        ...

    def place(self, unit: int) -> tuple[str, int]:
        """(path, byte offset in the file) of a unit."""
        ...


class CheckedStore(Protocol):
    """A store that is checked. In a live one everything but `live` may change between two steps."""

    live: bool
    """Whether the store is in use: records after the checked part, with their units and items, are added."""
    clean: bool
    """Whether nothing may be missing. Otherwise recovery adds missing units and items: a missing one is
    a note."""

    @property
    def min_offset(self) -> PhysicalOffset:
        """The log begins here."""
        ...

    def deleted_below(self, topic: str) -> PhysicalOffset:
        """The topic's records below this physical offset are dead."""
        ...

    def alive_mask(
        self, records: RecordBatch, physical_offset: PhysicalOffset
    ) -> NDArray[np.bool_] | None: ...

    def log_place(self, physical_offset: PhysicalOffset) -> tuple[str, int]:
        """(path, byte offset in the file) of a place in the log."""
        ...

    def queue(self, topic: str, queue_id: QueueId) -> QueueUnits | None: ...

    def queue_keys(self) -> Iterable[tuple[str, QueueId]]:
        """(topic, queue id) of every queue; in a live store queues may be removed and added meanwhile."""
        ...


@dataclass(frozen=True, slots=True)
class OpenIndex:
    """The index files, oldest first, as they were when the check began.

    Records below `complete_below` must have their items; later records may not have them yet. `kept`:
    whether the store has an index.
    """

    files: list[IndexView]
    complete_below: PhysicalOffset
    kept: bool = True


@dataclass(frozen=True, slots=True)
class ReadAhead:
    """Bytes [begin, end) of a file that are read next: the caller may bring them into memory first, and sends
    back the OSError if that fails."""

    path: str
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class LogStep:
    """A run of good records, a damage, a read-ahead, in log order; or a transaction that lacks records."""

    run: DispatchBatch | None = None
    damage: Damage | None = None
    unfinished: UnfinishedRun | None = None
    read_ahead: ReadAhead | None = None
