"""The result of one task: the units and index entries of the records of its part of the log, in files of the
workspace. Both are named by their block, which is the physical offset at which the part begins.

A file `units-<block>`:

| part    | width | content                                                                        |
|---------|-------|--------------------------------------------------------------------------------|
| units   | 20 n  | consume-queue units as in the queues' files; those of one piece are adjacent   |
| offsets | 8 m   | i64 little-endian: the queue offsets of the units of pieces that are not dense |

A file `entries-<block>`: index entries in log order, ENTRY_DTYPE each.

These files exist only during a run. They have no bodies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from trovemq_spark.rebuild.files import read_range
from trovemq_spark.storage import StoragePath
from trovemq_store.index.consume_queue import UNIT_DTYPE, UNIT_SIZE
from trovemq_store.log.time_runs import STEP_MIN_MS

ENTRY_DTYPE: Final = np.dtype([("hash", "<i4"), ("physical_offset", "<i8"), ("store_timestamp", "<i8")])
OFFSET_DTYPE: Final = np.dtype("<i8")

Units = NDArray[np.void]
Entries = NDArray[np.void]
Int64s = NDArray[np.int64]


def units_name(block: int) -> str:
    return f"units-{block:020d}"


def entries_name(block: int) -> str:
    return f"entries-{block:020d}"


@dataclass(frozen=True, slots=True)
class Piece:
    """The units of one queue from one block, in log order."""

    topic: str
    queue_id: int
    block: int
    begin: int
    """Index of its first unit in the block."""
    count: int
    first_offset: int
    """Queue offset of the first unit; in a dense piece each unit has the next offset."""
    offsets_at: int = -1
    """Byte position of the units' queue offsets; -1: the piece is dense."""

    def units(self, blocks: StoragePath, begin: int, count: int) -> Units:
        """`count` of its units from its own unit `begin` on."""
        name = units_name(self.block)
        return _array(blocks, name, UNIT_DTYPE, (self.begin + begin) * UNIT_SIZE, count)

    def offsets(self, blocks: StoragePath) -> Int64s:
        """The queue offset of each unit."""
        if self.offsets_at < 0:
            return np.arange(self.first_offset, self.first_offset + self.count)
        name = units_name(self.block)
        return _array(blocks, name, OFFSET_DTYPE, self.offsets_at, self.count).astype(np.int64)


@dataclass(frozen=True, slots=True)
class EntryRange:
    """`count` index entries of one block, from its entry `begin` on."""

    block: int
    begin: int
    count: int

    def entries(self, blocks: StoragePath) -> Entries:
        begin = self.begin * ENTRY_DTYPE.itemsize
        return _array(blocks, entries_name(self.block), ENTRY_DTYPE, begin, self.count)

    def one(self, index: int) -> EntryRange:
        """The range of only its entry `index` (-1: the last)."""
        return EntryRange(self.block, self.begin + index % self.count, 1)


@dataclass(frozen=True, slots=True)
class EntryTimes:
    """The order of the store times of a block's entries, epoch ms; both times are 0 if it has none."""

    first_ms: int = 0
    last_ms: int = 0
    steps: tuple[int, ...] = ()
    """The entries that step back: they were stored more than STEP_MIN_MS before the entry before them."""

    @classmethod
    def of(cls, times: Int64s) -> EntryTimes:
        if not len(times):
            return cls()
        steps = np.flatnonzero(times[1:] < times[:-1] - STEP_MIN_MS) + 1
        return cls(int(times[0]), int(times[-1]), tuple(steps.tolist()))


def _array(blocks: StoragePath, name: str, dtype: np.dtype[Any], begin: int, count: int) -> NDArray[Any]:
    data = read_range(blocks, name, begin, count * dtype.itemsize)
    return np.frombuffer(data, dtype, count)
