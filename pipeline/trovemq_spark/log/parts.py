"""Divides a log into parts to read: one for each segment, or more, cut where a record begins.

A part's [begin, end) is cut only before a good record (its CRC included), so that no damage and no record is
in two parts. The result of all parts does not depend on their number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records import scan_run
from trovemq_spark.log.scan import ScanBounds, scan_segment
from trovemq_spark.log.segments import LogDirectory, SegmentFile
from trovemq_store.log.projection import DispatchBatch
from trovemq_store.log.reader import Damage
from trovemq_store.log.segments import Segment

Int64s = NDArray[np.int64]

_HEAD_SIZE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class LogPart:
    """The input of one task: the records that begin in [bounds.begin, bounds.end) of a segment. Picklable."""

    file: SegmentFile
    bounds: ScanBounds


def plan_parts(
    log: LogDirectory, begin: int, end: int, *, min_parts: int | None = None, is_snapshot: bool = False
) -> list[LogPart]:
    """The parts of [begin, end) in log order.

    is_snapshot: `end` is the end of the log at an earlier moment, so bad bytes below it are damage. Raises
        TroveError OFFSET_OUT_OF_RANGE if a segment is removed while it is cut.
    """
    parts = []
    for file in log.covering(begin, end):
        is_last = file is log.segments[-1] and not is_snapshot
        known_end = max(log.known_end, end) if is_snapshot else log.known_end
        bounds = ScanBounds(max(begin, file.start), min(end, file.end), known_end, is_last=is_last)
        parts.append(LogPart(file, bounds))
    if min_parts is None or min_parts <= len(parts) or not parts:
        return parts
    filled = [_filled_end(log, part) for part in parts]
    total = sum(end - part.bounds.begin for part, end in zip(parts, filled, strict=True))
    part_size = max(1, total // min_parts)
    return [
        piece for part, end in zip(parts, filled, strict=True) for piece in _cut(log, part, end, part_size)
    ]


def _filled_end(log: LogDirectory, part: LogPart) -> int:
    """The end of the written part: most of an open segment may still be zeros."""
    if not part.bounds.is_last:
        return part.bounds.end
    starts, sizes = _record_places(log.open_segment(part.file), part.bounds)
    return min(int(starts[-1] + sizes[-1]), part.bounds.end) if len(starts) else part.bounds.begin


def _cut(log: LogDirectory, part: LogPart, filled_end: int, part_size: int) -> Iterator[LogPart]:
    bounds = part.bounds
    targets = range(bounds.begin + part_size, filled_end, part_size)
    cuts = boundaries(log.open_segment(part.file), targets, bounds) if targets else []
    edges = [bounds.begin, *sorted({cut for cut in cuts if cut > bounds.begin}), bounds.end]
    for index in range(len(edges) - 1):
        begin, end = edges[index], edges[index + 1]
        last = index == len(edges) - 2
        # Bad bytes before an existing record are damage.
        known_end = bounds.known_end if last else max(bounds.known_end, end)
        yield LogPart(part.file, replace(bounds, begin=begin, end=end, known_end=known_end))


def boundaries(segment: Segment, targets: Iterable[int], bounds: ScanBounds) -> list[int]:
    """For each target, a physical offset, the last good record that begins at or before it; if there is none,
    the beginning of the bounds (where a record or the segment begins)."""
    begin = max(bounds.begin, segment.start)
    starts, sizes = _record_places(segment, bounds)
    found = []
    for target in targets:
        index = int(np.searchsorted(starts, target, "right")) - 1
        while index >= 0 and not _is_good(segment, int(starts[index]), int(sizes[index])):
            index -= 1
        found.append(int(starts[index]) if index >= 0 else begin)
    return found


def _record_places(segment: Segment, bounds: ScanBounds) -> tuple[Int64s, Int64s]:
    """(physical offsets, sizes) of all records by their lengths; CRCs are not checked."""
    runs = [run for run in scan_segment(segment, bounds, check_crc=False) if isinstance(run, DispatchBatch)]
    nothing = np.zeros(0, np.int64)
    starts = [segment.start + run.records.positions for run in runs]
    return np.concatenate([nothing, *starts]), np.concatenate([nothing, *(run.records.sizes for run in runs)])


def _is_good(segment: Segment, physical_offset: int, size: int) -> bool:
    records, _, _ = scan_run(
        segment.file.view(),
        physical_offset - segment.start,
        segment.file.size,
        physical_offset_of_data=segment.start,
        check_crc=True,
        bytes_max=size,
    )
    return len(records) > 0


def walk(log: LogDirectory, begin: int) -> Iterator[DispatchBatch | Damage]:
    """The content of the log from `begin` on, in log order, up to its last whole record."""
    for file in log.segments:
        if file.end > begin:
            bounds = ScanBounds(
                max(begin, file.start), file.end, log.known_end, is_last=file is log.segments[-1]
            )
            yield from scan_segment(log.open_segment(file), bounds)


def log_end(log: LogDirectory, begin: int = 0) -> int:
    """The physical offset after the log's last whole record. `begin`: where a record begins; nothing before
    it is read."""
    last = log.segments[-1]
    position = max(begin, last.start)
    for item in walk(log, position):
        position = item.end
    return position


def first_stored_at(log: LogDirectory, timestamp_ms: int) -> int | None:
    """The physical offset of the first record that was stored at or after a time (epoch ms); None if all are
    older. A log of which nothing is known (LogDirectory.times) is read from its beginning."""
    for item in walk(log, _lowest_stored_at(log, timestamp_ms)):
        if isinstance(item, DispatchBatch):
            young = np.flatnonzero(item.records.store_timestamps >= timestamp_ms)
            if len(young):
                return item.physical_offset + int(item.records.positions[young[0]])
    return None


def is_stored_at(log: LogDirectory, timestamp_ms: int) -> bool:
    """Whether a record was stored at or after a time (epoch ms); the newest segments are read first."""
    lowest = _lowest_stored_at(log, timestamp_ms)
    for file in reversed(log.segments):
        begin = max(lowest, file.start)
        bounds = ScanBounds(begin, file.end, log.known_end, is_last=file is log.segments[-1])
        if begin >= file.end:
            return False
        for item in scan_segment(log.open_segment(file), bounds):
            if isinstance(item, DispatchBatch) and int(item.records.store_timestamps.max()) >= timestamp_ms:
                return True
    return False


def _lowest_stored_at(log: LogDirectory, timestamp_ms: int) -> int:
    """A safe lower bound, where a record or a segment begins: no record below it was stored at or after that
    time."""
    times = log.times()
    ends = [*(run.begin for run in times.runs[1:]), times.end]
    for run, end in zip(times.runs, ends, strict=False):
        if run.highest_ms >= timestamp_ms:
            begin = max(run.begin, log.begin)
            for file in reversed(log.segments):
                if begin < file.start < end:
                    stored_ms = _first_store_time(log, file)
                    if stored_ms is not None and stored_ms < timestamp_ms - run.slack_ms:
                        return file.start
            return begin
    return max(times.end, log.begin)


def _first_store_time(log: LogDirectory, file: SegmentFile) -> int | None:
    """Store time of the segment's first record; None if its first bytes do not say."""
    head = memoryview(log.place.head(file.name, _HEAD_SIZE))
    records, _, _ = scan_run(
        head, 0, len(head), physical_offset_of_data=file.start, check_crc=False, bytes_max=1
    )
    return int(records.store_timestamps[0]) if len(records) else None


def first_record_at(log: LogDirectory, physical_offset: int) -> int:
    """Where the first record at or after this offset begins; the log's end if there is none."""
    if physical_offset >= log.capacity_end:
        return log_end(log)
    covering = log.covering(physical_offset, physical_offset + 1)
    position = begin = covering[0].start if covering else log.begin
    for item in walk(log, begin):
        if isinstance(item, DispatchBatch):
            starts = item.physical_offset + item.records.positions
            if starts[-1] >= physical_offset:
                return int(starts[np.searchsorted(starts, physical_offset)])
        elif item.physical_offset >= physical_offset:
            return item.physical_offset
        position = item.end
    return position


def data_lost(what: str) -> TroveError:
    """DATA_LOST, with the remedy."""
    return TroveError(
        errors.DATA_LOST,
        f"{what}. Read a backup or an archive, or set failOnDataLoss=false to continue without",
    )
