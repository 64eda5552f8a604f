"""Files that may be replaced while a daemon runs: certificates, keys, users."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

_State: TypeAlias = "tuple[int, int, int, int] | None"


class FileWatch:
    """Whether any of the files is another one than at the last look: by inode, size and times, so that a file
    that is replaced by renaming counts, and a symbolic link that leads elsewhere, too.

    Look first and read then: what changes in between is seen at the next look.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self._paths = tuple(paths)
        self._seen = self._look()

    def changed(self) -> bool:
        """Since the last call, or since the start. Blocks for as long as the file system does."""
        before, self._seen = self._seen, self._look()
        return self._seen != before

    def _look(self) -> tuple[_State, ...]:
        return tuple(_state_of(path) for path in self._paths)


def _state_of(path: Path) -> _State:
    """None if it cannot be seen."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
