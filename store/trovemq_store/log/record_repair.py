"""Repair of damaged records in place, from another copy of the log.

Only whole records of that place are accepted: each states its own offset and size, and has its CRC. The
blank that ends a segment may follow them.

Invariants
- Nothing at or after the limit is written: the log's tail is recovery's alone.
- Only bytes that another copy has at that place are written. A crash in between leaves each sector as it was
  or as it is to be, so that no byte is worse than before; the rest of the damage is found there again.
- The work opens the file itself: retention may remove the segment meanwhile, and no flush waits for it.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset
from trovemq_proto.records.layout import BLANK_SIZE, MAGIC_BLANK_BYTES
from trovemq_proto.records.scan import scan_run
from trovemq_store.files.files import FileSystem
from trovemq_store.log.commit_log import CommitLog
from trovemq_store.log.segments import Segment


class RepairWork:
    """One write: `end` is where the repaired records end, which is the end of the segment after a blank."""

    def __init__(
        self, files: FileSystem, segment: Segment, begin: PhysicalOffset, data: bytes, end: PhysicalOffset
    ) -> None:
        self._files = files
        self._path = segment.file.path
        self._position = begin - segment.start
        self._data = data
        self.end: Final = end

    @property
    def size(self) -> int:
        """Bytes that are written."""
        return len(self._data)

    def run(self) -> None:
        """The records are on disk when it returns. Blocks; meant for another thread. StorageError: nothing
        has become worse, but a sync that failed is one of the store."""
        file = self._files.open(self._path)
        try:
            file.write(self._position, self._data)
            file.sync()
        finally:
            file.close()


def repair_of(
    files: FileSystem,
    log: CommitLog,
    begin: PhysicalOffset,
    data: bytes,
    damaged_end: PhysicalOffset,
    limit: PhysicalOffset,
) -> RepairWork:
    """The work of writing the fewest of the records in `data`, which lie from `begin` on, that cover the
    damage up to damaged_end; all of them if they end before. limit: the log is committed, and on disk, up to
    there.

    TroveError REPLICA_OFFSET_MISMATCH: that place cannot be repaired. REPLICA_BYTES_ILLEGAL: `data` has no
    good record of it.
    """
    segment = log.segments.at(begin)
    if segment is None or begin >= limit:
        raise TroveError(errors.REPLICA_OFFSET_MISMATCH, f"the log is not committed at {begin}, or removed")
    space = segment.end - begin
    records, records_end, _ = scan_run(
        memoryview(data),
        0,
        min(len(data), space),
        physical_offset_of_data=begin,
        check_crc=True,
        bytes_max=len(data),
    )
    ends = records.positions + records.sizes
    count = min(int(np.searchsorted(ends, damaged_end - begin)) + 1, len(ends))
    size = int(ends[count - 1]) if count else 0
    end = PhysicalOffset(begin + size)
    if end < damaged_end and size == records_end and _is_blank(data[size:], space - size):
        size, end = size + BLANK_SIZE, segment.end
    if not size or end > limit:
        text = f"the bytes for offset {begin} have no good record of that place"
        raise TroveError(errors.REPLICA_BYTES_ILLEGAL, text, physical_offset=begin)
    return RepairWork(files, segment, begin, data[:size], end)


def _is_blank(rest: bytes, space: int) -> bool:
    return space >= BLANK_SIZE and rest == space.to_bytes(4) + MAGIC_BLANK_BYTES
