"""Appending bytes of another node's log to a store: a follower's half of MessageStore.

Invariants
- Bytes are appended as they are: a follower gives no queue offset, no physical offset and no store time.
- Appended bytes are dispatched from the log (Dispatcher.unoffered_end), up to the commit limit and no
  further, and the records of an atomic transaction together.
"""

from __future__ import annotations

import numpy as np

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, PhysicalOffset
from trovemq_proto.records.batch import RecordBatch
from trovemq_store.engine.appending import StoreAppending
from trovemq_store.log.raw_append import append_raw


class StoreReplica(StoreAppending):
    """StoreAppending that takes another node's bytes, too."""

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
            self._dispatcher.leave_unoffered(self._log.end)
            if len(records):
                self._note_times(records, physical_offset)
        except TroveError:
            raise  # refused: the log is as before
        except BaseException:
            self.mark_failed()  # out of memory, perhaps: the log may now have more than `end` says
            raise

    def _note_times(self, records: RecordBatch, physical_offset: PhysicalOffset) -> None:
        """Store times rise between the first record, the places where they step back, and the last one."""
        times = records.store_timestamps
        steps = np.flatnonzero(times[1:] < times[:-1])
        noted = sorted({0, *steps.tolist(), *(steps + 1).tolist(), len(records) - 1})
        for index in noted:
            begin = PhysicalOffset(physical_offset + int(records.positions[index]))
            self.time.runs.appended(begin, EpochMs(int(times[index])))
        self.time.last_ms = self._names.now_ms = EpochMs(int(times[-1]))
