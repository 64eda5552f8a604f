"""Reads one part of a log as rows, for the batch and the streaming reader of the format `trovemq-log`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_spark.log.parts import LogPart, data_lost
from trovemq_spark.log.scan import scan_segment
from trovemq_spark.log.segments import LogDirectory, open_deletions
from trovemq_spark.sources.conditions import Condition, RowFilter
from trovemq_spark.sources.options import BATCH_BYTES_MAX, SourceOptions
from trovemq_spark.sources.rows import LOGGER, RowCounts, RowMaker, RowRequest
from trovemq_spark.storage import StoragePath

_RUN_BYTES: Final = BATCH_BYTES_MAX // 2


@dataclass(frozen=True, slots=True)
class LogReading:
    """The input of every task of a reader. Picklable."""

    path: str
    request: RowRequest
    fail_on_data_loss: bool

    @classmethod
    def of(cls, options: SourceOptions, names: tuple[str, ...], conditions: list[Condition]) -> LogReading:
        assert options.path is not None, "checked with the options"
        request = RowRequest(
            names=names,
            row_filter=RowFilter(asked=conditions),
            mode=options.mode,
            broker_name=options.broker_name,
            batch_rows=options.batch_rows,
            check_crc=options.check_crc,
        )
        return cls(options.path, request, options.fail_on_data_loss)


class LogInputPartition(InputPartition):
    """A part of the log; its segments are at `place`."""

    def __init__(self, place: StoragePath, part: LogPart) -> None:
        super().__init__(part)
        self.place: Final = place
        self.part: Final = part


def read_part(
    reading: LogReading, partition: InputPartition, counts: RowCounts | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of a partition; none for the one that Spark makes if there are none. Its work is added to
    `counts`. Raises TroveError RECORD_DAMAGED (failfast), DATA_LOST."""
    if not isinstance(partition, LogInputPartition):
        return
    part, request = partition.part, reading.request
    log = LogDirectory(partition.place, (part.file,))
    try:
        segment = log.open_segment(part.file)
    except TroveError as error:
        if error.spec is not errors.OFFSET_OUT_OF_RANGE:
            raise
        handle_loss(f"segment {part.file.name} was removed while the log was read", reading.fail_on_data_loss)
        return
    maker = RowMaker(request, part.file.name, part.file.start)
    items = scan_segment(segment, part.bounds, check_crc=request.check_crc, run_bytes_max=_RUN_BYTES)
    yield from maker.rows(items, open_deletions(reading.path))
    if counts is not None:
        counts.add(maker.counts)


def handle_loss(what: str, fail_on_data_loss: bool) -> None:
    """Raises TroveError DATA_LOST, or logs the loss."""
    if fail_on_data_loss:
        raise data_lost(what)
    LOGGER.warning("%s; it is skipped (failOnDataLoss=false)", what)


def check_gaps(log: LogDirectory, begin: int, end: int, fail_on_data_loss: bool) -> None:
    """Reports segments that are missing in [begin, end)."""
    for gap in log.gaps:
        if gap.begin < end and gap.end > begin:
            handle_loss(
                f"segments are missing in {log.place}: nothing has the log's bytes {gap.begin} to {gap.end}",
                fail_on_data_loss,
            )
