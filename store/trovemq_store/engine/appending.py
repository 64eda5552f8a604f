"""Appending to the log: queue offset, physical offset and store time of each record, and the write.

Invariants
- Queue offset, physical offset and store timestamp of a record are given in one step, so the three orders
  agree; a refused append uses up none of them.
- After mark_failed() nothing is appended any more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueId, QueueOffset
from trovemq_proto.records.batch import RecordBatch
from trovemq_proto.records.hosts import pack_host
from trovemq_proto.records.patch import patch_batch
from trovemq_store.engine.append_result import AppendResult, Seal, results_of_parts
from trovemq_store.engine.disk_reserve import DiskReserve
from trovemq_store.engine.opening import IndexFileNames, OpenedStore
from trovemq_store.engine.queue_ends import LogQueueEnds, add_queue_ends
from trovemq_store.engine.reading import StoreReading
from trovemq_store.engine.store_time import StoreTime
from trovemq_store.files.failures import reported
from trovemq_store.files.files import Buffer, StorageError
from trovemq_store.files.guarded import GuardedFileSystem
from trovemq_store.log.commit_log import AppendStatus
from trovemq_store.log.damage_counts import DamageCounts
from trovemq_store.log.projection import DispatchBatch
from trovemq_store.log.sectors import check_properties


class StoreAppending(StoreReading):
    """The appending half of MessageStore."""

    def __init__(self, opened: OpenedStore, names: IndexFileNames, files: GuardedFileSystem) -> None:
        damage = DamageCounts(opened.report.damages)
        super().__init__(opened.log, opened.deletions, opened.dispatcher, damage, opened.time_runs)
        self.files = files
        self._names = names
        self.settings = opened.settings
        self.consume_queues = opened.consume_queues
        self.reserve = DiskReserve(files, opened.log.segments, enabled=opened.settings.spare_segment_enable)
        """The disk reserve."""
        self.time = StoreTime(opened.last_store_timestamp, opened.time_runs, names.now_ms)
        self._marked_failed = False
        self._store_host = pack_host(opened.settings.store_host)
        self._next_offsets: dict[tuple[str, int], int] = {}
        self._unoffered_ends: LogQueueEnds | None = None
        """Of the queues, in the part of the log that no append offered to the dispatcher; None: read it."""
        self.check_append: Callable[[], None] | None = None
        """Of a node that shares its log: raises the TroveError with which every append is refused now."""

    def append(
        self,
        batch: RecordBatch,
        parts: Sequence[tuple[str, int, int]],
        now_ms: EpochMs,
        *,
        born_host: bytes | None = None,
        internal: bool = False,
        seal: Seal | None = None,
    ) -> list[AppendResult]:
        """Appends records that fill the batch's bytes as one run within one segment. Never syncs.

        parts: topic, queue id and number of the records that lie together, in order; the result has the
        place of each. The caller has checked topics and queues. A writable buffer is patched in place and
        belongs to the store from then on. internal: the broker's own records, which are accepted also while
        the disk reserve refuses new messages. seal: of an atomic transaction.

        TroveError BATCH_ILLEGAL, BATCH_SIZE_EXCEEDED, DISK_FULL, CREATE_MAPPED_FILE_FAILED,
        OS_PAGE_CACHE_BUSY, STORE_FAILED, UNKNOWN_ERROR, and those of check_append; then nothing was written
        and no queue offset used up.
        """
        self._check_writable()
        data = batch.data
        size = batch.nbytes
        assert size == len(data), "the records fill their buffer"
        assert parts, "each record has its part"
        # Nothing is written yet: docs/internals/durability.md, "Disk errors".
        try:
            physical_offset = self._place(size, internal)
            next_offsets, firsts, queue_offsets = self._next_queue_offsets(parts)
        except StorageError as error:
            raise reported(error, "the append failed", errors.UNKNOWN_ERROR) from error
        timestamp = self.time.next_ms(now_ms)
        if data.readonly:
            data = memoryview(bytearray(data))
        patched = patch_batch(
            data,
            batch,
            first_queue_offset=QueueOffset(firsts[0]),
            queue_offsets=queue_offsets,
            physical_offset=physical_offset,
            store_timestamp=timestamp,
            store_host=self._store_host,
            born_host=born_host,
            append_property_crc=self.settings.append_property_crc,
            seal=None if seal is None else seal(data, physical_offset),
        )
        if batch.special or not batch.checked:
            check_properties(patched)
        self._write(data, patched, physical_offset, timestamp, next_offsets)
        return results_of_parts(patched, parts, firsts, physical_offset, timestamp, self._store_host)

    @property
    def last_store_timestamp(self) -> EpochMs:
        return self.time.last_ms

    def _write(
        self,
        data: Buffer,
        patched: RecordBatch,
        physical_offset: PhysicalOffset,
        timestamp: EpochMs,
        next_offsets: Mapping[tuple[str, int], int],
    ) -> None:
        """Writes the whole run, or nothing."""
        assert timestamp >= self.time.last_ms, "store times step back in StoreTime.step() only"
        try:
            self._log.write(physical_offset, data)
            assert self._log.end == physical_offset + len(data), "the run is in the log, whole"
            self._next_offsets.update(next_offsets)
            self.time.last_ms = self._names.now_ms = timestamp
            self.time.runs.appended(physical_offset, timestamp)
            self._dispatcher.offer(DispatchBatch(patched, physical_offset, self._log.end))
        except TroveError:
            raise  # refused: the log is as before
        except BaseException:
            self.mark_failed()  # out of memory, perhaps: the log may now have more than `end` says
            raise

    def _check_writable(self) -> None:
        if self._marked_failed or self.files.sync_failure is not None:
            raise TroveError(errors.STORE_FAILED)
        if self.check_append is not None:
            self.check_append()
        if self._dispatcher.pending_bytes > self.settings.undispatched_bytes_max:
            raise TroveError(
                errors.OS_PAGE_CACHE_BUSY,
                f"{self._dispatcher.pending_bytes} bytes wait for the disk, "
                f"the limit is {self.settings.undispatched_bytes_max}",
            )

    def _place(self, size: int, internal: bool) -> PhysicalOffset:
        if not internal and self.reserve.refuses:
            self.reserve.check()
        if self._log.has_space(size):
            return self._log.end
        status, physical_offset = self._log.place(size, internal=internal)
        if status is AppendStatus.END_OF_FILE:
            status, physical_offset = self._log.place(size, internal=internal)
        if status is not AppendStatus.PUT_OK:
            raise TroveError(
                errors.BATCH_SIZE_EXCEEDED,
                f"{size} bytes do not fit into a segment of {self.settings.commit_log_file_size}",
            )
        return physical_offset

    def _next_queue_offsets(
        self, parts: Sequence[tuple[str, int, int]]
    ) -> tuple[dict[tuple[str, int], int], list[int], list[int] | None]:
        """The offsets after the parts by topic and queue id; the offset of each part's first record; those of
        all records, or None for one part, in which they follow one another."""
        known = self._next_offsets
        after: dict[tuple[str, int], int] = {}
        firsts: list[int] = []
        offsets: list[int] | None = [] if len(parts) > 1 else None
        for topic, queue_id, count in parts:
            queue = topic, queue_id
            first = after[queue] if queue in after else known.get(queue)
            if first is None:
                first = self._next_offset(topic, QueueId(queue_id))
            firsts.append(first)
            after[queue] = first + count
            if offsets is not None:
                offsets += range(first, first + count)
        return after, firsts, offsets

    def next_queue_offset(self, topic: str, queue_id: QueueId) -> QueueOffset:
        """One past the queue's last record in the log, visible or not."""
        known = self._next_offsets.get((topic, queue_id))
        return self._next_offset(topic, queue_id) if known is None else QueueOffset(known)

    def _next_offset(self, topic: str, queue_id: QueueId) -> QueueOffset:
        """The queue's next offset, counted from the log: its last records may not be dispatched yet."""
        unoffered, end = self._dispatcher.unoffered_end, self.consume_queues.next_offset(topic, queue_id)
        if self._dispatcher.position >= unoffered:
            return end
        if self._unoffered_ends is None:
            self._unoffered_ends = {}
            for run in self._dispatcher.unoffered():
                add_queue_ends(self._unoffered_ends, run)
        return max(end, self._unoffered_ends.get((topic, queue_id), end))

    @property
    def failed(self) -> bool:
        """Whether a sync failed, of whatever file, or mark_failed() was called."""
        return self._marked_failed or self.files.sync_failure is not None

    def mark_failed(self) -> None:
        """A sync failed: the pages it should have written may be lost, so no more acknowledgements."""
        self._marked_failed = True
