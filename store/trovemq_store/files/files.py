"""The seam to the disk: the only way in which the engine touches files.

Appends use `File.write`, reads use `File.view` (the mapping), so that a fake disk sees every write.
`WritableMap` is for the index files alone, whose writes are scattered; a fake disk sees these writes, too.
Sorted trees (trees.py) write for themselves. Paths are relative to the store's root, with `/`; a path that
leaves the root is refused.

Invariants
- A write either happens whole or raises `StorageError`; `write` loops over short writes and EINTR.
- A file that is mapped for writing was preallocated, so a full disk is an error code and never SIGBUS.
- `write_atomic` leaves the old content or the new one, also over a power cut.
- A range that `check_readable` has accepted may be read through the view: a bad sector is an error code and
  never SIGBUS.
- A view stays valid until its file is closed *and* the view is released; closing never unmaps under a reader.
- A read that fails says why: ScarceError if no descriptor, map or memory was free for it, and nothing is
  known about the file; UnreadableError if the disk returns nothing, which is damage.

Implementations: `RealFileSystem` (real.py), `MemoryFileSystem` (memory.py) and, for tests,
`FaultyFileSystem` (faulty.py) around either. An open store has `GuardedFileSystem` (guarded.py) around it.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_store.files.kernel_sync import KernelSync
from trovemq_store.files.trees import Trees

Buffer = bytes | bytearray | memoryview

OPEN_FILES_IN_MEMORY: Final = 256
OPEN_FILES_MAX: Final = 16_384
"""Of one owner. Memory bounds it: an open file takes 1 KiB, and as much of the kernel's."""
DISK_FULL_NUMBERS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
SCARCE_NUMBERS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)
"""No descriptor, map or memory is free for the call, but one may be a moment later."""
READS: Final = frozenset(
    ("open", "mmap", "read", "list", "stat", "statvfs", "read_bytes", "open_trees", "read_trees")
)
"""The operations that change nothing. (EAGAIN of another one may be a lock that is held.)"""


class StorageError(Exception):
    """A file operation failed. `errno` is the cause; `operation` and `path` are the place."""

    def __init__(self, operation: str, path: str, error_number: int, message: str = "") -> None:
        self.operation = operation
        self.path = path
        self.errno = error_number
        text = f"{operation} {path}: {message or errno.errorcode.get(error_number, error_number)}"
        Exception.__init__(self, text)

    @property
    def disk_full(self) -> bool:
        return self.errno in DISK_FULL_NUMBERS

    @property
    def sync_failed(self) -> bool:
        """Whether data that should be on disk may be lost, and no later sync would report it: whatever the
        errno is. (A directory that cannot be opened for its sync has failed to open.)"""
        return self.operation in ("sync", "sync_directory")

    @property
    def scarce(self) -> bool:
        """Whether something was missing that may be free a moment later."""
        return self.errno in SCARCE_NUMBERS and not self.sync_failed


class UnreadableError(StorageError):
    """A read failed, and not for want of a descriptor, a map or memory: the file, or that part of it, is
    damaged or missing. Only this may be remembered as damage."""


class ScarceError(StorageError, TroveError):
    """A read for which no descriptor, map or memory was free. Nothing is known about the file: the request is
    answered with this error, or tried again."""

    def __init__(self, operation: str, path: str, error_number: int, message: str = "") -> None:
        StorageError.__init__(self, operation, path, error_number, message)
        TroveError.__init__(self, errors.RESOURCES_SCARCE, str(self))


class DeletedError(StorageError):
    """A file of the open store has no name any more: its directory was deleted beneath the process. Synced
    bytes are gone when the process ends, so it is a failed sync."""

    def __init__(self, path: str) -> None:
        super().__init__("sync", path, errno.ENOENT, "the file was deleted while the store is open")


def storage_error(operation: str, path: str, error_number: int, message: str = "") -> StorageError:
    """The error of a failed call."""
    kind = StorageError
    if operation in READS:
        kind = ScarceError if error_number in SCARCE_NUMBERS else UnreadableError
    return kind(operation, path, error_number, message)


class File(Protocol):
    """One open file of a fixed size, written by position and read through its mapping."""

    @property
    def path(self) -> str: ...

    @property
    def size(self) -> int: ...

    def view(self) -> memoryview:
        """The whole file, read-only; it always shows the last writes."""
        ...

    def check_readable(self, begin: int, end: int) -> None:
        """Brings [begin, end) of the view into memory. StorageError if the disk does not return it: a
        read of the view there would end the process (SIGBUS)."""
        ...

    def read(self, begin: int, end: int) -> bytes:
        """A copy of [begin, end), without a mapping: for many files of which little is read. StorageError if
        the disk does not return it."""
        ...

    def written_ranges(self, begin: int) -> Iterator[tuple[int, int]]:
        """The ranges of [begin, size) that may have anything but zeros. Ranges that were never written are
        left out without being read."""
        ...

    def write(self, offset: int, data: Buffer) -> None:
        """Writes all of `data` at `offset`; offset + len(data) <= size."""
        ...

    def sync(self) -> None:
        """Returns when everything written (also through a WritableMap) is on disk. May run in any thread."""
        ...

    def begin_sync(self, kernel: KernelSync) -> bool:
        """Begins a sync and returns at once; end_sync() follows when `kernel` reports the end. False: nothing
        has begun, and the caller calls sync()."""
        ...

    def end_sync(self, kernel: KernelSync) -> bool:
        """Whether the sync has ended. StorageError if it failed."""
        ...

    def check_linked(self) -> None:
        """DeletedError if the file has no name any more. For files that nothing in this process removes."""
        ...

    def close(self) -> None: ...


class FileHead(NamedTuple):
    """A file's beginning and its size. is_all: nothing was ever written after `data`."""

    data: bytes
    size: int
    is_all: bool


class WritableMap(File, Protocol):
    """A preallocated file mapped for writing in scattered places (index files)."""

    def scatter(self, offsets: NDArray[np.int64], values: NDArray[np.void] | NDArray[np.integer]) -> None:
        """Writes values[i] (its own bytes; the dtype is big-endian already) at offsets[i].

        Where an offset occurs twice the last value stays.
        """
        ...


@runtime_checkable
class FileSystem(Protocol):
    """A directory tree; all paths are relative to its root."""

    def create(self, path: str, size: int, *, preallocate: bool) -> File:
        """Creates a file of zeros, and its directory, and opens it. Fails if it exists (EEXIST).

        With `preallocate` its blocks are reserved, so later writes cannot meet a full disk.
        The name itself is durable after `sync_directory`.
        """
        ...

    def open(self, path: str) -> File:
        """Opens an existing file at its present size."""
        ...

    def open_writable_map(self, path: str, size: int) -> WritableMap:
        """Opens a file for scattered writes; creates or extends it, preallocated, to `size` if needed."""
        ...

    def list(self, directory: str) -> Sequence[str]:
        """Names of the entries of a directory, sorted; empty if there is no directory."""
        ...

    def is_directory(self, path: str) -> bool: ...

    def exists(self, path: str) -> bool: ...

    def file_size(self, path: str) -> int: ...

    def read_bytes(self, path: str) -> bytes: ...

    def head(self, path: str, length: int) -> FileHead:
        """The first `length` bytes (fewer if the file is shorter), without mapping it."""
        ...

    def write_atomic(self, path: str, data: bytes) -> None:
        """Replaces a small file: temporary, sync, rename, sync of the directory."""
        ...

    def truncate(self, path: str, size: int) -> None:
        """Sets the size of a file that is not open (cut or grown by a hole)."""
        ...

    def rename(self, source: str, target: str) -> None: ...

    def remove(self, path: str) -> None:
        """Removes a file; no error if it is missing."""
        ...

    def remove_directory(self, path: str) -> None:
        """Removes a directory; no error if it is missing or not empty."""
        ...

    def sync_directory(self, directory: str) -> None: ...

    def sync_all(self) -> bool:
        """Syncs everything that was written, and all names, in one call. False: the system cannot do that, or
        something failed, and each file must be synced. May run in any thread."""
        ...

    def lock(self, path: str) -> None:
        """Takes the exclusive POSIX lock on byte 0 of `path` (created if missing). EAGAIN if it is held."""
        ...

    def unlock(self, path: str) -> None: ...

    def free_bytes(self) -> int: ...

    def open_files_max(self) -> int:
        """How many files one owner may keep open for later use, so that others can still open theirs."""
        ...

    def total_bytes(self) -> int:
        """The size of the disk that has the root: used bytes and free bytes."""
        ...

    def modified_ms(self, path: str) -> int:
        """When the file was written last, as epoch ms."""
        ...

    def check_trees(self, directory: str) -> Sequence[str]:
        """The faults in the structure of a directory's trees, which must not be open. If there are none, LMDB
        can use the trees. Reads the whole file, some 50 MB per second. StorageError."""
        ...

    def open_trees(self, directory: str, names: Sequence[str]) -> Trees:
        """Opens the sorted trees (trees.py) of a directory, and creates missing ones. Their file is
        `data.mdb`, whose name is durable after `sync_directory`. StorageError EINVAL: it is not such a
        file."""
        ...
