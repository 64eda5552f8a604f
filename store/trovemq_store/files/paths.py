"""Paths of files: relative, with `/`, and never outside of the store's root."""

from __future__ import annotations

import errno
from typing import Final

from trovemq_store.files.files import StorageError

_ENDS: Final = frozenset("/.")
_SUSPICIOUS: Final = ("/.", "//", "\0")


def checked_path(path: str) -> str:
    """Returns `path`; "" is the root. Raises StorageError (EINVAL) if it would leave the root."""
    if path[:1] not in _ENDS and path[-1:] != "/" and not any(map(path.__contains__, _SUSPICIOUS)):
        return path  # fast: a start checks several paths of each of many queues
    parts = path.split("/") if path else ()
    if "" in parts or "." in parts or ".." in parts or "\0" in path:
        raise StorageError("path", repr(path), errno.EINVAL, "leaves the store's directory")
    return path


def parent_directory(path: str) -> str:
    """The directory that holds `path`; "" is the root."""
    return path.rpartition("/")[0]
