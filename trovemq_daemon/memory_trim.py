"""Gives memory back to the system after much of it was freed.

glibc's malloc keeps what was freed (and proto/trovemq_proto/memory.py lets it keep more, for the next
frames). After an hour of large replies that is gigabytes which nobody uses. So the process looks at its own
memory now and then, and where it has grown since the last time, asks malloc to give back what is free. Other
allocators have no such call, and nothing happens.
"""

from __future__ import annotations

import asyncio
import ctypes
from pathlib import Path
from typing import Final

from trovemq_daemon.threads import run_in_thread

INTERVAL_S: Final = 5.0
GROWN_MIN: Final = 32 << 20
"""So much more than after the last time is worth a look."""
_STATUS: Final = Path("/proc/self/status")


class TrimPolicy:
    """When to ask. It takes sizes of the process's own memory (without mapped files), in bytes."""

    def __init__(self) -> None:
        self._least: int | None = None
        self.count = 0

    def wants(self, size: int) -> bool:
        """Whether to trim at this size."""
        if self._least is None or size < self._least:
            self._least = size
        return size - self._least >= GROWN_MIN

    def trimmed(self, size: int) -> None:
        """This is left: what is in use. Only what comes on top of it is looked at again."""
        self._least = size
        self.count += 1


async def keep_trimmed(policy: TrimPolicy) -> None:
    """Runs until it is cancelled."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    while True:
        await asyncio.sleep(INTERVAL_S)
        size = own_memory()
        if trim is not None and size is not None and policy.wants(size):
            await run_in_thread(lambda: trim(0))
            policy.trimmed(own_memory() or size)


def own_memory() -> int | None:
    """Bytes that this process has in memory beside mapped files; None where the system does not say."""
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    found = next((line for line in lines if line.startswith("RssAnon:")), None)
    return int(found.split()[1]) * 1024 if found is not None else None
