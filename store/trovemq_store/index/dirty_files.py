"""The files of a projection that must be synced: marked by apply(), synced by flush() in another thread.

Invariants
- A file is marked dirty before the projection's position passes its writes; flush() takes the position first
  and the marks afterwards, so that everything below that position is synced.
- Both threads use the sets through single operations (`add`, `pop`) alone, which the interpreter keeps whole.
- flush() opens the files itself, by path: the other thread may close or remove its own at any time.
- A failed sync is final. The kernel may have dropped the pages that it could not write, and a second sync
  would then succeed without them; so every later flush fails too, and only a replay of the log repairs it.
"""

from __future__ import annotations

import errno
from typing import Final

from trovemq_store.files.fault_points import fault_point
from trovemq_store.files.files import FileSystem, StorageError
from trovemq_store.files.paths import parent_directory

MANY: Final = 512
"""Beyond this many files and directories, one sync of the whole file system is used: each file that is synced
alone is a commit of the file system's journal. Figures:
docs/internals/decisions.md, "A second path, and its gain"."""


class DirtyFiles:
    """The paths that flush() has to sync, and the directories with new names."""

    def __init__(self, files: FileSystem) -> None:
        self._files = files
        self._paths: set[str] = set()
        self._directories: set[str] = set()
        self._failure: StorageError | None = None

    def __len__(self) -> int:
        return len(self._paths) + len(self._directories)

    def mark(self, path: str) -> None:
        self._paths.add(path)

    def mark_created(self, path: str) -> None:
        """A new file: its directory, and every directory above it, may be new too."""
        self._paths.add(path)
        self.mark_directory(parent_directory(path))

    def mark_directory(self, directory: str) -> None:
        """A directory whose names, and its own, may not be on disk: it and every one above it."""
        self._directories.add(directory)
        while directory:
            directory = parent_directory(directory)
            self._directories.add(directory)

    def sync(self, only: list[str] | None = None) -> None:
        """Syncs the marked files, or `only` these. Raises StorageError; once a sync has failed, at every
        later call."""
        if self._failure is not None:
            raise self._failure
        paths = _drain(self._paths) if only is None else only
        directories = _drain(self._directories)
        if len(paths) + len(directories) > MANY and self._files.sync_all():
            return
        try:
            for path in paths:
                fault_point("projections.before_file")
                self._sync_file(path)
            for directory in directories:
                fault_point("projections.before_directory")
                self._sync_directory(directory)
        except StorageError as failure:
            if failure.sync_failed:
                self._failure = failure
            self._paths.update(paths)  # they were not tried, or must never count as synced
            self._directories.update(directories)
            raise

    def _sync_file(self, path: str) -> None:
        try:
            file = self._files.open(path)
        except StorageError as failure:
            if failure.errno == errno.ENOENT:
                return  # removed since it was marked
            raise
        try:
            file.sync()
        finally:
            file.close()

    def _sync_directory(self, directory: str) -> None:
        try:
            self._files.sync_directory(directory)
        except StorageError as failure:
            if failure.errno != errno.ENOENT:
                raise


def _drain(marked: set[str]) -> list[str]:
    taken = []
    for _ in range(len(marked)):
        try:
            taken.append(marked.pop())
        except KeyError:
            break
    return taken
