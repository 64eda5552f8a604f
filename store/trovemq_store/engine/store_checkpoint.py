"""The marks of how far everything is on disk, which a start trusts: `trovemq/state.json` and `checkpoint`.

Invariant: everything below a mark was on disk before the mark was written.
"""

from __future__ import annotations

from typing import Final

import msgspec

from trovemq_proto.positions import LOG_ORIGIN, EpochMs, PhysicalOffset, QueueId, QueueOffset
from trovemq_store.engine.opening import last_indexed_offset
from trovemq_store.files.fault_points import fault_point
from trovemq_store.files.files import FileSystem
from trovemq_store.index.consume_queue import ConsumeQueue
from trovemq_store.index.consume_queues import ConsumeQueues
from trovemq_store.index.key_index import KeyIndex
from trovemq_store.log import checkpoint, state
from trovemq_store.log.checkpoint import Checkpoint
from trovemq_store.log.state import StoreState
from trovemq_store.settings import StoreSettings

INDEX_FLUSH_EVERY: Final = 10
"""One in this many flushes syncs the key index too; its slots are scattered over many pages."""

QueueEnds = dict[str, dict[QueueId, QueueOffset]]
"""topic -> queue id -> max queue offset."""


class StoreCheckpoint:
    """The checkpoint of one open store. `flush` may block, and may run beside appends in another thread."""

    def __init__(
        self,
        files: FileSystem,
        settings: StoreSettings,
        queues: ConsumeQueues,
        key_index: KeyIndex | None,
        loaded: Checkpoint,
        saved: StoreState | None,
    ) -> None:
        self._files = files
        self._settings = settings
        self._queues = queues
        self._key_index = key_index
        self._checkpoint = loaded
        self._index_position = saved.key_index_position if saved else LOG_ORIGIN
        self._last_indexed = saved.key_index_last_offset if saved else state.NO_INDEX
        self._flushes = 0
        self._synced = False  # whether the consume queues were synced since the store was opened
        self._log_begin = LOG_ORIGIN
        self._begins: list[tuple[ConsumeQueue, QueueOffset]] = []
        """Where the log began when the consume queues were last synced; those that had units, and their min
        queue offsets."""
        self.position = LOG_ORIGIN
        """Physical offset: a restart scans the log from here, or from a later offset."""
        self.time_max: EpochMs | None = None
        """No later time is saved: records that are not on disk may be so early."""
        self.saved_time_max: EpochMs | None = None
        """time_max as of the last save."""
        self.limited = False
        """Whether the store has a commit limit."""
        self.stepped_at, self.stepped_ms = LOG_ORIGIN, EpochMs(0)
        """Where store times stepped back last, and the time that no record from there on is earlier than."""

    def flush(
        self,
        log_end: PhysicalOffset,
        whole: PhysicalOffset,
        timestamp: EpochMs,
        queue_ends: QueueEnds,
        time_runs: list[list[int]] | None,
        *,
        index: bool,
        queues: bool = True,
    ) -> None:
        """Syncs the consume queues (unless `queues` is off, and they were synced since the store was opened:
        their mark stays), now and then (always if `index`) the index, and then saves the marks.

        The log is on disk up to log_end, and the last record below was stored at `timestamp`; whole: at or
        below it, and not within an atomic run; queue_ends: the max offsets of the queues, of the records
        below `whole`, or of records that are on disk; time_runs: TimeRuns.saved(). StorageError.
        """
        last_indexed = last_indexed_offset(self._key_index)
        queues = queues or not self._synced
        if queues:
            self._queues.flush()
        fault_point("projections.after_queues")
        if self._key_index is not None:
            full_ms = self._key_index.sync_full_files()
            self._checkpoint = self._checkpoint.advanced(index=min(full_ms, timestamp))
            if index or self._flushes % INDEX_FLUSH_EVERY == 0:
                self._key_index.flush()
                self._last_indexed = last_indexed
            self._index_position = self._key_index.synced_position
        self._flushes += 1
        few = sum(map(len, queue_ends.values())) <= state.QUEUE_ENDS_MAX
        self.save(log_end, whole, timestamp, queue_ends if few else {}, time_runs, queues=queues)

    def save(
        self,
        log_end: PhysicalOffset,
        whole: PhysicalOffset,
        timestamp: EpochMs,
        queue_ends: QueueEnds,
        time_runs: list[list[int]] | None,
        *,
        queues: bool = True,
        stopped: bool = False,
        rest_is_zero: bool = False,
    ) -> None:
        """Writes both files. queues: the consume queues have just been synced; stopped: the store is closed,
        and its index files count as they are; rest_is_zero: CommitLog.rest_is_zero of such a store."""
        time_max = self.time_max
        self._checkpoint = self._checkpoint.advanced(physic=timestamp, logics=timestamp if queues else 0)
        if time_max is not None:
            self._checkpoint = self._checkpoint.limited(time_max)
        fault_point("state.before_save")
        # A projection may be ahead of the log's sync (async mode): its saved position must not be.
        marked = min(self._queues.synced_position, whole)
        committed = self._queues.position if self._settings.flush_mode == "sync" else whole
        if queues:  # the log's minimum is read before those of the queues: it rises after them
            self._synced = True
            self._log_begin = self._queues.log_begin
            self._begins = self._begins_of(queue_ends)
        state.save(
            self._files,
            msgspec.structs.replace(
                StoreState.of(self._settings, log_end=log_end),
                consume_queue_position=marked,
                key_index_position=min(self._index_position, whole),
                key_index_last_offset=self._last_indexed,
                key_index_closed=stopped and self._key_index is not None,
                queue_ends=queue_ends,
                queue_begins=self._queue_begins(),
                log_begin=self._log_begin,
                time_runs=time_runs,
                step_ms=self._step_ms(log_end, time_max),
                log_rest_zero=stopped and rest_is_zero,
                # Read after queue_ends: no queue has an end there of a record at or above it.
                commit_offset=committed if self.limited else msgspec.UNSET,
            ),
        )
        fault_point("state.after_save")
        checkpoint.save(self._files, self._checkpoint)
        self.saved_time_max = time_max
        fault_point("checkpoint.after_save")
        assert marked >= self.position, "marks only move forward"
        assert self._log_begin <= log_end, "the log begins before its end"
        self.position = marked

    def _step_ms(self, log_end: PhysicalOffset, time_max: EpochMs | None) -> int:
        """StoreState.step_ms: of a step that may follow, and of the last one while it is not on disk."""
        steps = [] if time_max is None else [time_max]
        if log_end < self.stepped_at:
            steps.append(self.stepped_ms)
        return min(steps, default=0)

    def _begins_of(self, queue_ends: QueueEnds) -> list[tuple[ConsumeQueue, QueueOffset]]:
        """The queues that have units, with their min queue offsets."""
        found = [
            self._queues.get(topic, queue_id)
            for topic, ends in queue_ends.items()
            for queue_id, end in ends.items()
            if end > 0
        ]
        return [(queue, queue.min_offset_unfollowed()) for queue in found if queue is not None]

    def _queue_begins(self) -> QueueEnds:
        """The min queue offsets of the queues that were on disk, and whose topics were not deleted since."""
        begins: QueueEnds = {}
        for queue, begin in self._begins:
            if self._queues.get(queue.topic, queue.queue_id) is queue:
                begins.setdefault(queue.topic, {})[queue.queue_id] = begin
        return begins
