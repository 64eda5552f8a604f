"""The places of stores, archives and results: a local path, or a URI of one of Arrow's file systems (`s3://`,
`gs://`, `hdfs://`, `file://`, `mock://` in tests). Files are written completely or not at all.

On a local path a file appears by a rename after its sync, on an object store by a single put. A local file is
mapped for reading; any other is read as a whole (a segment takes its size in memory).
"""

from __future__ import annotations

import mmap
import os
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyarrow import fs

_TEMPORARY: Final = ".part-"


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or directory below a place; `name` is relative to it, with `/` between parts."""

    name: str
    size: int
    is_directory: bool


class StoragePath:
    """A directory. Picklable, so that tasks can use it."""

    def __init__(self, text: str | os.PathLike[str]) -> None:
        """Raises ValueError for a URI that Arrow does not know."""
        self.text: Final = os.fspath(text)
        self._local = _local_path(self.text)
        self._files: fs.FileSystem | None = None
        self._root = ""
        self._connect()

    def _connect(self) -> None:
        if self._local is None:
            self._files, self._root = fs.FileSystem.from_uri(self.text)

    def __getstate__(self) -> str:
        return self.text

    def __setstate__(self, text: str) -> None:
        StoragePath.__init__(self, text)

    def __str__(self) -> str:
        return self.text

    @property
    def local(self) -> Path | None:
        """The directory, if it is a local one."""
        return self._local

    def child(self, name: str) -> StoragePath:
        return StoragePath(f"{self.text.rstrip('/')}/{name}")

    # --- looking ---

    def entries(self, directory: str = "", *, recursive: bool = False) -> Iterator[Entry]:
        """The entries of a directory, by name, without unfinished files; none if it does not exist."""
        if self._local is not None:
            yield from sorted(self._local_entries(directory, recursive), key=lambda entry: entry.name)
            return
        assert self._files is not None, "a place is local or has a file system"
        base = posixpath.join(self._root, directory) if directory else self._root
        found = self._files.get_file_info(fs.FileSelector(base, allow_not_found=True, recursive=recursive))
        for info in sorted(found, key=lambda info: info.path):
            is_directory = info.type == fs.FileType.Directory
            name = posixpath.relpath(info.path, self._root or ".")
            yield Entry(name, 0 if is_directory else int(info.size), is_directory)

    def _local_entries(self, directory: str, recursive: bool) -> Iterator[Entry]:
        assert self._local is not None
        try:
            found = list(os.scandir(self._local / directory))
        except FileNotFoundError:
            return
        for item in found:
            name = posixpath.join(directory, item.name)
            try:
                is_directory = item.is_dir()
                size = 0 if is_directory else item.stat().st_size
            except FileNotFoundError:
                continue  # removed meanwhile
            if _TEMPORARY in item.name:
                continue
            yield Entry(name, size, is_directory)
            if is_directory and recursive:
                yield from self._local_entries(name, recursive)

    def exists(self, name: str = "") -> bool:
        if self._local is not None:
            return (self._local / name).exists()
        assert self._files is not None
        return bool(self._files.get_file_info(self._path(name)).type != fs.FileType.NotFound)

    # --- reading ---

    def read(self, name: str) -> bytes:
        """A whole file. Raises FileNotFoundError, OSError."""
        return bytes(self.map(name))

    def head(self, name: str, size: int) -> bytes:
        """The first bytes of a file. Raises FileNotFoundError, OSError."""
        if self._local is not None:
            with (self._local / name).open("rb") as file:
                return file.read(size)
        assert self._files is not None
        with self._files.open_input_file(self._path(name)) as stream:
            return bytes(stream.read(size))

    def map(self, name: str) -> mmap.mmap | bytes:
        """A whole file for reading, mapped if it is local. Raises FileNotFoundError, OSError."""
        if self._local is None:
            assert self._files is not None
            with self._files.open_input_file(self._path(name)) as file:
                return bytes(file.read())
        descriptor = os.open(self._local / name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(descriptor).st_size
            return mmap.mmap(descriptor, size, access=mmap.ACCESS_READ) if size else b""
        finally:
            os.close(descriptor)

    # --- writing ---

    def write(self, name: str, data: bytes) -> None:
        """Writes a file with these bytes, in place of an existing one. Raises OSError."""
        if self._local is None:
            assert self._files is not None
            self._files.create_dir(posixpath.dirname(self._path(name)), recursive=True)
            with self._files.open_output_stream(self._path(name)) as stream:
                stream.write(data)
            return
        path = self._local / name
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.temporary(name)
        try:
            temporary.write_bytes(data)
            self.publish(temporary, name)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    def temporary(self, name: str) -> Path:
        """Where to write a local file before publish(); no reader sees it there."""
        assert self._local is not None, "only local files are renamed"
        path = self._local / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.with_name(f"{_TEMPORARY}{os.getpid()}-{path.name}")

    def publish(self, temporary: Path, name: str) -> None:
        """Syncs the file at temporary(name) and gives it its name. Raises OSError."""
        assert self._local is not None
        path = self._local / name
        for target, flags in ((temporary, os.O_RDONLY), (path.parent, os.O_RDONLY | os.O_DIRECTORY)):
            descriptor = os.open(target, flags)
            try:
                if target is not temporary:
                    temporary.replace(path)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def remove(self, name: str) -> None:
        """Removes the file, if it exists."""
        if self._local is not None:
            (self._local / name).unlink(missing_ok=True)
            return
        assert self._files is not None
        if self.exists(name):
            self._files.delete_file(self._path(name))

    def arrow(self) -> tuple[fs.FileSystem, str]:
        """(Arrow file system, path of this place in it), for Arrow's own readers and writers."""
        if self._local is not None:
            return fs.LocalFileSystem(), str(self._local)
        assert self._files is not None
        return self._files, self._root

    def _path(self, name: str) -> str:
        return posixpath.join(self._root, name) if name else self._root


def _local_path(text: str) -> Path | None:
    if text.startswith("file://"):
        return Path(text.removeprefix("file://"))
    return None if "://" in text else Path(text).absolute()
