"""The job `stream`: copies topics of a live broker, or a growing log, into a table, micro-batch by
micro-batch.

The checkpoint records how far the query is; the table (sinks/table_sink.py, sinks/delta.py) records which
batches it has. So a job that is killed at any moment and started again loses nothing and writes nothing
twice. The offsets of a consumer group can show how far the table is, for lag and dashboards; the group itself
reads nothing.

While the job runs, nothing else may write into its Parquet table; run `compact` between two runs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from trovemq_spark.archive.manifest import Manifest
from trovemq_spark.archive.parquet_files import COMPRESSIONS, FileLayout
from trovemq_spark.job import Progress, Report
from trovemq_spark.jobs.stream_query import stop_signals, watch
from trovemq_spark.option_kinds import DURATION, option_error
from trovemq_spark.sinks.checkpoint import committed_offsets
from trovemq_spark.sinks.delta import JARS_DEFAULT, DeltaSink, check_session, delta_settings
from trovemq_spark.sinks.table_sink import JOB, BatchSink, TableSink
from trovemq_spark.sources.options import LIVE, LOG, parse_source_options
from trovemq_spark.storage import StoragePath

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARQUET: Final = "parquet"
DELTA: Final = "delta"
ONCE: Final = "once"
CONTINUOUS: Final = "continuous"


@dataclass(frozen=True, slots=True)
class StreamArguments:
    """The arguments of the job."""

    out: Annotated[str, "The table: a directory, a path or a URI."]
    server: Annotated[str, "A live nameserver or broker; this or store."] = ""
    store: Annotated[str, "A growing store or directory of segments; this or server."] = ""
    topics: Annotated[tuple[str, ...], "Topics to read. With --store, none means all."] = ()
    pattern: Annotated[
        str,
        "Instead of topics: all whose whole name matches this regular expression, also new ones.",
    ] = ""
    format: Annotated[
        Literal["parquet", "delta"],
        "The format of the table. delta needs jars: `make delta-jars`.",
    ] = "parquet"
    jars: Annotated[str, "With format=delta: the directory of Delta's jars; default build/delta-jars."] = ""
    checkpoint: Annotated[str, "Where the query records its position; default OUT/_checkpoint."] = ""
    trigger: Annotated[
        str,
        "once: the messages that exist now, then the job ends; continuous: until Ctrl-C; 10s: the same, "
        "with a batch every 10 s.",
    ] = "once"
    starting_offsets: Annotated[
        str,
        "Where a new table begins: earliest, latest, or (--server) JSON of offsets.",
    ] = "earliest"
    max_batch_rows: Annotated[int, "The most rows of a batch."] = 200_000
    max_batch_bytes: Annotated[
        int,
        "The most bytes of a batch's records; a task has its whole share in memory.",
    ] = 256 << 20
    consumer_group: Annotated[
        str,
        "A consumer group whose offsets show how far the table is (--server).",
    ] = ""
    mode: Annotated[
        Literal["failfast", "permissive", "dropmalformed"],
        "Damaged records: they end the job, become rows with the column `damage`, or are left out.",
    ] = "failfast"
    fail_on_data_loss: Annotated[
        bool,
        "End the job where messages were removed before they were read; else log it and continue.",
    ] = True
    compression: Annotated[Literal["zstd", "snappy", "none"], "The compression of Parquet files."] = "zstd"

    def __post_init__(self) -> None:
        if bool(self.server) == bool(self.store):
            raise option_error("give one of --server and --store", "server")
        if self.topics and self.pattern:
            raise option_error("give one of topics and pattern", "topics")
        if self.server and not (self.topics or self.pattern):
            raise option_error("one of topics and pattern is needed with --server", "topics")
        if self.consumer_group and not self.server:
            raise option_error("consumer_group needs --server", "consumer_group")
        for name, choices in (("format", (PARQUET, DELTA)), ("compression", COMPRESSIONS)):
            if getattr(self, name) not in choices:
                raise option_error(f"{name} is one of {', '.join(choices)}", name)
        trigger_options(self.trigger)
        parse_source_options(self.source_options(), self.source, streaming=True)

    @property
    def source(self) -> str:
        return LIVE if self.server else LOG

    @property
    def checkpoint_place(self) -> StoragePath:
        return StoragePath(self.checkpoint or f"{self.out.rstrip('/')}/_checkpoint")

    def source_options(self) -> dict[str, str]:
        """The options of the format that is read."""
        options = {
            "nameServer": self.server,
            "path": self.store,
            "subscribe": ",".join(self.topics),
            "subscribePattern": self.pattern,
            "startingOffsets": self.starting_offsets,
            "maxOffsetsPerTrigger": str(self.max_batch_rows),
            "maxBytesPerTrigger": str(self.max_batch_bytes),
            "failOnDataLoss": str(self.fail_on_data_loss).lower(),
            "mode": self.mode,
            "includeHeader": "true",
        }
        return {name: value for name, value in options.items() if value}


def trigger_options(text: str) -> dict[str, Any]:
    """The arguments of DataStreamWriter.trigger(). Raises TroveError OPTION_ILLEGAL."""
    if text == ONCE:
        return {"availableNow": True}
    if text == CONTINUOUS:
        return {"processingTime": "0 seconds"}
    try:
        return {"processingTime": f"{DURATION.parse(text)} milliseconds"}
    except ValueError as error:
        raise option_error(f"trigger is {ONCE}, {CONTINUOUS} or {error}, not {text!r}", "trigger") from None


def session_settings(arguments: StreamArguments) -> Mapping[str, str]:
    """The additional session settings of this job. Raises TroveError OPTION_ILLEGAL."""
    return delta_settings(arguments.jars or JARS_DEFAULT) if arguments.format == DELTA else {}


def run(session: SparkSession, arguments: StreamArguments, progress: Progress) -> Report:
    """Returns when everything that existed is written (trigger=once), or after SIGINT or SIGTERM.

    Raises TroveError OPTION_ILLEGAL, ARCHIVE_ILLEGAL (not a table of this query), JOB_RUNNING, DATA_LOST,
    DISK_FULL, BROKER_UNREACHABLE, TOPIC_NOT_FOUND, …; OSError. Committed batches stay.
    """
    report = Report(JOB)
    report_offsets = _group_reporter(arguments)

    def on_progress(batch: Any) -> None:
        sink.observe(query)
        report_offsets({} if not batch.sources else _end_of(batch.sources[0].endOffset))

    progress.begin("rows", 0)
    with stop_signals() as stop, _open_sink(session, arguments, progress) as sink:
        query = _start(session, arguments, sink)
        sink.query_id.set_result(query.id)
        stopped = watch(query, sink, stop, on_progress)
        sink.observe(query)
    offsets = committed_offsets(arguments.checkpoint_place) or {}
    report.notes += report_offsets(offsets)
    report.facts |= {"out": arguments.out, "format": arguments.format}
    report.facts |= sink.facts() | {"offsets": offsets, "stopped": stopped}
    if stopped and sink.failure is not None:
        why = str(sink.failure).partition("\n")[0]
        report.notes.append(f"the batch at hand was given up, nothing of it is visible: {why}")
    return report


@contextmanager
def _open_sink(session: SparkSession, arguments: StreamArguments, progress: Progress) -> Iterator[BatchSink]:
    """The sink, with the table locked for it."""
    if arguments.format == DELTA:
        check_session(session)
        yield DeltaSink(_text(StoragePath(arguments.out)), progress.advance)
        return
    with Manifest.writing(arguments.out, JOB) as manifest:
        yield TableSink(
            manifest,
            arguments.checkpoint_place,
            FileLayout(compression=arguments.compression),
            progress.advance,
        )


def _start(session: SparkSession, arguments: StreamArguments, sink: BatchSink) -> Any:
    rows = session.readStream.format(arguments.source).options(**arguments.source_options()).load()
    return (
        rows.writeStream.foreachBatch(sink)
        .option("checkpointLocation", _text(arguments.checkpoint_place))
        .trigger(**trigger_options(arguments.trigger))
        .start()
    )


def _text(place: StoragePath) -> str:
    """The place as Spark requires it, wherever Spark runs."""
    return place.text if place.local is None else place.local.as_uri()


def _group_reporter(arguments: StreamArguments) -> Callable[[Mapping[str, Any]], list[str]]:
    """A function that stores an offsets document for the consumer group and returns the offsets that could
    not be stored, in words."""
    if not arguments.consumer_group:
        return lambda offsets: []
    from trovemq_spark.sources.live_client import Cluster
    from trovemq_spark.sources.live_report import RECONNECT_TIMEOUT_MS, report_group_offsets
    from trovemq_spark.sources.offsets import offsets_from_json

    cluster = Cluster(arguments.server, RECONNECT_TIMEOUT_MS)
    return lambda offsets: report_group_offsets(
        cluster, arguments.consumer_group, offsets_from_json(dict(offsets))
    )


def _end_of(document: Any) -> dict[str, Any]:
    parsed = json.loads(document) if isinstance(document, str) else document
    return parsed if isinstance(parsed, dict) else {}
