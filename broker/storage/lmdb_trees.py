"""Trees as LMDB keeps them: one environment in a directory, `data.mdb` and `lock.mdb`.

LMDB writes pages to free places, syncs them, then writes and syncs the page that names the new roots: what
was committed is whole after any crash, without a log of its own. Its sync is never switched off.

The mapping has a fixed size; when a commit does not fit it is doubled and the commit made again. That must
not happen under a reader, so readers are counted.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from threading import Condition
from types import TracebackType
from typing import Any, Final, Self

import lmdb

from broker.storage.files import StorageError
from broker.storage.trees import TreeChange

MAP_SIZE_MIN: Final = 1 << 26
DATA_NAME: Final = "data.mdb"
LOCK_NAME: Final = "lock.mdb"
READERS_MAX: Final = 64
LOCK_FILE_SIZE: Final = 1 << 14
"""More than LMDB's head and READERS_MAX places take."""


class LmdbReader:
    """One snapshot; see TreeReader."""

    def __init__(self, owner: LmdbTrees) -> None:
        self._owner = owner
        self._transaction = owner.begin_read()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        self._transaction.abort()
        self._owner.end_read()

    def get(self, tree: str, key: bytes) -> bytes | None:
        value: bytes | None = self._transaction.get(key, db=self._owner.handle(tree))
        return value

    def get_many(self, tree: str, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        with self._transaction.cursor(self._owner.handle(tree)) as cursor:
            return dict(cursor.getmulti(keys))

    def items(
        self, tree: str, begin: bytes, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        with self._transaction.cursor(self._owner.handle(tree)) as cursor:
            if reverse:
                behind = end is not None and cursor.set_range(end)
                found = cursor.prev() if behind else cursor.last()
                while found and cursor.key() >= begin:
                    yield cursor.item()
                    found = cursor.prev()
                return
            found = cursor.set_range(begin) if begin else cursor.first()
            while found and (end is None or cursor.key() < end):
                yield cursor.item()
                found = cursor.next()

    def count(self, tree: str) -> int:
        return int(self._transaction.stat(self._owner.handle(tree))["entries"])


class LmdbTrees:
    """See Trees. StorageError from the constructor: EINVAL where the file is no whole file of LMDB's; with
    `read_only`, which must be used where nobody writes, also where a tree is missing."""

    def __init__(self, directory: str, path: str, names: Sequence[str], *, read_only: bool = False) -> None:
        self._path: Final = path
        self._data: Final = os.path.join(directory, DATA_NAME)
        self._gate = Condition()
        self._readers = 0
        try:
            if not read_only:
                os.makedirs(directory, exist_ok=True)
                _make_lock_file(os.path.join(directory, LOCK_NAME))
            size = os.path.getsize(self._data) if os.path.exists(self._data) else 0
            self._environment = lmdb.open(
                directory,
                map_size=max(MAP_SIZE_MIN, 1 << size.bit_length()),
                max_dbs=len(names) + 1,
                max_readers=READERS_MAX,
                readahead=False,
                readonly=read_only,
                create=not read_only,
                lock=not read_only,
            )
            self._check_length(size)
            self._handles = {
                name: self._environment.open_db(name.encode(), create=not read_only) for name in names
            }
        except (lmdb.Error, OSError) as error:
            if "_environment" in self.__dict__:
                self._environment.close()
            raise _storage_error("open_trees", path, error) from error

    def _check_length(self, size: int) -> None:
        """A file that was cut would be SIGBUS for who reads behind its end."""
        info, page_size = self._environment.info(), self._environment.stat()["psize"]
        if size and info["last_txnid"] and size < (info["last_pgno"] + 1) * page_size:
            raise lmdb.CorruptedError(f"{DATA_NAME} is shorter than its pages")

    def handle(self, tree: str) -> Any:
        return self._handles[tree]

    def begin_read(self) -> Any:
        with self._gate:
            try:
                transaction = self._environment.begin(buffers=False)
            except lmdb.Error as error:
                raise _storage_error("read", self._path, error) from error
            self._readers += 1
            return transaction

    def end_read(self) -> None:
        with self._gate:
            self._readers -= 1
            self._gate.notify_all()

    def read(self) -> LmdbReader:
        return LmdbReader(self)

    def commit(self, changes: Sequence[TreeChange]) -> None:
        while True:
            try:
                self._commit(changes)
                return
            except lmdb.MapFullError:
                self._grow()
            except lmdb.Error as error:
                raise _storage_error("commit", self._path, error) from error

    def _commit(self, changes: Sequence[TreeChange]) -> None:
        with self._environment.begin(write=True) as transaction:
            for change in changes:
                handle = self._handles[change.tree]
                if change.cleared:
                    transaction.drop(handle, delete=False)
                for key in change.removals:
                    transaction.delete(key, db=handle)
                if change.puts:
                    with transaction.cursor(handle) as cursor:
                        cursor.putmulti(change.puts)

    def _grow(self) -> None:
        with self._gate:
            self._gate.wait_for(lambda: not self._readers)
            try:
                self._environment.set_mapsize(2 * self._environment.info()["map_size"])
            except lmdb.Error as error:
                raise _storage_error("commit", self._path, error) from error

    @property
    def size_bytes(self) -> int:
        try:
            return os.stat(self._data).st_blocks * 512
        except OSError:
            return 0

    def close(self) -> None:
        self._environment.close()


def _make_lock_file(path: str) -> None:
    """LMDB writes to it through a mapping: with its blocks allocated, a full disk is no SIGBUS."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.posix_fallocate(descriptor, 0, LOCK_FILE_SIZE)
    finally:
        os.close(descriptor)


def _storage_error(operation: str, path: str, error: lmdb.Error | OSError) -> StorageError:
    """LMDB's own codes are negative: the file is not what it should be (EINVAL). EIO of a commit is a sync
    that failed, or a write: what the pages hold is not known."""
    code = getattr(error, "code", None) if isinstance(error, lmdb.Error) else error.errno
    number = code if isinstance(code, int) and code > 0 else errno.EINVAL
    if operation == "commit" and number == errno.EIO:
        operation = "sync"
    return StorageError(operation, path, number, str(error))
