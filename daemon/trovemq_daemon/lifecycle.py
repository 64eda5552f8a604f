"""Runs a daemon from start to end: uvloop, signals, a bounded shutdown, exit codes.

The first SIGTERM or SIGINT asks the daemon to drain and stop, the second ends it at once. The handlers are
set by `signal.signal`: they also run if SIGINT was inherited as ignored (a shell's background job), and while
the loop is busy with a long synchronous step.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from enum import IntEnum
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Final

import uvloop

from trovemq_daemon.early_imports import import_early
from trovemq_daemon.errors import AddressInUseError, SettingsError
from trovemq_daemon.logging import get_logger
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

STOP_TIME_MAX_S: Final = 10.0
STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class ExitCode(IntEnum):
    """The meaning of a daemon's exit code. A second signal ends with 128 + its number (130, 143)."""

    CLEAN = 0
    UNEXPECTED = 1
    USAGE = 2
    STORE_LOCKED = 3
    STORE_MISMATCH = 4  # settings do not match the store, or it is a newer version's or another broker's
    STORE_FAILED = 5  # fatal storage error
    ADDRESS_IN_USE = 6


_CODE_BY_SYMBOL: Final = {
    errors.STORE_LOCKED.symbol: ExitCode.STORE_LOCKED,
    errors.STORE_SETTINGS_MISMATCH.symbol: ExitCode.STORE_MISMATCH,
    errors.STORE_NEWER.symbol: ExitCode.STORE_MISMATCH,
    errors.STORE_OTHER_BROKER.symbol: ExitCode.STORE_MISMATCH,
    errors.STORE_FAILED.symbol: ExitCode.STORE_FAILED,
    errors.STORE_DELETED.symbol: ExitCode.STORE_FAILED,
    errors.STORE_DIVERGED.symbol: ExitCode.STORE_FAILED,
    errors.DISK_FULL.symbol: ExitCode.STORE_FAILED,
    errors.CREATE_MAPPED_FILE_FAILED.symbol: ExitCode.STORE_FAILED,
    errors.RECORD_DAMAGED.symbol: ExitCode.STORE_FAILED,
}


def exit_code_of(error: BaseException) -> ExitCode:
    """The exit code of an error that ended the daemon; for a group, that of the first error with a code of
    its own."""
    if isinstance(error, BaseExceptionGroup):
        codes = (exit_code_of(inner) for inner in error.exceptions)
        return next((code for code in codes if code != ExitCode.UNEXPECTED), ExitCode.UNEXPECTED)
    if isinstance(error, TroveError):
        return _CODE_BY_SYMBOL.get(error.symbol, ExitCode.UNEXPECTED)
    if isinstance(error, SettingsError):
        return ExitCode.USAGE
    if isinstance(error, AddressInUseError):
        return ExitCode.ADDRESS_IN_USE
    return ExitCode.UNEXPECTED


class _Watchdog:
    """Ends the process if a shutdown takes too long, even if the event loop hangs.

    Its thread runs from the start and gets events through a SimpleQueue, whose `put` is safe in a signal
    handler; starting a thread or taking a lock is not.
    """

    def __init__(self, stop_time_max_s: float) -> None:
        self._stop_time_max_s = stop_time_max_s
        # False: the time of the shutdown begins; True: the daemon has ended.
        self._finished: SimpleQueue[bool] = SimpleQueue()
        threading.Thread(target=self._watch, name="shutdown-watchdog", daemon=True).start()

    def start_clock(self) -> None:
        self._finished.put(False)

    def finish(self) -> None:
        self._finished.put(True)

    def _watch(self) -> None:
        if self._finished.get():
            return
        deadline = time.monotonic() + self._stop_time_max_s
        with suppress(Empty):
            while not self._finished.get(timeout=max(0.0, deadline - time.monotonic())):
                pass
            return
        get_logger().error("daemon.stop_timeout", seconds=self._stop_time_max_s)
        os._exit(ExitCode.UNEXPECTED)


class Stop:
    """The request to stop, for the daemon: await `wait()`, then drain and return.

    The daemon may call `request()`, too (on the loop), for instance after a fatal error; from then on the
    time of the shutdown is bounded.
    """

    def __init__(self, on_request: Callable[[], None] = lambda: None) -> None:
        self._event = asyncio.Event()
        self._on_request = on_request
        self.reason = ""

    @property
    def requested(self) -> bool:
        return self._event.is_set()

    def request(self, reason: str) -> None:
        if not self.requested:
            self.reason = reason
            self._on_request()
            self._event.set()

    async def wait(self) -> None:
        await self._event.wait()


class _Signals:
    """Counts the signals: the first one asks to stop and limits the time of the shutdown, the second ends the
    process."""

    def __init__(self, loop: asyncio.AbstractEventLoop, stop: Stop, watchdog: _Watchdog) -> None:
        self._loop = loop
        self._stop = stop
        self._watchdog = watchdog
        self._seen = 0
        self._previous = {number: signal.signal(number, self._on_signal) for number in STOP_SIGNALS}

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._seen += 1
        if self._seen > 1:
            os._exit(128 + number)
        self._watchdog.start_clock()
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop.request, signal.Signals(number).name)

    def restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)


def run_daemon(main: Callable[[Stop], Awaitable[None]], *, stop_time_max_s: float = STOP_TIME_MAX_S) -> int:
    """Runs the daemon's coroutine in the main thread until it ends, and returns the exit code.

    `main` returns after it has drained (soon after `stop.wait()` returned), or raises the error that ended
    it: that is logged in one line, and its exit code returned. Blocks; never raises.
    """
    import_early()
    watchdog = _Watchdog(stop_time_max_s)
    signals: _Signals | None = None

    async def guarded() -> None:
        nonlocal signals
        stop = Stop(watchdog.start_clock)
        signals = _Signals(asyncio.get_running_loop(), stop, watchdog)
        await main(stop)

    try:
        uvloop.run(guarded())
    except BaseException as error:
        return _failed(error)
    finally:
        watchdog.finish()
        if signals is not None:
            signals.restore()
    get_logger().info("daemon.stopped")
    return ExitCode.CLEAN


def _failed(error: BaseException) -> ExitCode:
    code = exit_code_of(error)
    foreseen = code != ExitCode.UNEXPECTED or isinstance(error, TroveError)
    traceback = None if foreseen else error
    advice = {"what_to_do": error.spec.what_to_do} if isinstance(error, TroveError) else {}
    get_logger().error(
        "daemon.failed", reason=_reason(error), exit_code=int(code), exc_info=traceback, **advice
    )
    return code


def _reason(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(_reason(inner) for inner in error.exceptions)
    return str(error) or type(error).__name__
