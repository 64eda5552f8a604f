"""Read-only arrays over the files of consume queues and the key index, big-endian.

(docs/store-format.md, "Unit", and docs/store-format.md, "Index file")

consume-queue unit, 20 bytes          index file
offset  width  field                  offset          width  field
     0  i64    physical offset             0          i64    beginTimestamp
     8  i32    record size                 8          i64    endTimestamp
    12  i64    tags code                  16          i64    beginPhyoffset
                                          24          i64    endPhyoffset
                                          32          i32    hashSlotCount
                                          36          i32    indexCount: the next free item, from 1
                                          40          i32s   slots: newest item of each chain, 0 = none
                                 40 + 4 · slots         items of 20 bytes; item 0 is never used

index item, 20 bytes: i32 hash, i64 physical offset, i32 seconds after beginTimestamp, i32 previous item
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from trovemq_proto.positions import QueueId
from trovemq_store.files.files import FileSystem
from trovemq_store.index.consume_queue import ROOT_DIRECTORY as CONSUME_QUEUE_DIRECTORY
from trovemq_store.index.consume_queue import UNIT_DTYPE, UNIT_SIZE

HEADER_DTYPE: Final = np.dtype(
    [
        ("begin_timestamp", ">i8"),
        ("end_timestamp", ">i8"),
        ("begin_physical_offset", ">i8"),
        ("end_physical_offset", ">i8"),
        ("slot_count_used", ">i4"),
        ("item_count", ">i4"),
    ]
)
ITEM_DTYPE: Final = np.dtype(
    [("hash", ">i4"), ("physical_offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")]
)
HEADER_SIZE: Final = 40
SLOT_SIZE: Final = 4
ITEM_SIZE: Final = 20

INDEX_DIRECTORY: Final = "index"

Records = NDArray[np.void]


def written_count(units: Records) -> int:
    """How many of a queue file's units are written: all before the first unwritten one."""
    unwritten = np.flatnonzero((units["size"] <= 0) | (units["physical_offset"] < 0))
    return int(unwritten[0]) if len(unwritten) else len(units)


@dataclass(frozen=True, slots=True)
class QueueFile:
    path: str
    first_unit: int
    units: Records


class QueueView:
    """The units of one queue. `end` is one past the last written unit, as RocketMQ finds it
    (docs/store-format.md, "End of a queue")."""

    def __init__(self, topic: str, queue_id: QueueId, files: list[QueueFile]) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self._files = files
        self.first = files[0].first_unit if files else 0
        self.end = self._written_end()

    def _written_end(self) -> int:
        end = self.first
        for file in self._files:
            count = written_count(file.units)
            end = file.first_unit + count
            if count < len(file.units):
                break
        return end

    def units(self, begin: int, end: int) -> Records:
        """The units [begin, end) that have files; a copy."""
        parts = [
            file.units[max(begin - file.first_unit, 0) : max(end - file.first_unit, 0)]
            for file in self._files
            if file.first_unit < end
        ]
        return np.concatenate(parts) if parts else np.empty(0, UNIT_DTYPE)

    def at(self, indexes: NDArray[np.int64]) -> Records:
        """The units of the given queue offsets; zeros if there is no file."""
        found = np.zeros(len(indexes), UNIT_DTYPE)
        for file in self._files:
            inside = (indexes >= file.first_unit) & (indexes < file.first_unit + len(file.units))
            found[inside] = file.units[indexes[inside] - file.first_unit]
        return found

    def place(self, unit: int) -> tuple[str, int]:
        """(path, byte offset in the file) of a unit, for messages."""
        for file in self._files:
            if file.first_unit <= unit < file.first_unit + len(file.units):
                return file.path, (unit - file.first_unit) * UNIT_SIZE
        return f"{CONSUME_QUEUE_DIRECTORY}/{self.topic}/{self.queue_id}", unit * UNIT_SIZE


@dataclass(frozen=True, slots=True)
class IndexView:
    """One index file; item k is items[k], slots[i] the newest item of chain i."""

    path: str
    header: np.void
    slots: NDArray[Any]
    items: Records
    item_count: int
    """The next free item number when the file was opened: the header's count, at most the file's capacity,
    unless another count is known."""
    view: memoryview

    @property
    def item_count_now(self) -> int:
        """The present count in the header, for a file into which items are put."""
        return int(np.frombuffer(self.view, HEADER_DTYPE, count=1)[0]["item_count"])

    @property
    def used(self) -> Records:
        return self.items[1 : self.item_count]

    def item_offset(self, item: int) -> int:
        return HEADER_SIZE + SLOT_SIZE * len(self.slots) + ITEM_SIZE * item


def with_known_counts(files: list[IndexView], last_count: int | None = None) -> list[IndexView]:
    """Index files, oldest first, with the item counts that are known whatever their headers say: all but the
    last are full, and `last_count` is the last one's."""
    counts: list[int | None] = [*(len(file.items) for file in files[:-1]), *[last_count] * len(files[-1:])]
    return [
        file if count is None or not _is_filled(file, count - 1) else replace(file, item_count=count)
        for file, count in zip(files, counts, strict=True)
    ]


def _is_filled(file: IndexView, number: int) -> bool:
    item = file.items[number]
    return number > 0 and (int(item["physical_offset"]) > 0 or int(item["hash"]) > 0)


def read_queues(files: FileSystem) -> Iterator[QueueView]:
    """Every queue that has files, by topic and queue id."""
    for topic in files.list(CONSUME_QUEUE_DIRECTORY):
        names = files.list(f"{CONSUME_QUEUE_DIRECTORY}/{topic}")
        for queue_id in sorted(QueueId(int(name)) for name in names if name.isdecimal()):
            yield read_queue(files, topic, queue_id)


def _readable_view(files: FileSystem, path: str) -> memoryview:
    """The whole file. StorageError if the disk does not return all of it: a read would end the process."""
    file = files.open(path)
    file.check_readable(0, file.size)
    return file.view()


def read_queue(files: FileSystem, topic: str, queue_id: QueueId) -> QueueView:
    directory = f"{CONSUME_QUEUE_DIRECTORY}/{topic}/{queue_id}"
    found = []
    for name in files.list(directory):
        if name.isdecimal():
            view = _readable_view(files, f"{directory}/{name}")
            units = np.frombuffer(view, UNIT_DTYPE, count=len(view) // UNIT_SIZE)
            found.append(QueueFile(f"{directory}/{name}", int(name) // UNIT_SIZE, units))
    return QueueView(topic, queue_id, found)


def index_paths(files: FileSystem) -> list[str]:
    """Index files, oldest first."""
    return [f"{INDEX_DIRECTORY}/{name}" for name in files.list(INDEX_DIRECTORY) if name.isdecimal()]


def index_file_size(slot_count: int, item_count: int) -> int:
    return HEADER_SIZE + SLOT_SIZE * slot_count + ITEM_SIZE * item_count


def read_index(files: FileSystem, path: str, slot_count: int, item_count: int) -> IndexView:
    """ValueError if the file is smaller than the counts say; StorageError."""
    return view_index(path, _readable_view(files, path), slot_count, item_count)


def view_index(path: str, view: memoryview, slot_count: int, item_count: int) -> IndexView:
    """The file with the count that its header has now. ValueError if it is smaller than the counts say."""
    header = np.frombuffer(view, HEADER_DTYPE, count=1)[0].copy()
    slots = np.frombuffer(view, ">i4", count=slot_count, offset=HEADER_SIZE)
    items = np.frombuffer(view, ITEM_DTYPE, count=item_count, offset=HEADER_SIZE + SLOT_SIZE * slot_count)
    return IndexView(path, header, slots, items, min(max(int(header["item_count"]), 1), item_count), view)
