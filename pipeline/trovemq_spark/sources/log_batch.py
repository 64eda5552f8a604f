"""Format `trovemq-log`, batch: a store, a backup or a directory of segments as a table; no broker is needed.

There is one partition for each segment, or minPartitions of them. A store that a broker writes to is read up
to the last whole record. Records of deleted topics are left out if the path is a store on this machine:
trovemq/deletions.json of the store names them, its segments do not.

Unless the options name topics, the log also has records of system topics: half messages
(RMQ_SYS_TRANS_HALF_TOPIC), waiting delayed messages (SCHEDULE_TOPIC_XXXX) and others. Format `trovemq` has
the messages that a consumer would get.

| part                                   | is determined when                                           |
|----------------------------------------|--------------------------------------------------------------|
| options, columns                       | .load()                                                      |
| which segments, and where they are cut | the first query on .load()'s result is planned; Spark 4.2    |
|                                        | keeps it for later ones. Call load() again for newer records |
| the end of the open segment, deletions | the task that reads begins: name endingPhysicalOffset for a  |
|                                        | fixed end, as a task that runs again may see more records    |

Unless checkCRC is false, every record that is read is compared with its CRC, also if a filter leaves it out:
its header may be damaged and name the wrong topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from trovemq_spark.log.parts import boundaries, is_stored_at, plan_parts
from trovemq_spark.log.scan import ScanBounds
from trovemq_spark.log.segments import LogDirectory
from trovemq_spark.option_kinds import option_error
from trovemq_spark.sources.log_conditions import asked_conditions
from trovemq_spark.sources.log_reading import (
    LogInputPartition,
    LogReading,
    check_gaps,
    handle_loss,
    read_part,
)
from trovemq_spark.sources.options import LOG, SourceOptions, parse_source_options
from trovemq_spark.sources.pushdown import push
from trovemq_spark.sources.rows import columns_of_schema
from trovemq_spark.table.schema import spark_schema

if TYPE_CHECKING:
    from trovemq_spark.sources.log_stream import TroveLogStreamReader


class TroveLogDataSource(DataSource):
    """The format `trovemq-log`; its options are those of sources/option_table.py."""

    @classmethod
    def name(cls) -> str:
        return LOG

    def schema(self) -> StructType:
        """The table of the options. Raises TroveError OPTION_ILLEGAL."""
        return spark_schema(parse_source_options(self.options, LOG, streaming=None).column_names)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Raises TroveError OPTION_ILLEGAL, also for a column or a type that the table does not have."""
        options = parse_source_options(self.options, LOG, streaming=False)
        return (TroveLogReader if options.pushdown else _TroveLogReader)(options, schema)

    def streamReader(self, schema: StructType) -> TroveLogStreamReader:  # noqa: N802 (Spark's name)
        """Raises TroveError OPTION_ILLEGAL, also for a column or a type that the table does not have."""
        from trovemq_spark.sources.log_stream import TroveLogStreamReader

        return TroveLogStreamReader(parse_source_options(self.options, LOG, streaming=True), schema)


class _TroveLogReader(DataSourceReader):
    """Reads without Spark's filters: Spark refuses a reader with filters if the session does not allow
    them."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        names = columns_of_schema(schema, options)
        self._reading = LogReading.of(options, names, asked_conditions(options))

    def partitions(self) -> list[InputPartition]:
        """Raises TroveError STORE_FAILED (no store), DATA_LOST, OPTION_ILLEGAL (a time after the log's
        end)."""
        log = LogDirectory.open(self._reading.path)
        low, high = self._reading.request.row_filter.physical_range
        _check_range(log, self._options)
        check_gaps(log, low, high, self._options.fail_on_data_loss)
        _check_time(log, self._options)
        end = min(high, log.capacity_end)
        parts = plan_parts(log, _aligned(log, low, end), end, min_parts=self._options.min_partitions)
        return [LogInputPartition(log.place, part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Raises TroveError RECORD_DAMAGED (failfast), DATA_LOST."""
        return read_part(self._reading, partition)


class TroveLogReader(_TroveLogReader):
    """Reads with Spark's filters."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 (Spark's name)
        taken, left = push(filters)
        request = self._reading.request
        row_filter = replace(request.row_filter, pushed=tuple(taken))
        self._reading = replace(self._reading, request=replace(request, row_filter=row_filter))
        return left


def _check_range(log: LogDirectory, options: SourceOptions) -> None:
    begin = options.starting_physical_offset
    if begin is not None and begin > log.capacity_end:
        raise option_error(
            f"startingPhysicalOffset = {begin}: the log ends before it", "startingPhysicalOffset"
        )
    if begin is not None and begin < log.begin:
        handle_loss(f"the log begins at {log.begin}, after {begin}", options.fail_on_data_loss)


def _check_time(log: LogDirectory, options: SourceOptions) -> None:
    """Refuses a time in the future, which is probably a mistake, unless startingOffsetsByTimestampStrategy
    allows it."""
    time = options.starting_timestamp
    if time is None or options.starting_offsets_by_timestamp_strategy == "latest":
        return
    if not is_stored_at(log, time):
        raise option_error(f"startingTimestamp = {time}: all messages are older", "startingTimestamp")


def _aligned(log: LogDirectory, begin: int, end: int) -> int:
    """The nearest place at or before `begin` where a record begins."""
    covering = log.covering(begin, begin + 1)
    if not covering or begin >= end or begin == covering[0].start:
        return begin  # it would search the whole segment for nothing
    file = covering[0]
    bounds = ScanBounds(file.start, file.end, log.known_end, is_last=file is log.segments[-1])
    return boundaries(log.open_segment(file), [begin], bounds)[0]
