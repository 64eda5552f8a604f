"""One segment's records, run by run, with what is damaged between them: the read path of every job.

The rules are the broker's own (broker.log.tail): behind a bad place reading goes on at the next record that
names its own position, and never in the middle of a record whose lengths are right. In the last segment, at
or behind the known end, the first bad place is the end of the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from broker.log.reader import Damage
from broker.log.segments import Segment
from broker.log.tail import find_record, search_from
from trovemq_proto.records import RecordBatch, RecordState, scan_run

RUN_BYTES_MAX: Final = 1 << 22


@dataclass(frozen=True, slots=True)
class Run:
    """Good records, one after another; record i lies at segment_start + records.positions[i]."""

    records: RecordBatch
    segment_start: int
    end: int
    """Physical offset behind the last of them."""


@dataclass(frozen=True, slots=True)
class ScanBounds:
    """What of a segment to read: records that begin in [begin, end), physical offsets."""

    begin: int
    end: int
    known_end: int = 0
    is_last: bool = False
    """No segment follows: what is no record at or behind known_end is the log's end."""


def scan_segment(
    segment: Segment, bounds: ScanBounds, *, check_crc: bool = True, run_bytes_max: int = RUN_BYTES_MAX
) -> Iterator[Run | Damage]:
    """Runs and damages in log order. bounds.begin: where a record begins, or the segment's start."""
    position = max(bounds.begin, segment.start)
    view = segment.file.view()
    while position < min(bounds.end, segment.end):
        records, end, state = scan_run(
            view,
            position - segment.start,
            segment.file.size,
            physical_offset_of_data=segment.start,
            check_crc=check_crc,
            bytes_max=min(run_bytes_max, bounds.end - position),
        )
        position = segment.start + end
        if len(records):
            yield Run(records, segment.start, position)
        if state is RecordState.RECORD or position >= bounds.end:
            continue  # what stands behind the bounds is not looked at
        if state is RecordState.BLANK or _is_end(segment, position, state, bounds):
            return
        found = find_record(segment, search_from(segment, position, state))
        if bounds.is_last and position >= bounds.known_end and _is_written_by_now(segment, position):
            continue
        yield Damage(position, min(found, segment.end), state)
        position = found


def _is_written_by_now(segment: Segment, position: int) -> bool:
    """A record of an open segment that was seen half-written: one behind it is whole, so now it is too."""
    view = segment.file.view()
    records, _, _ = scan_run(
        view,
        position - segment.start,
        segment.file.size,
        physical_offset_of_data=segment.start,
        check_crc=True,
        bytes_max=1,
    )
    return len(records) > 0


def _is_end(segment: Segment, position: int, state: RecordState, bounds: ScanBounds) -> bool:
    """Whether what stands here ends the segment's records."""
    if position >= segment.end:
        return True
    if position < bounds.known_end:
        return False
    if bounds.is_last and state is RecordState.ZEROS:
        return True
    # Torn bytes at the end of an open segment are an append that goes on; before a good record, damage.
    return find_record(segment, search_from(segment, position, state)) >= segment.end and bounds.is_last
