"""Finding the end of the log after a stop, clean or not, and making it safe to append there.

The scan starts where everything before is known to be on disk and applied, passes every record to the caller,
and ends at the first position at or after the known end where there is no good record (docs/store-format.md,
"Check of a record"). Then the rest of that segment is zeroed and later segments are removed, so that bytes of
an older generation can never be taken for records (docs/store-format.md, "Cut").

Invariants
- No record below the known end is dropped; damage there is skipped and reported.
- After it no good record is dropped either, except those of an atomic transaction that lacks its last records
  (trovemq_store.log.whole_runs).
- Recovering twice gives the same end; also when the first recovery was interrupted anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from trovemq_proto.positions import EpochMs, PhysicalOffset
from trovemq_proto.records.check import RecordState, check_record
from trovemq_proto.records.fields import store_timestamp
from trovemq_store.files.fault_points import fault_point
from trovemq_store.files.files import File, FileSystem
from trovemq_store.log.checkpoint import MARGIN_MS, Checkpoint
from trovemq_store.log.commit_log import CommitLog
from trovemq_store.log.projection import DispatchBatch
from trovemq_store.log.readable import can_read_record
from trovemq_store.log.reader import Damage, LogReader
from trovemq_store.log.segment_age import last_store_timestamp
from trovemq_store.log.segments import Segment
from trovemq_store.log.whole_runs import UnfinishedRun, WholeRuns

_ZERO_CHUNK: Final = 4 << 20
_CHECKPOINT_AGE_MAX_MS: Final = 600_000
"""RocketMQ saves its checkpoint more often than that."""


@dataclass(frozen=True, slots=True)
class RecoveredLog:
    """The result of the scan."""

    end: PhysicalOffset
    records: int
    last_store_timestamp: EpochMs
    damages: Sequence[Damage]
    unfinished: tuple[UnfinishedRun, ...] = ()
    cut: UnfinishedRun | None = None
    """The atomic transaction in the middle of which the log ended; `end` is where it began."""


def scan_log(
    log: CommitLog,
    begin: PhysicalOffset,
    known_end: PhysicalOffset,
    apply: Callable[[DispatchBatch, int], None],
    *,
    runs_sealed: bool = True,
    step_ms: int = 0,
) -> RecoveredLog:
    """Reads from `begin` to the log's end, calling `apply` with each run, and how many bytes of damage were
    skipped before it. runs_sealed: marks of atomic runs count under the broker's seal only. step_ms: no later
    record is earlier than this, epoch ms, if store times step back; 0: they do not."""
    reader = LogReader(log, max(begin, log.min_offset), known_end, step_ms=step_ms)
    runs = WholeRuns(reader, sealed=runs_sealed)
    records, timestamp = 0, EpochMs(0)
    end = begin
    for run in runs:
        assert run.physical_offset + int(run.records.positions[0]) >= end, "runs come in log order"
        end = run.end
        records += len(run.records)
        timestamp = EpochMs(int(run.records.store_timestamps[-1]))
        apply(run, runs.damaged_bytes)
    assert runs.position >= end, "no record lies after the log's end"
    return RecoveredLog(runs.position, records, timestamp, runs.damages, tuple(runs.unfinished), runs.cut)


def zero_after(files: FileSystem, log: CommitLog, end: PhysicalOffset, size_max: int | None = None) -> int:
    """Zeroes everything after `end` in its segment, or in the next size_max bytes of it. Returns how many
    bytes were not zero."""
    segment = log.segments.at(end)
    return 0 if segment is None else _zero_rest(files, segment, end - segment.start, size_max)


def _zero_rest(files: FileSystem, segment: Segment, begin: int, size_max: int | None) -> int:
    # A separate mapping: it touches the whole rest of the file, and is freed afterwards.
    file = files.open(segment.file.path)
    cleared = 0
    try:
        for position, size in _chunks(file, begin, size_max):
            file.check_readable(position, position + size)
            chunk = np.frombuffer(file.view(), dtype=np.uint8, count=size, offset=position)
            if dirty := int(np.count_nonzero(chunk)):
                fault_point("recovery.before_zero")
                file.write(position, bytes(size))
                cleared += dirty
            del chunk
        if cleared:
            fault_point("recovery.after_zero")
            file.sync()
    finally:
        file.close()
    return cleared


def _chunks(file: File, begin: int, size_max: int | None) -> Iterator[tuple[int, int]]:
    """(position, size) of the ranges at or after `begin` that may have been written."""
    limit = file.size if size_max is None else begin + size_max
    for start, range_end in file.written_ranges(begin):
        end = min(range_end, limit)
        for position in range(start, end, _ZERO_CHUNK):
            yield position, min(_ZERO_CHUNK, end - position)


def first_store_timestamp(segment: Segment) -> int | None:
    """STORETIMESTAMP of a segment's first record; None if it has none."""
    view = segment.file.view()
    if not can_read_record(segment.file, 0, len(view)):
        return None
    state, _ = check_record(view, 0, len(view), physical_offset=segment.start, check_crc=False)
    if state is not RecordState.RECORD:
        return None
    return store_timestamp(view, 0)


def foreign_scan_start(log: CommitLog, checkpoint: Checkpoint) -> PhysicalOffset:
    """Where to scan a store that RocketMQ left unclean: the last segment whose first record was stored at or
    before the checkpoint's time, else the first (docs/store-format.md, "Start of the scan").

    The checkpoint may be of before a place where store times step back, and records after it are not on disk
    then. So no segment is chosen after the first record that is later than the checkpoint's time.
    """
    limit_ms = checkpoint.min_timestamp
    stepped = _newest_ms(log) < limit_ms + MARGIN_MS
    found = log.min_offset if stepped else _last_begun(log, limit_ms - _CHECKPOINT_AGE_MAX_MS)
    for segment in log.segments:
        if segment.start < found:
            continue
        timestamp = first_store_timestamp(segment)
        if timestamp is not None and 0 < timestamp <= limit_ms:
            found = segment.start
        if _highest_ms(log, segment) > limit_ms:
            break
    return found


def _last_begun(log: CommitLog, limit_ms: int) -> PhysicalOffset:
    """The last segment that begins at that store time or before, and after no later one; else the first."""
    found, before = log.min_offset, 0
    for segment in log.segments:
        timestamp = first_store_timestamp(segment)
        if timestamp is None or timestamp <= 0:
            continue
        if timestamp > limit_ms or timestamp < before:
            break
        found, before = segment.start, timestamp
    return found


def _newest_ms(log: CommitLog) -> int:
    """Store time of the log's last record."""
    times = (last_store_timestamp(segment) for segment in reversed(list(log.segments)))
    return next((time for time in times if time is not None), 0)


def _highest_ms(log: CommitLog, segment: Segment) -> int:
    """The highest store time of the segment's records; 0 if it has none."""
    runs = LogReader(log, segment.start, segment.end, limit=segment.end, check_crc=False)
    return max((int(run.records.store_timestamps.max()) for run in runs), default=0)
