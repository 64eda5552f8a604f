"""The file system of an open store: it reserves a little space, and remembers a failed sync.

    trovemq/reserve-0 … reserve-7   preallocated and never written: space for when the disk is full

Small files are replaced as a whole, and a consume queue grows into holes of its file: both need new blocks.
If the disk is full, files of the reserve are removed, one at a time, and the call is repeated. So consumer
offsets, the store's marks and the units of the broker's own records can still be written while others fill
the disk; `refill` fills the reserve again when there is space.

Invariants
- `short` is True from the first call that needed the reserve until it is whole again. Meanwhile the store
  refuses new messages: the rest of the reserve is for the broker's own writes.
- Files that are preallocated (segments, index files) never take space from the reserve.
- `sync_failure` is the first sync that failed, of whatever file, in whatever thread. The kernel may have
  dropped pages that it should have written: from then on nothing is acknowledged. (For a new file that only
  means a full disk, and the file is given up; a caller that syncs data checks the result itself.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from trovemq_store.files.files import Buffer, File, FileSystem, StorageError, WritableMap
from trovemq_store.files.kernel_sync import KernelSync
from trovemq_store.files.trees import TreeChange, Trees

RESERVE_DIRECTORY: Final = "trovemq"
RESERVE_COUNT: Final = 8
CHUNK_SIZE_MAX: Final = 1 << 20
_CHUNK_SIZE_MIN: Final = 1 << 12

Result = TypeVar("Result")


def reserve_chunk_size(commit_log_file_size: int) -> int:
    """Bytes of one file of the reserve: together they are no larger than a segment, and at most 8 MiB."""
    size = min(CHUNK_SIZE_MAX, commit_log_file_size // RESERVE_COUNT)
    return max(_CHUNK_SIZE_MIN, size // _CHUNK_SIZE_MIN * _CHUNK_SIZE_MIN)


class GuardedFile:
    """A file of a GuardedFileSystem. Reads call the inner file directly, at no extra cost."""

    def __init__(self, owner: GuardedFileSystem, inner: File) -> None:
        self._owner = owner
        self._inner = inner
        self.path: str = inner.path
        self.size: int = inner.size
        self.view = inner.view
        self.check_readable = inner.check_readable
        self.read = inner.read
        self.written_ranges = inner.written_ranges
        self.begin_sync = inner.begin_sync
        self.close = inner.close

    def write(self, offset: int, data: Buffer) -> None:
        try:
            self._inner.write(offset, data)
        except StorageError as error:
            self._owner.make_space(error)
            self._owner.with_space(lambda: self._inner.write(offset, data))

    def sync(self) -> None:
        self._owner.noting(self._inner.sync)

    def end_sync(self, kernel: KernelSync) -> bool:
        return self._owner.noting(lambda: self._inner.end_sync(kernel))

    def check_linked(self) -> None:
        self._owner.noting(self._inner.check_linked)


class GuardedMap(GuardedFile):
    def __init__(self, owner: GuardedFileSystem, inner: WritableMap) -> None:
        super().__init__(owner, inner)
        self.scatter = inner.scatter


class GuardedTrees:
    """Trees of a GuardedFileSystem: on a full disk their commits fail, and the caller repeats them."""

    def __init__(self, owner: GuardedFileSystem, inner: Trees) -> None:
        self._owner = owner
        self._inner = inner
        self.read = inner.read
        self.close = inner.close

    def commit(self, changes: Sequence[TreeChange]) -> None:
        self._owner.noting(lambda: self._inner.commit(changes))

    @property
    def size_bytes(self) -> int:
        return self._inner.size_bytes


class GuardedFileSystem:
    """Wraps another file system; `chunk_size`: bytes of each file of the reserve."""

    def __init__(self, inner: FileSystem, chunk_size: int) -> None:
        self.inner: Final = inner
        self.chunk_size: Final = chunk_size
        self.short = False
        self.sync_failure: StorageError | None = None
        # Calls that change nothing here go straight to the inner file system.
        self.list = inner.list
        self.is_directory = inner.is_directory
        self.exists = inner.exists
        self.file_size = inner.file_size
        self.read_bytes = inner.read_bytes
        self.head = inner.head
        self.rename = inner.rename
        self.remove = inner.remove
        self.remove_directory = inner.remove_directory
        self.lock = inner.lock
        self.unlock = inner.unlock
        self.free_bytes = inner.free_bytes
        self.open_files_max = inner.open_files_max
        self.total_bytes = inner.total_bytes
        self.modified_ms = inner.modified_ms
        self.check_trees = inner.check_trees
        self.sync_all = inner.sync_all

    # --- the reserve --------------------------------------------------------------------------------
    def refill(self) -> None:
        """Fills the reserve; may block, may run in another thread. StorageError: it is not whole."""
        self.short = False  # a call that meets a full disk meanwhile sets it again
        try:
            for path in self._reserve_paths():
                if self.inner.exists(path):
                    if self.inner.file_size(path) == self.chunk_size:
                        continue
                    self.inner.remove(path)  # its creation was interrupted
                self.inner.create(path, self.chunk_size, preallocate=True).close()
        except StorageError:
            self.short = True
            raise

    def drop_reserve(self) -> None:
        for path in self._reserve_paths():
            self.inner.remove(path)

    def is_whole(self) -> bool:
        return not self.short and all(map(self.inner.exists, self._reserve_paths()))

    def _reserve_paths(self) -> Sequence[str]:
        return [f"{RESERVE_DIRECTORY}/reserve-{number}" for number in range(RESERVE_COUNT)]

    def make_space(self, error: StorageError) -> None:
        """Removes one file of the reserve after a call has met a full disk. Raises the call's error if it has
        another cause, or no file of it is there."""
        if not error.disk_full:
            self._note(error)
            raise error
        for path in self._reserve_paths():
            if self.inner.exists(path):
                self.short = True
                self.inner.remove(path)
                return
        raise error

    def with_space(self, call: Callable[[], Result]) -> Result:
        """Repeats the call as long as space can be made for it."""
        while True:
            try:
                return call()
            except StorageError as error:
                self.make_space(error)

    # --- syncs --------------------------------------------------------------------------------------
    def noting(self, call: Callable[[], Result]) -> Result:
        try:
            return call()
        except StorageError as error:
            self._note(error)
            raise

    def _note(self, error: StorageError) -> None:
        if error.sync_failed and self.sync_failure is None:
            self.sync_failure = error

    def sync_directory(self, directory: str) -> None:
        self.noting(lambda: self.inner.sync_directory(directory))

    # --- files --------------------------------------------------------------------------------------
    def create(self, path: str, size: int, *, preallocate: bool) -> File:
        if preallocate:
            return GuardedFile(self, self.inner.create(path, size, preallocate=True))
        return GuardedFile(self, self.with_space(lambda: self.inner.create(path, size, preallocate=False)))

    def open(self, path: str) -> File:
        return GuardedFile(self, self.inner.open(path))

    def open_writable_map(self, path: str, size: int) -> WritableMap:
        return GuardedMap(self, self.inner.open_writable_map(path, size))

    def open_trees(self, directory: str, names: Sequence[str]) -> Trees:
        return GuardedTrees(self, self.inner.open_trees(directory, names))

    def write_atomic(self, path: str, data: bytes) -> None:
        self.with_space(lambda: self.inner.write_atomic(path, data))

    def truncate(self, path: str, size: int) -> None:
        self.with_space(lambda: self.inner.truncate(path, size))
