"""A commit log written record by record, and the format `trovemq-log` read without Spark's processes."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import CaseInsensitiveDict, Filter
from pyspark.sql.types import StructType

from trovemq_proto.records import encode_record
from trovemq_proto.records.layout import BLANK_SIZE, MAGIC_BLANK_BYTES
from trovemq_spark.sources.log_batch import TroveLogDataSource
from trovemq_spark.sources.log_reading import read_part
from trovemq_spark.sources.rows import RowCounts

Row = dict[str, Any]


@dataclass(slots=True)
class LogFiles:
    """Segments of `segment_size` bytes in `directory`; `rows`: the appended messages."""

    directory: Path
    segment_size: int = 4096
    end: int = 0
    rows: list[Row] = field(default_factory=list)

    def append(self, topic: str, body: bytes, **fields: Any) -> int:
        """Appends a record, in a new segment where it does not fit; returns its physical offset."""
        size = len(encode_record(topic, body, **fields))
        space = self.segment_size - self.end % self.segment_size
        if self.end % self.segment_size and size + BLANK_SIZE > space:
            self._write(space.to_bytes(4) + MAGIC_BLANK_BYTES)
            self.end += space
        at = self.end
        queue_offset = sum(row["topic"] == topic for row in self.rows)
        data = encode_record(topic, body, **{"queue_offset": queue_offset, "physical_offset": at} | fields)
        self._write(data)
        self.end += len(data)
        self.rows.append({"topic": topic, "body": body, "physicalOffset": at, "size": size})
        return at

    def _write(self, data: bytes) -> None:
        start = self.end - self.end % self.segment_size
        path = self.directory / f"{start:020d}"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(bytes(self.segment_size))
        with path.open("r+b") as file:
            file.seek(self.end - start)
            file.write(data)

    def path_of(self, physical_offset: int) -> Path:
        return self.directory / f"{physical_offset - physical_offset % self.segment_size:020d}"


@dataclass(slots=True)
class Reading:
    """A batch reading as Spark does it, in this process: everything goes through pickle."""

    rows: list[Row]
    counts: RowCounts
    part_count: int
    left: list[Filter]


def source_of(options: Mapping[str, str]) -> TroveLogDataSource:
    return TroveLogDataSource(CaseInsensitiveDict(options))


def plan(
    options: dict[str, str], filters: Sequence[Filter] = (), schema: StructType | None = None
) -> tuple[Any, list[Any], list[Filter]]:
    """(the reader, its partitions, the filters that it leaves)"""
    source = source_of(options | {"pushdown": str(bool(filters))})
    reader = source.reader(schema or source.schema())
    left = list(reader.pushFilters(list(filters)))
    partitions = pickle.loads(pickle.dumps(reader.partitions()))
    return pickle.loads(pickle.dumps(reader)), partitions, left


def read(
    options: dict[str, str], filters: Sequence[Filter] = (), schema: StructType | None = None
) -> Reading:
    """The rows in log order, and how much work they were."""
    reader, partitions, left = plan(options, filters, schema)
    counts, rows = RowCounts(), []
    for partition in partitions:
        for batch in read_part(reader._reading, partition, counts):
            rows += rows_of(batch)
    return Reading(rows, counts, len(partitions), left)


def rows_of(batch: pa.RecordBatch) -> list[Row]:
    batch.validate(full=True)
    rows: list[Row] = batch.to_pylist()
    for row in rows:
        if row.get("properties") is not None:
            row["properties"] = dict(row["properties"])
    return rows
