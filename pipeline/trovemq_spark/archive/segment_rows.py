"""The records of a segment in the order of an archive's files: by topic, day, queue and queue offset.

Only each record's place and sort key are held in memory (some 50 bytes a record while it is sorted); bodies
and properties are read from the mapped segment when their row group is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trovemq_proto.errors import TroveError
from trovemq_proto.records import RecordBatch
from trovemq_proto.records.layout import SYS_FLAG_COMPRESSED
from trovemq_spark.archive.parquet_files import FileLayout
from trovemq_spark.table.bodies import InflatedPart, inflated_parts
from trovemq_spark.table.columns import arrow_batch

Int64s = NDArray[np.int64]
_DAY_MS: Final = 86_400_000
_EPOCH: Final = date(1970, 1, 1)
_DAY_MIN: Final = (date.min - _EPOCH).days
_DAY_MAX: Final = (date.max - _EPOCH).days


@dataclass(frozen=True, slots=True)
class FileRows:
    """The rows of one file."""

    topic: str
    date: str
    chunks: list[tuple[Int64s, Int64s]]
    """The row groups, in order: positions in the segment and sizes, int64[n] each."""

    @property
    def row_count_max(self) -> int:
        """The most rows of one row group."""
        return max(len(positions) for positions, _ in self.chunks)


class SegmentRows:
    """Collects a segment's records; files() then returns them in order."""

    def __init__(self) -> None:
        self.count = 0
        self._topics: dict[str, int] = {}
        self._parts: list[tuple[Any, ...]] = []

    def add(self, records: RecordBatch) -> None:
        """Records of the mapped segment, positions from its start."""
        if not len(records):
            return
        self.count += len(records)
        days = np.clip(records.store_timestamps // _DAY_MS, _DAY_MIN, _DAY_MAX)
        self._parts.append(
            (
                self._topic_numbers(records),
                days.astype(np.int32),
                records.queue_ids,
                records.queue_offsets,
                records.positions.astype(np.int32),
                records.sizes.astype(np.int32),
            )
        )

    def _topic_numbers(self, records: RecordBatch) -> NDArray[np.int32]:
        found = arrow_batch(records, ["topic"]).column(0).dictionary_encode()
        numbers = [
            self._topics.setdefault(topic, len(self._topics)) for topic in found.dictionary.to_pylist()
        ]
        chosen: NDArray[np.int32] = np.array(numbers, np.int32)[found.indices.to_numpy()]
        return chosen

    def files(self, layout: FileLayout) -> Iterator[FileRows]:
        """By topic (in the order of its first record) and day."""
        if not self._parts:
            return
        topics, days, queues, offsets, positions, sizes = (
            np.concatenate(column) for column in zip(*self._parts, strict=True)
        )
        self._parts.clear()
        order = np.lexsort((positions, offsets, queues, days, topics))
        topics, days = topics[order], days[order]
        positions, sizes = positions[order].astype(np.int64), sizes[order].astype(np.int64)
        is_first = np.append(True, (topics[1:] != topics[:-1]) | (days[1:] != days[:-1]))
        starts = np.flatnonzero(is_first).tolist()
        names = list(self._topics)
        for begin, end in zip(starts, [*starts[1:], len(order)], strict=True):
            chunks = [
                (positions[first:last], sizes[first:last])
                for first, last in cut_chunks(
                    sizes, begin, end, layout.row_group_rows, layout.row_group_bytes
                )
            ]
            day = _EPOCH + timedelta(days=int(days[begin]))
            yield FileRows(names[topics[begin]], day.isoformat(), chunks)


def cut_chunks(
    sizes: Int64s, begin: int, end: int, rows_max: int, bytes_max: int
) -> Iterator[tuple[int, int]]:
    """Cuts [begin, end) into parts of at most this many rows and bytes, at least one row each."""
    ends = np.cumsum(sizes[begin:end])
    first = 0
    while first < end - begin:
        before = int(ends[first - 1]) if first else 0
        fitting = int(np.searchsorted(ends, before + bytes_max, "right"))
        last = min(max(fitting, first + 1), first + rows_max, end - begin)
        yield begin + first, begin + last
        first = last


@dataclass(frozen=True, slots=True)
class ChunkRows:
    """Rows of the table, in the order of the file."""

    rows: pa.RecordBatch
    positions: Int64s
    """Positions in the segment."""
    errors: dict[int, TroveError]
    """By the number of the row: the reason if the body is missing."""


def chunk_rows(
    view: memoryview, positions: Int64s, sizes: Int64s, names: list[str], bytes_max: int, **options: Any
) -> Iterator[ChunkRows]:
    """The records at these positions as rows, in the given order, in parts whose bodies inflate to at most
    bytes_max (one row at least). options: of arrow_batch."""
    for part in inflated_parts(RecordBatch(view, positions, sizes), bytes_max):
        records = part.records
        ascending = np.argsort(records.positions)
        if (np.diff(records.positions) > 0).all():
            rows = arrow_batch(records, names, inflated=part.bodies, **options)
        else:
            sorted_records = RecordBatch(view, records.positions[ascending], records.sizes[ascending])
            bodies = _reordered(part, ascending)
            places = np.empty(len(ascending), np.int64)
            places[ascending] = np.arange(len(ascending))
            rows = arrow_batch(sorted_records, names, inflated=bodies, **options).take(pa.array(places))
        yield ChunkRows(rows, records.positions, part.errors)


def _reordered(part: InflatedPart, order: Int64s) -> list[bytes | None]:
    """The part's bodies in the order of its records."""
    compressed = part.records.sys_flags & SYS_FLAG_COMPRESSED > 0
    numbers = np.cumsum(compressed) - 1
    return [part.bodies[number] for number in numbers[order][compressed[order]].tolist()]
