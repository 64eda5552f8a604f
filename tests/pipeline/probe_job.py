"""A job for the tests of the command line: its arguments decide its actions."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import pyarrow as pa

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_spark.job import Finding, Progress, Report

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class ProbeArguments:
    out: Annotated[str, "Not looked at."]
    deed: Annotated[
        Literal["count", "find", "raise", "no-space", "bug", "wait"],
        "The action of every task: count its rows, raise a TroveError, find no space on its disk, meet a "
        "bug, or wait for an interrupt.",
    ] = "count"
    row_count: Annotated[int, ""] = 3


def run(session: SparkSession, arguments: ProbeArguments, progress: Progress) -> Report:
    progress.begin("tasks", 1)
    deed = arguments.deed

    def counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if deed == "raise":
            raise TroveError(errors.ARCHIVE_ILLEGAL, "the manifest is not JSON", path="x")
        if deed == "no-space":
            raise OSError(28, "No space left on device", "part-0.parquet")
        if deed == "bug":
            raise ValueError("a bug")
        for batch in batches:
            if deed == "wait":
                sys.stderr.write("a worker's chatter\n")
                os.read(os.open(os.environ["PROBE_FIFO"], os.O_RDONLY), 1)
            yield pa.RecordBatch.from_arrays([pa.array([batch.num_rows])], ["count"])

    rows = session.range(arguments.row_count).mapInArrow(counted, "count long").collect()
    progress.advance()
    report = Report("probe", {"rowCount": sum(row["count"] for row in rows)})
    if deed == "find":
        report.found(Finding("hole", "nothing is there", "queue", 20))
    return report
