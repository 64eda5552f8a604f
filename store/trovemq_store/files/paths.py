"""Paths of the seam: relative, with `/`, and never out of the store's root."""

from __future__ import annotations

import errno

from trovemq_store.files.files import StorageError


def checked_path(path: str) -> str:
    """`path` itself, "" meaning the root. Raises StorageError (EINVAL) for one that would leave the root."""
    parts = path.split("/") if path else ()
    if "" in parts or "." in parts or ".." in parts or "\0" in path:
        raise StorageError("path", repr(path), errno.EINVAL, "leaves the store's directory")
    return path


def parent_directory(path: str) -> str:
    """The directory that holds `path`; "" is the root."""
    return path.rpartition("/")[0]
