"""Writes one segment into Parquet files: a task of the job `archive`, on any machine that reaches both
places.

The files are invisible until the driver commits their entries. A failed task removes its files; the next run
removes those of a killed task.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records import RecordBatch
from trovemq_spark.archive.disk_full import reporting_disk_full
from trovemq_spark.archive.entry import FileEntry
from trovemq_spark.archive.parquet_files import LAYOUT_DEFAULT, TABLE_COLUMNS, FileLayout, ParquetFile
from trovemq_spark.archive.segment_rows import ChunkRows, FileRows, SegmentRows, chunk_rows
from trovemq_spark.job import Finding
from trovemq_spark.log.scan import ScanBounds, scan_segment
from trovemq_spark.log.segments import LogDirectory, SegmentFile, open_deletions
from trovemq_spark.storage import StoragePath
from trovemq_spark.table.columns import arrow_batch
from trovemq_spark.table.schema import arrow_schema
from trovemq_store.log.projection import DispatchBatch
from trovemq_store.log.reader import Damage
from trovemq_store.log.segments import Segment

PERMISSIVE: Final = "permissive"
FAILFAST: Final = "failfast"
DROPMALFORMED: Final = "dropmalformed"
MODES: Final = (PERMISSIVE, FAILFAST, DROPMALFORMED)


@dataclass(frozen=True, slots=True)
class SegmentTask:
    """Archives a segment from `begin` on. Picklable."""

    store: str
    log: LogDirectory
    file: SegmentFile
    out: str
    begin: int
    """Physical offset at which a record or the segment begins."""
    is_last: bool
    source: str = ""
    topics: frozenset[str] | None = None
    mode: str = PERMISSIVE
    layout: FileLayout = LAYOUT_DEFAULT
    last_record: tuple[int, int, int] | None = None
    """(physical offset, size, CRC-32) of the record before `begin`, as an earlier run saw it."""


@dataclass(slots=True)
class SegmentResult:
    """The result of a task. Picklable."""

    segment: int
    end: int
    """The offset after the last whole record; for a closed segment its end."""
    last_record: tuple[int, int, int] | None
    entries: list[FileEntry] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    rows: int = 0
    dropped: int = 0
    deleted: int = 0
    """Records of deleted topics, which are left out."""


def archive_segment(task: SegmentTask) -> SegmentResult:
    """Archives the segment. Raises TroveError RECORD_DAMAGED (mode failfast), DISK_FULL, ARCHIVE_ILLEGAL if
    this is not the log that was archived before; OSError."""
    out = StoragePath(task.out)
    segment = task.log.open_segment(task.file)
    check_same_log(task, segment)
    result = SegmentResult(task.file.start, task.begin, task.last_record)
    damages: list[Damage] = []
    rows = _gather(task, segment, result, damages)
    if not task.is_last:
        result.end = task.file.end
    with ExitStack() as written, reporting_disk_full(out):
        for file in rows.files(task.layout):
            entry = _write(task, segment, out, file, result)
            if entry is not None:
                written.callback(out.remove, entry.file)
                result.entries.append(entry)
                result.rows += entry.rows
        if damages and task.mode == PERMISSIVE:
            result.entries.append(_write_damages(task, out, damages))
        written.pop_all()
    return result


def check_same_log(task: SegmentTask, segment: Segment) -> None:
    """Raises TroveError ARCHIVE_ILLEGAL if the last archived record is no longer at its place."""
    if task.last_record is None:
        return
    offset, size, expected = task.last_record
    at = offset - segment.start
    if crc32(segment.file.view()[at : at + size]) != expected:
        raise TroveError(
            errors.ARCHIVE_ILLEGAL,
            f"{task.file.name} of {task.store} no longer holds the record at {offset} that is in the archive "
            f"{task.out}: this is another store, or its log was cut back in a recovery. Archive it into "
            "another directory, or as another source (broker_name)",
            segment=task.file.name,
        )


def _gather(task: SegmentTask, segment: Segment, result: SegmentResult, damages: list[Damage]) -> SegmentRows:
    rows = SegmentRows()
    deletions = open_deletions(task.store)
    bounds = ScanBounds(task.begin, task.file.end, task.log.known_end, task.is_last)
    settled = 0
    for part in scan_segment(segment, bounds):
        if isinstance(part, Damage):
            _report_damage(task, result, part)
            damages.append(part)
            continue
        result.end, result.last_record = part.end, _last_record(part)
        alive = None if deletions is None else deletions.alive_mask(part.records, segment.start)
        records = part.records
        if alive is not None:
            result.deleted += int(np.count_nonzero(~alive))
            records = records.where(alive)
        rows.add(_of_topics(records, task.topics))
        settled = len(damages)
    if task.is_last:
        del damages[settled:]  # no record follows yet: reported now, and archived when one follows
    return rows


def _last_record(run: DispatchBatch) -> tuple[int, int, int]:
    index = len(run.records) - 1
    record = run.records.record(index)
    return run.end - len(record), len(record), crc32(record)


def _of_topics(records: RecordBatch, topics: frozenset[str] | None) -> RecordBatch:
    if topics is None:
        return records
    names = arrow_batch(records, ["topic"]).column(0)
    chosen = pc.is_in(names, pa.array(sorted(topics), pa.string()))
    return records.where(chosen.to_numpy(zero_copy_only=False))


def _report_damage(task: SegmentTask, result: SegmentResult, damage: Damage) -> None:
    what = f"bytes [{damage.physical_offset}, {damage.end}) are not a good record: {damage.state.value}"
    if task.mode == FAILFAST:
        raise TroveError(
            errors.RECORD_DAMAGED,
            f"{task.file.name}: {what}. Use mode={PERMISSIVE} to keep their places, or {DROPMALFORMED}",
            segment=task.file.name,
            offset=damage.physical_offset,
        )
    result.dropped += task.mode == DROPMALFORMED
    result.findings.append(_finding(task, damage.physical_offset, what))


def _finding(task: SegmentTask, physical_offset: int, what: str) -> Finding:
    return Finding("damage", what, file=task.file.name, offset=physical_offset - task.file.start)


def _write(
    task: SegmentTask, segment: Segment, out: StoragePath, rows: FileRows, result: SegmentResult
) -> FileEntry | None:
    """The file of these rows; None if there are no rows."""
    segments = (segment.start, segment.start)
    with ParquetFile(
        out,
        rows.topic,
        rows.date,
        source=task.source,
        segments=segments,
        layout=task.layout,
        rows_max=rows.row_count_max,
    ) as file:
        for chunk in _chunks(task, segment, rows, result):
            file.write(chunk)
        return file.close() if file.rows else None


def _chunks(
    task: SegmentTask, segment: Segment, rows: FileRows, result: SegmentResult
) -> Iterator[pa.RecordBatch]:
    view = segment.file.view()
    for positions, sizes in rows.chunks:
        chunks = chunk_rows(
            view,
            positions,
            sizes,
            list(TABLE_COLUMNS),
            task.layout.row_group_bytes,
            broker_name=task.source or None,
        )
        for chunk in chunks:
            yield _with_damage(task, chunk, result) if chunk.errors else chunk.rows


def _with_damage(task: SegmentTask, chunk: ChunkRows, result: SegmentResult) -> pa.RecordBatch:
    """The rows; a body that cannot be read is replaced by its reason, or its row left out. Raises TroveError
    in failfast."""
    reasons: list[str | None] = [None] * chunk.rows.num_rows
    for row, error in chunk.errors.items():
        if task.mode == FAILFAST:
            raise error
        reasons[row] = error.message
        result.findings.append(_finding(task, task.file.start + int(chunk.positions[row]), error.message))
    damage_column = pa.array(reasons, pa.string())
    if task.mode == DROPMALFORMED:
        result.dropped += len(chunk.errors)
        return chunk.rows.filter(pc.is_null(damage_column))
    return chunk.rows.set_column(TABLE_COLUMNS.index("damage"), "damage", damage_column)


def _write_damages(task: SegmentTask, out: StoragePath, damages: list[Damage]) -> FileEntry:
    """Writes bytes of the log that are not a message as rows without a topic."""
    rows = [
        {
            "brokerName": task.source or None,
            "physicalOffset": damage.physical_offset,
            "size": damage.end - damage.physical_offset,
            "damage": damage.state.value,
        }
        for damage in damages
    ]
    segments = (task.file.start, task.file.start)
    with ParquetFile(out, None, None, source=task.source, segments=segments, rows_max=len(rows)) as file:
        file.write(pa.RecordBatch.from_pylist(rows, schema=arrow_schema(TABLE_COLUMNS)))
        return file.close()
