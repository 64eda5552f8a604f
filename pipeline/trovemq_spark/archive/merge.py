"""Merges files of one topic, day and source into one, in the same order: a task of the job `compact`.

Only the columns that define the order are read completely. The others are read by a cursor per file, one row
group at a time. The new file is invisible until the driver commits it in place of the old ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_spark.archive.disk_full import reporting_disk_full
from trovemq_spark.archive.entry import FileEntry
from trovemq_spark.archive.parquet_files import LAYOUT_DEFAULT, TABLE_COLUMNS, FileLayout, ParquetFile
from trovemq_spark.archive.segment_rows import cut_chunks
from trovemq_spark.storage import StoragePath

Int64s = NDArray[np.int64]
_ORDER: Final = ("queueId", "queueOffset", "physicalOffset")
_BATCH_ROWS: Final = 8192
_SIZE_UNKNOWN: Final = 1024
"""Bytes of a record that came from no log."""


@dataclass(frozen=True, slots=True)
class MergeTask:
    """Files whose rows go into one file. Picklable."""

    archive: str
    entries: tuple[FileEntry, ...]
    layout: FileLayout = LAYOUT_DEFAULT


@dataclass(frozen=True, slots=True)
class Merged:
    """The new file, and the names of the files whose rows it has. Picklable."""

    entry: FileEntry
    replaced: tuple[str, ...]


def merge_files(task: MergeTask) -> Merged:
    """Merges the files. Raises TroveError DATA_LOST if a file does not match its entry, DISK_FULL;
    OSError."""
    place = StoragePath(task.archive)
    sources = [_SortedFile(place, entry) for entry in task.entries]
    keys = [np.concatenate(column) for column in zip(*(source.keys for source in sources), strict=True)]
    owners = np.repeat(np.arange(len(sources)), [len(source.keys[0]) for source in sources])
    order = np.lexsort(tuple(reversed(keys)))
    owners = owners[order]
    sizes = np.concatenate([source.sizes for source in sources])[order]
    cuts = list(cut_chunks(sizes, 0, len(sizes), task.layout.row_group_rows, task.layout.row_group_bytes))
    first = task.entries[0]
    segments = [entry.segments for entry in task.entries]
    with (
        reporting_disk_full(place),
        ParquetFile(
            place,
            first.topic,
            first.date,
            source=first.source,
            segments=(min(begin for begin, _ in segments), max(end for _, end in segments)),
            layout=task.layout,
            rows_max=max((end - begin for begin, end in cuts), default=1),
        ) as file,
    ):
        for begin, end in cuts:
            file.write(_chunk(sources, owners[begin:end]))
        return Merged(file.close(), tuple(entry.file for entry in task.entries))


def _chunk(sources: list[_SortedFile], owners: Int64s) -> pa.Table:
    """The next rows: row i is the next one of file owners[i]."""
    counts = np.bincount(owners, minlength=len(sources)).tolist()
    taken = [source.take(count) for source, count in zip(sources, counts, strict=True) if count]
    places = np.empty(len(owners), np.int64)
    places[np.argsort(owners, kind="stable")] = np.arange(len(owners))
    return pa.concat_tables(taken).take(pa.array(places))


class _SortedFile:
    """A file's rows, sorted by queue, queue offset and place in the log."""

    def __init__(self, place: StoragePath, entry: FileEntry) -> None:
        files, root = place.arrow()
        self._file = pq.ParquetFile(f"{root.rstrip('/')}/{entry.file}", filesystem=files)
        table = self._file.read(columns=[*_ORDER, "size"])
        if table.num_rows != entry.rows:
            raise TroveError(
                errors.DATA_LOST, f"{entry.file} of {place} has {table.num_rows} rows, not {entry.rows}"
            )
        keys = [table[name].cast(pa.int64()).fill_null(-1).to_numpy() for name in _ORDER]
        order = np.lexsort(tuple(reversed(keys)))
        self.keys = [key[order] for key in keys]
        self.sizes: Int64s = table["size"].cast(pa.int64()).fill_null(_SIZE_UNKNOWN).to_numpy()[order]
        self._tables = self._read() if (np.diff(order) > 0).all() else self._read_sorted(order)
        self._rest: pa.Table = None

    def _read(self) -> Iterator[pa.Table]:
        for batch in self._file.iter_batches(batch_size=_BATCH_ROWS, columns=list(TABLE_COLUMNS)):
            yield pa.Table.from_batches([batch])

    def _read_sorted(self, order: Int64s) -> Iterator[pa.Table]:
        """Reads a file that another writer has written in another order: as a whole."""
        yield self._file.read(columns=list(TABLE_COLUMNS)).take(pa.array(order))

    def take(self, count: int) -> Any:
        """The next `count` rows, which must exist."""
        parts = []
        while count:
            if self._rest is None or not self._rest.num_rows:
                self._rest = next(self._tables)
            parts.append(self._rest.slice(0, count))
            self._rest = self._rest.slice(parts[-1].num_rows)
            count -= parts[-1].num_rows
        return pa.concat_tables(parts)
