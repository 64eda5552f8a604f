"""The memory of a process, by Linux."""

from __future__ import annotations

import ctypes
import gc
import sys
from pathlib import Path
from typing import Final

_TRIM: Final = getattr(ctypes.CDLL(None), "malloc_trim", None)  # the GNU C library alone has it


def memory_kib(name: str, process: int | str = "self") -> int:
    """name: VmRSS (now) or VmHWM (at most, since restart_peak)."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise AssertionError(name)


def restart_peak(process: int | str = "self") -> None:
    Path(f"/proc/{process}/clear_refs").write_text("5")


def kept_kib() -> int:
    """The memory that this process certainly has: without garbage, without the allocator's reserves
    (after one large reply tens of MiB, until some later call happens to return them), and without the pages
    of files, as of libraries: the kernel takes them away and reads them again."""
    gc.collect()
    if _TRIM is not None:
        _TRIM(0)
    return memory_kib("RssAnon")


def kept_blocks() -> int:
    """The number of memory blocks that Python's objects take up, without garbage: exact."""
    gc.collect()
    return sys.getallocatedblocks()
