"""Makes the requested rows from records and damages: which columns, which records, which damage.

| mode          | a damaged record                                      | a body that does not decompress  |
|---------------|-------------------------------------------------------|----------------------------------|
| failfast      | TroveError that names the file and the place in it    | the same                         |
| permissive    | a row: physicalOffset, size, brokerName, and `damage` | its row, body null, and `damage` |
| dropmalformed | no row; each part's count goes to the worker's log    | the same                         |

The count of dropmalformed equals the count of `where damage is not null` with permissive. It is logged by
Python's logger `trovemq_spark.sources` to the executor's standard error.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql.types import StructType

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records import RecordBatch, RecordState
from trovemq_spark.option_kinds import nearest, option_error
from trovemq_spark.sources.conditions import RowFilter
from trovemq_spark.sources.option_table import DROPMALFORMED, FAILFAST, PERMISSIVE
from trovemq_spark.sources.options import BATCH_BYTES_MAX, SourceOptions
from trovemq_spark.table.bodies import INFLATED_BYTES_MAX, InflatedPart, inflated_parts
from trovemq_spark.table.columns import arrow_batch
from trovemq_spark.table.schema import ALL_COLUMNS, DAMAGE_COLUMN, arrow_schema, spark_schema
from trovemq_store.log.projection import DispatchBatch
from trovemq_store.log.reader import Damage
from trovemq_store.topics.deletions import TopicDeletions

LOGGER: Final = logging.getLogger("trovemq_spark.sources")
assert 2 * INFLATED_BYTES_MAX <= BATCH_BYTES_MAX, "stored and inflated bodies fill a batch together"
_INT32_MAX: Final = (1 << 31) - 1
_WHAT: Final = {
    RecordState.DAMAGED: "a record whose bytes do not have its CRC",
    RecordState.STALE: "a record that names another place in the log",
    RecordState.TORN: "bytes that are not a record",
    RecordState.ZEROS: "zeros where a record must be",
    RecordState.UNREADABLE: "bytes that the disk does not give",
}


@dataclass(frozen=True, slots=True)
class RowRequest:
    """The rows of a reader. Picklable."""

    names: tuple[str, ...]
    row_filter: RowFilter
    mode: str = FAILFAST
    broker_name: str | None = None
    batch_rows: int = 4096
    check_crc: bool = True


@dataclass(slots=True)
class RowCounts:
    """The work of a part, in records, and its damage."""

    scanned: int = 0
    """Records whose lengths and CRC were checked."""
    decoded: int = 0
    """Records that became columns."""
    damaged: int = 0
    first_damage: str = ""

    def add(self, other: RowCounts) -> None:
        self.scanned += other.scanned
        self.decoded += other.decoded
        self.damaged += other.damaged
        self.first_damage = self.first_damage or other.first_damage


def columns_of_schema(schema: StructType, options: SourceOptions) -> tuple[str, ...]:
    """The columns in a reader's schema, the user's or the table's own. Raises TroveError OPTION_ILLEGAL for a
    column or a type that the table does not have."""
    for field in schema.fields:
        if field.name not in ALL_COLUMNS:
            hint = f"{nearest(field.name, ALL_COLUMNS)} Columns: {', '.join(ALL_COLUMNS)}"
            raise option_error(f"schema: there is no column {field.name!r}{hint}", "schema")
        expected = spark_schema([field.name]).fields[0].dataType
        if field.dataType != expected:
            found = field.dataType.simpleString()
            other = f"not {found}" if found != expected.simpleString() else "and its values may be null"
            what = f"is {expected.simpleString()}, {other}"
            raise option_error(f"schema: column {field.name} {what}", "schema")
        if not field.nullable:
            raise option_error(f"schema: column {field.name} may be null, leave out NOT NULL", "schema")
    names = tuple(field.name for field in schema.fields)
    if len(set(names)) < len(names) or not names:
        raise option_error("schema: one column at least, each once", "schema")
    if DAMAGE_COLUMN in names and options.mode != PERMISSIVE:
        raise option_error(f"the column {DAMAGE_COLUMN} is there with mode = {PERMISSIVE} only", "schema")
    if options.columns is not None and options.columns != names:
        raise option_error("columns and a schema that names others contradict: give one of them", "columns")
    return names


class RowMaker:
    """Makes the rows of one segment's part."""

    def __init__(self, request: RowRequest, file_name: str, segment_start: int) -> None:
        self.counts: Final = RowCounts()
        self._request = request
        self._file_name = file_name
        self._segment_start = segment_start

    def rows(
        self, items: Iterable[DispatchBatch | Damage], deletions: TopicDeletions | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Batches of at most request.batch_rows rows, in log order. Raises TroveError RECORD_DAMAGED in
        failfast."""
        for item in items:
            if isinstance(item, Damage):
                yield from self._damage_rows(item)
                continue
            records = item.records
            self.counts.scanned += len(records)
            if deletions is not None:
                alive = deletions.alive_mask(records, item.physical_offset)
                records = records if alive is None else records.where(alive)
            records = self._request.row_filter.chosen(records)
            if len(records):
                yield from self._record_rows(records)
        if self.counts.damaged and self._request.mode == DROPMALFORMED:
            LOGGER.warning(
                "%d damaged records of %s were left out; the first: %s",
                self.counts.damaged,
                self._file_name,
                self.counts.first_damage,
            )

    def _record_rows(self, records: RecordBatch) -> Iterator[pa.RecordBatch]:
        self.counts.decoded += len(records)
        whole = iter((InflatedPart(records),))
        parts = inflated_parts(records, INFLATED_BYTES_MAX) if "body" in self._request.names else whole
        for part in parts:
            offsets = part.records.physical_offsets
            wrong = {
                index: self._note(int(offsets[index]), error.message, error.spec)
                for index, error in part.errors.items()
            }
            table = arrow_batch(
                part.records,
                self._request.names,
                broker_name=self._request.broker_name,
                inflated=part.bodies,
            )
            if wrong:
                table = self._with_wrong(table, wrong)
            for begin in range(0, table.num_rows, self._request.batch_rows):
                yield table.slice(begin, self._request.batch_rows)

    def _with_wrong(self, table: pa.RecordBatch, wrong: dict[int, str]) -> pa.RecordBatch:
        if self._request.mode == DROPMALFORMED:
            kept = np.ones(table.num_rows, np.bool_)
            kept[list(wrong)] = False
            return table.filter(pa.array(kept))
        if DAMAGE_COLUMN not in self._request.names:
            return table
        reasons = pa.array([wrong.get(index) for index in range(table.num_rows)], pa.string())
        return table.set_column(self._request.names.index(DAMAGE_COLUMN), DAMAGE_COLUMN, reasons)

    def _damage_rows(self, damage: Damage) -> Iterator[pa.RecordBatch]:
        low, high = self._request.row_filter.physical_range
        if not low <= damage.physical_offset < high:
            return
        if self._request.mode == PERMISSIVE and not self._request.row_filter.keeps_damage_at(
            damage.physical_offset
        ):
            return
        size = damage.end - damage.physical_offset
        reason = self._note(
            damage.physical_offset, f"{_WHAT[damage.state]}, {size} bytes", errors.RECORD_DAMAGED
        )
        if self._request.mode == DROPMALFORMED:
            return
        known = {
            "physicalOffset": damage.physical_offset,
            "size": min(size, _INT32_MAX),
            "brokerName": self._request.broker_name,
            DAMAGE_COLUMN: reason,
        }
        schema = arrow_schema(self._request.names)
        yield pa.RecordBatch.from_pylist([{name: known.get(name) for name in schema.names}], schema=schema)

    def _note(self, physical_offset: int, what: str, spec: errors.ErrorSpec) -> str:
        """Counts the damage and returns its text. Raises it in failfast."""
        place = physical_offset - self._segment_start
        reason = f"{self._file_name} at byte {place} (physical offset {physical_offset}): {what}"
        if self._request.mode == FAILFAST:
            advice = (
                "mode=permissive shows damaged records beside the rows, mode=dropmalformed leaves them out"
            )
            raise TroveError(spec, f"{reason}. {advice}", file=self._file_name, offset=place)
        self.counts.damaged += 1
        self.counts.first_damage = self.counts.first_damage or reason
        return reason
