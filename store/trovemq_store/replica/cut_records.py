"""The records that a cut took from the end of the log: `trovemq/cut/EPOCH-OFFSET`, one file a cut.

EPOCH is that of the first byte that was cut, OFFSET (20 digits) its physical offset. A file has, big-endian:

    offset  width  field
         0      4  "TVCT"
         4    i32  format, 1
         8    i32  epoch of the first byte that was cut
        12   u32   CRC-32 of the bytes from 40 on
        16    i64  physical offset of the first byte that was cut: the log ends there now
        24    i64  physical offset of the first byte that is kept; a record begins there
        32    i64  where the log ended before
        40         the log's bytes from the first that is kept up to that end

Invariants
- Such a file is on disk before anything is cut.
- All files together keep at most KEPT_BYTES_MAX of the log, the newest; the others are counted
  (cutBytesDropped in replica_file.py) and dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Final
from zlib import crc32

from trovemq_proto.positions import PhysicalOffset
from trovemq_store.files.fault_points import fault_point
from trovemq_store.files.files import FileSystem
from trovemq_store.log.commit_log import CommitLog
from trovemq_store.log.reader import LogReader

DIRECTORY: Final = "trovemq/cut"
KEPT_BYTES_MAX: Final = 64 << 20
_HEAD: Final = Struct(">4siiIqqq")
_MAGIC: Final = b"TVCT"
_FORMAT: Final = 1
_NAME: Final = re.compile(r"([0-9]{1,10})-([0-9]{20})")


@dataclass(frozen=True, slots=True)
class CutRecords:
    """The content of one file; `data` begins at `kept_from`."""

    epoch: int
    cut_at: PhysicalOffset
    kept_from: PhysicalOffset
    end: PhysicalOffset
    data: bytes

    @property
    def path(self) -> str:
        return f"{DIRECTORY}/{self.epoch}-{self.cut_at:020d}"

    def encoded(self) -> bytes:
        numbers = (self.epoch, crc32(self.data), self.cut_at, self.kept_from, self.end)
        return _HEAD.pack(_MAGIC, _FORMAT, *numbers) + self.data


def decoded(content: bytes) -> CutRecords:
    """ValueError if it is damaged, or has another format."""
    if len(content) < _HEAD.size:
        raise ValueError("the file of cut records is too short")
    magic, version, epoch, crc, cut_at, kept_from, end = _HEAD.unpack_from(content)
    data = content[_HEAD.size :]
    if (magic, version) != (_MAGIC, _FORMAT) or crc != crc32(data) or len(data) != end - kept_from:
        raise ValueError("the file of cut records is damaged")
    return CutRecords(epoch, PhysicalOffset(cut_at), PhysicalOffset(kept_from), PhysicalOffset(end), data)


def keep_records(
    files: FileSystem, log: CommitLog, cut_at: PhysicalOffset, epoch: int, kept_max: int = KEPT_BYTES_MAX
) -> int:
    """Writes the file of the log's bytes from cut_at on, durably. Returns how many bytes of the log will not
    be kept any more, of this cut and of earlier ones. StorageError."""
    kept_from = _kept_from(log, cut_at, kept_max)
    data = b"".join(_bytes_of(log, kept_from, log.end))
    cut = CutRecords(epoch, cut_at, kept_from, log.end, data)
    content, dropped = cut.encoded(), kept_from - cut_at
    if (
        files.exists(cut.path)
        and (replaced := files.file_size(cut.path))
        and (files.read_bytes(cut.path) != content)
    ):
        dropped += replaced - _HEAD.size
    fault_point("truncation.before_keep")
    files.write_atomic(cut.path, content)
    fault_point("truncation.after_keep")
    return dropped + sum(size for _, size in _too_old(files, kept_max))


def drop_old_records(files: FileSystem, kept_max: int = KEPT_BYTES_MAX) -> None:
    """Removes the files that keep_records() has counted as dropped. StorageError."""
    old = list(_too_old(files, kept_max))
    for path, _ in old:
        files.remove(path)
    if old:
        files.sync_directory(DIRECTORY)


def cut_files(files: FileSystem) -> list[str]:
    """Their paths, oldest first."""
    matches = filter(None, map(_NAME.fullmatch, files.list(DIRECTORY)))
    return [f"{DIRECTORY}/{match[0]}" for match in sorted(matches, key=lambda m: (int(m[1]), int(m[2])))]


def _too_old(files: FileSystem, kept_max: int) -> Iterator[tuple[str, int]]:
    """(path, bytes of the log) of the files beyond those that are kept; the newest always is."""
    total = 0
    for number, path in enumerate(reversed(cut_files(files))):
        size = files.file_size(path) - _HEAD.size
        total += size
        if number and total > kept_max:
            yield path, size


def _kept_from(log: CommitLog, cut_at: PhysicalOffset, kept_max: int) -> PhysicalOffset:
    """Where the first record begins of those that are kept; the log's end if there is none."""
    if log.end - cut_at <= kept_max:
        return cut_at
    wanted = log.end - kept_max
    for run in LogReader(log, cut_at, log.end, limit=log.end, check_crc=False):
        for position in run.records.positions.tolist() if run.end > wanted else ():
            if run.physical_offset + position >= wanted:
                return PhysicalOffset(run.physical_offset + position)
    return log.end


def _bytes_of(log: CommitLog, begin: PhysicalOffset, end: PhysicalOffset) -> Iterator[bytes]:
    for segment in log.segments.covering(begin, end):
        first = max(begin, segment.start)
        yield bytes(log.read(first, min(end, segment.end) - first))
