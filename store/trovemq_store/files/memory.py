"""The seam in memory, which also knows which writes would survive a power cut.

Every file keeps its present content and that of its last sync; every directory keeps the names at its last
sync. `after_power_cut()` returns the tree of synced names and contents: there a store must still have every
acknowledged message. On request the tree also has some of the unsynced pages and names, because a disk writes
in any order.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trovemq_store.files.files import (
    OPEN_FILES_IN_MEMORY,
    Buffer,
    DeletedError,
    File,
    FileHead,
    WritableMap,
    storage_error,
)
from trovemq_store.files.kernel_sync import SyncedByThread
from trovemq_store.files.memory_trees import MemoryTrees, TreeContent
from trovemq_store.files.paths import checked_path, parent_directory
from trovemq_store.files.real import scatter_into
from trovemq_store.files.trees import Trees

PAGE_SIZE: Final = 4096
SECTOR_SIZE: Final = 512
UNBOUNDED_SIZE: Final = 1 << 40
DATA_NAME: Final = "data.mdb"


class _Content:
    """The bytes of one file, shared by all who have it open."""

    def __init__(self, size: int, data: Buffer | None = None) -> None:
        self.data = bytearray(size) if data is None else bytearray(data)
        self.synced: bytes = b""
        self.trees = TreeContent()
        self.is_removed = False

    def copy(self) -> _Content:
        copy = _Content(0, self.data)
        copy.synced = self.synced
        copy.trees = TreeContent(self.trees.maps)
        return copy


class MemoryFile(SyncedByThread):
    def __init__(self, path: str, content: _Content) -> None:
        self._path = path
        self._content = content

    @property
    def path(self) -> str:
        return self._path

    @property
    def size(self) -> int:
        return len(self._content.data)

    def view(self) -> memoryview:
        return memoryview(self._content.data).toreadonly()

    def check_readable(self, begin: int, end: int) -> None:
        pass

    def read(self, begin: int, end: int) -> bytes:
        return bytes(self._content.data[begin:end])

    def written_ranges(self, begin: int) -> Iterator[tuple[int, int]]:
        if begin < self.size:
            yield begin, self.size

    def write(self, offset: int, data: Buffer) -> None:
        view = memoryview(data).cast("B")
        assert offset >= 0, "a write begins in its file"
        assert offset + len(view) <= self.size, "a write ends in its file"
        self._content.data[offset : offset + len(view)] = view

    def scatter(self, offsets: NDArray[np.int64], values: NDArray[np.void] | NDArray[np.integer]) -> None:
        scatter_into(np.frombuffer(self._content.data, dtype=np.uint8), offsets, values)

    def sync(self) -> None:
        self._content.synced = bytes(self._content.data)

    def check_linked(self) -> None:
        if self._content.is_removed:
            raise DeletedError(self._path)

    def close(self) -> None:
        pass


def _surviving(content: _Content, keep: Callable[[], bool] | None, unit: int) -> _Content:
    """The content that the disk has of a file whose name survived."""
    survivor = _Content(0, content.synced)
    survivor.trees = TreeContent(content.trees.maps)
    if survivor.data == content.data:
        survivor.synced = content.synced  # shared: these bytes never change
        return survivor
    size = len(content.data)
    if keep is not None and not content.synced and not keep():
        size = 0
    data = survivor.data = bytearray(content.synced[:size].ljust(size, b"\0"))
    for begin in range(0, size if keep is not None else 0, unit):
        page = slice(begin, min(begin + unit, size))
        if data[page] != content.data[page] and keep is not None and keep():
            data[page] = content.data[page]
    survivor.synced = bytes(data)
    return survivor


class MemoryFileSystem:
    """A tree of files in memory. `capacity` bounds the bytes of all files together (ENOSPC beyond it)."""

    def __init__(self, capacity: int | None = None) -> None:
        self.capacity = capacity
        self.modified: dict[str, int] = {}
        self._files: dict[str, _Content] = {}
        self._synced_names: dict[str, _Content] = {}
        self._locked: set[str] = set()

    def after_power_cut(
        self, keep: Callable[[], bool] | None = None, *, unit: int = PAGE_SIZE
    ) -> MemoryFileSystem:
        """A new tree of the synced names, each with the content of its last sync (else zeros).

        keep: called for each `unit` of bytes (PAGE_SIZE or SECTOR_SIZE), each size and each name (made,
        replaced or removed) that was not synced, in an order that depends on the tree alone; returns whether
        the disk has it nevertheless.
        """
        survivor = MemoryFileSystem(self.capacity)
        for path in sorted({*self._files, *self._synced_names}):
            present, content = self._files.get(path), self._synced_names.get(path)
            if present is not content and keep is not None and keep():
                content = present
            if content is not None:
                survivor._files[path] = survivor._synced_names[path] = _surviving(content, keep, unit)
        return survivor

    def after_process_kill(self) -> MemoryFileSystem:
        """The tree as another process finds it after this one was killed: everything written, no lock."""
        survivor = MemoryFileSystem(self.capacity)
        contents = {id(one): one for one in (*self._files.values(), *self._synced_names.values())}
        copies = {key: one.copy() for key, one in contents.items()}
        survivor._files = {path: copies[id(one)] for path, one in self._files.items()}
        survivor._synced_names = {path: copies[id(one)] for path, one in self._synced_names.items()}
        return survivor

    def _reserve(self, path: str, size: int) -> None:
        if self.capacity is not None and self.used_bytes() + size > self.capacity:
            raise storage_error("create", path, errno.ENOSPC)

    def _content(self, operation: str, path: str) -> _Content:
        content = self._files.get(checked_path(path))
        if content is None:
            raise storage_error(operation, path, errno.ENOENT)
        return content

    def create(self, path: str, size: int, *, preallocate: bool) -> File:
        if checked_path(path) in self._files:
            raise storage_error("create", path, errno.EEXIST)
        self._reserve(path, size)
        content = self._files[path] = _Content(size)
        return MemoryFile(path, content)

    def open(self, path: str) -> File:
        return MemoryFile(path, self._content("open", path))

    def open_writable_map(self, path: str, size: int) -> WritableMap:
        if checked_path(path) not in self._files:
            self._reserve(path, size)
            self._files[path] = _Content(size)
        content = self._files[path]
        if len(content.data) < size:
            content.data.extend(bytes(size - len(content.data)))
        return MemoryFile(path, content)

    def list(self, directory: str) -> list[str]:
        prefix = f"{checked_path(directory)}/" if directory else ""
        return sorted({path[len(prefix) :].split("/")[0] for path in self._files if path.startswith(prefix)})

    def is_directory(self, path: str) -> bool:
        return any(name.startswith(f"{path}/") for name in self._files)

    def exists(self, path: str) -> bool:
        return path in self._files or self.is_directory(path)

    def file_size(self, path: str) -> int:
        return len(self._content("stat", path).data)

    def read_bytes(self, path: str) -> bytes:
        return bytes(self._content("read", path).data)

    def head(self, path: str, length: int) -> FileHead:
        data = self._content("read", path).data
        return FileHead(bytes(data[:length]), len(data), not any(data[length:]))

    def write_atomic(self, path: str, data: bytes) -> None:
        old = self._files.get(checked_path(path))
        self._reserve(path, len(data) - (len(old.data) if old else 0))
        content = _Content(0, data)
        content.synced = bytes(data)
        self._files[path] = content
        self.sync_directory(parent_directory(path))

    def truncate(self, path: str, size: int) -> None:
        data = self._content("truncate", path).data
        if size < len(data):
            del data[size:]
        else:
            data.extend(bytes(size - len(data)))

    def rename(self, source: str, target: str) -> None:
        self._files[checked_path(target)] = self._content("rename", source)
        del self._files[source]

    def remove(self, path: str) -> None:
        content = self._files.pop(checked_path(path), None)
        if content is not None:
            content.is_removed = True

    def remove_directory(self, path: str) -> None:
        checked_path(path)

    def sync_directory(self, directory: str) -> None:
        """Makes present names of the directory durable. (Directories themselves are always durable here.)"""

        def inside(path: str) -> bool:
            return parent_directory(path) == directory

        self._synced_names = {path: c for path, c in self._synced_names.items() if not inside(path)}
        self._synced_names.update({path: c for path, c in self._files.items() if inside(path)})

    def sync_all(self) -> bool:
        return False

    def lock(self, path: str) -> None:
        if checked_path(path) in self._locked:
            raise storage_error("lock", path, errno.EAGAIN)
        self._locked.add(path)
        self._files.setdefault(path, _Content(0, b"lock"))

    def unlock(self, path: str) -> None:
        self._locked.discard(path)

    def open_files_max(self) -> int:
        return OPEN_FILES_IN_MEMORY

    def free_bytes(self) -> int:
        return UNBOUNDED_SIZE if self.capacity is None else max(0, self.capacity - self.used_bytes())

    def used_bytes(self) -> int:
        return sum(len(content.data) for content in self._files.values())

    def total_bytes(self) -> int:
        return UNBOUNDED_SIZE if self.capacity is None else self.capacity

    def check_trees(self, directory: str) -> Sequence[str]:
        return []

    def open_trees(self, directory: str, names: Sequence[str]) -> Trees:
        content = self._files.setdefault(checked_path(f"{directory}/{DATA_NAME}"), _Content(0))
        if content.data:
            raise storage_error("open_trees", directory, errno.EINVAL)  # a test wrote something else there
        return MemoryTrees(content.trees, names)

    def modified_ms(self, path: str) -> int:
        """0 until a test sets it in `modified`: there is no clock here."""
        self._content("stat", path)
        return self.modified.get(path, 0)
