"""The commit log: records one after the other, in segments of a fixed size.

End of a segment (docs/store-format.md, "End of a segment"): a run of n bytes goes into the current segment
only if n + 8 bytes are free; otherwise 8 bytes are written there, and the run goes to the start of the next
segment:

    offset  width  field
         0  i32    bytes left in the segment, from here
         4  i32    0xCBD43194 (the blank magic)

Invariants
- `end` is where the next record goes; every byte of [min_offset, end) belongs to a record, a blank, or the
  unused rest after a blank; every byte at or after `end` in the last segment is zero after recovery.
- flushed_offset <= end; it only moves by a sync that covered it.
- An append that raises has changed no byte before `end`, and moves `end` over a blank at most. The bytes that
  it wrote after `end` are zeroed before anything else is written: no refused record comes back after a crash.
"""

from __future__ import annotations

from contextlib import suppress
from enum import Enum

from trovemq_proto import errors
from trovemq_proto.positions import LOG_ORIGIN, EpochMs, PhysicalOffset
from trovemq_proto.records import BLANK_SIZE, blank_record
from trovemq_proto.records.fields import store_timestamp
from trovemq_proto.records.layout import STORE_TIMESTAMP_END
from trovemq_store.files.failures import reported
from trovemq_store.files.fault_points import fault_point
from trovemq_store.files.files import Buffer, FileSystem, StorageError
from trovemq_store.files.kernel_sync import KernelSync
from trovemq_store.log.segments import DIRECTORY, Segment, Segments, SpareWork


class AppendStatus(Enum):
    """RocketMQ's AppendMessageStatus."""

    PUT_OK = "PUT_OK"
    END_OF_FILE = "END_OF_FILE"
    MESSAGE_SIZE_EXCEEDED = "MESSAGE_SIZE_EXCEEDED"
    PROPERTIES_SIZE_EXCEEDED = "PROPERTIES_SIZE_EXCEEDED"
    UNKNOWN_ERROR = "UNKNOWN_ERROR"


class FlushWork:
    """One group commit: the files to sync, captured when it began. Everything below `end` is then on disk."""

    def __init__(
        self,
        files: FileSystem,
        segments: list[Segment],
        new_names: bool,
        end: PhysicalOffset,
        timestamp: EpochMs,
    ):
        self._files = files
        self._segments = segments
        self.new_names = new_names
        self.end = end
        self.store_timestamp = timestamp

    def run(self) -> None:
        """Blocks until it is done; meant for another thread. StorageError: nothing may be acknowledged."""
        if self.new_names:
            fault_point("flush.before_names")
            self._files.sync_directory(DIRECTORY)
        for segment in self._segments:
            fault_point("flush.before_sync")
            segment.file.sync()
            segment.file.check_linked()
        fault_point("flush.after_sync")

    def begin_in_kernel(self, kernel: KernelSync) -> bool:
        """Begins the sync and returns; end_in_kernel() follows when `kernel` reports the end. False: run()
        is to be called, because there are several files to sync, or new names, or a file that a thread has to
        sync."""
        if self.new_names or len(self._segments) > 1:
            return False
        return self._segments[0].file.begin_sync(kernel)

    def end_in_kernel(self, kernel: KernelSync) -> bool:
        """Whether the sync has ended. StorageError: nothing may be acknowledged."""
        ended = self._segments[0].file.end_sync(kernel)
        if ended:
            self._segments[0].file.check_linked()
            fault_point("flush.after_sync")
        return ended


class CommitLog:
    """Appends runs of records and reads them back; `end` is set by recovery before the first append."""

    def __init__(self, files: FileSystem, file_size: int) -> None:
        self._files = files
        self.segments = Segments(files, file_size)
        self.end = self.flushed_offset = LOG_ORIGIN
        self._names_synced_below = LOG_ORIGIN
        self._written: Segment | None = None  # the segment of the last write
        self._dirty_end = LOG_ORIGIN  # a failed write may have left bytes in [end, here)

    @property
    def min_offset(self) -> PhysicalOffset:
        return self.segments.min_offset

    def open_at(self, end: PhysicalOffset) -> None:
        """Begins to append at `end`, which recovery found; everything before it has been synced."""
        assert self._dirty_end == LOG_ORIGIN, "nothing was written before recovery ended"
        assert self.min_offset <= end <= self.segments.capacity_end, "the log ends within its files"
        self.end = self.flushed_offset = end
        self._names_synced_below = self.segments.capacity_end

    # --- append -------------------------------------------------------------------------------------
    def place(self, size: int, *, internal: bool = False) -> tuple[AppendStatus, PhysicalOffset]:
        """Where a run of `size` bytes goes.

        Returns (PUT_OK, physical offset). Or (END_OF_FILE, offset of the blank) after it wrote a blank and
        opened the next segment: the caller calls place() again. Or (MESSAGE_SIZE_EXCEEDED, end) if no segment
        has space for the run. internal: a record of the broker's own, which may use the segment that is kept
        for a full disk.
        TroveError DISK_FULL, CREATE_MAPPED_FILE_FAILED: nothing was written.
        """
        assert size > 0, "a run has records"
        if size + BLANK_SIZE > self.segments.file_size:
            return AppendStatus.MESSAGE_SIZE_EXCEEDED, self.end
        current = self.segments.at(self.end)
        if current is None:
            self.segments.add(internal=internal)
            return AppendStatus.PUT_OK, self.end
        remaining = current.end - self.end
        if size + BLANK_SIZE <= remaining:
            return AppendStatus.PUT_OK, self.end
        if self.segments.last is current:
            self.segments.add(internal=internal)
        blank_at = self.end
        self._write(current, blank_at, blank_record(remaining))
        self.end = current.end
        assert self.segments.at(self.end) is not None, "the log continues in the next segment"
        return AppendStatus.END_OF_FILE, blank_at

    def has_space(self, size: int) -> bool:
        """Whether a run of `size` bytes goes to `end`, and needs no place() before write(). It may be False
        for one of which that is true."""
        segment = self._written
        return segment is not None and self.end + size + BLANK_SIZE <= segment.end

    def write(self, physical_offset: PhysicalOffset, data: Buffer) -> None:
        """Writes the run that place() gave this offset. TroveError UNKNOWN_ERROR, DISK_FULL: not appended."""
        assert physical_offset == self.end, "appends go to the end"
        segment = self._written
        if segment is None or physical_offset >= segment.end:
            segment = self._written = self.segments.at(physical_offset)
        assert segment is not None, "place() opened the segment"
        assert segment.start <= physical_offset, "the log only grows"
        assert physical_offset + len(data) + BLANK_SIZE <= segment.end, "space for a blank is always left"
        self._write(segment, physical_offset, data)
        self.end = PhysicalOffset(physical_offset + len(data))

    def write_raw(self, data: Buffer, unused: int) -> None:
        """Writes bytes of another node's log (raw_append.py) at the end, in a new segment if there is none.
        The log continues `unused` bytes after them. TroveError UNKNOWN_ERROR, DISK_FULL,
        CREATE_MAPPED_FILE_FAILED: not appended."""
        assert unused >= 0, "the log only grows"
        segment = self.segments.at(self.end) or self.segments.add(internal=True)
        end = PhysicalOffset(self.end + len(data) + unused)
        assert end <= segment.end, "the bytes are of one segment"
        self._write(segment, self.end, data)
        self._written = segment
        self.end = end

    @property
    def rest_is_zero(self) -> bool:
        """Whether no append has failed whose bytes after the end could not be zeroed."""
        return self._dirty_end <= self.end

    def _write(self, segment: Segment, physical_offset: PhysicalOffset, data: Buffer) -> None:
        try:
            self._zero_dirty(segment)
            fault_point("log.before_write")
            segment.file.write(physical_offset - segment.start, data)
            fault_point("log.after_write")
        except StorageError as error:
            self._dirty_end = max(self._dirty_end, PhysicalOffset(physical_offset + len(data)))
            with suppress(StorageError):
                self._zero_dirty(segment)
            raise reported(error, "the append failed", errors.UNKNOWN_ERROR) from error

    def _zero_dirty(self, segment: Segment) -> None:
        if self._dirty_end > self.end:
            assert segment.start <= self.end, "the refused write began in this segment"
            assert self._dirty_end <= segment.end, "a write goes to one segment"
            segment.file.write(self.end - segment.start, bytes(self._dirty_end - self.end))
            self._dirty_end = self.end

    # --- flush --------------------------------------------------------------------------------------
    def begin_flush(self, store_timestamp: EpochMs) -> FlushWork | None:
        """The sync that covers everything appended so far, whose last record has `store_timestamp`."""
        if self.flushed_offset == self.end:
            return None
        assert self.flushed_offset < self.end, "only appended bytes are synced"
        covered = self.segments.covering(self.flushed_offset, self.end)
        assert covered, "unsynced bytes lie in a segment"
        new_names = self._names_synced_below < self.segments.capacity_end
        return FlushWork(self._files, covered, new_names, self.end, store_timestamp)

    def finish_flush(self, work: FlushWork) -> None:
        assert work.end <= self.end, "the synced bytes had been appended"
        self.flushed_offset = max(self.flushed_offset, work.end)
        if work.new_names:
            covering = self.segments.at(PhysicalOffset(work.end - 1))
            assert covering is not None, "synced bytes lie in a segment"
            self._names_synced_below = max(self._names_synced_below, covering.end)

    def check_linked(self) -> None:
        """DeletedError: the newest segment was deleted, although the log is open."""
        if len(self.segments):
            self.segments.last.file.check_linked()

    def spare_work(self) -> SpareWork | None:
        """The work of creating the next segment's file, once half of the present one is used."""
        if self.segments.capacity_end - self.end > self.segments.file_size // 2:
            return None
        return self.segments.spare_work()

    # --- read ---------------------------------------------------------------------------------------
    def read(self, physical_offset: PhysicalOffset, size: int, *, check_readable: bool = True) -> memoryview:
        """Bytes of one segment, unchecked. Empty if [offset, offset + size) is not within one segment.

        StorageError if the disk does not return them; with check_readable=False the caller has checked that.
        """
        segment = self.segments.at(physical_offset)
        if segment is None or physical_offset + size > segment.end or size < 0:
            return memoryview(b"")
        begin = physical_offset - segment.start
        if check_readable:
            segment.file.check_readable(begin, begin + size)
        return segment.file.view()[begin : begin + size]

    def store_timestamp_at(self, physical_offset: PhysicalOffset) -> EpochMs | None:
        """STORETIMESTAMP of the record there, unchecked; None if the log has no such bytes."""
        record = self.read(physical_offset, STORE_TIMESTAMP_END)
        return store_timestamp(record, 0) if len(record) else None

    def close(self) -> None:
        self.segments.close()
