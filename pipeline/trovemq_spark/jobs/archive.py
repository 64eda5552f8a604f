"""The job `archive`: copies a commit log into Parquet files by topic and day, each sorted by queue and
offset.

One task per segment writes files that no reader sees. The driver commits them, some segments at a time, with
the position up to which each segment was read. So a killed run loses only the work on a few segments. The
next run reads the new records: it does not open closed segments again, and continues in the open one. Records
of deleted topics are left out; archived records stay when their topic is deleted later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_spark.archive.manifest import Manifest
from trovemq_spark.archive.parquet_files import COMPRESSIONS, ROW_GROUP_ROWS_DEFAULT, FileLayout
from trovemq_spark.archive.segment_task import (
    MODES,
    PERMISSIVE,
    SegmentResult,
    SegmentTask,
    archive_segment,
    check_same_log,
)
from trovemq_spark.job import Finding, Progress, Report
from trovemq_spark.log.parts import first_stored_at
from trovemq_spark.log.scan import unfinished_notes
from trovemq_spark.log.segments import LogDirectory
from trovemq_spark.tasks import Failure, OneProcess, Runner, SparkTasks, raise_failure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOB: Final = "archive"
_SEGMENTS_A_CORE: Final = 4


@dataclass(frozen=True, slots=True)
class ArchiveArguments:
    """The source and the target of the job."""

    store: Annotated[str, "A store, a backup, or a directory of segments: a path or URI."]
    out: Annotated[
        str,
        "The archive: a new or an empty directory, or one that this job wrote; a path or URI.",
    ]
    broker_name: Annotated[
        str,
        "The name of the broker: the column brokerName, which distinguishes several brokers' logs in one "
        "archive.",
    ] = ""
    topics: Annotated[
        tuple[str, ...],
        "Only these topics (none: all, with system topics). They must be the same in every run into one "
        "archive.",
    ] = ()
    since_timestamp: Annotated[
        int,
        "Segments whose messages were all stored before this time (epoch milliseconds) are left out. A "
        "segment is archived whole or not at all.",
    ] = 0
    mode: Annotated[
        str,
        "Damaged records: `permissive` keeps their places as rows of the column damage, `failfast` stops at "
        "the first, `dropmalformed` counts them.",
    ] = PERMISSIVE
    row_group_rows: Annotated[
        int,
        "The most rows of a row group (or 32 MiB of records, whichever comes first).",
    ] = ROW_GROUP_ROWS_DEFAULT
    compression: Annotated[str, "zstd, snappy or none."] = "zstd"
    segments_per_commit: Annotated[
        int,
        "How many segments become visible together; 0: four for each core.",
    ] = 0

    def check(self) -> None:
        """Raises TroveError OPTION_ILLEGAL."""
        _one_of("mode", self.mode, MODES)
        _one_of("compression", self.compression, COMPRESSIONS)
        if self.row_group_rows < 1 or self.segments_per_commit < 0:
            raise TroveError(
                errors.OPTION_ILLEGAL, "row_group_rows is 1 or more, segments_per_commit 0 or more"
            )


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise TroveError(
            errors.OPTION_ILLEGAL, f"{name}={value} is not known; it is one of {', '.join(known)}", field=name
        )


def run(session: SparkSession, arguments: ArchiveArguments, progress: Progress) -> Report:
    """Raises TroveError OPTION_ILLEGAL, STORE_FAILED, ARCHIVE_ILLEGAL, JOB_RUNNING, DISK_FULL, RECORD_DAMAGED
    (failfast); OSError. Earlier commits stay."""
    return archive_log(SparkTasks(session, progress), arguments)


def run_here(arguments: ArchiveArguments, progress: Progress) -> Report:
    """The same in this process, without Spark."""
    return archive_log(OneProcess(progress), arguments)


def archive_log(runner: Runner, arguments: ArchiveArguments) -> Report:
    arguments.check()
    log = LogDirectory.open(arguments.store)
    report = Report(JOB)
    totals = _Totals()
    with Manifest.writing(arguments.out, JOB) as manifest:
        _check_selection(manifest, arguments)
        read_to = manifest.read_to(arguments.broker_name)
        _report_missing(log, read_to, report)
        tasks = list(_plan(log, read_to, arguments))
        runner.begin("segments", len(tasks))
        wave = arguments.segments_per_commit or _SEGMENTS_A_CORE * runner.core_count
        for first in range(0, len(tasks), wave):
            outcomes = runner.outcomes("", archive_segment, tasks[first : first + wave])
            results = list(_before_first_failure(outcomes))
            _commit(manifest, arguments, tasks, results)
            for result in results:
                totals.add(result, report)
            raise_failure(outcomes)
        report.facts |= totals.to_json() | {
            "archive": arguments.out,
            "segmentsRead": len(tasks),
            "segmentsSkipped": len(log.segments) - len(tasks),
            "commits": manifest.number,
        }
        report.note_missing(arguments.topics, (entry.topic or "" for entry in manifest.files()))
        last = log.segments[-1]
        if last.start < totals.end < last.end:
            report.notes.append(
                f"segment {last.name} is not full: read to its last whole record, {totals.end}"
            )
            report.notes += unfinished_notes(log, totals.end)
        if manifest.place.local is None:
            report.notes.append("this place has no links: readers other than Spark take archive_files()")
    return report


def _before_first_failure(outcomes: Iterable[SegmentResult | Failure]) -> Iterator[SegmentResult]:
    """The results before the first failure. Only these are committed: if later segments were committed, a
    segment that is removed before the next run would count as archived."""
    for outcome in outcomes:
        if isinstance(outcome, Failure):
            return
        yield outcome


@dataclass(slots=True)
class _Totals:
    rows: int = 0
    files: int = 0
    size: int = 0
    dropped: int = 0
    deleted: int = 0
    end: int = 0

    def add(self, result: SegmentResult, report: Report) -> None:
        self.rows += result.rows
        self.files += len(result.entries)
        self.size += sum(entry.bytes for entry in result.entries)
        self.dropped += result.dropped
        self.deleted += result.deleted
        self.end = max(self.end, result.end)
        for finding in result.findings:
            report.found(finding)

    def to_json(self) -> dict[str, object]:
        return {
            "rows": self.rows,
            "files": self.files,
            "bytes": self.size,
            "dropped": self.dropped,
            "rowsOfDeletedTopics": self.deleted,
            "readTo": self.end,
        }


def _plan(
    log: LogDirectory, read_to: Mapping[str, Mapping[str, Any]], arguments: ArchiveArguments
) -> Iterator[SegmentTask]:
    """A task for each segment that is not yet read to its end. Raises TroveError ARCHIVE_ILLEGAL if a segment
    that was read has changed (on a local path, where checking its last record costs little)."""
    layout = FileLayout(row_group_rows=arguments.row_group_rows, compression=arguments.compression)
    for file in log.segments[_left_out_count(log, arguments.since_timestamp) :]:
        known = read_to.get(f"{file.start:020d}", {})
        last = known.get("last")
        task = SegmentTask(
            store=arguments.store,
            log=log,
            file=file,
            out=arguments.out,
            begin=known.get("end", file.start),
            is_last=file is log.segments[-1],
            source=arguments.broker_name,
            topics=frozenset(arguments.topics) or None,
            mode=arguments.mode,
            layout=layout,
            last_record=None if last is None else (last[0], last[1], last[2]),
        )
        if not known.get("closed"):
            yield task
        elif log.place.local is not None:
            check_same_log(task, log.open_segment(file))


def _left_out_count(log: LogDirectory, since_ms: int) -> int:
    """How many segments at the beginning have older messages only."""
    if not since_ms:
        return 0
    first = first_stored_at(log, since_ms)
    if first is None:
        return len(log.segments) - 1
    return sum(file.end <= first for file in log.segments)


def _commit(
    manifest: Manifest, arguments: ArchiveArguments, tasks: list[SegmentTask], results: list[SegmentResult]
) -> None:
    """Commits the results of these tasks; no commit is made if there is nothing new."""
    of_segment = {task.file.start: task for task in tasks}
    known = manifest.read_to(arguments.broker_name)
    segments = {}
    for result in results:
        facts = {
            "end": result.end,
            "closed": not of_segment[result.segment].is_last,
            "last": None if result.last_record is None else list(result.last_record),
        }
        name = f"{result.segment:020d}"
        if facts != known.get(name):
            segments[name] = facts
    entries = [entry for result in results for entry in result.entries]
    if entries or segments:
        manifest.commit(
            entries,
            job=JOB,
            sources={arguments.broker_name: segments},
            selection=_selection(arguments),
        )


def _selection(arguments: ArchiveArguments) -> dict[str, Any]:
    return {"topics": sorted(set(arguments.topics))}


def _check_selection(manifest: Manifest, arguments: ArchiveArguments) -> None:
    if not manifest.number or manifest.selection == _selection(arguments):
        return
    made = "by another job" if manifest.selection is None else f"with topics={manifest.selection['topics']}"
    raise TroveError(
        errors.ARCHIVE_ILLEGAL,
        f"{arguments.out} was made {made}: to add to it could give rows twice or leave some out. "
        "Name another directory",
        path=arguments.out,
    )


def _report_missing(log: LogDirectory, read_to: Mapping[str, Mapping[str, Any]], report: Report) -> None:
    """Reports bytes of the log that are in no segment and not in the archive."""
    archived_to = max((facts["end"] for facts in read_to.values()), default=0)
    missing = [(gap.begin, gap.end) for gap in log.gaps]
    if archived_to:
        missing.append((archived_to, log.begin))
    for begin, end in missing:
        new = max(begin, archived_to)
        if new < end:
            what = f"segments of the log's bytes [{new}, {end}) are missing"
            report.found(Finding("segmentsMissing", what, file=f"{new:020d}", offset=0))
