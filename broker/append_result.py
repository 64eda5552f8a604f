"""What became of an append."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from broker.log.commit_log import AppendStatus
from broker.trees.unique_ids import Place
from trovemq_proto.records.ids import encode_offset_msg_id

_NO_PLACES: Final[Mapping[int, Place]] = {}


@dataclass(frozen=True, slots=True)
class AppendResult:
    """Where a batch now stands: contiguous from physical_offset; record i has first_queue_offset + i.

    Of a batch with `duplicates` (index in the batch -> where the message was stored before; rising) these
    were left out: everything else tells of the others, which are numbered without them. Where all of it were
    duplicates, physical_offset, first_queue_offset and store_timestamp are those of the first one's original.
    `synced_at`: how far the log must be synced for the originals to be on disk.
    """

    status: AppendStatus
    physical_offset: int
    bytes_written: int
    store_timestamp: int
    first_queue_offset: int
    record_count: int
    store_host: bytes
    positions: NDArray[np.int64]
    duplicates: Mapping[int, Place] = field(default_factory=lambda: _NO_PLACES)
    synced_at: int = 0

    @property
    def end(self) -> int:
        """The log must be synced up to here for the batch to be durable."""
        return (
            max(self.physical_offset + self.bytes_written, self.synced_at)
            if self.record_count
            else self.synced_at
        )

    @property
    def message_count(self) -> int:
        """Of the batch, duplicates among them."""
        return self.record_count + len(self.duplicates)

    def queue_offset(self, index: int) -> int:
        """Of message `index` of the batch."""
        known = self.duplicates.get(index)
        if known is not None:
            return known.queue_offset
        return self.first_queue_offset + index - bisect_left(tuple(self.duplicates), index)

    def part(self, first: int, count: int) -> AppendResult:
        """What became of messages first .. first + count - 1 of the batch."""
        known = tuple(self.duplicates)
        before = bisect_left(known, first)
        return self._part(first, count, before, known[before : bisect_left(known, first + count)])

    def parts(self, counts: Iterable[int]) -> Iterator[AppendResult]:
        """What became of each send of so many messages, of which the batch was put together."""
        known = tuple(self.duplicates)
        first = before = 0
        for count in counts:
            behind = bisect_left(known, first + count, before)
            yield self._part(first, count, before, known[before:behind])
            first, before = first + count, behind

    def _part(self, first: int, count: int, before: int, known: Sequence[int]) -> AppendResult:
        """`before`: how many duplicates lie before it; `known`: those in it."""
        mine = {index - first: self.duplicates[index] for index in known}
        kept = count - len(mine)
        if not kept:
            return only_duplicates(mine, self.synced_at, self.store_host)
        begin = first - before
        start = int(self.positions[begin])
        behind = begin + kept
        end = int(self.positions[behind]) if behind < self.record_count else self.bytes_written
        return replace(
            self,
            physical_offset=self.physical_offset + start,
            bytes_written=end - start,
            first_queue_offset=self.first_queue_offset + begin,
            record_count=kept,
            positions=self.positions[begin:behind] - start,
            duplicates=mine,
            synced_at=self.synced_at if mine else 0,
        )

    def offset_msg_ids(self) -> list[str]:
        """One offsetMsgId a record."""
        return [
            encode_offset_msg_id(self.store_host, self.physical_offset + int(position))
            for position in self.positions
        ]


def only_duplicates(duplicates: Mapping[int, Place], synced_at: int, store_host: bytes) -> AppendResult:
    """Nothing was appended: message 0, 1, … of the batch had been stored before."""
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
