"""The log of a live store as small steps: runs of good records, and damage between them.

Below the limit nothing may be missing: whatever is not a record is damage, and the walk continues at the next
record that names its own position. No step reads more than a window of bytes, also when it searches.
The log's beginning may move ahead of the walk (retention): it then continues there.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Final

from trovemq_proto.positions import LOG_ORIGIN, PhysicalOffset
from trovemq_proto.records import RecordState, scan_run
from trovemq_store.check.checked_store import LogStep, ReadAhead
from trovemq_store.log.commit_log import CommitLog
from trovemq_store.log.projection import DispatchBatch
from trovemq_store.log.readable import PAGE_SIZE, can_read_record, readable_end, run_end
from trovemq_store.log.reader import Damage
from trovemq_store.log.segments import Segment
from trovemq_store.log.tail import find_record, search_from

READ_AHEAD_BYTES: Final = 1 << 20
SEARCH_BYTES: Final = 1 << 18

LogSteps = Generator[LogStep, OSError | None, None]


class LogWalk:
    """Steps over [position, limit) of a log in which everything below `limit` was written."""

    def __init__(self, log: CommitLog, limit: PhysicalOffset, run_bytes_max: int) -> None:
        self._log = log
        self._limit = limit
        self._run_bytes_max = run_bytes_max
        self._read_to = LOG_ORIGIN
        self.position = log.min_offset
        self.on_damage: Callable[[Damage], None] = lambda damage: None
        """Is called for each damage that begins where a record should."""

    def steps(self) -> LogSteps:
        while True:
            self.position = max(self.position, self._log.min_offset)
            segment = self._log.segments.at(self.position)
            if segment is None or self.position >= self._limit:
                return
            limit = min(segment.end, self._limit)
            if self.position >= self._read_to:
                failure = yield self._read_ahead(segment, limit)
                if failure is not None:
                    yield self._unreadable(limit)
                continue  # the log may begin later now
            yield from self._run(segment, limit)

    def _read_ahead(self, segment: Segment, limit: PhysicalOffset) -> LogStep:
        begin = self.position
        end = min(PhysicalOffset(begin + READ_AHEAD_BYTES), limit)
        self._read_to = end
        return LogStep(read_ahead=ReadAhead(segment.file.path, begin - segment.start, end - segment.start))

    def _unreadable(self, limit: PhysicalOffset) -> LogStep:
        """The disk cannot read these bytes; a record that begins in them is lost."""
        begin = self.position
        self.position = min(self._read_to, limit)
        return LogStep(damage=Damage(begin, self.position, RecordState.UNREADABLE))

    def _skip_unreadable(self, segment: Segment, readable: int, stop: int) -> LogStep:
        """The record at `position` lies on pages that cannot be read, the first of them at or after
        `readable`."""
        begin, end = self.position, min(self._read_to - segment.start, stop)
        at = (readable // PAGE_SIZE + 1) * PAGE_SIZE
        while at < end and readable_end(segment.file, at, min(at + PAGE_SIZE, stop)) <= at:
            at += PAGE_SIZE
        self.position = segment.offset_at(min(at, stop))
        return self._damaged(Damage(begin, self.position, RecordState.UNREADABLE))

    def _damaged(self, damage: Damage) -> LogStep:
        self.on_damage(damage)
        return LogStep(damage=damage)

    def _run(self, segment: Segment, limit: PhysicalOffset) -> LogSteps:
        file, begin, stop = segment.file, self.position - segment.start, limit - segment.start
        readable = run_end(file, begin, stop, self._run_bytes_max)
        if readable <= begin or not can_read_record(file, begin, stop):
            yield self._skip_unreadable(segment, max(readable, begin), stop)
            return
        records, end, state = scan_run(
            file.view(),
            begin,
            readable,
            physical_offset_of_data=segment.start,
            check_crc=True,
            bytes_max=self._run_bytes_max,
        )
        self.position = segment.offset_at(end)
        if len(records):
            yield LogStep(run=DispatchBatch(records, segment.start, self.position))
        if self._is_gone(segment):
            return
        if len(records) and readable < stop and state is not RecordState.BLANK:
            return  # the bytes there are examined next, as far as they can be read
        if state is RecordState.BLANK:
            self.position = segment.end
        elif state is not RecordState.RECORD and self.position < limit:
            yield from self._skip_damage(segment, limit, state)

    def _is_gone(self, segment: Segment) -> bool:
        """Whether retention has removed the segment since the last step: its file may be closed."""
        return self._log.min_offset > segment.start

    def _skip_damage(self, segment: Segment, limit: PhysicalOffset, state: RecordState) -> LogSteps:
        begin = self.position
        at, end = search_from(segment, begin, state) - segment.start, limit - segment.start
        found = None
        while found is None and at < end:
            window_end = min(at + SEARCH_BYTES, end)
            place = find_record(segment, segment.offset_at(at), segment.offset_at(window_end)) - segment.start
            found = place if place < window_end else None
            at += SEARCH_BYTES
            if found is None and at < end:
                path, window_end = segment.file.path, min(at + SEARCH_BYTES, end)
                failure = yield LogStep(read_ahead=ReadAhead(path, at, window_end))
                if failure is not None:
                    at += SEARCH_BYTES
                if self._is_gone(segment):
                    return
        self.position = segment.offset_at(end if found is None else found)
        yield self._damaged(Damage(begin, self.position, state))
