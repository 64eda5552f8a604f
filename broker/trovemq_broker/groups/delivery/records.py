"""Reads the records to be delivered directly from the log, with as little work per message as possible.

A record that this process appended was checked then: only its size and PHYSICALOFFSET are compared. A record
that was in the log when this process opened it is checked completely, with its CRC.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final, overload

import numpy as np
from numpy.typing import NDArray

from trovemq_proto.errors import DamagedError
from trovemq_proto.positions import PhysicalOffset, QueueOffset
from trovemq_proto.records import parse_properties
from trovemq_proto.records.fields import ROWS_MAX, read_fields
from trovemq_proto.records.geometry import sliding
from trovemq_proto.records.layout import (
    PHYSICAL_OFFSET_AT,
    RECONSUME_TIMES_AT,
    RECORD_SIZE_MIN,
    SYS_FLAG_AT,
    header_shift,
)
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.queue_units import BLANK_UNIT_SIZE, readable_units
from trovemq_store.files.files import StorageError
from trovemq_store.index.consume_queue import ConsumeQueue, Unit

Int64s = NDArray[np.int64]

_SIZE_AND_PHYSICAL_OFFSET: Final = Struct(f">i{PHYSICAL_OFFSET_AT - 4}xq")
_INT: Final = Struct(">i")


class AdjacentRecords(Sequence[memoryview]):
    """Records that are adjacent in the log. Each is a view, which is created when it is read.

    Attributes:
        data: The bytes of all records.
    """

    __slots__ = ("_ends", "data")

    def __init__(self, data: memoryview, ends: list[int]) -> None:
        self.data = data
        self._ends = ends

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> memoryview: ...

    @overload
    def __getitem__(self, index: slice) -> list[memoryview]: ...

    def __getitem__(self, index: int | slice) -> memoryview | list[memoryview]:
        return list(self)[index]

    def __iter__(self) -> Iterator[memoryview]:
        begin = 0
        for end in self._ends:
            yield self.data[begin:end]
            begin = end


class RecordReader:
    """Reads from one store. None: a record that cannot be read (damaged, removed, or not returned by the
    disk)."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._checked_from = store.end_offset
        self._file_size = store.settings.commit_log_file_size

    def read_run(
        self, queue: ConsumeQueue, begin: int, count: int, space: int, *, at_least: bool
    ) -> tuple[Sequence[memoryview], int] | None:
        """The records of the queue from offset `begin` on, in its order, which is that of the log, and the
        sum of their bytes: at most `count` records, and `space` bytes; with `at_least` the first one in any
        case.

        None if one of them cannot be read, or they must be read one by one.
        """
        if count <= ROWS_MAX:
            return self._run_by_rows(queue, begin, count, space, at_least)
        return self._run_by_columns(queue, begin, count, space, at_least)

    def _run_by_rows(
        self, queue: ConsumeQueue, begin: int, count: int, space: int, at_least: bool
    ) -> tuple[Sequence[memoryview], int] | None:
        units: list[Unit] = []
        try:
            while len(units) < count:  # a file may end before
                units += queue.unit_rows(QueueOffset(begin + len(units)), count - len(units))
        except StorageError:
            return None
        total = 0
        for number, (_, size, _) in enumerate(units):
            if total + size > space and (number or not at_least):
                del units[number:]
                break
            total += size
        if not units:
            return (), 0
        first, (last, size, _) = units[0][0], units[-1]
        data = self._read_together(first, last + size)
        records = None if data is None else _rows(data, first, units)
        return None if records is None else (records, total)

    def _run_by_columns(
        self, queue: ConsumeQueue, begin: int, count: int, space: int, at_least: bool
    ) -> tuple[Sequence[memoryview], int] | None:
        units = readable_units(queue, QueueOffset(begin), count)
        sizes = units["size"].astype(np.int64)
        total = int(sizes.sum())
        if total > space:
            fitting = int(np.searchsorted(sizes.cumsum(), space, side="right"))
            sizes = sizes[: max(fitting, 1 if at_least else 0)]
            total = int(sizes.sum())
        if not len(sizes):
            return (), 0
        physical_offsets = units["physical_offset"][: len(sizes)].astype(np.int64)
        first = PhysicalOffset(int(physical_offsets[0]))
        data = self._read_together(first, int(physical_offsets[-1]) + int(sizes[-1]))
        records = None if data is None else _columns(data, physical_offsets - first, physical_offsets, sizes)
        return None if records is None else (records, total)

    def _read_together(self, first: PhysicalOffset, end: int) -> memoryview | None:
        """These bytes of the log, if this process appended them, and they are of one segment."""
        if first < self._checked_from:
            return None
        try:
            return self._store.read(first, end - first) or None
        except StorageError:
            return None

    def read(self, physical_offset: PhysicalOffset, size: int) -> memoryview | None:
        """The record of one unit; a blank unit has none."""
        if size == BLANK_UNIT_SIZE or size < RECORD_SIZE_MIN:
            return None
        if physical_offset < self._checked_from:
            record = self.read_at(physical_offset)
            return record if record is not None and len(record) == size else None
        record = self._store.read_or_empty(physical_offset, size)
        if len(record) != size or _SIZE_AND_PHYSICAL_OFFSET.unpack_from(record) != (size, physical_offset):
            return None
        return record

    def read_at(self, physical_offset: PhysicalOffset) -> memoryview | None:
        """The record that begins at that offset, checked completely."""
        try:
            return self._store.record_at(physical_offset)
        except DamagedError:
            return None


def _rows(data: memoryview, first: int, units: Sequence[Unit]) -> list[memoryview] | None:
    """The record of each unit, from these bytes of the log, which begin at `first`. None if one of them is
    not there."""
    read_head = _SIZE_AND_PHYSICAL_OFFSET.unpack_from
    records: list[memoryview] = []
    add = records.append
    for at, size, _ in units:
        begin = at - first
        if size < RECORD_SIZE_MIN or not 0 <= begin <= len(data) - size:
            return None
        if read_head(data, begin) != (size, at):
            return None
        add(data[begin : begin + size])
    return records


def _columns(
    data: memoryview, begins: Int64s, physical_offsets: Int64s, sizes: Int64s
) -> Sequence[memoryview] | None:
    """The records by the columns of their units; `begins`: their positions in `data`. None if one of them is
    not there."""
    if int(begins.max()) > len(data):
        return None  # its end may be too large for an int64
    ends = begins + sizes
    if int(sizes.min()) < RECORD_SIZE_MIN or int(begins.min()) < 0 or int(ends.max()) > len(data):
        return None
    if (sliding(data, ">i4")[begins] != sizes).any():
        return None
    if (sliding(data, ">i8")[begins + PHYSICAL_OFFSET_AT] != physical_offsets).any():
        return None
    if (begins[1:] == ends[:-1]).all():
        return AdjacentRecords(data, ends.tolist())
    return [data[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]


def property_block_of(record: memoryview) -> bytes:
    """The bytes of a record's properties; none if it is not well formed."""
    fields = read_fields(record, 0, len(record))
    return b"" if fields is None else bytes(record[fields.property_position :])


def properties_of(record: memoryview) -> dict[str, str]:
    """The properties of a record; empty if it is not well formed."""
    return parse_properties(property_block_of(record))


def reconsume_times_of(record: memoryview) -> int:
    """RECONSUMETIMES: how many times a copy in a retry topic was delivered before."""
    (sys_flag,) = _INT.unpack_from(record, SYS_FLAG_AT)
    # the field follows both hosts; header_shift() is by how much they move it
    (times,) = _INT.unpack_from(record, RECONSUME_TIMES_AT + header_shift(sys_flag))
    return max(0, int(times))
