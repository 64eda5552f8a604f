"""Reads the records to be delivered directly from the log, with as little work per message as possible.

A record that this process appended was checked then: only its size and PHYSICALOFFSET are compared. A record
that was in the log when this process opened it is checked completely, with its CRC.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset
from trovemq_proto.records import parse_properties
from trovemq_proto.records.fields import read_fields
from trovemq_proto.records.layout import (
    PHYSICAL_OFFSET_AT,
    RECONSUME_TIMES_AT,
    RECORD_SIZE_MIN,
    SYS_FLAG_AT,
    header_shift,
)
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.queues import BLANK_UNIT_SIZE
from trovemq_store.files.files import StorageError

_SIZE_AND_PHYSICAL_OFFSET: Final = Struct(f">i{PHYSICAL_OFFSET_AT - 4}xq")
_INT: Final = Struct(">i")


class RecordReader:
    """Reads from one store. None: a record that cannot be read (damaged, removed, or not returned by the
    disk)."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._checked_from = store.end_offset
        self._file_size = store.settings.commit_log_file_size

    def read_run(self, physical_offsets: list[PhysicalOffset], sizes: list[int]) -> list[memoryview] | None:
        """The records of adjacent consume-queue units, in their order (which is that of the log).

        None if one of them cannot be read, or they must be read one by one.
        """
        first = physical_offsets[0]
        end = physical_offsets[-1] + sizes[-1]
        if first < self._checked_from:
            return None
        try:
            data = self._store.read(first, end - first)
        except StorageError:
            return None
        if not data:
            return None  # of two segments
        read_head = _SIZE_AND_PHYSICAL_OFFSET.unpack_from
        records: list[memoryview] = []
        add = records.append
        for at, size in zip(physical_offsets, sizes, strict=True):
            begin = at - first
            if size < RECORD_SIZE_MIN or not 0 <= begin <= len(data) - size:
                return None
            if read_head(data, begin) != (size, at):
                return None
            add(data[begin : begin + size])
        return records

    def read(self, physical_offset: PhysicalOffset, size: int) -> memoryview | None:
        """The record of one unit; a blank unit has none."""
        if size == BLANK_UNIT_SIZE or size < RECORD_SIZE_MIN:
            return None
        if physical_offset < self._checked_from:
            record = self.read_at(physical_offset)
            return record if record is not None and len(record) == size else None
        record = self._store.read_given(physical_offset, size)
        if len(record) != size or _SIZE_AND_PHYSICAL_OFFSET.unpack_from(record) != (size, physical_offset):
            return None
        return record

    def read_at(self, physical_offset: PhysicalOffset) -> memoryview | None:
        """The record that begins at that offset, checked completely."""
        try:
            return self._store.record_at(physical_offset)
        except TroveError:
            return None


def property_block_of(record: memoryview) -> bytes:
    """The bytes of a record's properties; none if it is not well formed."""
    fields = read_fields(record, 0, len(record))
    return b"" if fields is None else bytes(record[fields.property_position :])


def properties_of(record: memoryview) -> dict[str, str]:
    """The properties of a record; empty if it is not well formed."""
    return parse_properties(property_block_of(record))


def reconsume_times_of(record: memoryview) -> int:
    """RECONSUMETIMES: how often a copy in a retry topic was delivered before."""
    (sys_flag,) = _INT.unpack_from(record, SYS_FLAG_AT)
    # the field follows both hosts; header_shift() is by how much they move it
    (times,) = _INT.unpack_from(record, RECONSUME_TIMES_AT + header_shift(sys_flag))
    return max(0, int(times))
