"""A store that is in use, for the checks, as it was when the check began.

The records below the visible end at that time are checked, with their units and items. Every method is
called on the engine's thread, between its own steps.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from trovemq_proto.positions import LOG_ORIGIN, PhysicalOffset, QueueId, QueueOffset
from trovemq_proto.records import RecordBatch
from trovemq_store.check import layouts
from trovemq_store.check.checked_store import OpenIndex
from trovemq_store.check.findings import Findings
from trovemq_store.check.layouts import Records
from trovemq_store.check.log_walk import LogWalk
from trovemq_store.check.store_check import Progress, Steps, StoreCheck
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.index.consume_queue import ROOT_DIRECTORY, UNIT_DTYPE, UNIT_SIZE, ConsumeQueue
from trovemq_store.log.reader import Damage


class LiveQueue:
    """QueueUnits of an open consume queue."""

    def __init__(self, queue: ConsumeQueue, file_size: int) -> None:
        self._queue = queue
        self._file_size = file_size
        self.topic = queue.topic
        self.queue_id = queue.queue_id

    @property
    def first(self) -> int:
        offsets = self._queue.file_offsets
        return offsets[0] if offsets else self._queue.max_offset

    @property
    def end(self) -> int:
        return self._queue.max_offset

    def units(self, begin: int, end: int) -> Records:
        begin, end = max(begin, self.first), min(end, self.end)
        return self._queue.units(QueueOffset(begin), end - begin) if begin < end else np.empty(0, UNIT_DTYPE)

    def at(self, indexes: NDArray[np.int64]) -> Records:
        found = np.zeros(len(indexes), UNIT_DTYPE)
        inside = (indexes >= self.first) & (indexes < self.end)
        if not inside.any():
            return found
        low, high = QueueOffset(int(indexes[inside].min())), int(indexes[inside].max()) + 1
        if high - low <= 2 * len(indexes) + 64:
            found[inside] = self._queue.units(low, high - low)[indexes[inside] - low]
            return found
        for i in np.flatnonzero(inside).tolist():
            found[i] = self._queue.units(QueueOffset(int(indexes[i])), 1)[0]
        return found

    def place(self, unit: int) -> tuple[str, int]:
        position = unit * UNIT_SIZE
        within = position % self._file_size
        return f"{ROOT_DIRECTORY}/{self.topic}/{self.queue_id}/{position - within:020d}", within


class LiveStore:
    """CheckedStore of an open store."""

    live = True
    clean = True

    def __init__(self, store: MessageStore) -> None:
        self._store = store

    @property
    def min_offset(self) -> PhysicalOffset:
        return self._store.min_offset

    def deleted_below(self, topic: str) -> PhysicalOffset:
        return self._store.deletions.deleted_below(topic)

    def alive_mask(self, records: RecordBatch, physical_offset: PhysicalOffset) -> NDArray[np.bool_] | None:
        return self._store.deletions.alive_mask(records, physical_offset)

    def log_place(self, physical_offset: PhysicalOffset) -> tuple[str, int]:
        return log_place(self._store.settings.commit_log_file_size, physical_offset)

    def queue(self, topic: str, queue_id: QueueId) -> LiveQueue | None:
        queue = self._store.consume_queues.get(topic, queue_id)
        return None if queue is None else LiveQueue(queue, self._store.settings.consume_queue_file_size)

    def queue_keys(self) -> Iterator[tuple[str, QueueId]]:
        queues = self._store.consume_queues
        return ((topic, queue.queue_id) for topic in queues.topics() for queue in queues.queues(topic))


def log_place(file_size: int, physical_offset: PhysicalOffset) -> tuple[str, int]:
    """(path, byte offset in the file) of a place in the log."""
    within = physical_offset % file_size
    return f"commitlog/{physical_offset - within:020d}", within


class IndexMappings:
    """Separate mappings of a live store's index files, because the index may close its own meanwhile."""

    def __init__(self, store: MessageStore) -> None:
        index = store.key_index
        self._store = store
        self._names: list[str] = [] if index is None else list(index.file_names)
        self._views: list[memoryview] = []

    def open(self) -> None:
        """May block, and may run in another thread. StorageError, also if a file is gone by now."""
        views = []
        for name in self._names:
            file = self._store.files.open(f"{layouts.INDEX_DIRECTORY}/{name}")
            try:
                views.append(file.view())
            finally:
                file.close()  # the view outlives it; the descriptor would never be returned
        self._views = views

    def now(self, end: PhysicalOffset) -> OpenIndex | None:
        """The index at this moment, for records below `end`; None if it has other files by now.

        ValueError if a file is too small.
        """
        index, settings = self._store.key_index, self._store.settings
        if index is None:
            return OpenIndex([], LOG_ORIGIN, kept=False)
        if list(index.file_names) != self._names:
            return None
        files = [
            layouts.view_index(
                f"{layouts.INDEX_DIRECTORY}/{name}",
                view,
                settings.index_slot_count,
                settings.index_item_count,
            )
            for name, view in zip(self._names, self._views, strict=True)
        ]
        files = layouts.with_known_counts(files, index.last_item_count)
        return OpenIndex(files, min(index.position, end))


class LiveScrub:
    """One check of an open store. `steps` is its iterator (see store_check.Steps).

    run_bytes_max: how much of the log one step reads. index: IndexMappings.now() with the visible end, in
    this same step of the engine's thread.
    """

    def __init__(self, store: MessageStore, index: OpenIndex, findings: Findings, run_bytes_max: int) -> None:
        self._store = store
        self.begin = store.min_offset
        self.end = store.visible_offset
        self.findings = findings
        self._check = StoreCheck(LiveStore(store), index, findings, begun_at=self.end)
        walk = LogWalk(store.log, self.end, run_bytes_max)
        walk.on_damage = self._note_damage
        self.steps = self._steps(walk)

    def _steps(self, walk: LogWalk) -> Steps:
        yield from self._check.steps(walk.steps())
        yield from self._check.finish(self.end)

    def _note_damage(self, damage: Damage) -> None:
        at, state = damage.physical_offset, damage.state.value
        self._store.damage.met(at, damage.end - at, state)

    @property
    def progress(self) -> Progress:
        return self._check.progress

    @property
    def unit_count(self) -> int:
        return self._check.unit_count

    @property
    def item_count(self) -> int:
        return self._check.item_count
