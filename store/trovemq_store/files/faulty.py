"""The seam with faults, for tests: every call is recorded and may be made to fail.

`decide(operation, path)` is called before each call and returns the errno to fail with, or None. Operations
have the names of the seam's methods: create, open, open_writable_map, write, scatter, sync, write_atomic,
rename, remove, truncate, sync_directory, lock, list, read_bytes, open_trees, commit, read_trees; read means
File.read and check_readable, mmap the first view of a file. With `tear` a write that fails has written its
first half, as pwrite may.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from trovemq_store.files.files import (
    Buffer,
    File,
    FileHead,
    FileSystem,
    StorageError,
    WritableMap,
    storage_error,
)
from trovemq_store.files.kernel_sync import SyncedByThread
from trovemq_store.files.trees import TreeChange, TreeReader, Trees

Decide = Callable[[str, str], int | None]


def fail_at(operation: str, nth: int, error_number: int, path_part: str = "") -> Decide:
    """Fails the nth call (from 1) of one operation on paths that contain `path_part`; later ones succeed."""
    seen = 0

    def decide(called: str, path: str) -> int | None:
        nonlocal seen
        if called != operation or path_part not in path:
            return None
        seen += 1
        return error_number if seen == nth else None

    return decide


def fail_always(operation: str, error_number: int, path_part: str = "") -> Decide:
    """Fails every call of one operation on paths that contain `path_part`."""
    return lambda called, path: error_number if called == operation and path_part in path else None


class FaultyFile(SyncedByThread):
    def __init__(self, owner: FaultyFileSystem, inner: WritableMap | File, *, mapped: bool = False) -> None:
        self._owner = owner
        self._inner = inner
        self._closed = False
        self._mapped = mapped
        owner.open_count += 1

    @property
    def path(self) -> str:
        return self._inner.path

    @property
    def size(self) -> int:
        return self._inner.size

    def view(self) -> memoryview:
        if not self._mapped:  # as a real file, at the first view
            self._owner.check("mmap", self.path)
            self._mapped = True
        return self._inner.view()

    def check_readable(self, begin: int, end: int) -> None:
        self._owner.check("read", self.path)
        self.view()
        self._check_good(begin, end)
        self._inner.check_readable(begin, end)

    def _check_good(self, begin: int, end: int) -> None:
        bad = self._owner.unreadable.get(self.path)
        if bad is not None and bad[0] < end and begin < bad[1]:
            raise storage_error("read", self.path, errno.EIO, "injected")

    def read(self, begin: int, end: int) -> bytes:
        self._owner.check("read", self.path)
        self._check_good(begin, end)
        return self._inner.read(begin, end)

    def written_ranges(self, begin: int) -> Iterator[tuple[int, int]]:
        return self._inner.written_ranges(begin)

    def write(self, offset: int, data: Buffer) -> None:
        try:
            self._owner.check("write", self.path)
        except StorageError:
            if self._owner.tear:
                self._inner.write(offset, memoryview(data).cast("B")[: len(data) // 2])
            raise
        self._inner.write(offset, data)

    def scatter(self, offsets: NDArray[np.int64], values: NDArray[np.void] | NDArray[np.integer]) -> None:
        self._owner.check("scatter", self.path)
        self._inner.scatter(offsets, values)  # type: ignore[union-attr]

    def sync(self) -> None:
        self._owner.check("sync", self.path)
        self._inner.sync()

    def check_linked(self) -> None:
        self._inner.check_linked()

    def close(self) -> None:
        if not self._closed:
            self._owner.open_count -= 1
            self._closed = True
        self._inner.close()


class FaultyTrees:
    """Trees with faults: commit() is the operation `commit`, read() is `read_trees`."""

    def __init__(self, owner: FaultyFileSystem, inner: Trees, path: str) -> None:
        self._owner = owner
        self._inner = inner
        self._path = path
        self.close = inner.close

    def read(self) -> TreeReader:
        self._owner.check("read_trees", self._path)
        return self._inner.read()

    def commit(self, changes: Sequence[TreeChange]) -> None:
        self._owner.check("commit", self._path)
        self._inner.commit(changes)

    @property
    def size_bytes(self) -> int:
        return self._inner.size_bytes


class FaultyFileSystem:
    """Wraps another file system; `decide` may be replaced at any time, `calls` lists the operations,
    `open_count` is how many files are open."""

    def __init__(
        self, inner: FileSystem, decide: Decide = lambda operation, path: None, *, tear: bool = False
    ) -> None:
        self.inner = inner
        self.decide = decide
        self.tear = tear
        self.calls: list[tuple[str, str]] = []
        self.open_count = 0
        self.unreadable: dict[str, tuple[int, int]] = {}
        """Path -> the range [begin, end) that the disk does not return."""

    def check(self, operation: str, path: str) -> None:
        self.calls.append((operation, path))
        error_number = self.decide(operation, path)
        if error_number is not None:
            raise storage_error(operation, path, error_number, "injected")

    def create(self, path: str, size: int, *, preallocate: bool) -> File:
        self.check("create", path)
        return FaultyFile(self, self.inner.create(path, size, preallocate=preallocate))

    def open(self, path: str) -> File:
        self.check("open", path)
        return FaultyFile(self, self.inner.open(path))

    def open_writable_map(self, path: str, size: int) -> WritableMap:
        self.check("open_writable_map", path)
        self.check("mmap", path)
        return FaultyFile(self, self.inner.open_writable_map(path, size), mapped=True)

    def list(self, directory: str) -> Sequence[str]:
        self.check("list", directory)
        return self.inner.list(directory)

    def is_directory(self, path: str) -> bool:
        return self.inner.is_directory(path)

    def exists(self, path: str) -> bool:
        return self.inner.exists(path)

    def file_size(self, path: str) -> int:
        return self.inner.file_size(path)

    def read_bytes(self, path: str) -> bytes:
        self.check("read_bytes", path)
        return self.inner.read_bytes(path)

    def head(self, path: str, length: int) -> FileHead:
        self.check("open", path)
        self.check("read", path)
        return self.inner.head(path, length)

    def write_atomic(self, path: str, data: bytes) -> None:
        self.check("write_atomic", path)
        self.inner.write_atomic(path, data)

    def truncate(self, path: str, size: int) -> None:
        self.check("truncate", path)
        self.inner.truncate(path, size)

    def rename(self, source: str, target: str) -> None:
        self.check("rename", source)
        self.inner.rename(source, target)

    def remove(self, path: str) -> None:
        self.check("remove", path)
        self.inner.remove(path)

    def remove_directory(self, path: str) -> None:
        self.inner.remove_directory(path)

    def sync_directory(self, directory: str) -> None:
        self.check("open", directory)
        self.check("sync_directory", directory)
        self.inner.sync_directory(directory)

    def sync_all(self) -> bool:
        return False  # so that each sync can fail

    def lock(self, path: str) -> None:
        self.check("lock", path)
        self.inner.lock(path)

    def unlock(self, path: str) -> None:
        self.inner.unlock(path)

    def open_files_max(self) -> int:
        return self.inner.open_files_max()

    def free_bytes(self) -> int:
        return self.inner.free_bytes()

    def total_bytes(self) -> int:
        return self.inner.total_bytes()

    def check_trees(self, directory: str) -> Sequence[str]:
        return self.inner.check_trees(directory)

    def open_trees(self, directory: str, names: Sequence[str]) -> Trees:
        self.check("open_trees", directory)
        return FaultyTrees(self, self.inner.open_trees(directory, names), directory)

    def modified_ms(self, path: str) -> int:
        return self.inner.modified_ms(path)
