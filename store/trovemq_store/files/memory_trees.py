"""Trees in memory: a commit survives a power cut."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from types import TracebackType
from typing import Self

from trovemq_store.files.trees import KEY_SIZE_MAX, TreeChange

Maps = Mapping[str, dict[bytes, bytes]]


class MemoryCursor:
    """A cursor over a sorted list of keys."""

    def __init__(self, keys: Sequence[bytes], entries: Mapping[bytes, bytes]) -> None:
        self._keys = keys
        self._entries = entries

    def at_least(self, key: bytes) -> tuple[bytes, bytes] | None:
        return self._entry(bisect_left(self._keys, key))

    def below(self, key: bytes) -> tuple[bytes, bytes] | None:
        return self._entry(bisect_left(self._keys, key) - 1)

    def _entry(self, at: int) -> tuple[bytes, bytes] | None:
        if not 0 <= at < len(self._keys):
            return None
        return self._keys[at], self._entries[self._keys[at]]


class MemoryReader:
    """One snapshot of the mappings."""

    def __init__(self, maps: Maps) -> None:
        self._maps = maps
        self._sorted: dict[str, list[bytes]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        pass

    def get(self, tree: str, key: bytes) -> bytes | None:
        return self._maps[tree].get(key)

    def get_all(self, tree: str, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        entries = self._maps[tree]
        return {key: entries[key] for key in keys if key in entries}

    def items(
        self, tree: str, begin: bytes, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        keys, entries = self._in_order(tree), self._maps[tree]
        low = bisect_left(keys, begin)
        high = len(keys) if end is None else bisect_left(keys, end)
        chosen = keys[low:high]
        for key in reversed(chosen) if reverse else chosen:
            yield key, entries[key]

    def keys(self, tree: str, begin: bytes, end: bytes, most: int) -> list[bytes]:
        keys = self._in_order(tree)
        return keys[bisect_left(keys, begin) : bisect_left(keys, end)][:most]

    def cursor(self, tree: str) -> MemoryCursor:
        return MemoryCursor(self._in_order(tree), self._maps[tree])

    def count(self, tree: str) -> int:
        return len(self._maps[tree])

    def _in_order(self, tree: str) -> list[bytes]:
        if tree not in self._sorted:
            self._sorted[tree] = sorted(self._maps[tree])
        return self._sorted[tree]


class TreeContent:
    """The trees of one directory; `maps` is replaced by each commit and never changed."""

    def __init__(self, maps: Maps | None = None) -> None:
        self.maps: Maps = {} if maps is None else maps


class MemoryTrees:
    """Sorted trees in memory; a commit survives a power cut of MemoryFileSystem."""

    def __init__(self, content: TreeContent, names: Sequence[str]) -> None:
        self._content = content
        content.maps = {**{name: {} for name in names}, **content.maps}

    def read(self) -> MemoryReader:
        return MemoryReader(self._content.maps)

    def commit(self, changes: Sequence[TreeChange]) -> None:
        maps = dict(self._content.maps)
        for change in changes:
            entries = dict(maps[change.tree])
            keys = [key for key, _ in change.puts]
            assert keys == sorted(keys), "puts are sorted by key: LMDB appends them in this order"
            for key in change.removals:
                entries.pop(key, None)
            for key, value in chain(change.puts, change.entries()):
                assert key, "a key is not empty"
                assert len(key) <= KEY_SIZE_MAX, "LMDB takes no longer key"
                entries[key] = value
            maps[change.tree] = entries
        self._content.maps = maps

    @property
    def size_bytes(self) -> int:
        return sum(len(k) + len(v) for entries in self._content.maps.values() for k, v in entries.items())

    def close(self) -> None:
        pass
