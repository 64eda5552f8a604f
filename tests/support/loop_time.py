"""How long the event loop was busy at a stretch, in processor time of its thread.

That time alone is not the work's. On a busy or a virtual machine it also holds what the kernel and the host
take from the thread: a page that has to be fetched from the host, a processor that is given to another guest
(130 ms were seen in a step of 3). So work is done several times. Its steps are the same each time, and each
step counts with the least that it took: what is long each time is long. A machine may be slow for longer
than that, while others use it. So known work is timed beside a step that seems long, and the step counts as
it would on a machine that does that work in REFERENCE_S.
"""

from __future__ import annotations

import asyncio
import gc
import time
from asyncio import events
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final
from unittest.mock import patch

from trovemq_daemon import exposition, turns

TRIES: Final = 8

REFERENCE_S: Final = 0.0055
"""Processor time of _known_work() on a Xeon with Debian's Python 3.11, undisturbed (0.0102 beside others)."""
_TEXT: Final = "\x02".join(f"p{number:x}\x01v" for number in range(4_500))


def slowness() -> float:
    """How many times longer work takes here and now than on the reference machine; at least 1."""
    least_s = float("inf")
    for _ in range(5):
        began = time.thread_time()
        _known_work()
        least_s = min(least_s, time.thread_time() - began)
    return max(1.0, least_s / REFERENCE_S)


def _known_work() -> None:
    """Cuts texts and makes tables, as most of the measured steps do."""
    for _ in range(4):
        dict(pair.split("\x01", 1) for pair in _TEXT.split("\x02"))


@dataclass
class LoopTime:
    """Since the last reset."""

    steps_s: list[float] = field(default_factory=list)
    """Of each callback, in their order."""

    def reset(self) -> None:
        self.steps_s = []

    @property
    def longest_s(self) -> float:
        return max(self.steps_s, default=0.0)


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
            found.steps_s.append(time.thread_time() - began)

    gc.collect()
    gc.disable()
    try:
        with patch.object(events.Handle, "_run", measured):
            yield found
    finally:
        gc.enable()


async def longest_step(measured: LoopTime, work: Callable[[], Awaitable[object]], enough_s: float) -> float:
    """Processor time of the longest step of the work on the reference machine, each step by the least of some
    tries; they end once all are at most enough_s."""
    tries: dict[int, list[float]] = {}  # by the number of steps: those of one number are the same steps
    longest_s = float("inf")
    for _ in range(TRIES):
        await asyncio.sleep(0)
        measured.reset()
        await asyncio.ensure_future(work())
        steps = list(measured.steps_s)  # it grows with the next step
        if max(steps) > enough_s:
            slow = slowness()
            steps = [step_s / slow for step_s in steps]
        least = tries.setdefault(len(steps), steps)
        least[:] = [min(pair) for pair in zip(least, steps, strict=True)]
        longest_s = min(longest_s, max(least))
        if longest_s <= enough_s:
            break
    return longest_s


@contextmanager
def steps_one_by_one() -> Iterator[None]:
    """Each step of long work is one iteration, independent of the clock. In one iteration, the broker
    does as many steps as end within TURN_S, and one more."""
    with patch.object(turns, "TURN_S", 0.0), patch.object(exposition, "TURN_S", 0.0):
        yield
