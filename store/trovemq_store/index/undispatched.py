"""Reads the part of the log that no append offered to the dispatcher, as batches that may be applied.

That part has the records that came from another node, and those that a start found above the commit limit.

Invariants
- Batches come in log order, and each has whole records only, all of them below the end that was asked for.
- The records of an atomic transaction (trovemq_proto.records.run_mark) are in one batch, because a batch is
  shown as a whole. One that is not whole below the end is not given out. One that lacks records in the middle
  of the log is, as after a start (trovemq_store.log.whole_runs).
- A batch owns its bytes: the segment may be removed while it is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from trovemq_proto.positions import PhysicalOffset
from trovemq_proto.records.batch import RecordBatch
from trovemq_proto.records.run_mark import read_mark
from trovemq_store.log.projection import DispatchBatch


def whole_batches(
    runs: Iterable[DispatchBatch], end: PhysicalOffset, *, followed: bool
) -> Iterator[DispatchBatch]:
    """The records of `runs` (the log, without gaps but blanks and damage) that lie below `end`. followed:
    more of the log follows the last run."""
    held: DispatchBatch | None = None
    for run in runs:
        if held is not None and held.physical_offset != run.physical_offset:
            yield _owned(held)  # of another segment: it has no more records
            held = None
        whole = run if held is None else _joined(held, run)
        below = records_below(whole, end)
        count = count_whole(below)
        if count:
            yield _owned(_part(below, 0, count))
        if len(below.records) < len(whole.records):
            return
        held = _part(below, count, len(below.records)) if count < len(below.records) else None
    if held is not None and followed:
        yield _owned(held)


def _count_below(run: DispatchBatch, end: PhysicalOffset) -> int:
    ends = run.physical_offset + run.records.positions + run.records.sizes
    return int(np.searchsorted(ends, end, "right"))


def count_whole(run: DispatchBatch) -> int:
    """The number of records before an atomic transaction that continues after the last record."""
    records = run.records
    last = len(records) - 1
    mark = None if last < 0 else read_mark(records, last, run.offset_of(last))
    if mark is None or mark.number == mark.record_count - 1:
        return last + 1
    return int(np.searchsorted(run.physical_offset + records.positions, mark.begin))


def _joined(held: DispatchBatch, run: DispatchBatch) -> DispatchBatch:
    """Both as one; their records lie in the same buffer, which is the segment."""
    before, records = held.records, run.records
    positions = np.concatenate((before.positions, records.positions))
    sizes = np.concatenate((before.sizes, records.sizes))
    return replace(run, records=RecordBatch(records.data, positions, sizes))


def records_below(run: DispatchBatch, end: PhysicalOffset) -> DispatchBatch:
    """The first records of the run, those that lie below `end`."""
    return _part(run, 0, _count_below(run, end))


def _part(run: DispatchBatch, begin: int, end: int) -> DispatchBatch:
    records = run.records
    if begin == 0 and end == len(records):
        return run
    positions, sizes = records.positions[begin:end], records.sizes[begin:end]
    part_end = run.end
    if begin < end < len(records):
        part_end = PhysicalOffset(run.physical_offset + int(positions[-1] + sizes[-1]))
    return replace(run, records=RecordBatch(records.data, positions, sizes), end=part_end)


def _owned(run: DispatchBatch) -> DispatchBatch:
    """The run with a copy of its bytes, which begins at its first record."""
    records = run.records
    begin, last = int(records.positions[0]), len(records) - 1
    data = bytes(records.data[begin : int(records.positions[last] + records.sizes[last])])
    copied = RecordBatch(memoryview(data), records.positions - begin, records.sizes)
    return DispatchBatch(copied, run.offset_of(0), run.end)
