"""The age of a closed segment: the store time of its last record, searched from the end backwards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from trovemq_proto.positions import EpochMs, PhysicalOffset
from trovemq_proto.records.check import RecordState
from trovemq_proto.records.scan import scan_run
from trovemq_store.files.files import FileSystem
from trovemq_store.log.readable import run_end
from trovemq_store.log.reader import RUN_BYTES_MAX
from trovemq_store.log.retention import ClosedSegment
from trovemq_store.log.segments import Segment
from trovemq_store.log.tail import find_record

_WINDOW_SIZE: Final = 1 << 16
_WINDOW_GROWTH: Final = 8
"""Bytes before the end of a segment in which its last record is sought, and the factor of each next
window."""


def closed_segments(files: FileSystem, segments: list[Segment]) -> Iterator[ClosedSegment]:
    """The segments, each with its age; blocks while it reads. A segment without a good record is as old as
    the last write of its file, as in RocketMQ. StorageError."""
    for segment in segments:
        if segment.last_stored_ms is None:
            found = last_store_timestamp(segment)
            segment.last_stored_ms = EpochMs(files.modified_ms(segment.file.path)) if found is None else found
        yield ClosedSegment(segment.start, segment.end, segment.last_stored_ms)


def last_store_timestamp(segment: Segment) -> EpochMs | None:
    """STORETIMESTAMP of the last good record; None if there is none."""
    size, end = _WINDOW_SIZE, segment.end
    while end > segment.start:
        begin = max(segment.start, PhysicalOffset(end - size))
        timestamp = _last_from(segment, begin)
        if timestamp is not None:
            return timestamp
        end, size = begin, size * _WINDOW_GROWTH
    return None


def _last_from(segment: Segment, begin: PhysicalOffset) -> EpochMs | None:
    """STORETIMESTAMP of the last good record that begins at or after `begin`; None if there is none."""
    view = segment.file.view()
    last: EpochMs | None = None
    at = find_record(segment, begin)
    while at < segment.end:
        run, position, state = scan_run(
            view,
            at - segment.start,
            run_end(segment.file, at - segment.start, len(view), RUN_BYTES_MAX),
            physical_offset_of_data=segment.start,
            check_crc=False,
            bytes_max=RUN_BYTES_MAX,
        )
        if not len(run):  # the disk returned this page a moment ago, and does not now
            at = find_record(segment, PhysicalOffset(at + 1))
            continue
        assert position <= len(view), "a run lies in its segment"
        assert segment.offset_at(position) > at, "the search moves on"
        last = EpochMs(int(run.store_timestamps[-1]))
        at = segment.offset_at(position)
        if state is RecordState.BLANK:
            break
        if state is not RecordState.RECORD:
            at = find_record(segment, at)  # also where the run had to stop at an unreadable page
    return last
