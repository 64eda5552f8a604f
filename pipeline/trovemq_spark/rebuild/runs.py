"""Reads one part of the log and makes runs of units by queue, and index entries, from its records.

Invariants
- Units of one queue keep the order of the log; so do index entries.
- A record of type none or commit has one unit; prepared and rolled-back ones have none, and rolled-back ones
  no index entry. Records of deleted topics have neither.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trovemq_proto.records import RecordBatch
from trovemq_spark.log.parts import LogPart
from trovemq_spark.log.scan import scan_segment
from trovemq_spark.log.segments import LogDirectory
from trovemq_spark.rebuild.blocks import (
    ENTRY_DTYPE,
    OFFSET_DTYPE,
    Entries,
    EntryTimes,
    Int64s,
    Piece,
    Units,
    entries_name,
    units_name,
)
from trovemq_spark.rebuild.files import write_pieces
from trovemq_spark.storage import StoragePath
from trovemq_store.check.queue_rules import unit_indexes, units_of
from trovemq_store.index.consume_queue import UNIT_SIZE
from trovemq_store.log.projection import DispatchBatch
from trovemq_store.log.reader import Damage
from trovemq_store.topics.deletions import TopicDeletions

_UNIT_BYTES: Final = np.dtype((np.void, UNIT_SIZE))

Alive = NDArray[np.bool_] | None


@dataclass(frozen=True, slots=True)
class SegmentTask:
    log: LogDirectory
    part: LogPart
    deletions: TopicDeletions | None
    blocks: StoragePath
    """Where its block is written."""
    with_queues: bool
    with_index: bool
    with_tags: bool
    """Whether the index has items of tags, as since RocketMQ 5.4."""

    @property
    def size(self) -> int:
        return self.part.bounds.end - self.part.bounds.begin


@dataclass(slots=True)
class SegmentRuns:
    """The content of a part of a segment."""

    segment_start: int
    block: int
    pieces: list[Piece] = field(default_factory=list)
    entry_count: int = 0
    entry_times: EntryTimes = field(default_factory=EntryTimes)
    record_count: int = 0
    deleted_count: int = 0
    end: int = 0
    """Physical offset after its last record."""
    last_store_timestamp: int = 0
    """Store time of its last record, epoch ms."""
    damages: list[Damage] = field(default_factory=list)


def extract_runs(task: SegmentTask) -> SegmentRuns:
    """Reads the part and writes its block. Raises TroveError OFFSET_OUT_OF_RANGE if its file is gone;
    OSError."""
    segment, bounds = task.log.open_segment(task.part.file), task.part.bounds
    found = SegmentRuns(segment.start, bounds.begin, end=segment.start)
    queues, entries = _QueueColumns(), list[bytes]()
    for part in scan_segment(segment, bounds):
        if isinstance(part, Damage):
            found.damages.append(part)
            continue
        alive = _alive(part, task.deletions)
        found.record_count += len(part.records)
        found.deleted_count += 0 if alive is None else int(np.count_nonzero(~alive))
        found.end = part.end
        found.last_store_timestamp = int(part.records.store_timestamps[-1])
        if task.with_queues:
            queues.add(part, alive)
        if task.with_index:
            entries.append(_entries(part, alive, task.with_tags).tobytes())
    if task.with_queues:
        found.pieces = queues.write(task.blocks, found.block)
    if task.with_index:
        data = b"".join(entries)
        found.entry_count = len(data) // ENTRY_DTYPE.itemsize
        found.entry_times = EntryTimes.of(np.frombuffer(data, ENTRY_DTYPE)["store_timestamp"])
        write_pieces(task.blocks, entries_name(found.block), len(data), [(0, data)], synced=False)
    return found


def _alive(run: DispatchBatch, deletions: TopicDeletions | None) -> Alive:
    return None if deletions is None else deletions.alive_mask(run.records, run.physical_offset)


def _entries(run: DispatchBatch, alive: Alive, tags: bool) -> Entries:
    """The index entries of the records of a run that are not deleted."""
    records = run.records
    found = records.index_entries(tags)
    indexes, hashes = found.record_index, found.hashes
    if alive is not None:
        chosen = alive[indexes]
        indexes, hashes = indexes[chosen], hashes[chosen]
    entries = np.empty(len(indexes), ENTRY_DTYPE)
    entries["hash"] = hashes
    entries["physical_offset"] = run.physical_offset + records.positions[indexes]
    entries["store_timestamp"] = records.store_timestamps[indexes]
    return entries


class _QueueColumns:
    """The units of a part, with the queue and queue offset of each."""

    def __init__(self) -> None:
        self._topics: dict[str, int] = {}
        self._units: list[Units] = []
        self._topic_numbers: list[NDArray[np.int32]] = []
        self._queue_ids: list[NDArray[np.int32]] = []
        self._offsets: list[Int64s] = []

    def add(self, run: DispatchBatch, alive: Alive) -> None:
        records = run.records
        batch = replace(run, alive=alive)
        columns = (units_of(batch), self._numbered_topics(records), records.queue_ids, records.queue_offsets)
        chosen = unit_indexes(batch)
        kept = columns if len(chosen) == len(records) else tuple(column[chosen] for column in columns)
        for target, column in zip(
            (self._units, self._topic_numbers, self._queue_ids, self._offsets), kept, strict=True
        ):
            target.append(column)  # type: ignore[attr-defined]  # each its own

    def _numbered_topics(self, records: RecordBatch) -> NDArray[np.int32]:
        numbers = np.empty(len(records), np.int32)
        for topic, indexes in records.topic_groups():
            numbers[indexes] = self._topics.setdefault(topic, len(self._topics))
        return numbers

    def write(self, blocks: StoragePath, block: int) -> list[Piece]:
        """Writes the block, queue by queue. Returns its pieces."""
        if not any(map(len, self._units)):
            return []
        topics, ids = np.concatenate(self._topic_numbers), np.concatenate(self._queue_ids)
        # One sort of (topic, queue id) pairs; stable, so that a queue's units keep the order of the log.
        queues = topics.astype(np.int64) << 32 | ids.view(np.uint32)
        order = np.argsort(queues, kind="stable")
        queues = queues[order]
        # As raw bytes: joined as fields they would get the machine's byte order.
        units = np.concatenate([units.view(_UNIT_BYTES) for units in self._units])[order]
        offsets = np.concatenate(self._offsets)[order]
        starts = np.flatnonzero(np.r_[True, queues[1:] != queues[:-1]])
        pieces, sparse, names = [], list[bytes](), list(self._topics)
        offsets_at = len(units) * UNIT_SIZE
        for begin, end in zip(starts.tolist(), [*starts[1:].tolist(), len(queues)], strict=True):
            own = offsets[begin:end]
            dense = bool((own[1:] - own[:-1] == 1).all())
            topic, queue_id = names[int(queues[begin] >> 32)], int(ids[order[begin]])
            at = -1 if dense else offsets_at
            pieces.append(Piece(topic, queue_id, block, begin, end - begin, int(own[0]), at))
            if not dense:
                sparse.append(own.astype(OFFSET_DTYPE).tobytes())
                offsets_at += len(sparse[-1])
        parts = [(0, units.tobytes()), (len(units) * UNIT_SIZE, b"".join(sparse))]
        write_pieces(blocks, units_name(block), offsets_at, parts, synced=False)
        return pieces
