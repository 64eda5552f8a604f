"""Reading an open store's log: one record, raw bytes, runs, times. Bytes that the disk does not return count
as damage."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, PhysicalOffset
from trovemq_proto.records.batch import RecordBatch
from trovemq_proto.records.check import RecordState, check_record
from trovemq_proto.records.layout import RECORD_SIZE_MIN
from trovemq_store.files.files import UnreadableError
from trovemq_store.index.dispatcher import Dispatcher
from trovemq_store.log.commit_log import CommitLog
from trovemq_store.log.damage_counts import DamageCounts
from trovemq_store.log.readable import can_read_record
from trovemq_store.log.reader import LogReader
from trovemq_store.log.recovery import first_store_timestamp
from trovemq_store.topics.deletions import TopicDeletions

CLOCK_STEP_MAX_MS: Final = 86_400_000
"""How far store times may step back within a store that another broker wrote (ours never do)."""


class StoreReading:
    """The reading half of MessageStore."""

    def __init__(
        self, log: CommitLog, deletions: TopicDeletions, dispatcher: Dispatcher, damage: DamageCounts
    ) -> None:
        self._log = self.log = log
        self._deletions = self.deletions = deletions
        self._dispatcher = dispatcher
        self.damage = damage

    @property
    def min_offset(self) -> PhysicalOffset:
        return self._log.min_offset

    @property
    def visible_offset(self) -> PhysicalOffset:
        """Everything below may be read: it is dispatched, and in sync mode on disk."""
        return self._dispatcher.position

    def topic_identity(self, topic: str) -> PhysicalOffset:
        """Which topic of that name this is: queue offsets of one are no positions in another.

        It is the physical offset below which the topic's records are deleted, 0 if none is. It changes when
        the topic is deleted, unless nothing was stored since its last deletion.
        """
        return self._deletions.deleted_below(topic)

    def record_at(self, physical_offset: PhysicalOffset, *, check: bool = True) -> memoryview | None:
        """The whole visible, undamaged record that begins exactly there.

        None if no such record begins there: inside a record, after the visible end, below the minimum offset,
        or of a deleted topic. Raises TroveError RECORD_DAMAGED if the record that begins there is damaged.
        """
        visible_end = self.visible_offset
        segment = self._log.segments.at(physical_offset)
        if segment is None or not self.min_offset <= physical_offset <= visible_end - RECORD_SIZE_MIN:
            return None
        position = physical_offset - segment.start
        limit = min(segment.file.size, visible_end - segment.start)
        if not can_read_record(segment.file, position, limit):
            self.damage.met(physical_offset, 0, RecordState.UNREADABLE.value)
            raise TroveError(errors.RECORD_DAMAGED, f"the disk does not give the record at {physical_offset}")
        view = segment.file.view()
        found, size = check_record(view, position, limit, physical_offset=physical_offset, check_crc=check)
        if found is RecordState.DAMAGED:
            self.damage.met(physical_offset, size, found.value)
            raise TroveError(errors.RECORD_DAMAGED, f"the record at {physical_offset} is damaged")
        if found is not RecordState.RECORD:
            return None
        record = view[position : position + size]
        return None if self._is_deleted(record, physical_offset) else record

    def _is_deleted(self, record: memoryview, physical_offset: PhysicalOffset) -> bool:
        if not self._deletions.any:
            return False
        one = RecordBatch(record, np.zeros(1, np.int64), np.array([len(record)], np.int64))
        return self._deletions.alive_mask(one, physical_offset) is not None

    def read(self, physical_offset: PhysicalOffset, size: int, *, check_readable: bool = True) -> memoryview:
        """Raw log bytes within one segment, unchecked; empty if they are not all there. StorageError if the
        disk does not return them; with check_readable=False the caller has checked that with can_read()."""
        return self._log.read(physical_offset, size, check_readable=check_readable)

    def read_given(self, physical_offset: PhysicalOffset, size: int) -> memoryview:
        """As read(), but bytes that the disk does not return are empty, too, and counted as damage."""
        try:
            return self._log.read(physical_offset, size)
        except UnreadableError:
            self.damage.met(physical_offset, size, RecordState.UNREADABLE.value)
            return memoryview(b"")

    def can_read(self, physical_offset: PhysicalOffset, size: int) -> bool:
        """Whether the disk returns these bytes of one segment."""
        try:
            self._log.read(physical_offset, size)
        except UnreadableError:
            return False
        return True

    def store_timestamp_at(self, physical_offset: PhysicalOffset) -> EpochMs | None:
        """STORETIMESTAMP of the record at that offset, whose other bytes are not checked. None if there
        cannot be one."""
        if not self.min_offset <= physical_offset < self._log.end:
            return None
        return self._log.store_timestamp_at(physical_offset)

    def scan(
        self, begin: PhysicalOffset, end: PhysicalOffset, bytes_max: int = 1 << 20
    ) -> Iterator[tuple[PhysicalOffset, RecordBatch, NDArray[np.bool_] | None]]:
        """Visible records of [begin, end) in log order: (physical offset of position 0, records, alive).

        Bytes that are not a record are skipped; bodies are not compared with their CRCs.
        """
        limit = min(end, self.visible_offset)
        reader = LogReader(
            self._log,
            max(begin, self.min_offset),
            limit,
            limit=limit,
            check_crc=False,
            run_bytes_max=bytes_max,
        )
        for run in reader:
            alive = self._deletions.alive_mask(run.records, run.physical_offset)
            yield run.physical_offset, run.records, alive

    def lowest_offset_at(self, timestamp: EpochMs) -> PhysicalOffset:
        """A safe lower bound: no record below this physical offset has STORETIMESTAMP >= timestamp."""
        lowest = self.min_offset
        for segment in self._log.segments:
            if segment.start >= self._log.end:
                break
            first = first_store_timestamp(segment)
            if first is not None and first >= timestamp - CLOCK_STEP_MAX_MS:
                break
            lowest = segment.start
        return lowest
