"""Appending bytes of another node's log to a store, and cutting its end: a follower's half of MessageStore.

Invariants
- Nothing below the known commit offset is cut.
- Bytes are appended as they are: a follower gives no queue offset, no physical offset and no store time.
- Appended bytes are dispatched as those of the log (Dispatcher.unoffered_end), up to the commit limit and no
  further, and the records of an atomic transaction together.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, PhysicalOffset
from trovemq_proto.records.batch import RecordBatch
from trovemq_store.engine.appending import StoreAppending
from trovemq_store.engine.opening import IndexFileNames, OpenedStore
from trovemq_store.files.guarded import GuardedFileSystem
from trovemq_store.index.dispatcher import UNLIMITED
from trovemq_store.log.projection import DispatchBatch
from trovemq_store.log.raw_append import append_raw
from trovemq_store.log.record_repair import RepairWork, repair_of
from trovemq_store.replica.epochs import Epochs
from trovemq_store.replica.new_log import begin_new_log
from trovemq_store.replica.replica_file import ReplicaFile
from trovemq_store.replica.truncation import keep_tail
from trovemq_store.replica.whole_end import whole_end


class StoreReplica(StoreAppending):
    """StoreAppending that takes another node's bytes, too."""

    def __init__(self, opened: OpenedStore, names: IndexFileNames, files: GuardedFileSystem) -> None:
        super().__init__(opened, names, files)
        self.commit_limit = UNLIMITED
        """No record that ends above it is applied to a projection, whatever is on disk."""
        self._dispatch_holds = 0

    def append_raw(self, physical_offset: PhysicalOffset, data: memoryview, unused: int = 0) -> None:
        """Appends whole records of another node's log, which lie there at physical_offset, and the blank
        after them, whose segment has `unused` more bytes (trovemq_store.log.raw_append). Never syncs.

        TroveError REPLICA_OFFSET_MISMATCH, REPLICA_BYTES_ILLEGAL, DISK_FULL, CREATE_MAPPED_FILE_FAILED,
        STORE_FAILED, UNKNOWN_ERROR; then nothing was appended.
        """
        if self.failed:
            raise TroveError(errors.STORE_FAILED)
        try:
            records = append_raw(self._log, physical_offset, data, unused)
            self._unoffered_ends = None
            self._next_offsets.clear()  # others gave the offsets after these
            end = self._log.end
            self._dispatcher.leave_unoffered(end, DispatchBatch(records, physical_offset, end))
            if len(records):
                self._note_times(records, physical_offset)
        except TroveError:
            raise  # refused: the log is as before
        except BaseException:
            self.mark_failed()  # out of memory, perhaps: the log may now have more than `end` says
            raise

    @contextmanager
    def dispatch_held(self) -> Iterator[None]:
        """Meanwhile no record becomes visible: those of deletions would remove files of queues."""
        self._dispatch_holds += 1
        try:
            yield
        finally:
            self._dispatch_holds -= 1

    @property
    def repairable_end(self) -> PhysicalOffset:
        """Up to here the log is committed and on disk, and may be repaired from another copy."""
        return min(self._committed(), self._log.flushed_offset)

    def begin_repair(self, begin: PhysicalOffset, data: bytes, damaged_end: PhysicalOffset) -> RepairWork:
        """The work of replacing damaged records by another node's bytes (trovemq_store.log.record_repair).
        TroveError STORE_FAILED, REPLICA_OFFSET_MISMATCH, REPLICA_BYTES_ILLEGAL."""
        if self.failed:
            raise TroveError(errors.STORE_FAILED)
        return repair_of(self.files, self._log, begin, data, damaged_end, self.repairable_end)

    def begin_truncation(self, replica: ReplicaFile, end: PhysicalOffset) -> None:
        """The log is to end at `end`, because the leader's has other bytes from there on. After this nothing
        is appended: close() the store, and the next open() ends the cut (trovemq_store.replica.truncation).
        No flush may run in another thread.

        TroveError STORE_DIVERGED: a record above `end` is committed; nothing has changed. STORE_FAILED.
        StorageError: nothing is cut, or, where the store has failed then, the next start may cut it.
        """
        if self.failed:
            raise TroveError(errors.STORE_FAILED)
        dropped = keep_tail(self.files, self._log, replica.epochs, end, self._committed())
        self.mark_failed()  # first: if the next call fails, its change may be on disk all the same
        replica.begin_truncation(end, dropped)

    def begin_new_log(self, begin: PhysicalOffset, epochs: Epochs) -> None:
        """The log is to begin again, empty, at that offset. After this nothing is appended: close() the
        store, and the next open() does it (trovemq_store.replica.new_log). No flush may run in another
        thread.

        StorageError: the next start may do it all the same.
        """
        self.mark_failed()
        begin_new_log(self.files, begin, epochs)

    def cut_unfinished_run(self, replica: ReplicaFile) -> bool:
        """Before the first record of a node's own leadership: cuts an atomic run that lacks its last records
        at the log's end. True if there is one: then the store has to be closed and opened again. TroveError
        STORE_DIVERGED, STORE_FAILED; StorageError."""
        end = whole_end(self._log, self._committed())
        if end == self._log.end:
            return False
        self.begin_truncation(replica, end)
        return True

    def _committed(self) -> PhysicalOffset:
        if self.commit_limit == UNLIMITED:
            return self.visible_offset
        return max(self.visible_offset, min(self.commit_limit, self._log.end))

    def _note_times(self, records: RecordBatch, physical_offset: PhysicalOffset) -> None:
        """Store times rise between the first record, the places where they step back, and the last one."""
        times = records.store_timestamps
        steps = np.flatnonzero(times[1:] < times[:-1])
        noted = sorted({0, *steps.tolist(), *(steps + 1).tolist(), len(records) - 1})
        for index in noted:
            begin = PhysicalOffset(physical_offset + int(records.positions[index]))
            self.time.runs.appended(begin, EpochMs(int(times[index])))
        self.time.last_ms = self._names.now_ms = EpochMs(int(times[-1]))
