"""The result of an append."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from trovemq_proto.positions import LOG_ORIGIN, EpochMs, PhysicalOffset, QueueOffset
from trovemq_proto.records.batch import RecordBatch
from trovemq_proto.records.ids import encode_offset_msg_id
from trovemq_store.index.trees.producers import Gap
from trovemq_store.index.trees.unique_ids import MessagePosition
from trovemq_store.log.commit_log import AppendStatus

_NO_PLACES: Final[Mapping[int, MessagePosition]] = {}
_NO_GAPS: Final[Mapping[int, Gap]] = {}

Seal = Callable[[memoryview, PhysicalOffset], int]
"""Writes into the records of an atomic transaction where it begins in the log. Returns their
PREPAREDTRANSACTIONOFFSET (run_mark.py)."""
PUT_OK: Final = AppendStatus.PUT_OK
FIRST: Final = np.zeros(1, np.int64)
"""The positions of one record."""
FIRST.flags.writeable = False
_Row = TypeVar("_Row")
assert LOG_ORIGIN == 0, "see results_of_parts"


class AppendResult(NamedTuple):
    """The place of a batch in the log: its records lie one after the other from physical_offset on, and
    record i has the queue offset first_queue_offset + i.

    `duplicates`: index in the batch -> place of the original, rising. These messages were not stored, and all
    other fields describe the remaining records only, numbered without them. If all messages are duplicates,
    physical_offset, first_queue_offset and store_timestamp are those of the first message's original.
    `synced_at`: the log must be synced up to here for the originals to be on disk. `gaps` (by index in the
    batch, rising): the sequence numbers that the producer left out just before that message.
    """

    status: AppendStatus
    physical_offset: PhysicalOffset
    bytes_written: int
    store_timestamp: EpochMs
    first_queue_offset: QueueOffset
    record_count: int
    store_host: bytes
    positions: NDArray[np.int64]
    duplicates: Mapping[int, MessagePosition] = _NO_PLACES
    synced_at: PhysicalOffset = LOG_ORIGIN
    gaps: Mapping[int, Gap] = _NO_GAPS

    @property
    def end(self) -> PhysicalOffset:
        """The log must be synced up to here for the batch to be durable."""
        return PhysicalOffset(
            max(self.physical_offset + self.bytes_written, self.synced_at)
            if self.record_count
            else self.synced_at
        )

    @property
    def message_count(self) -> int:
        """The number of messages in the batch, duplicates included."""
        return self.record_count + len(self.duplicates)

    def queue_offset(self, index: int) -> QueueOffset:
        """The queue offset of message `index` of the batch."""
        known = self.duplicates.get(index)
        if known is not None:
            return known.queue_offset
        return QueueOffset(self.first_queue_offset + index - bisect_left(tuple(self.duplicates), index))

    def part(self, first: int, count: int) -> AppendResult:
        """The results of messages first .. first + count - 1 of the batch."""
        end = first + count
        before, known = _shares(self.duplicates, (0, first, end))
        (gaps,) = _shares(self.gaps, (first, end))
        return self._part(first, count, len(before), known, gaps)

    def parts(self, counts: Iterable[int]) -> Iterator[AppendResult]:
        """Splits the result of a batch into the results of the sends that are in it; `counts`: how many
        messages each send has."""
        ends = list(accumulate(counts, initial=0))
        assert ends[-1] == self.message_count, "the sends are the whole batch"
        assert len(self.positions) == self.record_count, "each stored record has its position"
        shares = zip(pairwise(ends), _shares(self.duplicates, ends), _shares(self.gaps, ends), strict=True)
        before = 0
        for (first, end), known, gaps in shares:
            yield self._part(first, end - first, before, known, gaps)
            before += len(known)

    def _part(
        self,
        first: int,
        count: int,
        before: int,
        known: Mapping[int, MessagePosition],
        gaps: Mapping[int, Gap],
    ) -> AppendResult:
        """The result of `count` messages. `before`: the number of duplicates before them; `known`: the
        duplicates among them, counted from the first one."""
        kept = count - len(known)
        if not kept:
            return only_duplicates(known, self.synced_at, self.store_host)
        begin = first - before
        start = int(self.positions[begin])
        kept_end = begin + kept
        end = int(self.positions[kept_end]) if kept_end < self.record_count else self.bytes_written
        return self._replace(
            physical_offset=PhysicalOffset(self.physical_offset + start),
            bytes_written=end - start,
            first_queue_offset=QueueOffset(self.first_queue_offset + begin),
            record_count=kept,
            positions=self.positions[begin:kept_end] - start,
            duplicates=known,
            synced_at=self.synced_at if known else LOG_ORIGIN,
            gaps=gaps,
        )

    def offset_msg_ids(self) -> list[str]:
        """One offsetMsgId per record."""
        return [
            encode_offset_msg_id(self.store_host, PhysicalOffset(self.physical_offset + int(position)))
            for position in self.positions
        ]


new_result: Final = partial(tuple.__new__, AppendResult)
"""Makes an AppendResult of a tuple of its fields, without a Python call per result."""
NO_ORIGINALS: Final = tuple(AppendResult._field_defaults.values())
"""The last fields of a result without duplicates and gaps."""


def _shares(rows: Mapping[int, _Row], ends: Sequence[int]) -> Iterator[dict[int, _Row]]:
    """For each range ends[i] .. ends[i + 1] - 1 the rows in it, with indexes counted from its beginning."""
    indexes = tuple(rows)
    for first, end in pairwise(ends):
        own = indexes[bisect_left(indexes, first) : bisect_left(indexes, end)]
        yield {index - first: rows[index] for index in own}


def results_of_parts(
    batch: RecordBatch,
    parts: Sequence[tuple[str, int, int]],
    first_queue_offsets: Sequence[int],
    physical_offset: PhysicalOffset,
    store_timestamp: EpochMs,
    store_host: bytes,
) -> list[AppendResult]:
    """The result of each part of a run that begins at physical_offset; first_queue_offsets: of each."""
    positions, end = batch.positions, batch.nbytes
    status, time, host = PUT_OK, store_timestamp, store_host
    if len(parts) == 1:
        count, first = len(positions), first_queue_offsets[0]
        whole = (status, physical_offset, end, time, first, count, host, positions, _NO_PLACES, 0, _NO_GAPS)
        return [new_result(whole)]
    assert len(parts) == len(first_queue_offsets), "each part has its place"
    starts = [*positions.tolist(), end]
    results, index = [], 0
    for (_, _, count), first in zip(parts, first_queue_offsets, strict=True):
        begin, last = starts[index], index + count
        at, size = physical_offset + begin, starts[last] - begin
        own = FIRST if count == 1 else positions[index:last] - begin
        place = (status, at, size, time, first, count, host, own, _NO_PLACES, 0, _NO_GAPS)
        results.append(new_result(place))
        index = last
    assert index == len(positions), "each record has its part"
    return results


def only_duplicates(
    duplicates: Mapping[int, MessagePosition], synced_at: PhysicalOffset, store_host: bytes
) -> AppendResult:
    """The result where nothing was appended, because all messages of the batch had been stored before."""
    first = duplicates[0]
    return AppendResult(
        AppendStatus.PUT_OK,
        first.physical_offset,
        0,
        first.store_timestamp,
        first.queue_offset,
        0,
        store_host,
        np.empty(0, np.int64),
        duplicates,
        synced_at,
    )
