"""Reads the log, but not the records of an atomic transaction in the middle of which the log ends.

A transaction is one run of records in one segment, each with its number, how many there are, and the broker's
seal (trovemq_proto.records.run_mark). A broker that dies while it writes one leaves the first records, whole
and good. If the log ends within a transaction, its end is set before the transaction. That is the one
exception to the rule that no good record after the known end is dropped.

If something else follows an unfinished transaction (damage in the middle of the log, or another broker
continued after its first records), nothing is removed: its records are delivered like others, and it is noted
in `unfinished`.

Invariants
- All records are returned in log order and once; those of a transaction only when its last record was read,
  or when it is known to be unfinished in the middle of the log.
- `position` is the log's end as LogReader found it, or the beginning of the transaction that is cut off.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trovemq_proto.positions import PhysicalOffset
from trovemq_proto.records.batch import RecordBatch
from trovemq_proto.records.run_mark import RunMark, marked_records, read_mark
from trovemq_proto.records.scan import scan_run
from trovemq_store.log.commit_log import CommitLog
from trovemq_store.log.projection import DispatchBatch
from trovemq_store.log.readable import can_read_record
from trovemq_store.log.reader import Damage, LogReader


@dataclass(frozen=True, slots=True)
class UnfinishedRun:
    """A transaction that has only the records of [physical_offset, end) in the log: `seen` of `count`."""

    transaction_id: str
    physical_offset: PhysicalOffset
    end: PhysicalOffset
    seen: int
    count: int


class WholeRuns:
    """LogReader's runs, with the records of a transaction held back until all of them are read."""

    def __init__(self, reader: LogReader, *, sealed: bool = True) -> None:
        """sealed: marks count under the broker's seal only (StoreState.runs_sealed)."""
        self._reader = reader
        self._sealed = sealed
        self._held: list[DispatchBatch] = []
        self._mark: RunMark | None = None  # of the last record that is held back
        self._cut: PhysicalOffset | None = None
        self.unfinished: list[UnfinishedRun] = []
        """Transactions in the middle of the log that lack records."""
        self.cut: UnfinishedRun | None = None
        """The transaction in the middle of which the log ended."""

    @property
    def position(self) -> PhysicalOffset:
        return self._reader.position if self._cut is None else self._cut

    @property
    def damages(self) -> list[Damage]:
        return self._reader.damages

    @property
    def damaged_bytes(self) -> int:
        return self._reader.damaged_bytes

    def __iter__(self) -> Iterator[DispatchBatch]:
        for run in self._reader:
            yield from self._take(run)
        yield from self._finish()
        assert self._mark is None, "no transaction is held back any more"
        assert not self._held, "all records were returned, or are cut off"

    def _take(self, run: DispatchBatch) -> Iterator[DispatchBatch]:
        marked = marked_records(run.records)
        if not marked:
            yield from self._release_unfinished()
            yield run
            return
        marks = {index: self._mark_of(run, index) for index in marked}
        begin, count = 0, len(run.records)  # [begin, index) belongs to the transaction that is held
        for index in range(count):
            mark = marks.get(index)
            if self._mark is not None and not self._continues(mark):
                self._hold(run, begin, index)
                yield from self._release_unfinished()
                begin = index
            if mark is None or (self._mark is None and mark.number > 0):
                continue
            if self._mark is None and begin < index:
                yield _part(run, begin, index)
                begin = index
            self._mark = mark
            if mark.number == mark.record_count - 1:
                self._hold(run, begin, index + 1)
                yield from self._release()
                begin = index + 1
        if self._mark is not None:
            self._hold(run, begin, count)
        elif begin < count:
            yield _part(run, begin, count)

    def _mark_of(self, run: DispatchBatch, index: int) -> RunMark | None:
        return read_mark(run.records, index, run.offset_of(index), sealed=self._sealed)

    def _continues(self, mark: RunMark | None) -> bool:
        before = self._mark
        return (
            before is not None
            and mark is not None
            and (mark.transaction_id, mark.record_count, mark.begin)
            == (before.transaction_id, before.record_count, before.begin)
            and mark.number > before.number
        )

    def _hold(self, run: DispatchBatch, begin: int, end: int) -> None:
        if begin < end:
            assert self._mark is not None, "records of a transaction are held back, and no others"
            assert not self._held or self._held[-1].end <= run.offset_of(begin), "they are in log order"
            self._held.append(_part(run, begin, end))

    def _release(self) -> Iterator[DispatchBatch]:
        held, self._held = self._held, []
        self._mark = None
        yield from held

    def _release_unfinished(self) -> Iterator[DispatchBatch]:
        if self._mark is not None:
            self.unfinished.append(self._described())
            yield from self._release()

    def _described(self) -> UnfinishedRun:
        mark = self._mark
        assert mark is not None, "a transaction is held back"
        assert self._held, "it has the record of the mark"
        begin = self._held[0].offset_of(0)
        seen = sum(len(part.records) for part in self._held)
        return UnfinishedRun(mark.transaction_id, begin, self._held[-1].end, seen, mark.record_count)

    def _finish(self) -> Iterator[DispatchBatch]:
        """At the log's end: if the last records are an unfinished transaction after the known end, a broker
        died while it wrote it, and it is cut off."""
        if self._mark is None:
            return
        found = self._described()
        if found.end == self._reader.position and found.physical_offset >= self._reader.known_end:
            self._cut, self.cut = found.physical_offset, found
            self._held, self._mark = [], None
        else:
            yield from self._release_unfinished()


def outside_run(log: CommitLog, physical_offset: PhysicalOffset) -> PhysicalOffset:
    """The offset itself, or where the transaction begins of which the record there is not the first one."""
    segment = log.segments.at(physical_offset)
    if segment is None:
        return physical_offset
    view, position = segment.file.view(), physical_offset - segment.start
    if not can_read_record(segment.file, position, len(view)):
        return physical_offset
    record, _, _ = scan_run(
        view, position, len(view), physical_offset_of_data=segment.start, check_crc=False, bytes_max=1
    )
    mark = read_mark(record, 0, physical_offset) if len(record) else None
    return physical_offset if mark is None else mark.begin


def _part(run: DispatchBatch, begin: int, end: int) -> DispatchBatch:
    records = run.records
    if begin == 0 and end == len(records):
        return run
    positions, sizes = records.positions[begin:end], records.sizes[begin:end]
    last = end == len(records)
    part_end = run.end if last else run.offset_of(end)
    return DispatchBatch(
        RecordBatch(records.data, positions, sizes, records.topic),
        run.physical_offset,
        part_end,
    )
