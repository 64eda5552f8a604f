"""The records of consume queue units, read from the log and checked: one batch for each segment.

A record whose size or PHYSICALOFFSET differs from its unit is left out and reported as damaged. The CRC of a
record is checked if it was in the log when this process opened it; later records were checked when they were
appended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset, QueueOffset
from trovemq_proto.records import PROPERTY_TAGS, RECORD_SIZE_MIN, RecordBatch, RecordState, check_record
from trovemq_store.engine.message_store import MessageStore

GAP_MAX: Final = 64 << 10
"""Bytes between two records of which the disk is asked together: bench/pulls.py, "500 of 8 queues"."""

Indexes = NDArray[np.int64]
Flags = NDArray[np.bool_]


class GatheredRecords:
    """The good records: one batch per segment, each with its records' queue offsets."""

    def __init__(self, store: MessageStore, checked_from: int) -> None:
        self._store = store
        self._checked_from = checked_from
        self._batches: list[tuple[RecordBatch, Indexes]] = []
        self._damaged: list[QueueOffset] = []

    def add(self, queue_offsets: Indexes, physical_offsets: Indexes, sizes: Indexes) -> None:
        """The units' records, in queue order, which is the log's order."""
        if not len(sizes):
            return
        segments = physical_offsets // self._store.settings.commit_log_file_size
        cut = segments[1:] != segments[:-1]
        for part in _parts(cut):
            self._add_of_segment(queue_offsets[part], physical_offsets[part], sizes[part])

    def _add_of_segment(self, queue_offsets: Indexes, physical_offsets: Indexes, sizes: Indexes) -> None:
        file_size = self._store.settings.commit_log_file_size
        start = PhysicalOffset(int(physical_offsets[0]) // file_size * file_size)
        data = self._store.read(start, file_size, check_readable=False)
        positions = physical_offsets - start
        limit = min(len(data), self._store.visible_offset - start)
        inside = (sizes >= RECORD_SIZE_MIN) & (positions + sizes <= limit)
        inside &= self._readable(physical_offsets, sizes, inside)
        if inside.all():
            whole = self._sound(data, positions, sizes, start)
            if whole is not None:
                self._batches.append((whole, queue_offsets))
                return
        good = _good_records(data, positions, sizes, start, inside)
        self._damaged += queue_offsets[~good].tolist()
        for at, size in zip(physical_offsets[~good].tolist(), sizes[~good].tolist(), strict=True):
            self._store.damage.met(at, size, RecordState.DAMAGED.value)
        if good.any():
            self._batches.append((RecordBatch(data, positions[good], sizes[good]), queue_offsets[good]))

    def _readable(self, physical_offsets: Indexes, sizes: Indexes, inside: Flags) -> Flags:
        """Which of the records inside can be read from disk; those near one another are checked in one
        step."""
        readable = inside.copy()
        found = np.flatnonzero(inside)
        begins = physical_offsets[found]
        ends = begins + sizes[found]
        gaps = begins[1:] - ends[:-1]
        for part in _parts((gaps < 0) | (gaps > GAP_MAX)) if len(found) else ():
            begin = PhysicalOffset(int(begins[part.start]))
            if self._store.can_read(begin, int(ends[part.stop - 1]) - begin):
                continue
            for i in found[part].tolist():
                readable[i] = self._store.can_read(PhysicalOffset(int(physical_offsets[i])), int(sizes[i]))
        return readable

    def _sound(self, data: memoryview, positions: Indexes, sizes: Indexes, start: int) -> RecordBatch | None:
        """The records, if all agree with their units in the consume queue, and no CRC is to be checked."""
        if (positions + start < self._checked_from).any():
            return None
        try:
            batch = RecordBatch(data, positions, sizes)
            batch.check_well_formed()
            right = np.array_equal(batch.physical_offsets, positions + start)
        except TroveError:
            return None
        return batch if right else None

    def keep_tags(self, tags: frozenset[str]) -> None:
        """Keeps the records with one of the tags: hashes may collide, so the record's own tag decides."""
        kept = []
        for batch, queue_offsets in self._batches:
            texts = batch.property_values(PROPERTY_TAGS)
            match = np.fromiter((text in tags for text in texts), np.bool_, len(texts))
            if match.all():
                kept.append((batch, queue_offsets))
            elif match.any():
                part = RecordBatch(batch.data, batch.positions[match], batch.sizes[match])
                kept.append((part, queue_offsets[match]))
        self._batches = kept

    def slices(self) -> list[memoryview]:
        """Runs of records, in queue order."""
        return [data for batch, _ in self._batches for data in _slices(batch)]

    @property
    def count(self) -> int:
        """The number of records."""
        return sum(len(batch) for batch, _ in self._batches)

    def queue_offsets(self) -> bytes:
        """i64 little-endian, one per record; empty if those of the records hold."""
        differs = any(not np.array_equal(batch.queue_offsets, offsets) for batch, offsets in self._batches)
        if not differs:
            return b""
        return np.concatenate([offsets for _, offsets in self._batches]).astype("<i8").tobytes()

    @property
    def damaged(self) -> tuple[QueueOffset, ...]:
        """The queue offsets of the records that are damaged, ascending."""
        return tuple(sorted(self._damaged))


def _parts(cut: Flags) -> Iterator[slice]:
    """The parts of a sequence of one element more than `cut`, which says where one ends before the next."""
    for begin, end in pairwise([0, *(np.flatnonzero(cut) + 1).tolist(), len(cut) + 1]):
        yield slice(begin, end)


def _good_records(data: memoryview, positions: Indexes, sizes: Indexes, start: int, inside: Flags) -> Flags:
    """Which records are good: each is parsed completely, with its CRC. `inside`: those that may be read at
    all."""
    good = inside.copy()
    for i in np.flatnonzero(inside).tolist():
        position, size = int(positions[i]), int(sizes[i])
        found = check_record(data, position, position + size, physical_offset=start + position)
        good[i] = found == (RecordState.RECORD, size)
    return good


def _slices(batch: RecordBatch) -> Sequence[memoryview]:
    """The batch's bytes; records that are adjacent in the log share a slice."""
    begins = batch.positions
    ends = begins + batch.sizes
    breaks = np.flatnonzero(begins[1:] != ends[:-1]) + 1
    firsts = begins[np.concatenate(([0], breaks))].tolist()
    lasts = ends[np.concatenate((breaks, [len(ends)])) - 1].tolist()
    return [batch.data[first:last] for first, last in zip(firsts, lasts, strict=True)]
