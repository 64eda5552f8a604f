"""Reads the log forwards as runs of records, and distinguishes its end from damage in the middle.

At a position there is one of six things (trovemq_proto.records.check): a record, a blank (continue in the
next segment), zeros, a torn record, a stale one of an older use of the file, or a damaged one. Below the
known end nothing may be missing: there all but the first two are *damage*, which is reported, and reading
continues at the next record that names its own position. At or after the known end, the first place with one
of these four is the end of the log, unless it was certainly written whole and damaged later
(trovemq_store.log.tail).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from trovemq_proto.positions import PhysicalOffset
from trovemq_proto.records.batch import RecordBatch
from trovemq_proto.records.check import RecordState
from trovemq_proto.records.scan import scan_run
from trovemq_store.log.commit_log import CommitLog
from trovemq_store.log.projection import DispatchBatch
from trovemq_store.log.readable import HEAD_SIZE, can_read_record, readable_end, run_end, stated_size
from trovemq_store.log.sectors import count_whole
from trovemq_store.log.segments import Segment
from trovemq_store.log.tail import find_record, log_continues, search_from

RUN_BYTES_MAX: Final = 1 << 21
"""About how many bytes one run has at most."""


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes [physical_offset, end) of the log that are not a good record, below the known end."""

    physical_offset: PhysicalOffset
    end: PhysicalOffset
    state: RecordState


@dataclass(slots=True)
class LogReader:
    """Reads from `position` on. After the iteration `position` is where it stopped.

    `known_end`: the log is known to reach to here. `limit`: nothing at or after it is read (None: read to the
    end of the log). `damages` lists the ranges that were skipped. step_ms: no later record is earlier
    than this, epoch ms, if store times step back; 0: they do not.
    """

    log: CommitLog
    position: PhysicalOffset
    known_end: PhysicalOffset
    limit: PhysicalOffset | None = None
    check_crc: bool = True
    run_bytes_max: int = RUN_BYTES_MAX
    damages: list[Damage] = field(default_factory=list)
    damaged_bytes: int = 0
    step_ms: int = 0
    _newest: RecordBatch | None = None

    def __iter__(self) -> Iterator[DispatchBatch]:
        """Runs of good records in log order; `alive` is not filled in."""
        while self.limit is None or self.position < self.limit:
            self.position = max(self.position, self.log.min_offset)  # retention may have removed segments
            segment = self.log.segments.at(self.position)
            if segment is None:
                return
            begin = self.position
            run, state = self._next_run(segment)
            if run is not None:
                if run.end > self.known_end:
                    self._newest = run.records
                yield run
            if state is RecordState.RECORD:
                assert run is not None, "a run that ended before its limit has records"
                assert self.position > begin, "the reader moves on"
                continue
            if state is None:
                self._skip_unreadable(segment)
            elif state is RecordState.BLANK:
                self.position = segment.end
            elif self.position < self.known_end or (
                state is not RecordState.ZEROS and self._log_continues(segment, state)
            ):
                self._skip_damage(segment, state)
            else:
                return

    def _next_run(self, segment: Segment) -> tuple[DispatchBatch | None, RecordState | None]:
        """The good records from `position` on, and the state of the bytes after them; None: they cannot be
        read."""
        limit = (
            segment.file.size if self.limit is None else min(segment.file.size, self.limit - segment.start)
        )
        begin = self.position - segment.start
        readable = run_end(segment.file, begin, limit, self.run_bytes_max)
        if readable <= begin:
            return None, None
        records, end, state = scan_run(
            segment.file.view(),
            begin,
            readable,
            physical_offset_of_data=segment.start,
            check_crc=self.check_crc,
            bytes_max=self.run_bytes_max,
        )
        if self.limit is None and segment.start + end > self.known_end:
            whole = count_whole(records, self.known_end - segment.start)
            if whole < len(records):
                end, state = int(records.positions[whole]), RecordState.TORN
                records = records.head(whole)
        if len(records) == 0:
            return None, state if readable >= limit or can_read_record(segment.file, begin, limit) else None
        if end <= readable < limit and state is not RecordState.BLANK:
            state = RecordState.RECORD  # the bytes there are examined next, as far as they can be read
        self.position = segment.offset_at(end)
        return DispatchBatch(records, segment.start, self.position), state

    def _skip_unreadable(self, segment: Segment) -> None:
        """Skips the record at `position`, which the disk does not return. StorageError at or after the known
        end: it may be a good one, so the log does not end here."""
        begin = self.position - segment.start
        if self.position >= self.known_end:
            segment.file.check_readable(begin, segment.file.size)
            return  # it can be read by now
        size = 0
        if readable_end(segment.file, begin, begin + HEAD_SIZE) == begin + HEAD_SIZE:
            size = stated_size(segment.file, begin, segment.file.size)
        damaged_from = self.position
        assert damaged_from >= segment.start, "the place lies in the segment"
        self.position = find_record(segment, PhysicalOffset(damaged_from + max(1, size)))
        assert damaged_from < self.position <= segment.end, "the reader moves on, within the segment"
        self.damages.append(Damage(damaged_from, self.position, RecordState.UNREADABLE))
        self.damaged_bytes += self.position - damaged_from

    def _log_continues(self, segment: Segment, state: RecordState) -> bool:
        following = self.log.segments.at(segment.end)
        return log_continues(segment, self.position, state, following, self._oldest_ms())

    def _oldest_ms(self) -> int:
        """No record of the log after `position` was stored before this; 0: that is not known."""
        if self._newest is None:
            return 0
        last_ms = int(self._newest.store_timestamps[-1])
        return min(last_ms, self.step_ms) if self.step_ms else last_ms

    def _skip_damage(self, segment: Segment, state: RecordState) -> None:
        assert state not in (RecordState.RECORD, RecordState.BLANK), "these are not damage"
        damaged_from = self.position
        begin = search_from(segment, damaged_from, state)
        found = find_record(segment, begin)
        if found == segment.end and state is RecordState.DAMAGED and begin > self.known_end:
            found = begin  # nothing more was written
        assert damaged_from < found <= segment.end, "the reader moves on, within the segment"
        self.position = found
        self.damages.append(Damage(damaged_from, self.position, state))
        self.damaged_bytes += self.position - damaged_from
