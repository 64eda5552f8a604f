"""The Parquet sink of the job `stream`: a micro-batch is a commit of the table's manifest.

    write     tasks write complete files that no reader sees, one for each topic, broker and day
    commit    the driver lists all of them in one commit, with (query, batch number)

A batch that Spark repeats after a crash has the same rows, because its offsets were stored before it ran. It
is skipped if the manifest has its number. Otherwise nothing of it was visible, and the files that the crash
left were removed when the table was opened. So a reader sees every row once, by the manifest or by its links
`topic=T/date=D/*.parquet`. The query's id is that of its checkpoint. With another checkpoint the rows would
be written twice, so a table accepts only one query.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_spark.archive.disk_full import reporting_disk_full
from trovemq_spark.archive.entry import FileEntry
from trovemq_spark.archive.manifest import Manifest
from trovemq_spark.archive.parquet_files import FileLayout, ParquetFile
from trovemq_spark.sinks.checkpoint import sync_offsets
from trovemq_spark.storage import StoragePath

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

JOB: Final = "stream"
ENTRY_COLUMN: Final = "entry"
ENTRY_SCHEMA: Final = pa.schema([pa.field(ENTRY_COLUMN, pa.string())])
_DATE: Final = "date"
_GROUP: Final = ("topic", "brokerName", _DATE)
_ORDER: Final = (*_GROUP, "queueId", "queueOffset", "physicalOffset")
_QUERY_ID_WAIT_SECONDS: Final = 60


class SinkStoppedError(Exception):
    """The sink was stopped and begins no batch."""


# --- in a task -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PartitionWriter:
    """Writes a partition's rows; for DataFrame.mapInArrow. Picklable."""

    out: str
    layout: FileLayout

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Returns a row for each file: its entry as JSON. Raises TroveError DISK_FULL, OSError."""
        entries = write_files(StoragePath(self.out), batches, self.layout)
        texts = [json.dumps(entry.to_json(), ensure_ascii=False) for entry in entries]
        yield pa.record_batch([pa.array(texts, pa.string())], schema=ENTRY_SCHEMA)


def write_files(place: StoragePath, batches: Iterable[pa.RecordBatch], layout: FileLayout) -> list[FileEntry]:
    """The rows as files, one for each topic, broker and day, sorted by queue and offset; they are not
    committed yet.

    All rows are in memory at once. A failure removes all files. Raises TroveError DISK_FULL,
    OSError.
    """
    entries: list[FileEntry] = []
    try:
        with reporting_disk_full(place):
            for rows, indices in _groups(list(batches)):
                entries.append(_write_file(place, rows, indices, layout))
    except BaseException:
        for entry in entries:
            with suppress(OSError):
                place.remove(entry.file)
        raise
    return entries


def _groups(batches: list[pa.RecordBatch]) -> Iterator[tuple[pa.Table, pa.Array]]:
    """(all rows, the indexes of the file's rows in order) for each file."""
    filled = [batch for batch in batches if batch.num_rows]
    if not filled:
        return
    rows = pa.Table.from_batches(filled)
    day = rows["storeTimestamp"].cast(pa.date32()).cast(pa.string())
    rows = rows.append_column(_DATE, day)  # damage has no store time and no topic
    order = pc.sort_indices(rows.select(_ORDER), [(name, "ascending") for name in _ORDER])
    keys = rows.select(_GROUP).take(order)
    counts = keys.group_by(list(_GROUP), use_threads=False).aggregate([([], "count_all")])["count_all"]
    begin = 0
    for count in counts.to_pylist():  # in the order of the first row of each
        yield rows, order[begin : begin + count]
        begin += count


def _write_file(place: StoragePath, rows: pa.Table, indices: pa.Array, layout: FileLayout) -> FileEntry:
    first = rows.select(_GROUP).slice(indices[0].as_py(), 1).to_pylist()[0]
    step = max(1, min(layout.row_group_rows, layout.row_group_bytes * rows.num_rows // (rows.nbytes + 1)))
    topic, date, source = first["topic"], first[_DATE], first["brokerName"] or ""
    with ParquetFile(place, topic, date, source=source, layout=layout, rows_max=len(indices)) as file:
        for begin in range(0, len(indices), step):
            file.write(rows.take(indices[begin : begin + step]))
        return file.close()


# --- on the driver -------------------------------------------------------------------------------------


class BatchSink:
    """The function for foreachBatch: one batch at a time, and none after stop(). Subclasses write the
    batch."""

    def __init__(self, on_batch: Callable[[int], None]) -> None:
        """on_batch: called with the rows of each batch that was written, from Spark's thread."""
        self.query_id: Future[str] = Future()
        """Set when the query has started."""
        self.failure: Exception | None = None
        self.rows = self.batches = self.replayed = 0
        self._on_batch = on_batch
        self._at_work = threading.Lock()
        self._stopped = False

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        try:
            with self._at_work:
                if self._stopped:
                    raise SinkStoppedError("the job is being stopped")
                count = self.process(rows, batch_id, self.query_id.result(_QUERY_ID_WAIT_SECONDS))
                self._count_batch(count)
        except Exception as error:
            self.failure = self.failure or error
            raise

    def process(self, rows: DataFrame, batch_id: int, query_id: str) -> int | None:
        """Writes the batch once. Returns its number of rows, None if it was written before."""
        raise NotImplementedError

    def observe(self, query: StreamingQuery) -> None:
        """Called from time to time while the query runs, and after its end."""

    def facts(self) -> dict[str, object]:
        """Facts for the report."""
        return {"rows": self.rows, "batches": self.batches, "batchesReplayed": self.replayed}

    def stop(self) -> None:
        """Waits for the present batch; no further one begins."""
        with self._at_work:
            self._stopped = True

    def _count_batch(self, count: int | None) -> None:
        if count is None:
            self.replayed += 1
            return
        self.batches += 1
        self.rows += count
        self._on_batch(count)


class TableSink(BatchSink):
    """Writes batches as Parquet files into a table that is open for writing."""

    def __init__(
        self, manifest: Manifest, checkpoint: StoragePath, layout: FileLayout, on_batch: Callable[[int], None]
    ) -> None:
        """Raises TroveError ARCHIVE_ILLEGAL if the job `archive` made the table."""
        super().__init__(on_batch)
        self._manifest = manifest
        self._checkpoint = checkpoint
        self._layout = layout
        self._files = self._bytes = 0
        if manifest.selection is not None:
            raise _illegal(manifest, "it was made by `archive`: a stream could add rows that it has")

    def process(self, rows: DataFrame, batch_id: int, query_id: str) -> int | None:
        check_query(self._manifest, query_id)
        if batch_id <= self._manifest.last_batch(query_id):
            return None
        # As many tasks as cores, so that a batch of many queues makes few files.
        tasks = rows.coalesce(rows.sparkSession.sparkContext.defaultParallelism)
        writer: Any = PartitionWriter(self._manifest.place.text, self._layout)
        written = tasks.mapInArrow(writer, f"{ENTRY_COLUMN} string").collect()
        entries = [FileEntry.from_json(json.loads(row[ENTRY_COLUMN])) for row in written]
        return self.commit(entries, batch_id, query_id)

    def commit(self, entries: list[FileEntry], batch_id: int, query_id: str) -> int | None:
        """Commits the batch. Returns None and removes the files if it was committed before.

        Raises TroveError, OSError; then it is not committed."""
        if entries:
            sync_offsets(self._checkpoint, batch_id)
            if not self._manifest.commit(entries, job=JOB, batch=(query_id, batch_id)):
                return None
        self._files += len(entries)
        self._bytes += sum(entry.bytes for entry in entries)
        return sum(entry.rows for entry in entries)

    def facts(self) -> dict[str, object]:
        return super().facts() | {"files": self._files, "bytes": self._bytes}


def check_query(manifest: Manifest, query_id: str) -> None:
    """Raises TroveError ARCHIVE_ILLEGAL if the table has batches of another query."""
    others = [query for query in manifest.queries if query != query_id]
    if others:
        raise _illegal(
            manifest,
            f"it was written with another checkpoint (query {others[0]}): rows would come twice, or be "
            "missing. Name the checkpoint that it was written with",
        )


def _illegal(manifest: Manifest, why: str) -> TroveError:
    return TroveError(
        errors.ARCHIVE_ILLEGAL,
        f"{manifest.place}: {why}; or name another directory",
        path=manifest.place,
    )
