"""Format `trovemq-log`, streaming: reads a growing log.

The offset of a query is one number: the place in the log up to which it has read.

    {"physicalOffset": 73400320}

Invariants
- An offset is where a record begins or ends, or where damage ends; the bytes between two offsets never change
  again. So a batch that is repeated after a restart has the same rows.
- No offset is after the log's last whole record: a record that is being appended is read when it is complete.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_spark.log.parts import first_record_at, first_stored_at, log_end, plan_parts, walk
from trovemq_spark.log.segments import LogDirectory, open_deletions
from trovemq_spark.option_kinds import option_error
from trovemq_spark.sources.log_conditions import asked_conditions
from trovemq_spark.sources.log_reading import (
    LogInputPartition,
    LogReading,
    check_gaps,
    handle_loss,
    read_part,
)
from trovemq_spark.sources.offsets import EARLIEST_MARK
from trovemq_spark.sources.options import LOG, SourceOptions
from trovemq_spark.sources.rows import columns_of_schema
from trovemq_store.log.projection import DispatchBatch
from trovemq_store.log.reader import Damage
from trovemq_store.topics.deletions import TopicDeletions

_OFFSET: Final = "physicalOffset"
_MS_PER_SECOND: Final = 1000
Offset = dict[str, Any]


class TroveLogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Exists on the driver as long as its query; read() runs on copies of it in tasks."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._reading = LogReading.of(options, columns_of_schema(schema, options), asked_conditions(options))
        self._target: int | None = None
        """Where a query with the trigger availableNow ends."""
        self._waiting_since: float | None = None
        """The time since which minOffsetsPerTrigger delays the batch, monotonic seconds."""

    # --- offsets ---

    def initialOffset(self) -> Offset:  # noqa: N802 (Spark's name)
        """Where a new query begins. Raises TroveError STORE_FAILED (no store), DATA_LOST, OPTION_ILLEGAL."""
        return {_OFFSET: self._first(self._open())}

    def _first(self, log: LogDirectory) -> int:
        options = self._options
        if options.starting_timestamp is not None:
            found = first_stored_at(log, options.starting_timestamp)
            if found is None and options.starting_offsets_by_timestamp_strategy == "error":
                raise option_error(
                    f"startingTimestamp = {options.starting_timestamp}: all messages are older",
                    "startingTimestamp",
                )
            return log_end(log) if found is None else found
        if options.starting_physical_offset is not None:
            begin = self._not_lost(log, options.starting_physical_offset)
            return first_record_at(log, begin)
        return log.begin if options.starting_offsets.default == EARLIEST_MARK else log_end(log)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 (Spark's name)
        """Spark accepts only one limit; latestOffset reads the other option itself."""
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 (Spark's name)
        """The query ends at the present end of the log."""
        self._target = log_end(self._open())

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 (Spark's name)
        """Where the next batch ends. Raises TroveError DATA_LOST."""
        begin = _place(start)
        budget = _Budget(limit, self._options)
        try:
            end = self._end(self._open(), begin, budget)
        except TroveError as error:
            if error.spec is not errors.OFFSET_OUT_OF_RANGE:
                raise
            handle_loss(error.message, self._options.fail_on_data_loss)
            return start  # the next call sees the log as it is then
        if self._target is None and self._holds_back(budget.rows):
            return start
        return {_OFFSET: max(end, begin)}

    def _end(self, log: LogDirectory, begin: int, budget: _Budget) -> int:
        begin = self._not_lost(log, begin)
        counts = budget.is_limited or self._options.min_offsets_per_trigger is not None
        # If nothing must be counted, all other segments are known to be complete.
        begin = begin if counts else max(begin, log.segments[-1].start)
        end = budget.spend(walk(log, begin), begin, self._reading)
        return end if self._target is None else min(end, self._target)

    def reportLatestOffset(self) -> Offset:  # noqa: N802 (Spark's name)
        """The log's end, for Spark's progress of the query."""
        return {_OFFSET: log_end(self._open())}

    def _holds_back(self, rows: int) -> bool:
        """Whether minOffsetsPerTrigger requires more rows, and maxTriggerDelay allows the wait."""
        wanted = self._options.min_offsets_per_trigger
        now = time.monotonic()
        self._waiting_since = now if self._waiting_since is None else self._waiting_since
        waited_ms = (now - self._waiting_since) * _MS_PER_SECOND
        if wanted is not None and rows < wanted and waited_ms < self._options.max_trigger_delay_ms:
            return True
        self._waiting_since = None
        return False

    # --- reading ---

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Raises TroveError DATA_LOST."""
        begin, stop = _place(start), _place(end)
        if begin >= stop:
            return []
        log = self._open()
        begin = self._not_lost(log, begin)
        if stop > log.capacity_end:
            handle_loss(f"the log ends at {log.capacity_end}, before {stop}", self._options.fail_on_data_loss)
        check_gaps(log, begin, stop, self._options.fail_on_data_loss)
        parts = plan_parts(log, begin, stop, min_parts=self._options.min_partitions, is_snapshot=True)
        return [LogInputPartition(log.place, part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Raises TroveError RECORD_DAMAGED (failfast), DATA_LOST."""
        return read_part(self._reading, partition)

    def _open(self) -> LogDirectory:
        return LogDirectory.open(self._reading.path)

    def _not_lost(self, log: LogDirectory, begin: int) -> int:
        """`begin`, or the present beginning of the log. Raises TroveError DATA_LOST if that is later."""
        if begin > log.capacity_end:
            raise option_error(
                f"the log in {self._reading.path} ends before {begin}: another store, or one put back from a "
                "backup? Start with a new checkpoint",
                "path",
            )
        if begin < log.begin:
            handle_loss(f"the log begins at {log.begin}, after {begin}", self._options.fail_on_data_loss)
        return max(begin, log.begin)


def _place(offset: Offset) -> int:
    place = offset.get(_OFFSET)
    if not isinstance(place, int):
        raise option_error(
            f"the checkpoint has the offset {offset}, which is none of {LOG}: it is another query's. "
            "Start with a new checkpoint",
            "checkpointLocation",
        )
    return place


class _Budget:
    """Rows and bytes that a batch may still have."""

    def __init__(self, limit: ReadLimit, options: SourceOptions) -> None:
        self.rows = 0
        self._bytes = 0
        self._rows_max: int | None = None
        self._bytes_max: int | None = None
        if isinstance(limit, ReadMaxRows):
            # Both options count, although Spark knows only one limit.
            self._rows_max, self._bytes_max = limit.max_rows, options.max_bytes_per_trigger
        elif isinstance(limit, ReadMaxBytes):
            self._bytes_max = limit.max_bytes

    @property
    def is_limited(self) -> bool:
        return self._rows_max is not None or self._bytes_max is not None

    def spend(self, items: Iterator[DispatchBatch | Damage], begin: int, reading: LogReading) -> int:
        """The physical offset up to which the limits allow to read from `begin` on."""
        deletions = open_deletions(reading.path)
        end = begin
        for item in items:
            if isinstance(item, Damage):
                if self._is_spent:
                    return end
                self.rows += 1
                end = item.end
                continue
            cut = self._cut(item, reading, deletions)
            if cut is not None:
                return cut
            end = item.end
        return end

    @property
    def _is_spent(self) -> bool:
        too_many = self._rows_max is not None and self.rows >= self._rows_max
        return too_many or (self._bytes_max is not None and self._bytes >= self._bytes_max)

    def _cut(self, run: DispatchBatch, reading: LogReading, deletions: TopicDeletions | None) -> int | None:
        """Counts the run's rows. Returns where the first row begins that is beyond the limits, None if none
        is."""
        records = run.records
        alive = None if deletions is None else deletions.alive_mask(records, run.physical_offset)
        records = reading.request.row_filter.chosen(records if alive is None else records.where(alive))
        rows = self.rows + np.arange(1, len(records) + 1)
        sizes = self._bytes + np.cumsum(records.sizes)
        fits = np.ones(len(records), np.bool_)
        if self._rows_max is not None:
            fits &= rows <= self._rows_max
        if self._bytes_max is not None:
            fits &= (sizes <= self._bytes_max) | (rows == 1)
        if not fits.all():
            first = int(np.argmin(fits))
            self.rows += first
            return run.physical_offset + int(records.positions[first])
        self.rows += len(records)
        self._bytes = int(sizes[-1]) if len(records) else self._bytes
        return None
