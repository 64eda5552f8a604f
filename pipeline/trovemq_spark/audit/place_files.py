"""A store in any place (a path, an object store) as the file system that the store's format readers require.

Only the methods of reading are there; every write is refused.
"""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

from trovemq_spark.storage import StoragePath
from trovemq_store.files.files import File, FileHead, StorageError
from trovemq_store.files.read_only import ReadOnlyFile, ReadOnlyFileSystem


class PlaceFiles:
    """Picklable. A missing file raises StorageError, as in the store's own file system."""

    def __init__(self, place: StoragePath) -> None:
        self.place = place

    def open(self, path: str) -> File:
        try:
            return cast("File", ReadOnlyFile(path, self.place.map(path)))
        except OSError as error:
            raise StorageError("open", path, error.errno or errno.EIO) from error

    def list(self, directory: str) -> list[str]:
        return [posixpath.basename(entry.name) for entry in self.place.entries(directory)]

    def walk(self, directory: str = "") -> Iterator[str]:
        for entry in self.place.entries(directory, recursive=True):
            if not entry.is_directory:
                yield entry.name

    def is_directory(self, path: str) -> bool:
        parent, name = posixpath.split(path)
        return any(
            entry.is_directory
            for entry in self.place.entries(parent)
            if posixpath.basename(entry.name) == name
        )

    def exists(self, path: str) -> bool:
        return self.place.exists(path)

    def file_size(self, path: str) -> int:
        parent, name = posixpath.split(path)
        for entry in self.place.entries(parent):
            if posixpath.basename(entry.name) == name:
                return entry.size
        raise StorageError("stat", path, errno.ENOENT)

    def head(self, path: str, length: int) -> FileHead:
        data = self.read_bytes(path)
        return FileHead(data[:length], len(data), not any(data[length:]))

    def read_bytes(self, path: str) -> bytes:
        try:
            return self.place.read(path)
        except OSError as error:
            raise StorageError("read", path, error.errno or errno.EIO) from error


if TYPE_CHECKING:
    from trovemq_store.files.files import FileSystem


def as_file_system(files: PlaceFiles) -> FileSystem:
    """For code that requires a whole FileSystem and only reads."""
    return cast("FileSystem", files)


def as_read_only(files: PlaceFiles) -> ReadOnlyFileSystem:
    """For code that requires the tools' file system."""
    return cast("ReadOnlyFileSystem", files)
