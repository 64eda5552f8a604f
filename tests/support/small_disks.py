"""Separate small file systems, and filling them up."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.trials import Trials

DISK_BYTES = 24 << 20
WHAT = "file systems that are really full"


def _run(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@contextmanager
def mounted_disk(kind: str, place: Path, size: int) -> Iterator[Path | None]:
    """A file system of `size` bytes, mounted below the directory `place`; None where it cannot be had.
    kind: ext4, tmpfs."""
    mounted, image = place / "disk", place / "image"
    mounted.mkdir(parents=True)
    if kind == "tmpfs":
        made = _run("mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(mounted))
    else:
        image.write_bytes(b"")
        with image.open("r+b") as file:
            file.truncate(size)
        made = _run("mkfs.ext4", "-q", "-F", "-m", "0", str(image)) and _run(
            "mount", "-o", "loop", str(image), str(mounted)
        )
    try:
        yield mounted if made else None
    finally:
        if made and not _run("umount", str(mounted)):  # its loop device goes with it
            _run("umount", "-l", str(mounted))
        image.unlink(missing_ok=True)


@contextmanager
def small_disk(kind: str, place: Path, trials: Trials) -> Iterator[Path]:
    """mounted_disk() of DISK_BYTES; the trial is skipped where there is none."""
    with mounted_disk(kind, place, DISK_BYTES) as disk:
        if disk is None:
            trials.skip("R8", WHAT, f"no {kind} can be mounted here")
        yield disk


def fill_up(disk: Path) -> Path:
    """Another process's file takes the rest, to the last byte."""
    path = disk / "others"
    with path.open("ab", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while file.write(bytes(size)) == size:
                    pass
            except OSError:
                continue
    return path
