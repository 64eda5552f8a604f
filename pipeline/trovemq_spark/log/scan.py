"""Reads one segment's records, run by run, with the damage between them. Every job reads by this module.

The rules are those of the broker (store.log.tail): after a bad place reading continues at the next record
that names its own position, and never in the middle of a record whose lengths are right. In the last segment,
at or after the known end, the first bad place is the end of the log. If it is within an atomic transaction
(store.log.whole_runs) of which a broker has written only the first records, the log ends before the
transaction.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from trovemq_proto.positions import PhysicalOffset
from trovemq_proto.records import RecordBatch, RecordState, scan_run
from trovemq_proto.records.run_mark import RunMark, read_mark
from trovemq_spark.log.segments import LogDirectory, SegmentFile
from trovemq_store.log.projection import DispatchBatch
from trovemq_store.log.reader import Damage
from trovemq_store.log.segments import Segment
from trovemq_store.log.tail import find_record, search_from

RUN_BYTES_MAX: Final = 1 << 22
_CACHE_LINE: Final = 64


@dataclass(frozen=True, slots=True)
class ScanBounds:
    """The part of a segment to read: records that begin in [begin, end), physical offsets."""

    begin: int
    end: int
    known_end: int = 0
    is_last: bool = False
    """No segment follows: bytes at or after known_end that are not a record are the log's end."""


def scan_segment(
    segment: Segment, bounds: ScanBounds, *, check_crc: bool = True, run_bytes_max: int = RUN_BYTES_MAX
) -> Iterator[DispatchBatch | Damage]:
    """Good records and damages in log order. bounds.begin is where a record or the segment begins."""
    position = max(bounds.begin, segment.start)
    transactions = _Transactions(segment, bounds)
    view = segment.file.view()
    while position < min(bounds.end, segment.end):
        if check_crc:
            read_ahead(view, position - segment.start, min(run_bytes_max, bounds.end - position))
        records, end, state = scan_run(
            view,
            position - segment.start,
            segment.file.size,
            physical_offset_of_data=segment.start,
            check_crc=check_crc,
            bytes_max=min(run_bytes_max, bounds.end - position),
        )
        position = segment.start + end
        cut = transactions.cut(records) if bounds.is_last else None
        if cut is not None:
            records = records.where(records.positions < cut - segment.start)
            if len(records):
                yield DispatchBatch(records, segment.start, PhysicalOffset(cut))
            return
        if len(records):
            yield DispatchBatch(records, segment.start, PhysicalOffset(position))
        if state is RecordState.RECORD or position >= bounds.end:
            continue  # records after the bounds are not read
        if state is RecordState.BLANK or _is_end(segment, position, state, bounds):
            return
        found = find_record(segment, search_from(segment, PhysicalOffset(position), state))
        if bounds.is_last and position >= bounds.known_end and _is_written_by_now(segment, position):
            continue
        yield Damage(PhysicalOffset(position), min(found, segment.end), state)
        position = found


def good_runs(log: LogDirectory, file: SegmentFile, known_end: int) -> Iterator[DispatchBatch]:
    """The runs of good records of a segment; checksums are not compared, and damages are skipped."""
    bounds = ScanBounds(file.start, file.end, known_end, file == log.segments[-1])
    for step in scan_segment(log.open_segment(file), bounds, check_crc=False):
        if isinstance(step, DispatchBatch):
            yield step


def read_ahead(view: memoryview, begin: int, size: int) -> None:
    """Reads the next bytes into memory. Lengths, topics and properties are far apart, and each record has the
    place of the next one: without this a record would wait about ten times for memory. One pass in order is
    much faster, if all bytes are needed anyway."""
    lines = np.frombuffer(view[begin : begin + size], np.uint8)[::_CACHE_LINE]
    lines.max(initial=0)


class _Transactions:
    """Whether the log ends within a transaction: checked for runs in the last segment."""

    def __init__(self, segment: Segment, bounds: ScanBounds) -> None:
        self._segment: Final = segment
        self._bounds: Final = bounds
        self._unfinished: Final[dict[int, bool]] = {}  # by the beginning of a transaction

    def cut(self, records: RecordBatch) -> int | None:
        """The beginning of the transaction that has some of these records and in which the log ends; None if
        there is none."""
        mark = self._mark(records, len(records) - 1) if len(records) else None
        if mark is None or mark.number == mark.record_count - 1:
            return None
        if mark.begin < max(self._segment.start, self._bounds.known_end):
            return None
        if mark.begin not in self._unfinished:
            self._unfinished[mark.begin] = self._is_unfinished(mark)
        return mark.begin if self._unfinished[mark.begin] else None

    def _mark(self, records: RecordBatch, index: int) -> RunMark | None:
        return read_mark(records, index, self._segment.offset_at(int(records.positions[index])))

    def _is_unfinished(self, transaction: RunMark) -> bool:
        """Whether the log has, from the first record on, others of this transaction, but not the last one."""
        segment, position, number = self._segment, transaction.begin, -1
        while True:
            records, end, state = scan_run(
                segment.file.view(),
                position - segment.start,
                segment.file.size,
                physical_offset_of_data=segment.start,
                check_crc=True,
                bytes_max=RUN_BYTES_MAX,
            )
            for index in range(len(records)):
                mark = self._mark(records, index)
                if mark is None or mark != transaction._replace(number=mark.number) or mark.number <= number:
                    return False
                number = mark.number
            position = segment.offset_at(end)
            if number == transaction.record_count - 1 or state is RecordState.BLANK:
                return False
            if state is not RecordState.RECORD:
                return number >= 0 and _is_end(segment, position, state, self._bounds)


def unfinished_from(segment: Segment, bounds: ScanBounds, records: RecordBatch) -> int | None:
    """The beginning of the transaction that has some of these records and in which the log ends; None if
    there is none."""
    return _Transactions(segment, bounds).cut(records) if bounds.is_last else None


def unfinished_notes(log: LogDirectory, end: int) -> list[str]:
    """A note if reading ended here because of a transaction; else none."""
    for file in log.covering(end, end + 1):
        records = record_at(log.open_segment(file), end)
        mark = read_mark(records, 0, PhysicalOffset(end)) if len(records) else None
        if mark is not None:
            return [
                f"transaction {mark.transaction_id} of {mark.record_count} records begins at {end} and "
                "is not whole: its broker writes it now, or stopped within it; none of it is read"
            ]
    return []


def _is_written_by_now(segment: Segment, position: int) -> bool:
    """Whether a record of an open segment that was seen half-written is whole now: it is if a record after it
    is whole."""
    return len(record_at(segment, position)) > 0


def record_at(segment: Segment, physical_offset: int) -> RecordBatch:
    """The good record that begins there; an empty batch if none does."""
    records, _, _ = scan_run(
        segment.file.view(),
        physical_offset - segment.start,
        segment.file.size,
        physical_offset_of_data=segment.start,
        check_crc=True,
        bytes_max=1,
    )
    return records


def _is_end(segment: Segment, position: int, state: RecordState, bounds: ScanBounds) -> bool:
    """Whether the segment's records end here."""
    if position >= segment.end:
        return True
    if position < bounds.known_end:
        return False
    if bounds.is_last and state is RecordState.ZEROS:
        return True
    # Torn bytes at the end of an open segment are an append in progress; before a good record they are
    # damage.
    return (
        find_record(segment, search_from(segment, PhysicalOffset(position), state)) >= segment.end
        and bounds.is_last
    )
