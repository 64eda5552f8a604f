"""Gives memory back to the system after much of it was freed.

glibc's malloc keeps freed memory (and proto/trovemq_proto/memory.py lets it keep more, for the next frames).
After an hour of large replies that is gigabytes of unused memory. So the process looks now and then how much
it has in memory beyond malloc's memory in use, and where that has grown since the last time, asks malloc to
give it back. Memory in use does not count: it is not missed when it is freed later. Nor does the memory that
malloc calls free: a part of it was returned before, and may be used and freed between two looks. Where
malloc does not report it, before glibc 2.33, the process's size counts instead.

malloc has an arena for each of several threads, and returns the free end of the first one alone: up to
62 MiB of each other one stayed. So the process has one. Other allocators have no such calls, and nothing
happens.
"""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from trovemq_daemon.threads import run_in_thread

INTERVAL_S: Final = 5.0
GROWN_MIN: Final = 32 << 20
"""Growth since the last look that justifies another one."""
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
    """When to ask. It takes the bytes that the process has in memory and malloc's users do not."""

    def __init__(self) -> None:
        self._least: int | None = None
        self.count = 0

    def wants(self, size: int) -> bool:
        """Whether to trim at this size."""
        if self._least is None or size < self._least:
            self._least = size
        return size - self._least >= GROWN_MIN

    def trimmed(self, size: int) -> None:
        """This was returned. Only growth beyond it is examined again."""
        self._least = size
        self.count += 1


def keep_one_arena() -> None:
    """Call before there are threads."""
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_M_ARENA_MAX, 1)


async def keep_trimmed(policy: TrimPolicy) -> None:
    """Runs until it is cancelled."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    while trim is not None:
        # The first look is at the start: memory that is free by then counts as always free.
        await run_in_thread(lambda: _trim_where_wanted(policy, trim))
        await asyncio.sleep(INTERVAL_S)


def _trim_where_wanted(policy: TrimPolicy, trim: Callable[[int], int]) -> None:
    size = _memory_to_look_at()
    if size is not None and policy.wants(size):
        trim(0)
        left = _memory_to_look_at()
        policy.trimmed(size if left is None else left)


def _memory_to_look_at() -> int | None:
    """The process's memory beyond malloc's memory in use; all of it where that is not known."""
    own, used = own_memory(), used_memory()
    return own if own is None or used is None else own - used


def used_memory() -> int | None:
    """Bytes of malloc's that somebody uses; None if it does not report them. Walks through its lists."""
    if _MALLINFO is None:
        return None
    found = _MALLINFO()
    return int(found.uordblks + found.hblkhd)


def own_memory() -> int | None:
    """Bytes that this process has in memory beside mapped files; None if the system does not say."""
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    found = next((line for line in lines if line.startswith("RssAnon:")), None)
    return int(found.split()[1]) * 1024 if found is not None else None
