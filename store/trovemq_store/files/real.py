"""The files of a real directory: pwrite for appends, a mapping for reads, fdatasync for durability.

Files are preallocated by `posix_fallocate` before anything is mapped, so that a full disk is an ENOSPC of
that call. Appends use `pwrite`, because a write through a fresh mapping costs a page fault every 4 KiB.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import resource
import stat
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from trovemq_store.files.files import (
    OPEN_FILES_MAX,
    SCARCE_NUMBERS,
    Buffer,
    DeletedError,
    File,
    FileHead,
    StorageError,
    WritableMap,
    storage_error,
)
from trovemq_store.files.kernel_sync import KernelSync
from trovemq_store.files.lmdb_trees import LmdbTrees, check_structure
from trovemq_store.files.paths import checked_path, parent_directory
from trovemq_store.files.trees import Trees
from trovemq_store.files.whole_sync import WholeSync

_OPEN_FLAGS = os.O_RDWR | os.O_CLOEXEC
_MISSING = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)
_POPULATE_READ = 22  # MADV_POPULATE_READ, since Linux 5.14: the error that would be a SIGBUS


class os_errors:  # noqa: N801 (reads as a statement; a generator would cost a start as much as the call)
    """Turns OSError into StorageError, keeping its errno."""

    __slots__ = ("_operation", "_path")

    def __init__(self, operation: str, path: str) -> None:
        self._operation, self._path = operation, path

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if isinstance(error, OSError):
            number = error.errno or errno.EIO
            raise storage_error(self._operation, self._path, number, str(error.strerror)) from error


def _check_space(descriptor: int, size: int) -> None:
    """ENOSPC if the disk has less space than a file of `size` bytes still needs. Without this check a
    preallocation that fails would use up the free space first, and other writers would meet a full disk
    meanwhile."""
    space = os.fstatvfs(descriptor)
    missing = size - os.fstat(descriptor).st_blocks * 512
    if space.f_blocks and space.f_bavail * space.f_frsize < missing:  # 0: the file system does not say
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def check_readable(mapping: mmap.mmap, path: str, begin: int, end: int) -> None:
    """Brings [begin, end) of the mapping into memory. StorageError with `path` if the disk does not return
    it. Kernels before 5.14 do not know: there every range passes."""
    begin -= begin % mmap.PAGESIZE
    try:
        mapping.madvise(_POPULATE_READ, begin, end - begin)
    except OSError as error:
        if error.errno != errno.EINVAL:
            number = error.errno if error.errno in SCARCE_NUMBERS else errno.EIO  # EFAULT, EHWPOISON
            raise storage_error("read", path, number, str(error.strerror)) from error


def find(absolute: str, path: str) -> os.stat_result | None:
    """The status of the file; None if it does not exist. A path without permission is not missing:
    StorageError."""
    try:
        return os.stat(absolute)
    except OSError as error:
        if error.errno in _MISSING:
            return None
        raise storage_error("stat", path, error.errno or errno.EIO, str(error.strerror)) from error


def read_head(absolute: str, length: int) -> FileHead:
    """The first `length` bytes (fewer if the file is shorter), without mapping it. OSError."""
    descriptor = os.open(absolute, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        data = os.pread(descriptor, length, 0)
        is_all = len(data) == size
        if not is_all:
            try:
                os.lseek(descriptor, len(data), os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:  # there is no data after it
                    raise
                is_all = True
    finally:
        os.close(descriptor)
    return FileHead(data, size, is_all)


def map_file(descriptor: int, size: int, access: int) -> mmap.mmap:
    """Python keeps a copy of the descriptor with each mapping, which only a change of its size needs. From
    3.13 on there is an option against it."""
    if sys.version_info >= (3, 13):
        return mmap.mmap(descriptor, size, access=access, trackfd=False)
    return mmap.mmap(descriptor, size, access=access)


class RealFile:
    """An open file: its descriptor, and a shared read-only mapping made at the first view(). Where a later
    read must need no descriptor and no map, view() is called when the file is opened."""

    def __init__(self, descriptor: int, path: str, size: int) -> None:
        self._descriptor = descriptor
        self._path = path
        self._size = size
        self._map: mmap.mmap | None = None

    @property
    def path(self) -> str:
        return self._path

    @property
    def size(self) -> int:
        return self._size

    def view(self) -> memoryview:
        if self._map is None:
            if self._descriptor < 0:  # mmap would take -1 for memory without a file
                raise storage_error("mmap", self._path, errno.EBADF)
            try:
                with os_errors("mmap", self._path):
                    self._map = map_file(self._descriptor, self._size, mmap.ACCESS_READ)
            except ValueError as error:  # the file was shortened since it was opened
                raise storage_error("mmap", self._path, errno.EIO, str(error)) from error
        return memoryview(self._map)

    def check_readable(self, begin: int, end: int) -> None:
        mapping = self._map
        if mapping is None:
            self.view()
            mapping = self._map
            assert mapping is not None, "view() makes the mapping"
            assert len(mapping) == self._size, "the whole file is mapped"
        check_readable(mapping, self._path, begin, end)

    def read(self, begin: int, end: int) -> bytes:
        assert 0 <= begin <= end, "a read ends after its beginning"
        assert end <= self._size, "a read stays inside its file"
        try:
            data = os.pread(self._descriptor, end - begin, begin)
        except OSError as error:
            raise storage_error("read", self._path, error.errno or errno.EIO, str(error.strerror)) from error
        if len(data) != end - begin:
            raise storage_error("read", self._path, errno.EIO, "the file was shortened since it was opened")
        return data

    def written_ranges(self, begin: int) -> Iterator[tuple[int, int]]:
        end = begin
        while end < self._size:
            try:
                start = os.lseek(self._descriptor, end, os.SEEK_DATA)
                end = min(os.lseek(self._descriptor, start, os.SEEK_HOLE), self._size)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    return  # the rest is a hole
                start, end = end, self._size  # the file system does not say
            yield start, end

    def write(self, offset: int, data: Buffer) -> None:
        view = data if isinstance(data, bytes) else memoryview(data).cast("B")
        assert offset >= 0, "a write begins in its file"
        assert offset + len(view) <= self._size, "a write ends in its file"
        end = offset + len(view)
        position = offset
        try:
            position += os.pwrite(self._descriptor, view, offset)
            while position < end:
                position += os.pwrite(self._descriptor, view[position - offset :], position)
        except OSError as error:
            raise storage_error("write", self._path, error.errno or errno.EIO, str(error.strerror)) from error

    def sync(self) -> None:
        with os_errors("sync", self._path):
            os.fdatasync(self._descriptor)

    def begin_sync(self, kernel: KernelSync) -> bool:
        return self._descriptor >= 0 and kernel.begin(self._descriptor)

    def end_sync(self, kernel: KernelSync) -> bool:
        number = kernel.end()
        if number:
            raise storage_error("sync", self._path, number, os.strerror(number))
        return number == 0

    def check_linked(self) -> None:
        with os_errors("stat", self._path):
            links = os.fstat(self._descriptor).st_nlink
        if not links:
            raise DeletedError(self._path)

    def close(self) -> None:
        if self._descriptor < 0:
            return
        os.close(self._descriptor)
        self._descriptor = -1
        mapping, self._map = self._map, None
        if mapping is not None:
            try:
                mapping.close()
            except BufferError:
                pass  # a reader still has a view: the mapping is freed with the last view


class RealWritableMap(RealFile):
    """A preallocated file whose mapping is writable, for scattered small writes (index files)."""

    def __init__(self, descriptor: int, path: str, size: int) -> None:
        super().__init__(descriptor, path, size)
        with os_errors("mmap", path):
            self._map = map_file(descriptor, size, mmap.ACCESS_WRITE)
        self._bytes: NDArray[np.uint8] | None = np.frombuffer(self._map, dtype=np.uint8)

    def view(self) -> memoryview:
        assert self._map is not None, "the file is open"
        assert len(self._map) == self._size, "the whole file is mapped"
        return memoryview(self._map).toreadonly()

    def write(self, offset: int, data: Buffer) -> None:
        assert self._map is not None, "the file is open"
        assert 0 <= offset <= offset + len(data) <= self._size, "a write stays inside its file"
        self._map[offset : offset + len(data)] = bytes(data)  # preallocated: cannot meet a full disk

    def scatter(self, offsets: NDArray[np.int64], values: NDArray[np.void] | NDArray[np.integer]) -> None:
        assert self._bytes is not None, "the file is open"
        assert len(offsets) == len(values), "each value has its offset"
        scatter_into(self._bytes, offsets, values)

    def close(self) -> None:
        self._bytes = None
        super().close()


def scatter_into(
    target: NDArray[np.uint8], offsets: NDArray[np.int64], values: NDArray[np.void] | NDArray[np.integer]
) -> None:
    """target[offsets[i] : offsets[i] + itemsize] = bytes of values[i], the last one winning."""
    if len(offsets) == 0:
        return
    width = values.dtype.itemsize
    assert int(offsets.min()) >= 0, "a write stays inside its file"
    assert int(offsets.max()) + width <= len(target), "a write stays inside its file"
    if width == 4 and not np.any(offsets & 3):
        target[: len(target) & ~3].view(np.uint32)[offsets >> 2] = values.view(np.uint32)
        return
    matrix = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), width)
    target[offsets[:, None] + np.arange(width)] = matrix


class RealFileSystem:
    """A directory tree on disk. `root` is created if it is missing."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = Path(root)
        with os_errors("create", str(root)):
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._locks: dict[str, int] = {}
        self._whole: WholeSync | None = None
        self._prefix = str(self._root)

    def _absolute(self, path: str) -> str:
        return f"{self._prefix}/{checked_path(path)}" if path else self._prefix

    def _make_directory(self, absolute: str) -> None:
        """Makes the directory of a file. OSError, where the root was deleted: it is not recreated, because
        its next user would take it for a store."""
        if not self._root.is_dir():
            raise FileNotFoundError(errno.ENOENT, "the store's directory was deleted")
        os.makedirs(os.path.dirname(absolute), exist_ok=True)

    def create(self, path: str, size: int, *, preallocate: bool) -> File:
        assert path, "the root is a directory"
        assert size > 0, "an empty file cannot be mapped"
        descriptor = self._make(path, size, preallocate, exclusive=True)
        return RealFile(descriptor, path, size)

    def _make(self, path: str, size: int, preallocate: bool, *, exclusive: bool) -> int:
        """Opens or creates a file of at least `size` bytes; on failure a file that it created is removed."""
        absolute = self._absolute(path)
        flags = _OPEN_FLAGS | os.O_CREAT | (os.O_EXCL if exclusive else 0)
        with os_errors("create", path):
            self._make_directory(absolute)
            existed = os.path.exists(absolute)
            descriptor = os.open(absolute, flags, 0o644)
            try:
                if os.fstat(descriptor).st_size < size:
                    if preallocate:
                        _check_space(descriptor, size)
                        os.posix_fallocate(descriptor, 0, size)
                    else:
                        os.ftruncate(descriptor, size)
            except OSError:
                os.close(descriptor)
                if not existed:
                    os.unlink(absolute)
                raise
        return descriptor

    def open(self, path: str) -> File:
        with os_errors("open", path):
            descriptor = os.open(self._absolute(path), _OPEN_FLAGS)
            return RealFile(descriptor, path, os.fstat(descriptor).st_size)

    def open_writable_map(self, path: str, size: int) -> WritableMap:
        descriptor = self._make(path, size, True, exclusive=False)
        try:
            return RealWritableMap(descriptor, path, os.fstat(descriptor).st_size)
        except StorageError:
            os.close(descriptor)
            raise

    def list(self, directory: str) -> list[str]:
        with os_errors("list", directory):
            try:
                return sorted(os.listdir(self._absolute(directory)))
            except FileNotFoundError:
                return []

    def is_directory(self, path: str) -> bool:
        found = find(self._absolute(path), path)
        return found is not None and stat.S_ISDIR(found.st_mode)

    def exists(self, path: str) -> bool:
        return find(self._absolute(path), path) is not None

    def file_size(self, path: str) -> int:
        with os_errors("stat", path):
            return os.stat(self._absolute(path)).st_size

    def read_bytes(self, path: str) -> bytes:
        with os_errors("read", path):
            return Path(self._absolute(path)).read_bytes()

    def head(self, path: str, length: int) -> FileHead:
        with os_errors("read", path):
            return read_head(self._absolute(path), length)

    def write_atomic(self, path: str, data: bytes) -> None:
        absolute = self._absolute(path)
        temporary = absolute + ".tmp"
        directory = parent_directory(path)
        with os_errors("write", path):
            if directory and not self.is_directory(directory):
                self._make_directory(absolute)
                self.sync_directory(parent_directory(directory))
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(descriptor, view) :]
                self._sync_temporary(descriptor, path)
            finally:
                os.close(descriptor)
            os.rename(temporary, absolute)
        self.sync_directory(directory)

    @staticmethod
    def _sync_temporary(descriptor: int, path: str) -> None:
        try:
            os.fdatasync(descriptor)
        except OSError as error:
            # Here a full disk does not mean a lost page: the temporary is written again, and the old content
            # is not changed.
            operation = "write" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "sync"
            raise storage_error(operation, path, error.errno or errno.EIO, str(error.strerror)) from error

    def truncate(self, path: str, size: int) -> None:
        with os_errors("truncate", path):
            os.truncate(self._absolute(path), size)

    def rename(self, source: str, target: str) -> None:
        absolute = self._absolute(target)
        with os_errors("rename", source):
            self._make_directory(absolute)
            os.rename(self._absolute(source), absolute)

    def remove(self, path: str) -> None:
        with os_errors("remove", path):
            try:
                os.unlink(self._absolute(path))
            except FileNotFoundError:
                pass

    def remove_directory(self, path: str) -> None:
        with os_errors("rmdir", path):
            try:
                os.rmdir(self._absolute(path))
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENOTEMPTY):
                    raise

    def sync_directory(self, directory: str) -> None:
        with os_errors("open", directory):
            descriptor = os.open(self._absolute(directory), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with os_errors("sync_directory", directory):
                os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def sync_all(self) -> bool:
        """Works only while the store's lock is held: then every failure since it was acquired is known."""
        return self._whole is not None and self._whole.run()

    def lock(self, path: str) -> None:
        absolute = self._absolute(path)
        with os_errors("open", path):
            descriptor = os.open(absolute, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        with os_errors("lock", path):
            try:
                # Java's FileChannel.tryLock is a POSIX record lock; flock() would not conflict with it.
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
                os.pwrite(descriptor, b"lock", 0)
            except OSError:
                os.close(descriptor)
                raise
        self._locks[path] = descriptor
        if self._whole is None:
            with os_errors("open", ""):
                self._whole = WholeSync(self._prefix)

    def unlock(self, path: str) -> None:
        descriptor = self._locks.pop(path, None)
        if descriptor is not None:
            os.close(descriptor)
        if self._whole is not None and not self._locks:
            self._whole.close()
            self._whole = None

    def open_files_max(self) -> int:
        """Half of the process's descriptors: the other half is for connections and all other files."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        share = OPEN_FILES_MAX if soft == resource.RLIM_INFINITY else soft // 2
        return max(1, min(share, OPEN_FILES_MAX))

    def free_bytes(self) -> int:
        with os_errors("statvfs", str(self._root)):
            status = os.statvfs(self._root)
        return status.f_bavail * status.f_frsize

    def total_bytes(self) -> int:
        with os_errors("statvfs", str(self._root)):
            status = os.statvfs(self._root)
        # Space that is reserved for root counts as neither, as in the percentage that df shows.
        return (status.f_blocks - status.f_bfree + status.f_bavail) * status.f_frsize

    def check_trees(self, directory: str) -> Sequence[str]:
        return check_structure(self._absolute(directory), directory)

    def open_trees(self, directory: str, names: Sequence[str]) -> Trees:
        return LmdbTrees(self._absolute(directory), directory, names)

    def modified_ms(self, path: str) -> int:
        with os_errors("stat", path):
            return os.stat(self._absolute(path)).st_mtime_ns // 1_000_000
