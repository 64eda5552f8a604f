"""The directory in which a rebuild writes, beside its results, until they are complete.

On a local path everything is made below `OUT/.rebuild/`, which one run at a time locks. At the end one rename
each puts the directories `consumequeue` and `index` into place, and those of an earlier run are removed. A
killed run leaves its `.rebuild/`, which the next one removes.

An object store has neither renames nor locks: each file appears whole under its final name, the blocks are
below a name of this run, and at the end files of an earlier run that this run did not write are removed. Two
concurrent runs write the same bytes.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_spark.storage import StoragePath

DIRECTORY: Final = ".rebuild"
_LOCK: Final = "lock"
_OWN_NAMES: Final = re.compile(r"(?:consumequeue/[^/]+/[^/]+/[0-9]{20}|index/[0-9]{17})")


class Workspace:
    """The workspace of one run. `blocks`: the results of the tasks; `target`: the files that they make, by
    their final names."""

    def __init__(self, out: StoragePath, blocks: StoragePath, target: StoragePath) -> None:
        self._out = out
        self.blocks: Final = blocks
        self.target: Final = target

    def publish(self, part: str, names: set[str]) -> None:
        """Makes `part` (a directory of OUT) contain exactly the files `names` of `target`. Raises OSError."""
        if self._out.local is None:
            _remove_others(self._out, part, names)
            return
        assert self.target.local is not None
        new, old = self.target.local / part, self.target.local.parent / f"old-{part}"
        new.mkdir(parents=True, exist_ok=True)
        _sync_directories(new)
        final = self._out.local / part
        if final.exists():
            final.rename(old)
        new.rename(final)
        _sync(self._out.local)
        shutil.rmtree(old, ignore_errors=True)


@contextmanager
def open_workspace(out: StoragePath) -> Iterator[Workspace]:
    """Raises TroveError JOB_RUNNING if another run has it; OSError."""
    if out.local is None:
        directory = f"{DIRECTORY}-{uuid.uuid4().hex}"
        try:
            yield Workspace(out, out.child(f"{directory}/blocks"), out)
        finally:
            _remove_tree(out, directory)
        return
    root = out.local / DIRECTORY
    descriptor = _lock(root)
    try:
        _clear(out.local, root)
        yield Workspace(out, out.child(f"{DIRECTORY}/blocks"), out.child(f"{DIRECTORY}/new"))
    finally:
        shutil.rmtree(root, ignore_errors=True)
        os.close(descriptor)


def _lock(root: Path) -> int:
    """The open, locked file. It is removed with its directory, so the locked file may no longer be the one at
    the path: then this is repeated."""
    while True:
        root.mkdir(parents=True, exist_ok=True)
        path = root / _LOCK
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            raise TroveError(
                errors.JOB_RUNNING, f"another rebuild writes to {root.parent}", path=root.parent
            ) from None
        except FileNotFoundError:
            pass
        os.close(descriptor)


def _clear(out: Path, root: Path) -> None:
    """Removes the files of a killed run, and restores a result that it had moved away."""
    for path in root.iterdir():
        if path.name.startswith("old-") and not (out / path.name.removeprefix("old-")).exists():
            path.rename(out / path.name.removeprefix("old-"))
        elif path.name != _LOCK:
            shutil.rmtree(path)


def _remove_others(out: StoragePath, part: str, names: set[str]) -> None:
    for entry in list(out.entries(part, recursive=True)):
        if not entry.is_directory and entry.name not in names and _OWN_NAMES.fullmatch(entry.name):
            out.remove(entry.name)


def _remove_tree(out: StoragePath, directory: str) -> None:
    for entry in list(out.entries(directory, recursive=True)):
        if not entry.is_directory:
            out.remove(entry.name)
    files, root = out.arrow()
    if out.exists(directory):
        files.delete_dir(f"{root}/{directory}")


def _sync_directories(root: Path) -> None:
    for directory, _, _ in os.walk(root):
        _sync(Path(directory))


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
