"""Changes the links of one folder `topic=T/date=D`, so that a reader of the folder never misses a row.

    ARCHIVE/topic=T/date=D            links to committed files, and perhaps files of a user
    ARCHIVE/.links/topic=T/date=D     within a change: first the folder that comes, then the one that has gone

Invariants
- Where Linux can exchange two folders (renameat2 with RENAME_EXCHANGE: ext4, XFS, Btrfs, tmpfs and others), a
  folder has the old links or the new ones, at every moment and after a kill.
- Elsewhere (another system, NFS, a folder of another owner, or one in which a user keeps files), new links
  come before old ones go. Between these, and after a kill there, rows of the new files are there twice.
- No name is used again for other rows. A reader that opens a link which has gone since it listed the folder
  gets an error, and no wrong answer.
- A user's own files are neither changed nor removed. One that comes just before the exchange is moved back.

After a kill at any step, the next run removes `.links` (clear_all), and then makes the links agree with the
manifest.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shutil
import sys
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

STAGE: Final = ".links"
"""Spark, Arrow, shells and Python's `glob` pass over folders whose names begin with a dot."""
OUR_LINK: Final = re.compile(r"[0-9a-f]{32}[0-9-]*\.parquet")
_NO_LINKS: Final = (errno.EPERM, errno.ENOTSUP, errno.EXDEV, errno.EMLINK)
"""Errors of file systems without links. There the manifest is enough."""
_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2


def change_links(root: Path, folder: str, added: Mapping[str, Path], removed: Collection[str]) -> None:
    """Makes the links `added` (name -> file) in a folder below root, and removes those named `removed`. Links
    that exist, or have gone, are used as they are. Raises OSError."""
    if not (added and removed and _exchanged(root, folder, added, removed)):
        _change_in_place(root / folder, added, removed)


def _change_in_place(home: Path, added: Mapping[str, Path], removed: Collection[str]) -> None:
    if added:
        home.mkdir(parents=True, exist_ok=True)
    made = [_link(file, home / name) for name, file in added.items()]
    if all(made):
        for name in removed:
            (home / name).unlink(missing_ok=True)


def _link(file: Path, link: Path) -> bool:
    """False: the file system has no links (or no more of this file)."""
    try:
        os.link(file, link)
    except FileExistsError:
        return True
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return False
    return True


def _exchanged(root: Path, folder: str, added: Mapping[str, Path], removed: Collection[str]) -> bool:
    """Replaces the folder by one with the new links. False: that cannot be done here; nothing has changed."""
    home, stage = root / folder, root / STAGE / folder
    try:
        names = set(os.listdir(home))
        if home.is_symlink() or not all(map(OUR_LINK.fullmatch, names)):
            return False
        stage.mkdir(parents=True)
        _copy_rights(home, stage)
        for name in names.difference(removed):
            os.link(home / name, stage / name)
        for name in added.keys() - names:
            os.link(added[name], stage / name)
        return exchange(home, stage)
    except OSError:
        return False  # the other way needs less: if it fails, too, its error is the one to report
    finally:
        _clear(root, folder, removed)


def _copy_rights(home: Path, stage: Path) -> None:
    there, here = home.stat(), stage.stat()
    if (there.st_uid, there.st_gid) != (here.st_uid, here.st_gid):
        os.chown(stage, there.st_uid, there.st_gid)
    shutil.copystat(home, stage)


def exchange(one: Path, other: Path) -> bool:
    """Gives each of two paths the file or folder of the other, in one step. False: this system or its file
    system cannot, or one of them is not there; nothing has changed."""
    sys.audit("os.rename", str(one), str(other), -1, -1)  # as every renaming of Python's own
    renameat2 = getattr(ctypes.CDLL(None), "renameat2", None) if sys.platform == "linux" else None
    if renameat2 is None:
        return False
    paths = os.fsencode(one), os.fsencode(other)
    return bool(renameat2(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], _RENAME_EXCHANGE) == 0)


# --- after a change ---


def clear_all(root: Path) -> None:
    """Removes the folders that a killed run has left in `.links`. Raises OSError."""
    for stage in root.glob(f"{STAGE}/topic=*/date=*"):
        _clear(root, str(stage.relative_to(root / STAGE)))
    _remove_empty(*root.glob(f"{STAGE}/topic=*"), root / STAGE)


def _clear(root: Path, folder: str, last: Collection[str] = ()) -> None:
    """Removes a folder of `.links`, the links named `last` after the others: a reader that opened the folder
    before the exchange then lists some of these, and gets an error. A user's files are moved back."""
    stage = root / STAGE / folder
    with suppress(FileNotFoundError):
        for name in sorted(os.listdir(stage), key=lambda name: name in last):
            if OUR_LINK.fullmatch(name):
                (stage / name).unlink(missing_ok=True)
            elif not os.path.lexists(root / folder / name):
                (stage / name).rename(root / folder / name)
    _remove_empty(stage, stage.parent, root / STAGE)


def _remove_empty(*folders: Path) -> None:
    for folder in folders:
        with suppress(OSError):  # it has gone, or holds a file of a user with the same name
            folder.rmdir()
