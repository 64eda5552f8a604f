"""How long the event loop was taken at a stretch, in processor time: other processes do not count."""

from __future__ import annotations

import gc
import time
from asyncio import events
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from unittest.mock import patch


@dataclass
class LoopTime:
    """Since the last reset."""

    longest_s: float = 0.0
    what: str = ""
    callbacks: int = 0

    def reset(self) -> None:
        self.longest_s, self.what, self.callbacks = 0.0, "", 0


@contextmanager
def loop_time() -> Iterator[LoopTime]:
    """Measures each callback of asyncio's own loops while the block runs; the garbage collector rests."""
    found = LoopTime()
    run = events.Handle._run

    def measured(handle: events.Handle) -> None:
        began = time.thread_time()
        try:
            run(handle)
        finally:
            took = time.thread_time() - began
            found.callbacks += 1
            if took > found.longest_s:
                found.longest_s, found.what = took, repr(handle)

    gc.collect()
    gc.disable()
    try:
        with patch.object(events.Handle, "_run", measured):
            yield found
    finally:
        gc.enable()
