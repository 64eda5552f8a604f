"""Copies files by descriptors, in steps, with their SHA-256; after the last step everything is on disk."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from trovemq_store.backup.manifest import FileEntry
from trovemq_store.files.files import StorageError

CHUNK_BYTES: Final = 1 << 20
_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
_MAKE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_CANNOT_LINK: Final = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS)


class Copied:
    """The result of the steps, filled in by the last one."""

    entry: FileEntry
    linked = False


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags, 0o644)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def copy_file(
    source: Path,
    target: Path,
    path: str,
    result: Copied,
    data_size: int | None = None,
    *,
    reserve: bool = False,
) -> Iterator[int]:
    """Copies the first data_size bytes (None: all); the rest is a hole, or with `reserve` preallocated.

    Yields how many bytes each step has copied. OSError, also if the file is shorter (EIO).
    """
    digest = hashlib.sha256()
    with _opened(source / path, _READ) as reading:
        size = os.fstat(reading).st_size
        data_size = size if data_size is None else data_size
        make_directories(target, (target / path).parent)
        with _opened(target / path, _MAKE) as writing:
            if reserve and size > data_size:
                os.posix_fallocate(writing, 0, size)
            for chunk in _chunks(reading, data_size, source / path):
                digest.update(chunk)
                _write_all(writing, chunk)
                yield len(chunk)
            os.ftruncate(writing, size)
            os.fsync(writing)
    result.entry = FileEntry(path=path, size=size, data_size=data_size, sha256=digest.hexdigest())


def link_file(source: Path, target: Path, path: str, result: Copied) -> Iterator[int]:
    """Makes a hard link, or a copy if that is not possible. For files that are never written again."""
    make_directories(target, (target / path).parent)
    try:
        os.link(source / path, target / path, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _CANNOT_LINK:
            raise
        yield from copy_file(source, target, path, result)
        return
    digest = hashlib.sha256()
    with _opened(target / path, _READ) as reading:
        size = os.fstat(reading).st_size
        for chunk in _chunks(reading, size, source / path):
            digest.update(chunk)
            yield len(chunk)
    result.linked = True
    result.entry = FileEntry(path=path, size=size, data_size=size, sha256=digest.hexdigest())


def _chunks(reading: int, size: int, path: Path) -> Iterator[bytes]:
    position = 0
    while position < size:
        chunk = os.pread(reading, min(CHUNK_BYTES, size - position), position)
        if not chunk:
            raise OSError(errno.EIO, f"{path} ends at {position} of {size} bytes")
        position += len(chunk)
        yield chunk


def write_file(target: Path, path: str, data: bytes) -> FileEntry:
    """Writes a new, small file."""
    make_directories(target, (target / path).parent)
    with _opened(target / path, _MAKE) as writing:
        _write_all(writing, data)
        os.fsync(writing)
    sha256 = hashlib.sha256(data).hexdigest()
    return FileEntry(path=path, size=len(data), data_size=len(data), sha256=sha256)


def _write_all(writing: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(writing, view) :]


def make_directories(root: Path, directory: Path) -> None:
    """Creates `directory` and its parents below `root`; follows no link below root."""
    for part in reversed([directory, *directory.parents]):
        if part != root and part.is_relative_to(root):
            try:
                part.mkdir()
            except FileExistsError:
                if part.is_symlink() or not part.is_dir():
                    raise


def sync_directory(path: Path) -> None:
    with _opened(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) as descriptor:
        os.fsync(descriptor)


def sync_tree(root: Path) -> Iterator[int]:
    """Syncs the names of all files below `root`."""
    for directory, _, _ in os.walk(root):
        sync_directory(Path(directory))
        yield 0


def storage_error(error: OSError, operation: str, path: Path) -> StorageError:
    return StorageError(operation, str(path), error.errno or errno.EIO, str(error.strerror or error))
