"""The pieces that are read to the end if no index helps: a segment of a log, a file of an archive. They can
be pickled for Spark tasks, and know no Spark.

    piece.byte_count              its cost, to decide where it is read
    piece.find(question)          the matching rows, as batches with ANSWER_COLUMNS
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records import RecordBatch
from trovemq_spark.log.scan import ScanBounds, scan_segment
from trovemq_spark.log.segments import LogDirectory, SegmentFile
from trovemq_spark.search.question import ANSWER_COLUMNS, Question, damage_row
from trovemq_spark.storage import StoragePath
from trovemq_spark.table.bodies import INFLATED_BYTES_MAX, InflatedPart, inflated_parts
from trovemq_spark.table.columns import arrow_batch
from trovemq_spark.table.schema import DAMAGE_COLUMN, arrow_schema
from trovemq_store.log.projection import DispatchBatch

_SCHEMA: Final = arrow_schema(ANSWER_COLUMNS)
_TIME: Final = "storeTimestamp"
_US_PER_MS: Final = 1000


class Piece(Protocol):
    @property
    def byte_count(self) -> int: ...

    def find(self, question: Question) -> Iterator[pa.RecordBatch]: ...


# --- records ------------------------------------------------------------------------------------------


def answers(
    records: RecordBatch,
    question: Question,
    *,
    deleted_below: Mapping[str, int] | None = None,
    broker_name: str | None = None,
    queue_offsets: NDArray[np.int64] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The matching rows of these records, and a row of damage for a body that must be examined and cannot be
    decompressed. deleted_below: topic -> its records below this physical offset are deleted."""
    if not len(records):
        return
    chosen = np.zeros(len(records), np.bool_)
    names, begin = question.columns(), 0
    for part in inflated_parts(records, INFLATED_BYTES_MAX) if "body" in names else (InflatedPart(records),):
        for index, error in part.errors.items():
            yield damage_row(int(part.records.physical_offsets[index]), str(error))
        chosen[begin + question.matches(arrow_batch(part.records, names, inflated=part.bodies))] = True
        begin += len(part.records)
    if deleted_below:
        for index in np.flatnonzero(chosen).tolist():
            below = deleted_below.get(records.topics[index], 0)
            chosen[index] = int(records.physical_offsets[index]) >= below
    if not chosen.any():
        return
    offsets = None if queue_offsets is None else queue_offsets[chosen]
    begin = 0
    for part in inflated_parts(records.where(chosen), INFLATED_BYTES_MAX):
        end = begin + len(part.records)
        yield arrow_batch(
            part.records,
            ANSWER_COLUMNS,
            broker_name=broker_name,
            queue_offsets=None if offsets is None else offsets[begin:end],
            inflated=part.bodies,
        )
        begin = end


@dataclass(frozen=True)
class SegmentPiece:
    """The records of a segment that begin in [begin, end)."""

    log: LogDirectory
    file: SegmentFile
    begin: int
    end: int
    deleted_below: Mapping[str, int] = field(default_factory=dict)

    @property
    def byte_count(self) -> int:
        return min(self.end, self.file.end) - max(self.begin, self.file.start)

    def find(self, question: Question) -> Iterator[pa.RecordBatch]:
        is_last = self.file == self.log.segments[-1]
        bounds = ScanBounds(self.begin, self.end, self.log.known_end, is_last=is_last)
        try:
            segment = self.log.open_segment(self.file)
        except TroveError as error:
            if error.spec is not errors.OFFSET_OUT_OF_RANGE:
                raise
            yield damage_row(self.file.start, error.message)
            return
        for part in scan_segment(segment, bounds):
            if isinstance(part, DispatchBatch):
                yield from answers(part.records, question, deleted_below=self.deleted_below)
            else:
                size = part.end - part.physical_offset
                yield damage_row(
                    part.physical_offset,
                    f"{size} bytes of {self.file.name} are not a record ({part.state.value})",
                )


# --- archive files ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FilePiece:
    """A Parquet file with the table's columns."""

    place: StoragePath
    name: str
    byte_count: int
    row_groups: tuple[int, ...] | None = None
    """None: all row groups."""
    is_damage: bool = False
    """Its rows are places of a log that could not be read, not messages."""

    def find(self, question: Question) -> Iterator[pa.RecordBatch]:
        files, root = self.place.arrow()
        with pq.ParquetFile(f"{root.rstrip('/')}/{self.name}", filesystem=files, memory_map=True) as file:
            groups = range(file.num_row_groups) if self.row_groups is None else self.row_groups
            for group in groups:
                if self.is_damage:
                    yield from _damage_at(_rows(file, group), question.physical_offset)
                elif _may_have_time(file, group, question):
                    yield from _find_in(file, group, question)


def _find_in(file: pq.ParquetFile, group: int, question: Question) -> Iterator[pa.RecordBatch]:
    """Reads first the columns that decide, and the others only if a row matches."""
    wanted = question.columns()
    if question.needs_body:
        wanted.append(DAMAGE_COLUMN)
    schema = arrow_schema(wanted)
    read = file.read_row_group(group, columns=wanted, use_threads=False).select(wanted).cast(schema)
    batch = pa.RecordBatch.from_arrays(
        [pa.concat_arrays(column.chunks) for column in read.columns], schema=schema
    )
    found = question.matches(batch)
    if question.needs_body:
        unread = batch.column(DAMAGE_COLUMN).is_valid()
        if unread.true_count:
            yield from _batches(_rows(file, group).filter(unread))
    if len(found):
        rows = _rows(file, group, pa.array(found))
        # A message that matches by its other columns is an answer, even if its body cannot be read.
        none = pa.nulls(rows.num_rows, pa.string())
        yield from _batches(rows.set_column(rows.schema.get_field_index(DAMAGE_COLUMN), DAMAGE_COLUMN, none))


def _damage_at(rows: pa.Table, physical_offset: int | None) -> Iterator[pa.RecordBatch]:
    """The damaged places that may contain the record that begins at this offset (None: any)."""
    if physical_offset is not None:
        begins = rows["physicalOffset"]
        ends = pc.add(begins, rows["size"].cast(pa.int64()))
        rows = rows.filter(pc.and_(pc.less_equal(begins, physical_offset), pc.greater(ends, physical_offset)))
    yield from _batches(rows)


def _rows(file: pq.ParquetFile, group: int, chosen: pa.Array | None = None) -> pa.Table:
    """A row group, or these rows of it, with ANSWER_COLUMNS."""
    known = set(file.schema_arrow.names)
    there = [name for name in ANSWER_COLUMNS if name in known]
    rows = file.read_row_group(group, columns=there, use_threads=False)
    if chosen is not None:
        rows = rows.take(chosen)
    for name in ANSWER_COLUMNS:
        if name not in known:
            rows = rows.append_column(name, pa.nulls(rows.num_rows, _SCHEMA.field(name).type))
    return rows.select(ANSWER_COLUMNS).cast(_SCHEMA)


def _batches(rows: pa.Table) -> list[pa.RecordBatch]:
    return list(rows.combine_chunks().to_batches()) if rows.num_rows else []


def _may_have_time(file: pq.ParquetFile, group: int, question: Question) -> bool:
    """Decides by the statistics of the row group."""
    if not question.has_times:
        return True
    metadata = file.metadata.row_group(group)
    chunks = (metadata.column(number) for number in range(metadata.num_columns))
    chunk = next(chunk for chunk in chunks if chunk.path_in_schema == _TIME)
    statistics = chunk.statistics
    if statistics is None or not statistics.has_min_max:
        return True
    # As plain numbers: Python has no time after the year 9999, but a message may.
    first_ms, last_ms = statistics.min_raw // _US_PER_MS, statistics.max_raw // _US_PER_MS
    return bool(last_ms >= question.begin_ms and first_ms <= question.end_ms)
