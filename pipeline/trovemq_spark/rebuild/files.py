"""Reads and writes parts of files; on local paths written files are sparse."""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Iterable

from trovemq_spark.storage import StoragePath


def read_range(place: StoragePath, name: str, begin: int, size: int) -> bytes:
    """`size` bytes of a file. Raises OSError, also if the file is shorter."""
    if place.local is not None:
        with (place.local / name).open("rb") as file:
            data = os.pread(file.fileno(), size, begin)
    else:
        files, root = place.arrow()
        with files.open_input_file(posixpath.join(root, name)) as stream:
            data = bytes(stream.read_at(size, begin))
    if len(data) != size:
        raise OSError(errno.EIO, f"{name} ends before byte {begin + size}", str(place))
    return data


def write_pieces(
    place: StoragePath, name: str, size: int, pieces: Iterable[tuple[int, bytes]], *, synced: bool = True
) -> None:
    """Writes a file of `size` bytes with these bytes at these positions and zeros elsewhere. It appears
    whole, in place of an older one; on a local path zeros take no space. Raises OSError.

    synced: its bytes are on disk on return (its name is when its directory is synced)."""
    if place.local is None:
        data = bytearray(size)
        for position, piece in pieces:
            data[position : position + len(piece)] = piece
        place.write(name, bytes(data))
        return
    temporary = place.temporary(name)
    try:
        with temporary.open("wb", buffering=0) as file:
            for position, piece in pieces:
                _write_at(file.fileno(), piece, position)
            file.truncate(size)
            if synced:
                os.fsync(file.fileno())
        temporary.replace(place.local / name)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _write_at(descriptor: int, data: bytes, position: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, position)
        view, position = view[written:], position + written
