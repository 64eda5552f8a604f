"""The job `archive` beside Spark's own Parquet writer: the same log, columns, compression and directories."""

from __future__ import annotations

import shutil
from pathlib import Path
from time import perf_counter
from typing import Final

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from bench.pipeline.scans import interleaved
from bench.report import Report
from trovemq_spark.archive.readers import arrow_dataset
from trovemq_spark.job import NoProgress
from trovemq_spark.jobs.archive import ArchiveArguments, run, run_here
from trovemq_spark.jobs.compact import CompactArguments
from trovemq_spark.jobs.compact import run as compact
from trovemq_spark.log.segments import LogDirectory

ROUNDS: Final = 3


def measure_archive(
    report: Report, session: SparkSession, store: Path, directory: Path, rounds: int = ROUNDS
) -> None:
    """`store`: segments by log_files.write_log. Archives go below `directory`."""
    size = sum(segment.size for segment in LogDirectory.open(str(store)).segments)
    ours, alone, theirs = (directory / name for name in ("archive", "archive-alone", "parquet"))

    def archive() -> None:
        shutil.rmtree(ours, ignore_errors=True)
        run(session, ArchiveArguments(str(store), str(ours)), NoProgress())

    def archive_alone() -> None:
        shutil.rmtree(alone, ignore_errors=True)
        run_here(ArchiveArguments(str(store), str(alone)), NoProgress())

    def spark_parquet() -> None:
        log = session.read.format("trovemq-log").options(path=str(store), includeHeader="true").load()
        dated = log.selectExpr("*", "to_date(storeTimestamp) AS date")
        writer = dated.write.mode("overwrite").option("compression", "zstd")
        writer.partitionBy("topic", "date").parquet(str(theirs))

    seconds = interleaved(
        {"archive": archive, "alone": archive_alone, "spark": spark_parquet},
        rounds,
    )
    rows = arrow_dataset(ours).count_rows()
    assert rows == arrow_dataset(alone).count_rows() == _row_count(theirs), "all have every row"
    report.add("archive, local[2]", size / seconds["archive"] / 1e6, "MB/s")
    report.add("archive, one process without Spark", size / seconds["alone"] / 1e6, "MB/s")
    report.add("Spark's own Parquet writer, local[2]", size / seconds["spark"] / 1e6, "MB/s")
    report.add(
        "archive / Spark's own Parquet writer", seconds["spark"] / seconds["archive"], "x", at_least=2.0
    )
    _measure_compact(report, session, ours)


def _row_count(directory: Path) -> int:
    return sum(int(pq.read_metadata(path).num_rows) for path in directory.rglob("*.parquet"))


def _measure_compact(report: Report, session: SparkSession, archive: Path) -> None:
    """Once, as it changes its input."""
    rows = arrow_dataset(archive).count_rows()
    started = perf_counter()
    compact(session, CompactArguments(str(archive)), NoProgress())
    seconds = perf_counter() - started
    assert arrow_dataset(archive).count_rows() == rows, "the same rows"
    report.add("compact, local[2]: rows", rows / seconds / 1e3, "k/s")
