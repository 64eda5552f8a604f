"""A node's MessageStore as the log of the state machines, of a leader and of a follower.

Invariants
- A frame is whole records of one segment, copied once. It ends within an atomic transaction only where that
  is larger than a frame.
- An epoch is in `replica.json` before its first record is in the log; if the record was refused, the epoch is
  removed again, because its start must not lie beyond the log's end.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

import numpy as np

from trovemq_broker.replication.follower import ReplicaState
from trovemq_broker.replication.frames import Offset
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import LOG_ORIGIN, QueueId
from trovemq_proto.records.batch import RecordBatch
from trovemq_proto.records.check import RecordState, check_record
from trovemq_proto.records.layout import BLANK_SIZE, MAGIC_V1, MAGIC_V2, RECORD_SIZE_MIN
from trovemq_proto.records.run_mark import read_mark
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.files import FileSystem
from trovemq_store.log import state as state_file
from trovemq_store.log.readable import run_end
from trovemq_store.log.segments import Segment
from trovemq_store.replica.epochs import Epoch as StartedEpoch
from trovemq_store.replica.replica_file import ReplicaFile

Grown = list[tuple[str, QueueId]]
_HEAD: Final = Struct(">iI").unpack_from
_MAGICS: Final = (MAGIC_V1, MAGIC_V2)


class EngineLog:
    """`store` and `file` (`replica.json`) are replaced when the store is opened again. `state` gets the
    file's epochs."""

    def __init__(self, store: MessageStore, file: ReplicaFile, state: ReplicaState) -> None:
        self.store = store
        self.file = file
        self._state = state

    @property
    def begin(self) -> Offset:
        return self.store.log.min_offset

    @property
    def end(self) -> Offset:
        return self.store.end_offset

    @property
    def flushed(self) -> Offset:
        return self.store.flushed_offset

    # --- the leader's ---------------------------------------------------------------------------------
    def read(self, offset: Offset, size_max: int) -> tuple[bytes, int]:
        """records_at() where a record begins; else the place is noted as damaged."""
        try:
            return self.records_at(offset, size_max)
        except TroveError:
            if self.begin <= offset < self.end:
                self.store.damage.met(offset, 0, RecordState.DAMAGED.value)
            raise

    def records_at(self, offset: Offset, size_max: int) -> tuple[bytes, int]:
        """Whole records of one segment from the offset on, and the number of zeros after the blank that ends
        them, where it does. TroveError STORE_FAILED: no record can be read there."""
        log = self.store.log
        segment = log.segments.at(offset)
        if segment is None or offset >= log.end:
            raise _unreadable(offset)
        begin, limit = offset - segment.start, min(segment.file.size, log.end - segment.start)
        readable = run_end(segment.file, begin, limit, size_max)
        view = segment.file.view()
        last, end = _walk(view, begin, readable, size_max)
        if last < end < limit:  # else an append ends there, or there is no record
            end = _whole_end(segment, last, begin, end)
        unused = 0
        fits = end + BLANK_SIZE <= begin + size_max or begin == end
        if fits and limit == segment.file.size and _is_blank(segment, end):
            unused = limit - end - BLANK_SIZE
            end += BLANK_SIZE
        if end == begin:
            raise _unreadable(offset)
        return bytes(view[begin:end]), unused

    def committed(self, commit: Offset) -> Grown:
        """Lets readers see the log up to the commit. Returns the queues that have grown."""
        self.store.limit_commits(commit)
        return self.store.dispatch()

    # --- a follower's ---------------------------------------------------------------------------------
    def append_raw(self, offset: Offset, data: bytes | memoryview, blank: int) -> None:
        """TroveError: nothing was written."""
        try:
            self.store.append_raw(offset, memoryview(data), blank)
        except TroveError:
            if self.file.epochs.entries and self.file.epochs.entries[-1].start >= self.end:
                self.file.end_at(self.end)
                self._state.epochs = self.file.epochs
            raise

    def begin_epoch(self, epoch: StartedEpoch) -> None:
        """Blocks."""
        self.file.begin_epoch(epoch.epoch, epoch.start)
        self._state.epochs = self.file.epochs


def saved_commit(files: FileSystem) -> Offset:
    """Up to where the log was committed when that was last saved: the limit with which a node opens its
    store. TroveError STORE_NEWER, STORE_FAILED; StorageError."""
    saved = state_file.load(files)
    return LOG_ORIGIN if saved is None else state_file.committed_end(saved)


def known_commit(store: MessageStore, saved: Offset) -> Offset:
    """The node's commit after its start: in the log, which may end before, or begin after, the saved one."""
    return max(store.log.min_offset, min(saved, store.end_offset))


def _is_blank(segment: Segment, position: int) -> bool:
    size = segment.file.size
    if run_end(segment.file, position, size, BLANK_SIZE) < min(position + BLANK_SIZE, size):
        return False
    at = segment.start + position
    found, _ = check_record(segment.file.view(), position, size, physical_offset=at, check_crc=False)
    return found is RecordState.BLANK


def _walk(view: memoryview, begin: int, limit: int, size_max: int) -> tuple[int, int]:
    """Where the last record begins, and the end, of those that lie from `begin` on in at most size_max bytes;
    the first one may be larger. A follower checks the records; here their sizes and magics are enough."""
    last = end = begin
    stop = begin + size_max
    while end + RECORD_SIZE_MIN <= limit:
        size, magic = _HEAD(view, end)
        after = end + size
        if magic not in _MAGICS or size < RECORD_SIZE_MIN or after > limit or (after > stop and end > begin):
            break
        last, end = end, after
    return last, end


def _whole_end(segment: Segment, last: int, begin: int, end: int) -> int:
    """`end`, or the beginning of the transaction of which some records lie after the record at `last`, if
    that is after `begin`."""
    records = RecordBatch(segment.file.view(), np.array([last]), np.array([end - last]))
    mark = read_mark(records, 0, segment.offset_at(last))
    if mark is None or mark.number + 1 >= mark.record_count or mark.begin <= segment.start + begin:
        return end
    return mark.begin - segment.start


def _unreadable(offset: Offset) -> TroveError:
    return TroveError(errors.STORE_FAILED, f"no record of the log can be read at offset {offset}")
