"""A file system in memory that stops before each change, and notes the bytes written to the commit log.

`before(operation, path)` is called at each boundary: `after_power_cut()` then gives a state that a crash at
that point may leave. `log` has every byte that was written to the log and every record of it, in log order,
as they were at the seam: recovery must find a prefix of that.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trovemq_proto.positions import EpochMs, QueueId
from trovemq_proto.records.check import RecordState, check_record
from trovemq_proto.records.message import decode_message
from trovemq_store.files.files import Buffer, File, StorageError, WritableMap
from trovemq_store.files.memory import MemoryFile, MemoryFileSystem
from trovemq_store.log.segments import DIRECTORY

Boundary = Callable[[str, str], None]


@dataclass(frozen=True)
class Logged:
    """One record that was written to the log."""

    physical_offset: int
    size: int
    topic: str
    queue_id: QueueId
    queue_offset: int
    store_timestamp: EpochMs
    body: bytes
    keys: frozenset[str]
    tag: str
    unique_key: str


class LogImage:
    """The log as it was written: `data` by physical offset, zeros where nothing was."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.records: list[Logged] = []

    def copy(self) -> LogImage:
        other = LogImage()
        other.data, other.records = bytearray(self.data), list(self.records)
        return other

    def write(self, physical_offset: int, data: bytes) -> None:
        """Earlier bytes of the range are no longer part of the log, nor are the bytes after it."""
        self.truncate(physical_offset)
        self.data += bytes(physical_offset - len(self.data)) + data
        view, position = memoryview(bytes(data)), 0
        while position < len(view):
            state, size = check_record(view, position, len(view), physical_offset=physical_offset + position)
            if state is not RecordState.RECORD:
                return  # a blank, the zeros of a recovery, or the part of a write that failed
            message = decode_message(view[position : position + size])
            properties = message.properties
            self.records.append(
                Logged(
                    physical_offset + position,
                    size,
                    message.topic,
                    message.queue_id,
                    message.queue_offset,
                    message.store_timestamp,
                    message.body,
                    frozenset(message.keys),
                    properties.get("TAGS", ""),
                    properties.get("UNIQ_KEY", ""),
                )
            )
            position += size

    def truncate(self, end: int) -> None:
        del self.data[end:]
        while self.records and self.records[-1].physical_offset + self.records[-1].size > end:
            self.records.pop()


class RecordingFile(MemoryFile):
    """A file that asks its owner before each change."""

    def __init__(self, owner: RecordingFileSystem, inner: MemoryFile) -> None:
        super().__init__(inner.path, inner._content)
        self._owner = owner
        directory, _, name = inner.path.rpartition("/")
        self._begins = int(name) if directory == DIRECTORY else None

    def write(self, offset: int, data: Buffer) -> None:
        self._owner.before("write", self.path)
        if self._begins is None:
            return super().write(offset, data)
        if self._owner.fail_next_log_write:
            self._owner.fail_next_log_write = False
            half = bytes(data)[: len(data) // 2]
            super().write(offset, half)
            self._owner.log.write(self._begins + offset, half)
            raise StorageError("write", self.path, errno.EIO, "injected")
        super().write(offset, data)
        self._owner.log.write(self._begins + offset, bytes(data))
        return None

    def scatter(self, offsets: NDArray[np.int64], values: NDArray[np.void] | NDArray[np.integer]) -> None:
        self._owner.before("scatter", self.path)
        super().scatter(offsets, values)

    def sync(self) -> None:
        self._owner.before("sync", self.path)
        super().sync()


class RecordingFileSystem(MemoryFileSystem):
    """See the module's text. `fail_next_log_write`: half of the next write to the log is made, and then it
    fails."""

    def __init__(self, tree: MemoryFileSystem | None = None, log: LogImage | None = None) -> None:
        super().__init__()
        if tree is not None:
            self._files, self._synced_names = tree._files, tree._synced_names
        self.log = log or LogImage()
        self.before: Boundary = lambda operation, path: None
        self.fail_next_log_write = False

    def create(self, path: str, size: int, *, preallocate: bool) -> File:
        self.before("create", path)
        return self._recording(super().create(path, size, preallocate=preallocate))

    def open(self, path: str) -> File:
        return self._recording(super().open(path))

    def open_writable_map(self, path: str, size: int) -> WritableMap:
        self.before("open_writable_map", path)
        return self._recording(super().open_writable_map(path, size))

    def _recording(self, file: File) -> RecordingFile:
        assert isinstance(file, MemoryFile)
        return RecordingFile(self, file)

    def write_atomic(self, path: str, data: bytes) -> None:
        self.before("write_atomic", path)
        super().write_atomic(path, data)

    def truncate(self, path: str, size: int) -> None:
        self.before("truncate", path)
        super().truncate(path, size)

    def rename(self, source: str, target: str) -> None:
        self.before("rename", source)
        super().rename(source, target)

    def remove(self, path: str) -> None:
        if self.exists(path):
            self.before("remove", path)
        super().remove(path)

    def sync_directory(self, directory: str) -> None:
        self.before("sync_directory", directory)
        super().sync_directory(directory)
