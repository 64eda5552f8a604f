"""The seam over a store that must not change: files are opened read-only, and every write raises.

Removing is the one exception: the path is hidden from this view and stays on disk, so that the engine's own
code for opening a log, which removes the leftovers of an earlier run, can be used as it is.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NoReturn

from trovemq_store.files.files import (
    OPEN_FILES_MAX,
    Buffer,
    File,
    FileHead,
    WritableMap,
    storage_error,
)
from trovemq_store.files.kernel_sync import SyncedByThread
from trovemq_store.files.lmdb_trees import DATA_NAME, LmdbTrees, check_structure
from trovemq_store.files.paths import checked_path
from trovemq_store.files.real import check_readable, find, map_file, os_errors, read_head
from trovemq_store.files.trees import Trees

# struct flock: l_type, l_whence, l_start, l_len, l_pid
_FLOCK: Final = struct.Struct("@hhqqi4x")


def _refuse(operation: str, path: str) -> NoReturn:
    raise storage_error(operation, path, errno.EROFS, "the store is only read here")


class ReadOnlyFile(SyncedByThread):
    """One file, mapped read-only."""

    def __init__(self, path: str, data: mmap.mmap | bytes) -> None:
        self._path = path
        self._data = data

    @property
    def path(self) -> str:
        return self._path

    @property
    def size(self) -> int:
        return len(self._data)

    def view(self) -> memoryview:
        return memoryview(self._data)

    def check_readable(self, begin: int, end: int) -> None:
        if isinstance(self._data, mmap.mmap):
            check_readable(self._data, self._path, begin, end)

    def read(self, begin: int, end: int) -> bytes:
        self.check_readable(begin, end)
        return self._data[begin:end]

    def written_ranges(self, begin: int) -> Iterator[tuple[int, int]]:
        if begin < self.size:
            yield begin, self.size

    def write(self, offset: int, data: Buffer) -> None:
        _refuse("write", self._path)

    def sync(self) -> None:
        pass

    def check_linked(self) -> None:
        pass

    def close(self) -> None:
        """The mapping is freed with its last view."""


class ReadOnlyFileSystem:
    """An existing directory tree, for reading."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = Path(root)
        self.hidden: set[str] = set()

    def _absolute(self, path: str) -> str:
        return str(self._root / checked_path(path))

    def absolute(self, path: str) -> str:
        """The absolute path of the file, for code that cannot read through this view."""
        return self._absolute(path)

    def open(self, path: str) -> File:
        if path in self.hidden:
            raise storage_error("open", path, errno.ENOENT)
        with os_errors("open", path):
            descriptor = os.open(self._absolute(path), os.O_RDONLY | os.O_CLOEXEC)
            try:
                size = os.fstat(descriptor).st_size
                data = map_file(descriptor, size, mmap.ACCESS_READ) if size else b""
            finally:
                os.close(descriptor)
        return ReadOnlyFile(path, data)

    def list(self, directory: str) -> list[str]:
        with os_errors("list", directory):
            try:
                names = os.listdir(self._absolute(directory))
            except FileNotFoundError:
                return []
        prefix = f"{directory}/" if directory else ""
        return sorted(name for name in names if prefix + name not in self.hidden)

    def walk(self, directory: str = "") -> Iterator[str]:
        """The paths of all files below a directory, sorted within each directory."""
        prefix = f"{directory}/" if directory else ""
        for name in self.list(directory):
            path = prefix + name
            if self.is_directory(path):
                yield from self.walk(path)
            else:
                yield path

    def is_directory(self, path: str) -> bool:
        found = find(self._absolute(path), path)
        return found is not None and stat.S_ISDIR(found.st_mode)

    def exists(self, path: str) -> bool:
        return path not in self.hidden and find(self._absolute(path), path) is not None

    def file_size(self, path: str) -> int:
        with os_errors("stat", path):
            return os.stat(self._absolute(path)).st_size

    def read_bytes(self, path: str) -> bytes:
        with os_errors("read", path):
            return Path(self._absolute(path)).read_bytes()

    def head(self, path: str, length: int) -> FileHead:
        with os_errors("read", path):
            return read_head(self._absolute(path), length)

    def is_locked(self, path: str) -> bool:
        """Whether another process holds the store's lock. Only tests it: takes and changes nothing."""
        if not self.exists(path):
            return False
        with os_errors("lock", path):
            descriptor = os.open(self._absolute(path), os.O_RDONLY | os.O_CLOEXEC)
            try:
                question = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
                answer = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, question))
            finally:
                os.close(descriptor)
        return bool(answer[0] != fcntl.F_UNLCK)

    def remove(self, path: str) -> None:
        """Hides the path from this view."""
        self.hidden.add(checked_path(path))

    def create(self, path: str, size: int, *, preallocate: bool) -> File:
        _refuse("create", path)

    def open_writable_map(self, path: str, size: int) -> WritableMap:
        _refuse("open_writable_map", path)

    def write_atomic(self, path: str, data: bytes) -> None:
        _refuse("write_atomic", path)

    def truncate(self, path: str, size: int) -> None:
        _refuse("truncate", path)

    def rename(self, source: str, target: str) -> None:
        _refuse("rename", source)

    def remove_directory(self, path: str) -> None:
        _refuse("remove_directory", path)

    def sync_directory(self, directory: str) -> None:
        _refuse("sync_directory", directory)

    def sync_all(self) -> bool:
        return False

    def lock(self, path: str) -> None:
        _refuse("lock", path)

    def unlock(self, path: str) -> None:
        _refuse("unlock", path)

    def open_files_max(self) -> int:
        return OPEN_FILES_MAX

    def free_bytes(self) -> int:
        return 0

    def total_bytes(self) -> int:
        return 0

    def modified_ms(self, path: str) -> int:
        with os_errors("stat", path):
            return os.stat(self._absolute(path)).st_mtime_ns // 1_000_000

    def check_trees(self, directory: str) -> Sequence[str]:
        return check_structure(self._absolute(directory), directory)

    def open_trees(self, directory: str, names: Sequence[str]) -> Trees:
        if not self.exists(f"{directory}/{DATA_NAME}"):
            raise storage_error("open_trees", directory, errno.ENOENT)
        return LmdbTrees(self._absolute(directory), directory, names, read_only=True)
