"""The job `compact`: merges many small files of an archive into few, with the same rows in the same order.

Files of one topic, day and source are merged, neighbours in the log together. One commit replaces the old
files by the new ones, so a reader of the manifest sees either. Old files stay for readers that have them
open, and are removed by the next run: wait at least as long between two runs as the longest query takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Final

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_spark.archive.entry import FileEntry, Selection
from trovemq_spark.archive.manifest import Manifest
from trovemq_spark.archive.merge import Merged, MergeTask, merge_files
from trovemq_spark.archive.parquet_files import COMPRESSIONS, ROW_GROUP_ROWS_DEFAULT, FileLayout
from trovemq_spark.job import Progress, Report
from trovemq_spark.tasks import OneProcess, Runner, SparkTasks, raise_failure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOB: Final = "compact"
_MERGES_A_CORE: Final = 4
_FILES_MAX: Final = 256
"""The most files of one merge: each is open, with a row group in memory."""


@dataclass(frozen=True, slots=True)
class CompactArguments:
    """The archive and the sizes."""

    archive: Annotated[str, "An archive: a path or URI."]
    target_bytes: Annotated[
        int,
        "The size of a merged file; files of less than half of it are merged.",
    ] = 128 << 20
    row_group_rows: Annotated[
        int,
        "The most rows of a row group (or 32 MiB of records, whichever comes first).",
    ] = ROW_GROUP_ROWS_DEFAULT
    compression: Annotated[str, "zstd, snappy or none."] = "zstd"

    def check(self) -> None:
        """Raises TroveError OPTION_ILLEGAL."""
        if self.compression not in COMPRESSIONS:
            raise TroveError(
                errors.OPTION_ILLEGAL,
                f"compression={self.compression} is not known; it is one of {', '.join(COMPRESSIONS)}",
                field="compression",
            )
        if self.target_bytes < 1 or self.row_group_rows < 1:
            raise TroveError(errors.OPTION_ILLEGAL, "target_bytes and row_group_rows are 1 or more")


def run(session: SparkSession, arguments: CompactArguments, progress: Progress) -> Report:
    """Raises TroveError OPTION_ILLEGAL, ARCHIVE_ILLEGAL, JOB_RUNNING, DISK_FULL, DATA_LOST (a file of the
    archive differs from its entry); OSError. Earlier commits stay."""
    return compact_archive(SparkTasks(session, progress), arguments)


def run_here(arguments: CompactArguments, progress: Progress) -> Report:
    """The same in this process, without Spark."""
    return compact_archive(OneProcess(progress), arguments)


def compact_archive(runner: Runner, arguments: CompactArguments) -> Report:
    arguments.check()
    Manifest.open(arguments.archive)  # raises if there is none: no archive is created here
    report = Report(JOB)
    layout = FileLayout(row_group_rows=arguments.row_group_rows, compression=arguments.compression)
    with Manifest.writing(arguments.archive, JOB) as manifest:
        files_before = len(_all_files(manifest))
        freed = manifest.remove_retired(JOB)
        merged = rows = 0
        while packs := list(_packs(_all_files(manifest), arguments.target_bytes)):
            runner.begin("merges", len(packs))
            tasks = [MergeTask(arguments.archive, pack, layout) for pack in packs]
            wave = _MERGES_A_CORE * runner.core_count
            for first in range(0, len(tasks), wave):
                done = _merge(runner, manifest, tasks[first : first + wave])
                merged += sum(len(result.replaced) for result in done)
                rows += sum(result.entry.rows for result in done)
        report.facts |= {
            "archive": arguments.archive,
            "filesBefore": files_before,
            "filesAfter": len(_all_files(manifest)),
            "filesMerged": merged,
            "rowsMerged": rows,
            "bytesFreed": freed,
            "filesRetired": len(manifest.retired),
        }
        if manifest.retired:
            report.notes.append(
                f"{len(manifest.retired)} old files stay for those who read them; the next run removes them"
            )
    return report


def _all_files(manifest: Manifest) -> list[FileEntry]:
    return manifest.files(Selection(damage=True))


def _merge(runner: Runner, manifest: Manifest, tasks: list[MergeTask]) -> list[Merged]:
    """Runs the merges. Successful ones are used even if others fail."""
    outcomes = runner.outcomes("", merge_files, tasks)
    done = [outcome for outcome in outcomes if isinstance(outcome, Merged)]
    if done:
        replaced = [name for result in done for name in result.replaced]
        manifest.commit([result.entry for result in done], replaced, job=JOB)
    raise_failure(outcomes)
    return done


def _packs(files: list[FileEntry], target_bytes: int) -> Iterator[tuple[FileEntry, ...]]:
    """Packs of files to merge: two files at least, and at most target_bytes together."""
    small = [entry for entry in files if entry.bytes < target_bytes // 2]
    small.sort(key=lambda entry: (*_partition(entry), entry.physical))
    for _, group in groupby(small, key=_partition):
        pack: list[FileEntry] = []
        size = 0
        for entry in group:
            if pack and (size + entry.bytes > target_bytes or len(pack) == _FILES_MAX):
                if len(pack) > 1:
                    yield tuple(pack)
                pack, size = [], 0
            pack.append(entry)
            size += entry.bytes
        if len(pack) > 1:
            yield tuple(pack)


def _partition(entry: FileEntry) -> tuple[str, str, str]:
    return entry.topic or "", entry.date or "", entry.source
