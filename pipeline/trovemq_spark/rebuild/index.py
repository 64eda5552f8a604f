"""Builds the files of the key index, each independently. Their form is in trovemq_store.index.index_file.

The files of an index depend on each other only by the number of entries: the counts of the blocks determine
the file of each entry. Within a file an item points to the previous one in its slot; one sort of (slot, item)
pairs gives all of these. A file ends when it is full, or where store times step back
(trovemq_store.index.key_index). One that follows a full one counts the seconds of its item 1 from the last
store time of the full one, so a task reads one more entry than it writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from struct import Struct
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trovemq_spark.rebuild.blocks import Entries, EntryRange
from trovemq_spark.rebuild.files import write_pieces
from trovemq_spark.storage import StoragePath
from trovemq_store.index.index_file import (
    HEADER_SIZE,
    ITEM_DTYPE,
    ITEM_SIZE,
    SLOT_SIZE,
    file_size,
    seconds_since,
)
from trovemq_store.index.key_index import DIRECTORY, ROLLED_FILES_MAX

_HEADER: Final = Struct(">qqqqii")
_ENTRIES_AT_ONCE: Final = 1 << 20
_NAMED_MS_MAX: Final = 253_402_300_799_999

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class IndexTask:
    """One file: its entries, and the last entry of the file before it if that is full."""

    name: str
    ranges: tuple[EntryRange, ...]
    before: EntryRange | None
    blocks: StoragePath
    target: StoragePath
    slot_count: int
    item_count: int

    @property
    def entry_count(self) -> int:
        return sum(entries.count for entries in self.ranges)


@dataclass(frozen=True, slots=True)
class IndexFilePlan:
    """The entries of one file. is_full: the next file continues from its last entry."""

    ranges: tuple[EntryRange, ...]
    is_full: bool


def plan_files(blocks: Iterable[tuple[int, int, Sequence[int]]], item_count: int) -> list[IndexFilePlan]:
    """The entries of each file, oldest first.

    blocks: (block, entries, the entries at which store times step back) in log order; item_count: as in the
        settings (item 0 is never used).
    """
    files: list[list[EntryRange]] = []
    rolled: set[int] = set()
    space = 0
    for block, count, steps in blocks:
        for begin, end in pairwise(sorted({0, *steps, count})):
            stepped = bool(steps) and (begin > 0 or steps[0] == 0)
            if stepped and space and len(rolled) < ROLLED_FILES_MAX - 1:
                rolled.add(len(files) - 1)
                space = 0
            at = begin
            while at < end:
                if space == 0:
                    files.append([])
                    space = item_count - 1
                taken = min(space, end - at)
                files[-1].append(EntryRange(block, at, taken))
                at, space = at + taken, space - taken
    if space:
        rolled.add(len(files) - 1)
    return [IndexFilePlan(tuple(ranges), number not in rolled) for number, ranges in enumerate(files)]


def file_names(first_timestamps: Iterable[int]) -> list[str]:
    """`yyyyMMddHHmmssSSS` in UTC of each file's first store time (epoch ms), always greater than the one
    before: RocketMQ sorts them as numbers."""
    names: list[str] = []
    for timestamp in first_timestamps:
        seconds, milliseconds = divmod(min(max(timestamp, 0), _NAMED_MS_MAX), 1000)
        name = f"{datetime.fromtimestamp(seconds, UTC):%Y%m%d%H%M%S}{milliseconds:03d}"
        if names and int(name) <= int(names[-1]):
            name = f"{int(names[-1]) + 1:017d}"
        names.append(name)
    return names


def build_index_file(task: IndexTask) -> int:
    """Writes the file. Returns its number of items. Raises OSError."""
    hashes = np.concatenate([entries.entries(task.blocks)["hash"] for entries in task.ranges])
    slots, previous = _chained(hashes, task.slot_count)
    first = task.ranges[0].one(0).entries(task.blocks)[0]
    last = task.ranges[-1].one(-1).entries(task.blocks)[0]
    continued = 0 if task.before is None else int(task.before.entries(task.blocks)["store_timestamp"][0])
    begin_timestamp = int(first["store_timestamp"])
    header = _HEADER.pack(
        begin_timestamp,
        int(last["store_timestamp"]),
        int(first["physical_offset"]),
        int(last["physical_offset"]),
        int(np.count_nonzero(previous == 0)),
        len(hashes) + 1,
    )

    def parts() -> Iterator[tuple[int, bytes]]:
        yield 0, header
        yield HEADER_SIZE, slots.tobytes()
        items_at = HEADER_SIZE + SLOT_SIZE * task.slot_count
        number = 1
        for entries in _chunks(task):
            items = _items(entries, begin_timestamp, previous[number - 1 :][: len(entries)])
            if number == 1:
                items["seconds"][0] = seconds_since(continued, entries["store_timestamp"][:1])[0]
            yield items_at + ITEM_SIZE * number, items.tobytes()
            number += len(entries)

    size = file_size(task.slot_count, task.item_count)
    write_pieces(task.target, f"{DIRECTORY}/{task.name}", size, parts())
    return len(hashes)


def _chunks(task: IndexTask) -> Iterator[Entries]:
    for entries in task.ranges:
        for begin in range(0, entries.count, _ENTRIES_AT_ONCE):
            count = min(_ENTRIES_AT_ONCE, entries.count - begin)
            yield EntryRange(entries.block, entries.begin + begin, count).entries(task.blocks)


def _items(entries: Entries, begin_timestamp: int, previous: Int32s) -> NDArray[np.void]:
    items = np.empty(len(entries), ITEM_DTYPE)
    items["hash"] = entries["hash"]
    items["phy"] = entries["physical_offset"]
    items["seconds"] = seconds_since(begin_timestamp, entries["store_timestamp"])
    items["previous"] = previous
    return items


def _chained(hashes: Int32s, slot_count: int) -> tuple[NDArray[np.signedinteger], Int32s]:
    """(every slot's newest item, big-endian; each item's previous one in its slot). Items are numbered from
    1."""
    pairs = hashes.astype(np.int64)
    pairs %= slot_count
    pairs <<= 32
    pairs |= np.arange(1, len(hashes) + 1)
    pairs.sort()  # no two pairs are equal, so the order is unique
    numbers = (pairs & 0xFFFFFFFF).astype(np.int32)
    pairs >>= 32
    follows = pairs[1:] == pairs[:-1]
    previous = np.zeros(len(hashes), np.int32)
    previous[numbers[1:][follows] - 1] = numbers[:-1][follows]
    newest = np.r_[~follows, True]
    slots = np.zeros(slot_count, ">i4")
    slots[pairs[newest]] = numbers[newest]
    return slots, previous
