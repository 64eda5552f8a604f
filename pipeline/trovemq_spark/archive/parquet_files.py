"""The Parquet files of an archive: one topic and day each, sorted by queue and offset.

A file has every column of table/schema.py, those of the header and `damage`, and one more:

    keyList  list<string>   the keys of `keys`, one by one, because a bloom filter has only whole values

The key columns (BLOOM_COLUMNS) have Parquet's own bloom filters, one per row group. Spark, DuckDB and others
use them automatically, this package by archive/bloom.py. All columns except body and properties have
statistics and a page index.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from trovemq_spark.archive.entry import FileEntry
from trovemq_spark.archive.manifest import FILES, new_file_name
from trovemq_spark.storage import StoragePath
from trovemq_spark.table.schema import arrow_schema, column_names

KEY_LIST: Final = "keyList"
TABLE_COLUMNS: Final = tuple(column_names(header=True, damage=True))
FILE_SCHEMA: Final = arrow_schema(TABLE_COLUMNS).append(pa.field(KEY_LIST, pa.list_(pa.string())))
BLOOM_COLUMNS: Final = {
    "messageId": "messageId",
    "keys": "keys",
    "offsetMsgId": "offsetMsgId",
    KEY_LIST: f"{KEY_LIST}.list.element",
}
"""Column -> its path in the file."""
COMPRESSIONS: Final = ("zstd", "snappy", "none")
ROW_GROUP_ROWS_DEFAULT: Final = 8192
"""Small enough that a look-up decodes few other rows: a row group is read as a whole."""
ROW_GROUP_BYTES: Final = 32 << 20
_FALSE_POSITIVES: Final = 0.01
_BULKY: Final = ("body", "properties", KEY_LIST)
_FEW_VALUES: Final = ("topic", "brokerName", "queueId", "tags", "bornHost", "storeHost", "flag", "sysFlag")
_US_PER_MS: Final = 1000


@dataclass(frozen=True, slots=True)
class FileLayout:
    """How files are written."""

    row_group_rows: int = ROW_GROUP_ROWS_DEFAULT
    row_group_bytes: int = ROW_GROUP_BYTES
    """Bytes of the records; the limit that is reached first ends a row group. A task holds a few times this
    much."""
    compression: str = "zstd"


LAYOUT_DEFAULT: Final = FileLayout()


class ParquetFile:
    """One file that is being written; close() returns its entry for a commit. Leaving the block without
    close() removes the file."""

    def __init__(
        self,
        place: StoragePath,
        topic: str | None,
        date: str | None,
        *,
        source: str = "",
        segments: tuple[int, int] = (-1, -1),
        layout: FileLayout = LAYOUT_DEFAULT,
        rows_max: int | None = None,
    ) -> None:
        """rows_max: rows of one write(), if known (it determines the size of the filters). Raises OSError."""
        self._place = place
        self._name = new_file_name("" if segments[0] < 0 else f"{segments[0]:020d}")
        self._about: dict[str, Any] = {"topic": topic, "date": date, "source": source, "segments": segments}
        self._facts = _Facts()
        self._closed = False
        files, root = place.arrow()
        files.create_dir(f"{root.rstrip('/')}/{FILES}", recursive=True)
        self._path = f"{root.rstrip('/')}/{self._name}"
        self._file = files.open_output_stream(self._path)
        self._writer: Any = None
        try:
            self._writer = _writer(self._file, layout, rows_max or layout.row_group_rows)
        except BaseException:
            self.abort()
            raise

    @property
    def rows(self) -> int:
        """Rows written so far."""
        return self._facts.rows

    def write(self, rows: pa.RecordBatch | pa.Table) -> None:
        """Writes a row group. Missing columns are null. Raises OSError."""
        table = aligned(rows)
        if table.num_rows:
            self._facts.add(table)
            self._writer.write_table(table, row_group_size=table.num_rows)

    def close(self) -> FileEntry:
        """Syncs the file to disk; it is visible when a commit names it. Raises OSError."""
        self._writer.close()
        self._file.close()
        size = self._synced_size()
        self._closed = True
        return FileEntry(
            file=self._name, bytes=size, rows=self._facts.rows, **self._facts.to_entry(), **self._about
        )

    def _synced_size(self) -> int:
        if self._place.local is None:
            files, _ = self._place.arrow()
            return int(files.get_file_info(self._path).size)
        descriptor = os.open(self._path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            return os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)

    def abort(self) -> None:
        """Removes the file. Raises OSError."""
        self._closed = True
        for part in (self._writer, self._file):
            try:
                if part is not None:
                    part.close()
            except OSError:
                pass  # the file is removed anyway
        self._place.remove(self._name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._closed:
            self.abort()


def _writer(file: Any, layout: FileLayout, rows_max: int) -> pq.ParquetWriter:
    distinct = max(1, min(rows_max, layout.row_group_rows))
    sorting = pq.SortingColumn.from_ordering(
        FILE_SCHEMA, [("queueId", "ascending"), ("queueOffset", "ascending")]
    )
    return pq.ParquetWriter(
        file,
        FILE_SCHEMA,
        compression=layout.compression,
        use_dictionary=list(_FEW_VALUES),
        write_statistics=[name for name in TABLE_COLUMNS if name not in _BULKY],
        write_page_index=True,
        sorting_columns=sorting,
        bloom_filter_options={
            path: {"ndv": distinct, "fpp": _FALSE_POSITIVES} for path in BLOOM_COLUMNS.values()
        },
    )


def aligned(rows: pa.RecordBatch | pa.Table) -> pa.Table:
    """The rows with exactly the columns of a file."""
    columns = []
    for name in TABLE_COLUMNS:
        kind = FILE_SCHEMA.field(name).type
        there = name in rows.schema.names
        columns.append(rows.column(name).cast(kind) if there else pa.nulls(rows.num_rows, kind))
    keys = columns[TABLE_COLUMNS.index("keys")]
    return pa.table([*columns, key_lists(keys)], schema=FILE_SCHEMA)


def key_lists(keys: Any) -> Any:
    """The keys of each row, one by one. keys: strings with a space between."""
    return pc.split_pattern(keys, " ")


class _Facts:
    """The facts about the rows for the entry, collected while they are written."""

    def __init__(self) -> None:
        self.rows = 0
        self._queues: dict[int, tuple[int, int]] = {}
        self._physical: list[tuple[int, int]] = []
        self._stored: list[tuple[int, int]] = []

    def add(self, table: pa.Table) -> None:
        self.rows += table.num_rows
        known = pc.and_(pc.is_valid(table["queueId"]), pc.is_valid(table["queueOffset"]))
        spans = table.filter(known).group_by("queueId").aggregate([("queueOffset", "min_max")])
        for queue, span in zip(spans["queueId"], spans["queueOffset_min_max"], strict=True):
            first, last = self._queues.get(queue.as_py(), (1 << 63, -1))
            self._queues[queue.as_py()] = (min(first, span["min"].as_py()), max(last, span["max"].as_py()))
        begins = _int64s(table["physicalOffset"], -1)
        self._physical.append((int(begins.min()), int((begins + _int64s(table["size"], 0)).max())))
        stored = _int64s(table["storeTimestamp"], 0) // _US_PER_MS
        self._stored.append((int(stored.min()), int(stored.max())))

    def to_entry(self) -> dict[str, Any]:
        return {
            "queues": self._queues,
            "physical": _hull(self._physical),
            "stored": _hull(self._stored),
        }


def _int64s(column: pa.ChunkedArray, missing: int) -> NDArray[np.int64]:
    values: NDArray[np.int64] = column.cast(pa.int64()).fill_null(missing).to_numpy()
    return values


def _hull(spans: Iterable[tuple[int, int]]) -> tuple[int, int]:
    known = list(spans)
    return min((first for first, _ in known), default=0), max((last for _, last in known), default=0)
