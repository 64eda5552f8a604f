"""Reading an open store's log: one record, raw bytes, runs, times. Bytes that the disk does not return count
as damage."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trovemq_proto import errors
from trovemq_proto.errors import DamagedError
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
from trovemq_store.log.time_runs import TimeRun, TimeRuns
from trovemq_store.topics.deletions import TopicDeletions

TIMES_READ_BYTES: Final = 1 << 20
"""Of the log, read in one step for its store times."""


class StoreReading:
    """The reading half of MessageStore."""

    def __init__(
        self,
        log: CommitLog,
        deletions: TopicDeletions,
        dispatcher: Dispatcher,
        damage: DamageCounts,
        time_runs: TimeRuns,
    ) -> None:
        self._log = self.log = log
        self._deletions = self.deletions = deletions
        self._dispatcher = dispatcher
        self.damage = damage
        self.time_runs: Final = time_runs
        """Where store times step back."""

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
            raise DamagedError(
                errors.RECORD_DAMAGED, f"the disk does not return the record at {physical_offset}"
            )
        view = segment.file.view()
        found, size = check_record(view, position, limit, physical_offset=physical_offset, check_crc=check)
        if found is RecordState.DAMAGED:
            self.damage.met(physical_offset, size, found.value)
            raise DamagedError(errors.RECORD_DAMAGED, f"the record at {physical_offset} is damaged")
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

    def read_or_empty(self, physical_offset: PhysicalOffset, size: int) -> memoryview:
        """Raw log bytes within one segment, unchecked; empty if they are not all there, or if the disk does
        not return them, which is counted as damage."""
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

    def time_span(
        self, begin_ms: int, end_ms: int
    ) -> tuple[tuple[PhysicalOffset, TimeRun] | None, tuple[PhysicalOffset, TimeRun] | None]:
        """The first run of store times that may reach begin_ms, and the last one that may begin before
        end_ms, each with where it ends; None if no record can be of these times."""
        self.time_runs.trim_before(self.min_offset)
        runs = self.time_runs.runs
        ends = [*(run.begin for run in runs[1:]), self._log.end]
        known = list(zip(ends, runs, strict=True)) if runs else []
        first = next((one for one in known if one[1].highest_ms >= begin_ms), None)
        last = next((one for one in reversed(known) if one[1].first_ms - one[1].slack_ms <= end_ms), None)
        return first, last

    def lowest_offset_at(self, timestamp: EpochMs) -> PhysicalOffset:
        """A safe lower bound: no record below this physical offset has STORETIMESTAMP >= timestamp."""
        first, _ = self.time_span(timestamp, timestamp)
        if first is None:
            return self._log.end
        end, run = first
        lowest = max(self.min_offset, run.begin)
        for segment in self._log.segments:
            if not run.begin < segment.start < end:
                continue
            began = first_store_timestamp(segment)
            if began is not None and began >= timestamp - run.slack_ms:
                break
            if began is not None:
                lowest = max(lowest, segment.start)
        return lowest

    def read_times(self, bytes_max: int = TIMES_READ_BYTES) -> bool:
        """Reads the next part of a log whose store times are not known yet. True if there is more."""
        times = self.time_runs
        times.trim_before(self.min_offset)
        if times.complete:
            return False
        begin = max(times.position, self.min_offset)
        runs = LogReader(self._log, begin, times.known_from, limit=times.known_from, check_crc=False)
        for run in runs:
            times.read(run)
            if run.end - begin >= bytes_max:
                return not times.complete
        times.read_to(times.known_from)  # the rest has only blanks and damage
        return False
