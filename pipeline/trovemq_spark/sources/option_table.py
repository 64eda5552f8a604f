"""The table of options of the formats `trovemq` (live) and `trovemq-log` (segments in a directory).

Names and meanings are those of Kafka's and RocketMQ's connectors, if these have the option.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from trovemq_spark.connection_options import ROWS as CONNECTION_ROWS
from trovemq_spark.option_kinds import (
    BOOLEAN,
    BYTES,
    COUNT,
    DURATION,
    NAMES,
    PATTERN,
    TEXT,
    TIMESTAMP_MS,
    Kind,
    choice,
    whole_number,
)
from trovemq_spark.sources import offsets

LIVE: Final = "trovemq"
LOG: Final = "trovemq-log"
BATCH: Final = "batch"
STREAM: Final = "stream"
PERMISSIVE: Final = "permissive"
FAILFAST: Final = "failfast"
DROPMALFORMED: Final = "dropmalformed"
PARTITIONS_MAX: Final = 10_000
_BOTH: Final = (LIVE, LOG)
_ANY: Final = (BATCH, STREAM)


@dataclass(frozen=True, slots=True)
class Option:
    """A row of the table. `default`: in the form of the option's text; empty: none."""

    name: str
    field: str
    kind: Kind
    default: str
    meaning: str
    sources: tuple[str, ...] = _BOTH
    modes: tuple[str, ...] = _ANY
    aliases: tuple[str, ...] = ()

    def belongs(self, source: str, mode: str | None) -> bool:
        return source in self.sources and (mode is None or mode in self.modes)


# fmt: off
OPTIONS: Final = (
    Option("nameServer", "name_server", TEXT, "", "nameserver or broker, HOST:PORT; several with commas",
           (LIVE,), aliases=("server",)),
    Option("path", "path", TEXT, "", "a store, or a directory of segments: a path or a URI", (LOG,)),
    Option("subscribe", "subscribe", NAMES, "", "topics, with commas", aliases=("topic",)),
    Option("subscribePattern", "subscribe_pattern", PATTERN, "",
           "topics whose whole name this regular expression matches"),
    Option("assign", "assign", offsets.ASSIGNMENT, "", 'queues: {"TOPIC": {"BROKER": [0, 1]}}'),
    Option("subExpression", "sub_expression", TEXT, "*", "tags, `a || b`; * is all; not SQL-92", (LIVE,)),
    Option("startingOffsets", "starting_offsets", offsets.STARTING_OFFSETS, "earliest; latest for a stream",
           'earliest, latest, or {"TOPIC": {"BROKER": {"0": 23}}}; -2 earliest, -1 latest'),
    Option("endingOffsets", "ending_offsets", offsets.ENDING_OFFSETS, "latest",
           "the same, exclusive", modes=(BATCH,)),
    Option("startingTimestamp", "starting_timestamp", TIMESTAMP_MS, "",
           "begin at the first message stored at or after it, epoch ms; wins over startingOffsets"),
    Option("endingTimestamp", "ending_timestamp", TIMESTAMP_MS, "",
           "end before the first message stored at or after this time, epoch ms; wins over "
           "endingOffsets", modes=(BATCH,)),
    Option("startingOffsetsByTimestampStrategy", "starting_offsets_by_timestamp_strategy",
           choice("error", "latest"), "error",
           "the reaction if all messages are older than startingTimestamp"),
    Option("startingPhysicalOffset", "starting_physical_offset", whole_number(0), "",
           "place in the log to begin at, bytes; wins over startingOffsets", (LOG,)),
    Option("endingPhysicalOffset", "ending_physical_offset", whole_number(0), "",
           "place in the log to end at, exclusive, bytes", (LOG,), (BATCH,)),
    Option("maxOffsetsPerTrigger", "max_offsets_per_trigger", COUNT, "",
           "the most rows of a micro-batch; `trovemq` reads one at least from each queue", modes=(STREAM,)),
    Option("maxBytesPerTrigger", "max_bytes_per_trigger", BYTES, "",
           "the most bytes of a micro-batch's records, but at least one record", modes=(STREAM,)),
    Option("minOffsetsPerTrigger", "min_offsets_per_trigger", COUNT, "",
           "a micro-batch waits for this many rows (not under availableNow)", modes=(STREAM,)),
    Option("maxTriggerDelay", "max_trigger_delay_ms", DURATION, "15m",
           "how long it waits at most", modes=(STREAM,)),
    Option("minPartitions", "min_partitions", whole_number(1, PARTITIONS_MAX), "",
           "split large ranges into about this many parts"),
    Option("failOnDataLoss", "fail_on_data_loss", BOOLEAN, "true",
           "false: missing messages are logged and skipped; a topic recreated is read from its beginning"),
    Option("mode", "mode", choice(PERMISSIVE, FAILFAST, DROPMALFORMED), FAILFAST,
           "damaged records: rows with the column damage, an error, or logged and skipped"),
    Option("columns", "columns", NAMES, "", "read only these columns, with commas"),
    Option("includeProperties", "include_properties", BOOLEAN, "true", "whether properties are read"),
    Option("includeHeader", "include_header", BOOLEAN, "false", "whether hosts, flags and CRC are read",
           aliases=("includeHeaders",)),
    Option("brokerName", "broker_name", TEXT, "", "the value of the column brokerName", (LOG,)),
    Option("checkCRC", "check_crc", BOOLEAN, "true", "compare each record with its CRC", (LOG,)),
    Option("batchRows", "batch_rows", whole_number(1, 1 << 20), "4096", "the most rows of an Arrow batch"),
    Option("pullBatchSize", "pull_batch_size", whole_number(1, (1 << 31) - 1), "4096",
           "messages of one request", (LIVE,)),
    Option("pullTimeoutMs", "pull_timeout_ms", COUNT, "3000", "how long a broker may take", (LIVE,)),
    Option("reconnectTimeoutMs", "reconnect_timeout_ms", COUNT, "60000",
           "how long a broker may be unreachable", (LIVE,)),
    *(Option(*row, (LIVE,)) for row in CONNECTION_ROWS),
    Option("consumerGroup", "consumer_group", TEXT, "", "the group whose offsets show the progress", (LIVE,),
           (STREAM,), aliases=("group",)),
    # Not by default: Spark 4.2 keeps pushed conditions with the table. Another query on the same DataFrame,
    # or another branch of the same query, would silently get only the rows of the first one's conditions.
    Option("pushdown", "pushdown", BOOLEAN, "false",
           "filter before decoding; only for a DataFrame that serves a single query", modes=(BATCH,)),
)
# fmt: on
FOREIGN_NAMES: Final = {
    "kafka.bootstrap.servers": "nameServer",
    "bootstrap.servers": "nameServer",
    "nameserver.address": "nameServer",
    "kafka.group.id": "consumerGroup",
    "group.id": "consumerGroup",
    "filter.tag": "subExpression",
    "startingtime": "startingTimestamp",
    "endingtime": "endingTimestamp",
}
