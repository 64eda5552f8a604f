"""The job `trace`: measures from the log alone how long messages took, by topic, group and hour (UTC).

Born and store times are those of the records. Deliveries and acknowledgements are the delivery events of our
broker, which hold the broker's clock at that moment in whole milliseconds; RocketMQ's stores have none, so
only bornToStored, retries and dead letters are known there. There is one task per segment; 24 bytes per
message go to the task with the events of its queue.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import pyarrow as pa
import pyarrow.parquet as pq

from trovemq_spark.job import Progress, Report
from trovemq_spark.jobs.trace_latency import put_together, reduce_times
from trovemq_spark.jobs.trace_times import TracedLog, times_of_segment
from trovemq_spark.log.segments import LogDirectory, open_deletions
from trovemq_spark.storage import StoragePath
from trovemq_spark.tasks import Runner, SparkTasks
from trovemq_store.events.codec import EVENTS_TOPIC
from trovemq_store.index.consume_queue import ROOT_DIRECTORY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OUT_FILE: Final = "trace.parquet"
_SCHEMA: Final = pa.schema(
    [
        pa.field("stage", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("group", pa.string()),
        pa.field("hour", pa.string()),
        pa.field("count", pa.int64()),
        pa.field("p50Ms", pa.int64()),
        pa.field("p90Ms", pa.int64()),
        pa.field("p99Ms", pa.int64()),
        pa.field("maxMs", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True)
class TraceArguments:
    """The log, the topics and the groups."""

    store: Annotated[str, "A store, a backup, or a directory of segments: a path or URI."]
    out: Annotated[
        str,
        "Where trace.parquet, the latencies as a table, is written to: a path or URI; empty: nowhere.",
    ] = ""
    topics: Annotated[tuple[str, ...], "Only these topics; none: all but system topics."] = ()
    groups: Annotated[tuple[str, ...], "Only these consumer groups; none: all of them."] = ()


def run(session: SparkSession, arguments: TraceArguments, progress: Progress) -> Report:
    """Facts of the report: `latencies` (rows of _SCHEMA; exact quantiles, nearest rank), `deliveries`
    (attempts by topic and group) and `copies` (messages in retry and dead-letter topics). It has no findings.

    Raises TroveError STORE_FAILED if there is no log, OFFSET_OUT_OF_RANGE if it is removed meanwhile.
    """
    return trace(SparkTasks(session, progress), arguments)


def trace(runner: Runner, arguments: TraceArguments) -> Report:
    """The same with the tasks of this runner."""
    log = LogDirectory.open(arguments.store)
    has_events = _has_events(StoragePath(arguments.store))
    traced = TracedLog(
        log,
        open_deletions(arguments.store),
        has_events,
        frozenset(arguments.topics),
        frozenset(arguments.groups),
    )
    results = runner.shuffle("segments", partial(times_of_segment, traced), log.segments, reduce_times)
    latencies, deliveries, copies = put_together(results)
    report = Report("trace", {"latencies": latencies, "deliveries": deliveries, "copies": copies})
    report.facts["quantiles"] = "exact, nearest rank; whole milliseconds"
    _note(report, log, has_events=has_events)
    report.note_missing(arguments.topics, (str(row["topic"]) for row in latencies))
    if has_events:
        known = {str(row["group"]) for row in [*deliveries, *copies]}
        report.note_missing(arguments.groups, known, "delivery, retry or dead letter of group")
    if arguments.out:
        _write(StoragePath(arguments.out), latencies)
        report.facts["outFile"] = OUT_FILE
    return report


def _has_events(place: StoragePath) -> bool:
    """Whether the log has delivery events. A directory of segments has no consume queues: then its records
    are searched."""
    if not place.exists(ROOT_DIRECTORY):
        return True
    return place.exists(f"{ROOT_DIRECTORY}/{EVENTS_TOPIC}")


def _note(report: Report, log: LogDirectory, *, has_events: bool) -> None:
    if not has_events:
        report.notes.append(
            "the log has no delivery events (RocketMQ writes none): "
            "deliveries and acknowledgements are not known"
        )
    report.notes += [
        f"segments from {gap.begin} to {gap.end} are missing: their messages are not counted"
        for gap in log.gaps
    ]
    if any(int(str(row["p50Ms"])) < 0 for row in report.facts["latencies"]):  # type: ignore[attr-defined]
        report.notes.append("some times are negative: the clients' clocks are ahead of the broker's")


def _write(place: StoragePath, rows: list[dict[str, object]]) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, _SCHEMA), sink)
    place.write(OUT_FILE, sink.getvalue().to_pybytes())
