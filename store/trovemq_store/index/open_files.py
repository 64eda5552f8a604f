"""A bounded number of open files: the least recently used one is closed first. If no descriptor is free, half
of them are closed.

A store may have more queues than the process may have descriptors. An open file takes about 1 KiB of memory,
and as much of the kernel's, as long as it is not mapped: a mapping takes a second descriptor and a page
for its page table. A caller uses a file from here at once, and keeps neither the file nor a view of it. All
calls come from one thread.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from trovemq_store.files.files import File, FileSystem, StorageError


class OpenFiles:
    def __init__(self, files: FileSystem, limit: int) -> None:
        self._files = files
        self.limit = limit
        self._open: OrderedDict[str, File] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def get(self, path: str) -> File:
        """The open file of that path. Raises StorageError if it cannot be opened."""
        file = self._open.get(path)
        if file is None:
            return self._keep(path, self._opened(lambda: self._files.open(path)))
        if 2 * len(self._open) > self.limit:  # else none is closed soon
            self._open.move_to_end(path)
        return file

    def create(self, path: str, size: int) -> File:
        """A new sparse file of zeros. Raises StorageError."""
        return self._keep(path, self._opened(lambda: self._files.create(path, size, preallocate=False)))

    def _opened(self, open_file: Callable[[], File]) -> File:
        while True:
            try:
                return open_file()
            except StorageError as error:
                if not error.scarce or not self._open:
                    raise
            for _ in range((len(self._open) + 1) // 2):
                self._open.popitem(last=False)[1].close()

    def take(self, path: str) -> File | None:
        """The file if it is open; the caller must close it."""
        return self._open.pop(path, None)

    def close_file(self, path: str) -> None:
        file = self._open.pop(path, None)
        if file is not None:
            file.close()

    def remove(self, path: str) -> None:
        self.close_file(path)
        self._files.remove(path)

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()

    def _keep(self, path: str, file: File) -> File:
        assert path not in self._open, "a file is opened once"
        self._open[path] = file
        if len(self._open) > self.limit:
            self._open.popitem(last=False)[1].close()
        assert path in self._open, "the file that is used stays open"
        return file
