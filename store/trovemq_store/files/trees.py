"""The interface of sorted trees on disk: maps of bytes to bytes, changed together in commits that are atomic
and synced.

`FileSystem.open_trees` opens a set of them in one directory. On disk they are LMDB's B+trees
(lmdb_trees.py), in memory plain dictionaries (memory_trees.py).

Invariants
- A commit has all its changes or none, also after a power cut, and is on disk when commit() returns.
- A reader sees one commit, the last before it was opened, whatever is committed meanwhile.
- One commit at a time, in any thread. Readers may be used meanwhile, each by one thread, and only for a
  moment: the trees cannot grow while one is open.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from types import TracebackType
from typing import Final, Protocol, Self

KEY_SIZE_MAX: Final = 511
"""Bytes of a key: LMDB's limit."""
LONG_RUN: Final = 100
"""From this many entries on, a run of entries between two neighbours fills its pages; a shorter one may leave
them half empty. No benchmark has a case for it."""


class ByteRows(Protocol):
    """A sequence of bytes: a list, or a class that makes each when it is needed."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> bytes: ...

    def __iter__(self) -> Iterator[bytes]: ...


@dataclass(slots=True)
class TreeChange:
    """A commit's changes of one tree: first the removals, then the puts (sorted by key; an existing key gets
    the new value), then `keys` (sorted) with their `values`: as many as keys, or none if all are empty."""

    tree: str
    puts: list[tuple[bytes, bytes]] = field(default_factory=list)
    removals: list[bytes] = field(default_factory=list)
    keys: ByteRows = ()
    values: ByteRows = ()

    def entries(self) -> Iterator[tuple[bytes, bytes]]:
        """`keys` with their values."""
        if not len(self.values):
            return zip(self.keys, repeat(b""))
        return zip(self.keys, self.values, strict=True)


class TreeCursor(Protocol):
    """Looks up one entry after the other, far cheaper than items(); valid as long as its reader."""

    def at_least(self, key: bytes) -> tuple[bytes, bytes] | None:
        """The first entry whose key is not below this one."""
        ...

    def below(self, key: bytes) -> tuple[bytes, bytes] | None:
        """The last entry whose key is below this one."""
        ...


class TreeReader(Protocol):
    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...

    def get(self, tree: str, key: bytes) -> bytes | None: ...

    def get_all(self, tree: str, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """The existing ones of the keys, with their values; fastest if the keys are sorted."""
        ...

    def items(
        self, tree: str, begin: bytes, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """The entries with begin <= key < end (None: to the last), ascending, or descending with
        `reverse`."""
        ...

    def keys(self, tree: str, begin: bytes, end: bytes, most: int) -> list[bytes]:
        """The first `most` keys with begin <= key < end, ascending: far cheaper than items()."""
        ...

    def cursor(self, tree: str) -> TreeCursor: ...

    def count(self, tree: str) -> int: ...


class Trees(Protocol):
    def read(self) -> TreeReader:
        """A reader of the last commit. StorageError."""
        ...

    def commit(self, changes: Sequence[TreeChange]) -> None:
        """Commits the changes. StorageError: nothing has changed."""
        ...

    @property
    def size_bytes(self) -> int:
        """Bytes on disk."""
        ...

    def close(self) -> None: ...


def key_after(prefix: bytes) -> bytes | None:
    """The least key that is greater than every key with this prefix; None if there is none."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None
