"""Returns freed memory to the system.

glibc's malloc keeps freed memory (and proto/trovemq_proto/memory.py lets it keep more, for the next frames).
After an hour of large replies that is gigabytes of unused memory. So the process checks at intervals how much
memory it has beyond malloc's memory in use, and if that has grown since the last time, asks malloc to return
it. Memory in use does not count, so that it counts as growth when it is freed later. Memory that malloc calls
free does not count, either: a part of it was returned before, and may be used and freed between two checks.
If malloc does not report it, before glibc 2.33, the size of the process counts instead.

malloc has an arena for each of several threads, and returns only the free end of the first one: up to 62 MiB
of each other one stayed. So the process has one arena. Other allocators have no such calls, and this does
nothing.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from trovemq_daemon.threads import run_in_thread
from trovemq_daemon.ticks import sleep_to_tick

INTERVAL_S: Final = 5.0
GROWN_MIN: Final = 32 << 20
"""Growth above the lowest size since the last trim that makes another one worthwhile."""
_M_ARENA_MAX: Final = -8
_STATUS: Final = Path("/proc/self/status")


class _MallInfo(ctypes.Structure):
    """glibc's struct mallinfo2; all are size_t."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    )


_MALLINFO: Final[Any] = getattr(ctypes.CDLL(None), "mallinfo2", None)
if _MALLINFO is not None:
    _MALLINFO.restype = _MallInfo


class TrimPolicy:
    """When to trim, by the bytes of the process's memory that are not in use."""

    def __init__(self) -> None:
        self._least: int | None = None
        self.count = 0

    def wants(self, size: int) -> bool:
        """Whether to trim at this size."""
        if self._least is None or size < self._least:
            self._least = size
        return size - self._least >= GROWN_MIN

    def trimmed(self, size: int) -> None:
        """Notes the size after a trim. Only growth beyond it counts."""
        self._least = size
        self.count += 1


def keep_one_arena() -> None:
    """Limits malloc to one arena. To be called before there are threads."""
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_M_ARENA_MAX, 1)


async def keep_trimmed(policy: TrimPolicy) -> None:
    """Trims at intervals, until it is cancelled."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    while trim is not None:
        # The first check is at the start: memory that is free then is not growth.
        await run_in_thread(lambda: _trim_where_wanted(policy, trim))
        await sleep_to_tick(INTERVAL_S)


def _trim_where_wanted(policy: TrimPolicy, trim: Callable[[int], int]) -> None:
    size = _memory_to_look_at()
    if size is not None and policy.wants(size):
        trim(0)
        left = _memory_to_look_at()
        policy.trimmed(size if left is None else left)


def _memory_to_look_at() -> int | None:
    """The process's memory beyond malloc's memory in use; all of it if that is unknown."""
    own, used = own_memory(), used_memory()
    return own if own is None or used is None else own - used


def used_memory() -> int | None:
    """Bytes of malloc that are in use; None if it does not report them. Walks through malloc's lists."""
    if _MALLINFO is None:
        return None
    found = _MALLINFO()
    return int(found.uordblks + found.hblkhd)


def own_memory() -> int | None:
    """Bytes that this process has in memory without mapped files; None if the system does not report them."""
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    found = next((line for line in lines if line.startswith("RssAnon:")), None)
    return int(found.split()[1]) * 1024 if found is not None else None
