"""Appending to the log: queue offset, physical offset and store time of each record, and the write.

Invariants
- Queue offset, physical offset and store timestamp of a record are given in one step, so the three orders
  agree; a refused append uses up none of them.
- After mark_failed() nothing is appended any more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueId, QueueOffset
from trovemq_proto.records.batch import RecordBatch
from trovemq_proto.records.columns import QueuePart
from trovemq_proto.records.fields import RecordFields
from trovemq_proto.records.hosts import pack_host
from trovemq_proto.records.patch import patch_batch
from trovemq_proto.records.plain_records import PROPERTIES_SIZE_MAX_PLAIN, PlainRecords, patch, patch_rows
from trovemq_proto.records.uniform_records import UniformRecords
from trovemq_store.engine.append_result import AppendResult, results_of_parts
from trovemq_store.engine.disk_reserve import DiskReserve
from trovemq_store.engine.joined_batches import JoinedBatches
from trovemq_store.engine.opening import IndexFileNames, OpenedStore
from trovemq_store.engine.reading import StoreReading
from trovemq_store.engine.store_time import StoreTime
from trovemq_store.engine.transaction_run import RunResult, TransactionRun
from trovemq_store.files.failures import storage_errors
from trovemq_store.files.files import Buffer
from trovemq_store.files.guarded import GuardedFileSystem
from trovemq_store.log.commit_log import AppendStatus
from trovemq_store.log.damage_counts import DamageCounts
from trovemq_store.log.projection import DispatchBatch
from trovemq_store.log.sectors import SECTOR_SIZE, check_properties

assert PROPERTIES_SIZE_MAX_PLAIN < SECTOR_SIZE, "a plain record's properties never look like a lost sector"


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
        self._next_offsets: dict[tuple[str, QueueId], QueueOffset] = {}

    def append(
        self,
        data: Buffer,
        batch: RecordBatch,
        *,
        topic: str,
        queue_id: QueueId,
        now_ms: EpochMs,
        born_host: bytes | None,
        internal: bool = False,
    ) -> AppendResult:
        """Appends a validated batch (validate_batch's result over `data`) as one run. Never syncs.

        A writable buffer is patched in place and belongs to the store from then on. The caller has checked
        topic and queue id. internal: a record of the broker's own, which is taken also while the disk reserve
        refuses new messages.

        TroveError BATCH_ILLEGAL, BATCH_SIZE_EXCEEDED, DISK_FULL, CREATE_MAPPED_FILE_FAILED,
        OS_PAGE_CACHE_BUSY, STORE_FAILED, UNKNOWN_ERROR; then nothing was written and no queue offset used up.
        """
        self._check_writable()
        # Nothing is written yet: docs/internals/durability.md, "Disk errors".
        with storage_errors("the append failed", errors.UNKNOWN_ERROR):
            physical_offset = self._place(batch.nbytes, internal)
            first = self._next_queue_offset(topic, queue_id)
        timestamp = self.time.next_ms(now_ms)
        buffer = bytearray(data) if isinstance(data, bytes) or memoryview(data).readonly else data
        patched = patch_batch(
            buffer,
            batch,
            first_queue_offset=first,
            physical_offset=physical_offset,
            store_timestamp=timestamp,
            store_host=self._store_host,
            born_host=born_host,
            append_property_crc=self.settings.append_property_crc,
        )
        self._write(
            buffer,
            patched,
            physical_offset,
            timestamp,
            {(topic, queue_id): QueueOffset(first + len(patched))},
        )
        return AppendResult(
            AppendStatus.PUT_OK,
            physical_offset,
            batch.nbytes,
            timestamp,
            first,
            len(patched),
            self._store_host,
            patched.positions,
        )

    def append_plain(
        self,
        data: memoryview,
        records: PlainRecords,
        *,
        topic: str,
        queue_id: QueueId,
        now_ms: EpochMs,
        born_host: bytes | None,
    ) -> AppendResult | None:
        """append() of plain records (PlainForm's result over `data`, which is writable), if nothing but that
        is to be done; else None, and nothing has changed.

        TroveError UNKNOWN_ERROR, DISK_FULL, STORE_FAILED, as append().
        """
        size = len(data)
        first = self._next_offsets.get((topic, queue_id))
        if first is None or not self._takes_at_once(size):
            return None
        physical_offset = self._log.end
        timestamp = self.time.next_ms(now_ms)
        patch(
            data,
            records,
            append_property_crc=self.settings.append_property_crc,
            first_queue_offset=first,
            physical_offset=physical_offset,
            store_timestamp=timestamp,
            store_host=self._store_host,
            born_host=born_host,
        )
        if isinstance(records, UniformRecords):
            count = records.record_count
            batch = RecordBatch.of_uniform(data, records.first, count, topic)
        else:
            count = len(records)
            batch = RecordBatch.of_rows(data, records, topic)
        self._write_checked(
            data, batch, physical_offset, timestamp, {(topic, queue_id): QueueOffset(first + count)}
        )
        return AppendResult(
            AppendStatus.PUT_OK,
            physical_offset,
            size,
            timestamp,
            first,
            count,
            self._store_host,
            batch.positions,
        )

    def append_plain_parts(
        self, data: memoryview, rows: list[RecordFields], parts: Sequence[QueuePart], now_ms: EpochMs
    ) -> list[AppendResult] | None:
        """append_plain() of records of several queues, as append_run() appends them: those of each part, one
        part after the other. The result of each part; None as append_plain().

        TroveError as append_plain().
        """
        if not self._takes_at_once(len(data)):
            return None
        queue_offsets: list[int] = []
        next_offsets: dict[tuple[str, QueueId], QueueOffset] = {}
        for topic, queue_id, count in parts:
            queue = (topic, QueueId(queue_id))
            first = self._next_offsets.get(queue)
            if first is None:
                return None
            queue_offsets += range(first, first + count)
            next_offsets[queue] = QueueOffset(first + count)
        assert len(next_offsets) == len(parts), "a queue has one part"
        assert len(queue_offsets) == len(rows), "each record has its part"
        physical_offset = self._log.end
        timestamp = self.time.next_ms(now_ms)
        patch_rows(
            data,
            rows,
            queue_offsets,
            append_property_crc=self.settings.append_property_crc,
            physical_offset=physical_offset,
            store_timestamp=timestamp,
            store_host=self._store_host,
            born_host=None,
        )
        batch = RecordBatch.of_rows(data, rows, None)
        batch.parts = parts
        self._write_checked(data, batch, physical_offset, timestamp, next_offsets)
        return results_of_parts(parts, rows, queue_offsets, physical_offset, timestamp, self._store_host)

    def _takes_at_once(self, size: int) -> bool:
        """Whether so many bytes can be appended, and nothing but that is to be done."""
        return not (
            self._marked_failed
            or self.files.sync_failure is not None
            or self.reserve.refuses
            or self._dispatcher.pending_bytes > self.settings.undispatched_bytes_max
            or not self._log.has_space(size)
        )

    def append_run(self, run: TransactionRun | JoinedBatches, now_ms: EpochMs) -> RunResult:
        """Appends records of several queues as one run within one segment. Never syncs.

        The caller has checked topics and queues, as for append(). The run belongs to the store from then on.
        TroveError as append(); then nothing was written and no queue offset used up.
        """
        self._check_writable()
        with storage_errors("the append failed", errors.UNKNOWN_ERROR):
            physical_offset = self._place(len(run.data), internal=False)
            firsts = {queue: self._next_queue_offset(*queue) for queue in run.counts}
        timestamp = self.time.next_ms(now_ms)
        patched = run.patch(
            physical_offset,
            firsts,
            store_timestamp=timestamp,
            store_host=self._store_host,
            append_property_crc=self.settings.append_property_crc,
        )
        next_offsets = {queue: QueueOffset(firsts[queue] + count) for queue, count in run.counts.items()}
        self._write(run.data, patched, physical_offset, timestamp, next_offsets)
        return RunResult(physical_offset, self._log.end, timestamp, self._store_host, firsts)

    @property
    def last_store_timestamp(self) -> EpochMs:
        return self.time.last_ms

    def _write(
        self,
        data: Buffer,
        patched: RecordBatch,
        physical_offset: PhysicalOffset,
        timestamp: EpochMs,
        next_offsets: Mapping[tuple[str, QueueId], QueueOffset],
    ) -> None:
        """Writes the whole run, or nothing."""
        check_properties(patched)
        self._write_checked(data, patched, physical_offset, timestamp, next_offsets)

    def _write_checked(
        self,
        data: Buffer,
        patched: RecordBatch,
        physical_offset: PhysicalOffset,
        timestamp: EpochMs,
        next_offsets: Mapping[tuple[str, QueueId], QueueOffset],
    ) -> None:
        """_write() of records whose properties cannot look like a lost sector."""
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
        if self.failed:
            raise TroveError(errors.STORE_FAILED)
        if self._dispatcher.pending_bytes > self.settings.undispatched_bytes_max:
            raise TroveError(
                errors.OS_PAGE_CACHE_BUSY,
                f"{self._dispatcher.pending_bytes} bytes wait for the disk, "
                f"the limit is {self.settings.undispatched_bytes_max}",
            )

    def _place(self, size: int, internal: bool) -> PhysicalOffset:
        if not internal:
            self.reserve.check()
        status, physical_offset = self._log.place(size, internal=internal)
        if status is AppendStatus.END_OF_FILE:
            status, physical_offset = self._log.place(size, internal=internal)
        if status is not AppendStatus.PUT_OK:
            raise TroveError(
                errors.BATCH_SIZE_EXCEEDED,
                f"{size} bytes do not fit into a segment of {self.settings.commit_log_file_size}",
            )
        return physical_offset

    def _next_queue_offset(self, topic: str, queue_id: QueueId) -> QueueOffset:
        known = self._next_offsets.get((topic, queue_id))
        return self.consume_queues.next_offset(topic, queue_id) if known is None else known

    @property
    def failed(self) -> bool:
        """Whether a sync failed, of whatever file, or mark_failed() was called."""
        return self._marked_failed or self.files.sync_failure is not None

    def mark_failed(self) -> None:
        """A sync failed: the pages it should have written may be lost, so no more acknowledgements."""
        self._marked_failed = True
