"""All consume queues of a store, as one projection of the log.

Invariants
- A record of type none or commit has one unit; prepared and rolled-back ones have none.
- apply() checks a whole batch for gaps before it writes any of it. A gap would shift every later message
  of its queue, so it is an error and never filled or closed up.
- A record whose queue offset is below its queue's end is already there (replay after a crash).
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

import numpy as np
from numpy.typing import NDArray

from broker.index.consume_queue import ROOT_DIRECTORY, UNIT_DTYPE, ConsumeQueue
from broker.index.dirty_files import DirtyFiles
from broker.index.open_files import OpenFiles
from broker.projection import DispatchBatch
from broker.storage.files import FileSystem
from broker.store_settings import StoreSettings
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records.layout import (
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    SYS_FLAG_TRANSACTION_COMMIT,
    SYS_FLAG_TRANSACTION_MASK,
)

_QUEUE_ID = Struct(">i")
_QUEUE_OFFSET = Struct(">q")
_Run = tuple[ConsumeQueue, int, NDArray[np.void]]


class ConsumeQueues:
    """The projection; `load` before anything else, then `trim_before` with the log's minimum."""

    name = "consume_queue"

    def __init__(self, files: FileSystem, settings: StoreSettings) -> None:
        self._files = files
        self._file_size = settings.consume_queue_file_size
        self._open_files = OpenFiles(files)
        self._dirty = DirtyFiles(files)
        self._queues: dict[str, dict[int, ConsumeQueue]] = {}
        self._grown: dict[tuple[str, int], None] = {}
        self._position = 0
        self._synced_position = 0

    @property
    def position(self) -> int:
        return self._position

    @property
    def synced_position(self) -> int:
        return self._synced_position

    def load(self, trusted_position: int | None, *, position: int | None = None) -> None:
        """Opens what is on disk.

        trusted_position: None after a clean stop: every unit counts. Otherwise everything below it was
        synced and nothing else is believed: units of records at or after it are cut, and position is it.
        position: where a clean stop said that the projection stood; without it the end of the last record
        that has a unit. Raises TroveError STORE_SETTINGS_MISMATCH, StorageError.
        """
        for topic, queue_id in self._listed_queues():
            self._queue(topic, queue_id).load(trusted_position)
            if trusted_position is not None:
                # A killed broker may have made files whose names are in the page cache only.
                self._dirty.mark_directory(f"{ROOT_DIRECTORY}/{topic}/{queue_id}")
        if trusted_position is not None:
            position = trusted_position
        elif position is None:
            position = max((queue.last_physical_end for queue in self._all()), default=0)
        self._position = self._synced_position = max(0, position)

    def _listed_queues(self) -> Iterator[tuple[str, int]]:
        for topic in self._files.list(ROOT_DIRECTORY):
            for name in self._files.list(f"{ROOT_DIRECTORY}/{topic}") if self._is_directory(topic) else ():
                is_number = name.isascii() and name.isdigit() and str(int(name)) == name
                if is_number and self._is_directory(f"{topic}/{name}"):
                    yield topic, int(name)

    def _is_directory(self, name: str) -> bool:
        return self._files.is_directory(f"{ROOT_DIRECTORY}/{name}")

    # --- reading ------------------------------------------------------------------------------------
    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        return self._queues.get(topic, {}).get(queue_id)

    def queues(self, topic: str) -> list[ConsumeQueue]:
        """The topic's queues that have ever had a message, by queue id."""
        return [queue for _, queue in sorted(self._queues.get(topic, {}).items())]

    def topics(self) -> list[str]:
        return sorted(self._queues)

    def next_offset(self, topic: str, queue_id: int) -> int:
        """The queue offset of the next message that is dispatched."""
        queue = self.get(topic, queue_id)
        return queue.max_offset if queue else 0

    def take_grown(self) -> list[tuple[str, int]]:
        """The (topic, queue id) pairs that got units since the last call."""
        grown = list(self._grown)
        self._grown.clear()
        return grown

    # --- the projection -----------------------------------------------------------------------------
    def apply(self, batch: DispatchBatch) -> None:
        """See Projection. A gap in a queue's offsets is TroveError STORE_FAILED; nothing is then written."""
        if batch.end <= self._position:
            return
        runs = list(self._runs_of_one(batch) if len(batch.records) == 1 else self._runs(batch))
        for queue, offset, _ in runs:
            if queue.missing_from(offset):
                raise _gap(queue, offset)
        for queue, offset, units in runs:
            queue.append(offset, units)
            self._grown[queue.topic, queue.queue_id] = None
        self._position = batch.end

    def flush(self) -> None:
        position = self._position
        self._dirty.sync()
        self._synced_position = position

    def truncate_to(self, physical_offset: int) -> None:
        for queue in self._all():
            if queue.last_physical_end > physical_offset:
                queue.truncate_to(physical_offset)
        self._position = min(self._position, physical_offset)
        self._synced_position = min(self._synced_position, physical_offset)

    def trim_before(self, physical_offset: int) -> None:
        for queue in self._all():
            queue.trim(physical_offset)

    def delete_topic(self, topic: str) -> None:
        """Removes the topic's queues and their files; a queue of that name made again starts empty."""
        for queue_id in list(self._queues.get(topic, {})):
            self.delete_queue(topic, queue_id)
        self._queues.pop(topic, None)
        if self._is_directory(topic) and not self._files.list(f"{ROOT_DIRECTORY}/{topic}"):
            self._files.remove_directory(f"{ROOT_DIRECTORY}/{topic}")

    def delete_queue(self, topic: str, queue_id: int) -> None:
        """Removes one queue and its files."""
        self._queues[topic].pop(queue_id).delete()
        self._grown.pop((topic, queue_id), None)

    def close(self) -> None:
        self._open_files.close()

    # --- a batch as runs of units -------------------------------------------------------------------
    def _runs(self, batch: DispatchBatch) -> Iterator[_Run]:
        """For each queue of the batch the units that it has not got yet, and the offset of the first."""
        records = batch.records
        if not len(records):
            return
        chosen = self._chosen(batch)
        units = _units(batch)
        queue_ids = records.queue_ids
        offsets = records.queue_offsets
        for topic, indexes in records.topic_groups():
            taken = indexes if chosen is None else indexes[chosen[indexes]]
            for queue_id, members in _by_queue(queue_ids, taken):
                yield from self._new_units(self._queue(topic, queue_id), offsets[members], units[members])

    def _runs_of_one(self, batch: DispatchBatch) -> Iterator[_Run]:
        """_runs of a batch of one record, without columns: a single send should not pay for them."""
        row = batch.records.rows[0]
        physical_offset = batch.physical_offset + row.position
        transaction = row.sys_flag & SYS_FLAG_TRANSACTION_MASK
        if physical_offset < self._position or transaction not in (0, SYS_FLAG_TRANSACTION_COMMIT):
            return
        if batch.alive is not None and not batch.alive[0]:
            return
        data = batch.records.data
        topic = batch.records.topic
        if topic is None:
            topic = str(data[row.topic_position : row.topic_position + row.topic_size], "utf-8", "replace")
        (queue_id,) = _QUEUE_ID.unpack_from(data, row.position + QUEUE_ID_AT)
        (offset,) = _QUEUE_OFFSET.unpack_from(data, row.position + QUEUE_OFFSET_AT)
        queue = self._queue(topic, queue_id)
        if offset >= queue.max_offset or not queue.has_units:
            unit = (physical_offset, row.size, int(batch.records.tags_codes()[0]))
            yield queue, offset, np.array([unit], UNIT_DTYPE)

    def _chosen(self, batch: DispatchBatch) -> NDArray[np.bool_] | None:
        """Which records get a unit; None: all."""
        records = batch.records
        transaction = records.sys_flags & SYS_FLAG_TRANSACTION_MASK
        chosen: NDArray[np.bool_] | None = batch.alive
        if transaction.any():
            committed = (transaction == 0) | (transaction == SYS_FLAG_TRANSACTION_COMMIT)
            chosen = committed if chosen is None else chosen & committed
        if batch.physical_offset + int(records.positions[0]) < self._position:
            new = batch.physical_offset + records.positions >= self._position
            chosen = new if chosen is None else chosen & new
        return chosen

    def _new_units(
        self, queue: ConsumeQueue, offsets: NDArray[np.int64], units: NDArray[np.void]
    ) -> Iterator[_Run]:
        first = int(offsets[0])
        if int(offsets[-1]) - first == len(offsets) - 1 and (
            len(offsets) < 3 or (np.diff(offsets) == 1).all()
        ):
            # A queue without units takes any first offset (a rebuild may begin below what was there).
            known = max(0, queue.max_offset - first) if queue.has_units else 0
            if known < len(offsets):
                yield queue, first + known, units[known:]
            return
        end = queue.max_offset if queue.has_units else 0
        taken: list[int] = []
        for index, offset in enumerate(offsets.tolist()):
            if offset < end:
                continue
            if offset > end and (queue.has_units or taken):
                raise _gap(queue, offset)
            taken.append(index)
            end = offset + 1
        if taken:
            yield queue, end - len(taken), units[taken]

    def _queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        queues = self._queues.setdefault(topic, {})
        queue = queues.get(queue_id)
        if queue is None:
            queue = ConsumeQueue(topic, queue_id, self._files, self._open_files, self._dirty, self._file_size)
            queues[queue_id] = queue
        return queue

    def _all(self) -> Iterator[ConsumeQueue]:
        for queues in self._queues.values():
            yield from queues.values()


def _gap(queue: ConsumeQueue, offset: int) -> TroveError:
    return TroveError(
        errors.STORE_FAILED,
        f"the log has offset {offset} of {queue.topic}-{queue.queue_id} where {queue.max_offset} is next",
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=offset,
        max_offset=queue.max_offset,
    )


def _units(batch: DispatchBatch) -> NDArray[np.void]:
    """The unit of every record of the batch."""
    records = batch.records
    units = np.empty(len(records), UNIT_DTYPE)
    units["physical_offset"] = batch.physical_offset + records.positions
    units["size"] = records.sizes
    units["tags_code"] = records.tags_codes()
    return units


def _by_queue(
    queue_ids: NDArray[np.int32], indexes: NDArray[np.int64]
) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """The indexes of each queue id, in order."""
    if not len(indexes):
        return
    ids = queue_ids[indexes]
    if (ids == ids[0]).all():
        yield int(ids[0]), indexes
        return
    order = np.argsort(ids, kind="stable")
    ids = ids[order]
    starts = np.flatnonzero(np.r_[True, ids[1:] != ids[:-1]]).tolist()
    for start, end in zip(starts, [*starts[1:], len(ids)], strict=True):
        yield int(ids[start]), indexes[order[start:end]]
