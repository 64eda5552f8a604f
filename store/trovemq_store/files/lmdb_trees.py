"""Trees in LMDB: one environment in a directory, `data.mdb` and `lock.mdb`.

LMDB writes pages to free places, syncs them, then writes and syncs the page that names the new roots: a
commit is whole after any crash, without a separate log. Its sync is never switched off.

The mapping has a fixed size. When a commit does not fit, the size is doubled and the commit repeated. That
must not happen while a reader is open, so readers are counted.
"""

from __future__ import annotations

import errno
import os
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from operator import itemgetter
from threading import Condition
from types import TracebackType
from typing import Any, Final, Self

import lmdb
from lmdb.verify import VerifyError, verify

from trovemq_store.files.files import StorageError, storage_error
from trovemq_store.files.trees import LONG_RUN, TreeChange

MAP_SIZE_MIN: Final = 1 << 26
DATA_NAME: Final = "data.mdb"
LOCK_NAME: Final = "lock.mdb"
READERS_MAX: Final = 64
PAGE_SIZE: Final = 4096
KEYS_AT_ONCE: Final = 1024
ITEMS_AT_ONCE: Final = 256
FULL_BELOW_BYTES: Final = 1 << 20
"""With less free space than this, a failed commit is one of a full disk."""
LOCK_FILE_SIZE: Final = 1 << 14
"""More than LMDB's header and READERS_MAX slots need."""
Entries = Callable[[], Iterable[tuple[bytes, bytes]]]


class LmdbCursor:
    """A cursor of LMDB in the reader's transaction."""

    def __init__(self, owner: LmdbTrees, cursor: Any) -> None:
        self._owner = owner
        self._cursor = cursor

    def at_least(self, key: bytes) -> tuple[bytes, bytes] | None:
        try:
            found: tuple[bytes, bytes] | None = self._cursor.item() if self._cursor.set_range(key) else None
        except lmdb.Error as error:
            raise self._owner.read_error(error) from error
        return found

    def below(self, key: bytes) -> tuple[bytes, bytes] | None:
        cursor = self._cursor
        try:
            there = cursor.prev() if cursor.set_range(key) else cursor.last()
            found: tuple[bytes, bytes] | None = cursor.item() if there else None
        except lmdb.Error as error:
            raise self._owner.read_error(error) from error
        return found


class LmdbReader:
    """One snapshot: a read transaction of LMDB."""

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
        with self._owner.reading():
            value: bytes | None = self._transaction.get(key, db=self._owner.handle(tree))
        return value

    def get_all(self, tree: str, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        with self._owner.reading(), self._transaction.cursor(self._owner.handle(tree)) as cursor:
            return dict(cursor.getmulti(keys))

    def items(
        self, tree: str, begin: bytes, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        with self._owner.reading(), self._transaction.cursor(self._owner.handle(tree)) as cursor:
            if reverse:
                has_later = end is not None and cursor.set_range(end)
                if cursor.prev() if has_later else cursor.last():
                    entries, count = cursor.iterprev(), 1
                    while chunk := list(islice(entries, count)):
                        for item in chunk:
                            if item[0] < begin:
                                return
                            yield item
                        count = min(2 * count, ITEMS_AT_ONCE)
            elif cursor.set_range(begin) if begin else cursor.first():
                entries, count = cursor.iternext(), 1
                while chunk := list(islice(entries, count)):
                    if end is not None and chunk[-1][0] >= end:
                        yield from chunk[: bisect_left(chunk, end, key=itemgetter(0))]
                        return
                    yield from chunk
                    count = min(2 * count, ITEMS_AT_ONCE)

    def keys(self, tree: str, begin: bytes, end: bytes, most: int) -> list[bytes]:
        found: list[bytes] = []
        with self._owner.reading(), self._transaction.cursor(self._owner.handle(tree)) as cursor:
            if cursor.set_range(begin):
                keys = cursor.iternext(values=False)
                while chunk := list(islice(keys, min(KEYS_AT_ONCE, most - len(found)))):
                    found += chunk
                    if chunk[-1] >= end:
                        break
        return found[: bisect_left(found, end)]

    def cursor(self, tree: str) -> LmdbCursor:
        return LmdbCursor(self._owner, self._transaction.cursor(self._owner.handle(tree)))

    def count(self, tree: str) -> int:
        return int(self._transaction.stat(self._owner.handle(tree))["entries"])


class LmdbTrees:
    """Trees in one file. The constructor raises StorageError: EINVAL if it is not a whole file of LMDB; with
    `read_only` (for trees that are not written) also if a tree is missing."""

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
        """Raises an error if pages were cut off, which would be a SIGBUS on reading. (LMDB itself leaves the
        file shorter if one commit has both created and freed the last pages.)"""
        info, page_size = self._environment.info(), self._environment.stat()["psize"]
        whole = size >= (info["last_pgno"] + 1) * page_size
        if not whole and (problems := check_structure(os.path.dirname(self._data), self._path)):
            raise lmdb.CorruptedError(f"{DATA_NAME} is shorter than its pages: {problems[0]}")

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Raises LMDB's errors as StorageError."""
        try:
            yield
        except lmdb.Error as error:
            raise self.read_error(error) from error

    def read_error(self, error: lmdb.Error) -> StorageError:
        return _storage_error("read", self._path, error)

    def handle(self, tree: str) -> Any:
        return self._handles[tree]

    def begin_read(self) -> Any:
        with self._gate:
            try:
                transaction = self._environment.begin(buffers=False)
            except lmdb.Error as error:
                raise self.read_error(error) from error
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
                failure = _storage_error("commit", self._path, error)
                if failure.errno == errno.EIO:
                    full = self._is_disk_full()
                    number, operation = (errno.ENOSPC, "commit") if full else (errno.EIO, "sync")
                    failure = StorageError(operation, self._path, number, str(error))
                raise failure from error

    def _is_disk_full(self) -> bool:
        """Whether a commit's EIO is caused by a full disk; else a write failed, or the sync.

        LMDB reports EIO, too, if a full disk takes only the first bytes of a write. If the sync failed as
        well, another try loses nothing: no root names a page of a failed commit, and the next commit writes
        all of its pages.
        """
        disk = os.statvfs(self._data)
        return disk.f_bavail * disk.f_frsize < FULL_BELOW_BYTES

    def _commit(self, changes: Sequence[TreeChange]) -> None:
        with self._environment.begin(write=True) as transaction:
            for change in changes:
                handle = self._handles[change.tree]
                for key in change.removals:
                    transaction.delete(key, db=handle)
                with transaction.cursor(handle) as cursor:
                    if puts := change.puts:
                        _put(cursor, puts[0][0], puts[-1][0], len(puts), partial(iter, puts))
                    if len(keys := change.keys):
                        _put(cursor, keys[0], keys[-1], len(keys), change.entries)

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


def _put(cursor: Any, first: bytes, last: bytes, count: int, entries: Entries) -> None:
    """Puts `count` entries, sorted by key, from `first` to `last`.

    LMDB fills a page if entries are added after its last one; otherwise it leaves pages half empty. So
    entries after all existing ones are appended. If all entries lie between two neighbours (rising ids of one
    topic), the following entries that would share a page with them are removed first, and put again
    afterwards.
    """
    if not cursor.set_range(first):
        consumed, added = cursor.putmulti(entries(), append=True)
        if added < consumed:  # one was not above the one before
            cursor.putmulti(entries())
        return
    moved = _take_out_page(cursor) if count >= LONG_RUN and last < cursor.key() else []
    cursor.putmulti(entries())
    if moved:
        cursor.putmulti(moved)


def _take_out_page(cursor: Any) -> list[tuple[bytes, bytes]]:
    """Removes the entries from the cursor on, as many as a page can have, and returns them."""
    taken: list[tuple[bytes, bytes]] = []
    space = PAGE_SIZE
    for key, value in cursor.iternext():
        taken.append((key, value))
        space -= len(key) + len(value)
        if space <= 0:
            break
    for key, _ in taken:
        cursor.set_key(key)
        cursor.delete()
    return taken


def check_structure(directory: str, path: str) -> Sequence[str]:
    """The faults in the structure of the directory's trees, which must not be open; none if there is no
    file. Reads the whole file. StorageError with `path`."""
    if not os.path.exists(os.path.join(directory, DATA_NAME)):
        return []
    try:
        problems: list[str] = verify(os.path.join(directory, DATA_NAME))  # type: ignore[no-untyped-call]
    except VerifyError as error:
        return [str(error)]
    except OSError as error:
        raise _storage_error("read", path, error) from error
    return problems


def _make_lock_file(path: str) -> None:
    """Preallocates the file: LMDB writes it through a mapping, and without blocks a full disk would be
    SIGBUS."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.posix_fallocate(descriptor, 0, LOCK_FILE_SIZE)
    finally:
        os.close(descriptor)


def _storage_error(operation: str, path: str, error: lmdb.Error | OSError) -> StorageError:
    """LMDB's own codes are negative: the file is damaged (EINVAL)."""
    code = getattr(error, "code", None) if isinstance(error, lmdb.Error) else error.errno
    number = code if isinstance(code, int) and code > 0 else errno.EINVAL
    if code == 0:
        number = errno.EBUSY  # it is open in this process
    return storage_error(operation, path, number, str(error))
