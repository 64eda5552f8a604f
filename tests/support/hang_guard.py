"""Ends a worker whose test hangs, as pytest-timeout does, by one thread for all tests.

pytest-timeout starts a thread for each test and joins it at the end: 0.6 ms, as long as everything else that
pytest does for a small test, and there are ten thousand. Its hooks let another timer take that place.

pytest-timeout prints the stacks of all threads; in a worker of xdist that output is lost. The guard therefore
writes a file first, and the process that reports adds it to the failure.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Final

import pytest
from pytest_timeout import Settings, timeout_timer

LOOK_S: Final = 1.0
ROOT: Final = Path(__file__).resolve().parents[2]
HANGS: Final = ROOT / "build" / "hangs"


def end(item: pytest.Item, settings: Settings) -> None:
    """Writes down where the test is, and ends the process as pytest-timeout does."""
    path = _path(item.nodeid)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        describe(file, settings.timeout)
    timeout_timer(item, settings)


def describe(file: IO[str], seconds: float) -> None:
    """The stacks of all threads and tasks, and the processes that this one has started."""
    print(f"ended after {seconds:g} s", file=file, flush=True)
    faulthandler.dump_traceback(file)
    for task in (one for one in gc.get_objects() if isinstance(one, asyncio.Task)):
        if not task.done():
            print("task", task.get_name(), "waits in", *_waits_of(task.get_coro()), sep="\n  ", file=file)
    if sys.platform == "linux":
        for children in Path("/proc/self/task").glob("*/children"):
            for child in children.read_text().split():
                status = Path(f"/proc/{child}/status")
                state = status.read_text().splitlines()[2] if status.exists() else "gone"
                print(f"process {child} {state}", file=file)


def _waits_of(coroutine: Any) -> Iterator[str]:
    """Where it waits, from the outermost frame to the innermost: an asyncio.Task gives the former alone."""
    while (frame := getattr(coroutine, "cr_frame", None)) is not None:
        yield f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
        coroutine = coroutine.cr_await


def description(nodeid: str) -> str:
    """Of a test that was ended here; nothing where its worker died otherwise. It is given once."""
    path = _path(nodeid)
    if not path.exists():
        return ""
    text = path.read_text(encoding="utf-8")
    path.unlink()
    return text


def _path(nodeid: str) -> Path:
    return HANGS / f"{zlib.crc32(nodeid.encode()):08x}.txt"


class HangGuard:
    """Knows the test that runs, and its deadline."""

    def __init__(self, end: Callable[[pytest.Item, Settings], None] = end) -> None:
        self._end = end
        self._running: tuple[float, pytest.Item, Settings] | None = None
        self._thread: threading.Thread | None = None

    def begin(self, item: pytest.Item, settings: Settings) -> None:
        """From now on the test has its timeout."""
        self._running = time.monotonic() + settings.timeout, item, settings
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="hang guard", daemon=True)
            self._thread.start()

    def done(self) -> None:
        """The test has ended."""
        self._running = None

    def look(self, now_s: float) -> None:
        """Ends the process where the test's deadline is over."""
        running = self._running
        if running is not None and now_s > running[0]:
            self._end(*running[1:])

    def _watch(self) -> None:
        while True:
            time.sleep(LOOK_S)
            self.look(time.monotonic())
