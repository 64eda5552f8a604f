"""Makes a store of a backup: copies it, compares every byte with the manifest, and puts it in place at the
end.

Invariants
- Nothing appears at the store's path before the whole copy is on disk and checked.
- The backup is only read, so that files which are hard-linked with the live store do not change.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_store.backup.copying import Copied, copy_file, sync_directory, sync_tree
from trovemq_store.backup.manifest import STORE_NAME, FileEntry, Manifest, load_manifest
from trovemq_store.files.fault_points import fault_point
from trovemq_store.log.segments import DIRECTORY

SUFFIX: Final = ".restoring"
_SHOWN_MAX: Final = 10
_ZEROS: Final = bytes(1 << 20)


def restore(backup: Path, store: Path, check: Callable[[Path], None]) -> Manifest:
    """Copies the backup to `store`, which must not exist, or be an empty directory.

    check: called with the copy before it is put in place; raises an error if that is not right. TroveError
    REQUEST_ILLEGAL, STORE_FAILED (the fault of the backup), STORE_NEWER; OSError.
    """
    store = store.resolve()
    manifest = load_manifest(backup)
    if store.is_symlink() or (store.exists() and (not store.is_dir() or any(store.iterdir()))):
        raise TroveError(errors.REQUEST_ILLEGAL, f"{store} is there, and is not an empty directory")
    _check_names(backup / STORE_NAME, manifest)
    partial = store.with_name(store.name + SUFFIX)
    if partial.exists():
        raise TroveError(
            errors.REQUEST_ILLEGAL, f"{partial} is there: remove it, a restore left it unfinished"
        )
    partial.mkdir(parents=True)
    try:
        for entry in manifest.files:
            _copy(backup / STORE_NAME, partial, entry)
            fault_point("restore.after_file")
        for _ in sync_tree(partial):
            pass
        fault_point("restore.before_check")
        check(partial)
        if store.exists():
            store.rmdir()
        fault_point("restore.before_rename")
        partial.rename(store)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    sync_directory(store.parent)
    return manifest


def _check_names(source: Path, manifest: Manifest) -> None:
    named = {entry.path for entry in manifest.files}
    there = set(_files(source))
    for what, paths in (
        ("lacks", named - there),
        ("has, unnamed in its manifest,", there - named),
    ):
        if paths:
            shown = ", ".join(sorted(paths)[:_SHOWN_MAX])
            raise TroveError(errors.STORE_FAILED, f"the backup {what} {len(paths)} files: {shown}")


def _files(root: Path) -> Iterator[str]:
    for directory, _, names in os.walk(root):
        for name in names:
            yield (Path(directory) / name).relative_to(root).as_posix()


def _copy(source: Path, target: Path, entry: FileEntry) -> None:
    copied = Copied()
    size = (source / entry.path).lstat().st_size
    if size != entry.size:
        raise _altered(entry, f"has {size} bytes instead of {entry.size}")
    reserve = entry.path.startswith(f"{DIRECTORY}/")  # an append must not meet a full disk
    for _ in copy_file(source, target, entry.path, copied, entry.data_size, reserve=reserve):
        pass
    if copied.entry != entry:
        raise _altered(entry, "differs from the copied file: another SHA-256")
    if not _is_zero(source / entry.path, entry.data_size):
        raise _altered(entry, f"is not zero from byte {entry.data_size} on")


def _is_zero(path: Path, begin: int) -> bool:
    with path.open("rb", buffering=0) as file:
        position, end = begin, os.fstat(file.fileno()).st_size
        while position < end:
            try:
                position = os.lseek(file.fileno(), position, os.SEEK_DATA)
            except OSError:
                return True  # the rest is a hole
            chunk = os.pread(file.fileno(), len(_ZEROS), position)
            if chunk != _ZEROS[: len(chunk)]:
                return False
            position += len(chunk)
    return True


def _altered(entry: FileEntry, what: str) -> TroveError:
    return TroveError(errors.STORE_FAILED, f"{entry.path} of the backup {what}", file=entry.path)
