"""The task of a client process and the parts of its answer: bodies, times, rates. Standard library only."""

from __future__ import annotations

import asyncio
import os
import struct
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any, Final, TypeAlias

BODY_SIZE: Final = 1024
LIVE_TIMEOUT_S: Final = 15.0
GROUP_TIMEOUT_S: Final = 60.0
"""Maximum time until the servers know each other."""
PAUSE_S: Final = 0.005
_POOL: Final = os.urandom(1 << 20)
_STAMP: Final = struct.Struct("<q")

Answer: TypeAlias = dict[str, Any]
now = time.perf_counter_ns  # CLOCK_MONOTONIC: the same clock in all processes of a machine


@dataclass(frozen=True, slots=True)
class Task:
    """`count` messages of 1 KiB, or as many as `seconds` allow. in_flight: messages unanswered at a time.
    copies: servers that have each message."""

    address: str
    topic: str
    count: int
    seconds: float
    in_flight: int = 1
    rate: int = 0
    copies: int = 1


def body(number: int) -> bytes:
    """A slice of random bytes: making it costs each client the same."""
    start = number * 137 % (len(_POOL) - BODY_SIZE)
    return _POOL[start : start + BODY_SIZE]


def stamped(number: int) -> bytes:
    """A body that begins with the time."""
    return _STAMP.pack(now()) + body(number)[_STAMP.size :]


def age_us(content: bytes | memoryview) -> float:
    return float((now() - _STAMP.unpack_from(content)[0]) / 1e3)


class Stopwatch:
    """Clock and processor time of this process since it was made."""

    def __init__(self, task: Task) -> None:
        self._seconds = task.seconds
        self._started, self._processor = time.perf_counter(), time.process_time()

    @property
    def over(self) -> bool:
        return time.perf_counter() - self._started > self._seconds

    def answer(self, count: int, **more: Any) -> Answer:
        seconds, processor = time.perf_counter() - self._started, time.process_time() - self._processor
        return {"count": count, "rate": count / seconds, "client_us": processor / max(count, 1) * 1e6, **more}


def latencies(times_us: Sequence[float]) -> Answer:
    """Median and p99."""
    rising = sorted(times_us)
    if not rising:
        raise RuntimeError("no message came")
    p99 = rising[min(len(rising) - 1, len(rising) * 99 // 100)]
    return {"count": len(rising), "p50_us": rising[len(rising) // 2], "p99_us": p99}


async def timed(task: Task, send: Callable[[int], Any]) -> Answer:
    """One call after the other; `send` may be a coroutine function."""
    times: list[float] = []
    watch = Stopwatch(task)
    while len(times) < task.count and not watch.over:
        started = now()
        sent = send(len(times))
        if isawaitable(sent):
            await sent
        times.append((now() - started) / 1e3)
    return watch.answer(len(times)) | latencies(times)


async def until_input_ends(send: Callable[[int], Any]) -> Answer:
    """One send after the other, with a pause between them, until the input of this process ends. `sends`:
    when each began and ended, and its error; empty: it was acknowledged."""
    ended = asyncio.ensure_future(asyncio.to_thread(sys.stdin.read))
    sends: list[tuple[float, float, str]] = []
    print("ready", flush=True)
    while not ended.done():
        began, error = time.perf_counter(), ""
        try:
            sent = send(len(sends))
            if isawaitable(sent):
                await sent
        except Exception as fault:
            error = repr(fault)
        sends.append((began, time.perf_counter(), error))
        await asyncio.sleep(PAUSE_S)
    return {"count": len(sends), "sends": sends}


async def paced(task: Task, send: Callable[[int], Any]) -> None:
    """`task.rate` calls a second, whatever the answers do: those that are late follow at once."""
    started, number = time.perf_counter(), 0
    while number < task.count:
        due = min(task.count, int((time.perf_counter() - started) * task.rate) + 1)
        for one in range(number, due):
            sent = send(one)
            if isawaitable(sent):
                await sent
        number = due
        await asyncio.sleep(max(0.0, started + number / task.rate - time.perf_counter()))
