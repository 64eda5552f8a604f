"""Files that may be replaced while a daemon runs: certificates, keys, users."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

_State: TypeAlias = "tuple[int, int, int, int] | None"


class FileWatch:
    """Detects changed files by inode, size and times, so that a file that was replaced by renaming counts as
    changed, and so does a symbolic link with another target.

    Call changed() before reading the files: a change in between is detected by the next call.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self._paths = tuple(paths)
        self._seen = self._look()

    def changed(self) -> bool:
        """Whether a file has changed since the last call, or since the start. Blocks."""
        before, self._seen = self._seen, self._look()
        return self._seen != before

    def _look(self) -> tuple[_State, ...]:
        return tuple(_state_of(path) for path in self._paths)


def _state_of(path: Path) -> _State:
    """The state of a file; None if there is none, or it cannot be read."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
