"""What is read to the end where no index helps: a segment of a log, a file of an archive. Pickles, so that a
Spark task can do it; knows no Spark.

    piece.byte_count              what it costs, for the decision where to do it
    piece.find(question)          the rows that answer, as batches with ANSWER_COLUMNS
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records import RecordBatch
from trovemq_spark.log.scan import Run, ScanBounds, scan_segment
from trovemq_spark.log.segments import LogDirectory, SegmentFile
from trovemq_spark.search.question import ANSWER_COLUMNS, Question, damage_row
from trovemq_spark.storage import Place
from trovemq_spark.table.columns import arrow_batch
from trovemq_spark.table.schema import arrow_schema

_SCHEMA: Final = arrow_schema(ANSWER_COLUMNS)
_TIME: Final = "storeTimestamp"


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
    """The rows of these records that answer, and a row of damage for a body that would have to be looked at
    and cannot be decompressed. deleted_below: topic -> its records below this physical offset are gone."""
    if not len(records):
        return
    told: list[tuple[int, str]] = []
    looked_at = arrow_batch(
        records, question.columns(), undecodable=lambda i, error: told.append((i, str(error)))
    )
    for index, why in told:
        yield damage_row(int(records.physical_offsets[index]), why)
    found = question.matches(looked_at)
    if not len(found):
        return
    chosen = np.zeros(len(records), np.bool_)
    chosen[found] = True
    if deleted_below:
        for index in found.tolist():
            below = deleted_below.get(records.topics[index], 0)
            chosen[index] = int(records.physical_offsets[index]) >= below
    yield arrow_batch(
        records.where(chosen),
        ANSWER_COLUMNS,
        broker_name=broker_name,
        queue_offsets=None if queue_offsets is None else queue_offsets[chosen],
        undecodable=lambda _index, _error: None,
    )


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
            if isinstance(part, Run):
                yield from answers(part.records, question, deleted_below=self.deleted_below)
            else:
                size = part.end - part.physical_offset
                yield damage_row(
                    part.physical_offset,
                    f"{size} bytes of {self.file.name} are no record ({part.state.value})",
                )


# --- archive files ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FilePiece:
    """A Parquet file with the table's columns."""

    place: Place
    name: str
    byte_count: int
    row_groups: tuple[int, ...] | None = None
    """None: all of them."""

    def find(self, question: Question) -> Iterator[pa.RecordBatch]:
        files, root = self.place.arrow()
        with pq.ParquetFile(f"{root.rstrip('/')}/{self.name}", filesystem=files, memory_map=True) as file:
            groups = range(file.num_row_groups) if self.row_groups is None else self.row_groups
            for group in groups:
                if _may_have_time(file, group, question):
                    yield from self._find_in(file, group, question)

    @staticmethod
    def _find_in(file: pq.ParquetFile, group: int, question: Question) -> Iterator[pa.RecordBatch]:
        """The columns that decide first; the others only of a row group that has an answer."""
        wanted = question.columns()
        schema = arrow_schema(wanted)
        looked_at = file.read_row_group(group, columns=wanted).select(wanted).cast(schema)
        batch = pa.RecordBatch.from_arrays(
            [pa.concat_arrays(column.chunks) for column in looked_at.columns], schema=schema
        )
        found = question.matches(batch)
        if not len(found):
            return
        there = [name for name in ANSWER_COLUMNS if name in file.schema_arrow.names]
        rows = file.read_row_group(group, columns=there).take(pa.array(found))
        for name in ANSWER_COLUMNS:
            if name not in there:
                rows = rows.append_column(name, pa.nulls(rows.num_rows, _SCHEMA.field(name).type))
        yield from rows.select(ANSWER_COLUMNS).cast(_SCHEMA).combine_chunks().to_batches()


def _may_have_time(file: pq.ParquetFile, group: int, question: Question) -> bool:
    """By the statistics of the row group."""
    if not question.has_times:
        return True
    metadata = file.metadata.row_group(group)
    chunks = (metadata.column(number) for number in range(metadata.num_columns))
    chunk = next(chunk for chunk in chunks if chunk.path_in_schema == _TIME)
    statistics = chunk.statistics
    if statistics is None or not statistics.has_min_max:
        return True
    first, last = (int(moment.timestamp() * 1000) for moment in (statistics.min, statistics.max))
    return last + 1 >= question.begin_ms and first - 1 <= question.end_ms
