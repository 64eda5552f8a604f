"""Syncs a whole file system in one call: syncfs(2).

Thousands of files that are synced one by one cost a commit of the file system's journal each; together they
cost one. syncfs is used only where its result is reliable: Linux reports failed writes since 5.8, for file
systems that keep their own pages.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any, Final

BELIEVED: Final = frozenset({"ext4", "xfs", "f2fs"})
LINUX_MIN: Final = (5, 8)
_SYNCFS: Final[Any] = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)


class WholeSync:
    """Syncs the file system of a directory; a write that failed since this object was created is an error."""

    def __init__(self, directory: str) -> None:
        self._descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._believed = _SYNCFS is not None and _linux() >= LINUX_MIN and _kind(self._descriptor) in BELIEVED

    def run(self) -> bool:
        """Syncs; blocks. False: it is not certain that everything is on disk."""
        return self._believed and bool(_SYNCFS(self._descriptor) == 0)

    def close(self) -> None:
        os.close(self._descriptor)


def _linux() -> tuple[int, ...]:
    """(5, 8) of `5.8.0-63-generic`; (0, 0) elsewhere."""
    system = os.uname()
    numbers = system.release.split("-")[0].split(".")[:2]
    known = system.sysname == "Linux" and len(numbers) == 2 and all(map(str.isdigit, numbers))
    return tuple(map(int, numbers)) if known else (0, 0)


def _kind(descriptor: int) -> str:
    """The kind of file system, as it was mounted; "" if that is not known."""
    device = os.fstat(descriptor).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    for line in lines:  # 36 35 98:0 /root /mnt rw,noatime master:1 - ext4 /dev/sda rw
        before, separator, after = line.partition(" - ")
        if separator and before.split(" ")[2] == wanted:
            return after.split(" ")[0]
    return ""
