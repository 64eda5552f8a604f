"""The thread whose event loop serves all synchronous clients of this process.

It starts with the first client and ends with the process, which closes clients that are still open. A process
made by `fork` has no such thread: a client of its parent refuses every call there, and a new client starts a
new thread.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final, TypeVar

from trovemq._produce.unacknowledged import report_all
from trovemq.client import Client
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

T = TypeVar("T")

EXIT_SECONDS_MAX: Final = 10.0  # for open clients at the end of the process


class LoopThread:
    """One event loop in one thread; `current` gives this process's."""

    def __init__(self) -> None:
        self._process_id = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._clients: set[Client] = set()  # those that are open
        self._thread = threading.Thread(target=self._loop.run_forever, name="trovemq", daemon=True)
        self._thread.start()
        atexit.register(self._close)
        if (multiprocessing := sys.modules.get("multiprocessing")) and multiprocessing.parent_process():
            # Its processes end without atexit, and their other threads later than this.
            from multiprocessing.util import Finalize

            Finalize(None, self._flush_and_report, exitpriority=0)

    def add(self, client: Client) -> None:
        """Closes the client when the process ends, unless that is done before."""
        self._clients.add(client)

    def close(self, client: Client) -> None:
        """Flushes the client's producers for a limited time, and closes it."""
        self.run(client._close_flushed())
        self._clients.discard(client)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of the coroutine. An exception in the waiting thread (Ctrl-C) cancels it.

        Raises:
            TroveError: CLIENT_CLOSED in a process that was forked from that of the client; REQUEST_ILLEGAL in
                the loop's own thread, which cannot wait for itself.
        """
        future = self.start(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Starts the work, and does not wait."""
        try:
            self._check()
        except TroveError:
            work.close()
            raise
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, function: Callable[[], T]) -> T:
        """The result of a function that is called on the loop."""

        async def work() -> T:
            return function()

        return self.run(work())

    def iterate(self, items: AsyncGenerator[T, None]) -> Generator[T, None, None]:
        """The items, each fetched when it is requested; ending the iteration early closes their source."""
        try:
            while True:
                try:
                    yield self.run(_next(items))
                except StopAsyncIteration:
                    return
        finally:
            self._finish(items)

    def _finish(self, items: AsyncGenerator[Any, None]) -> None:
        if threading.current_thread() is self._thread:  # the garbage collector ran here
            self._loop.create_task(_close_items(items))
        elif self._process_id == os.getpid() and not self._loop.is_closed():
            self.run(_close_items(items))

    def _check(self) -> None:
        if self._process_id != os.getpid():
            text = (
                f"the client belongs to process {self._process_id}: connect again after a fork"
                " (Celery: in the signal worker_process_init)"
            )
            raise TroveError(errors.CLIENT_CLOSED, text)
        if self._loop.is_closed():
            raise TroveError(errors.CLIENT_CLOSED, "the process is ending")
        if threading.current_thread() is self._thread:
            text = "a synchronous client cannot be called in its own event loop: use the asyncio client there"
            raise TroveError(errors.REQUEST_ILLEGAL, text)

    def _flush(self) -> None:
        """Waits until all messages are acknowledged, for a limited time."""

        async def flush_clients() -> None:
            await asyncio.gather(*(client._flush() for client in list(self._clients)))

        if self._process_id == os.getpid() and not self._loop.is_closed():
            self.run(flush_clients())

    def _flush_and_report(self) -> None:
        self._flush()
        report_all()

    def _close(self) -> None:
        if self._process_id != os.getpid() or self._loop.is_closed():
            return

        async def close_clients() -> None:
            closing = (client._close_flushed(in_time=True) for client in list(self._clients))
            await asyncio.gather(*closing, return_exceptions=True)

        with suppress(TimeoutError):
            self.start(close_clients()).result(EXIT_SECONDS_MAX)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(EXIT_SECONDS_MAX)
        if not self._thread.is_alive():
            self._loop.close()


async def _next(items: AsyncGenerator[T, None]) -> T:
    return await anext(items)


async def _close_items(items: AsyncGenerator[Any, None]) -> None:
    await items.aclose()


_lock = threading.Lock()
_current: LoopThread | None = None


def current() -> LoopThread:
    """The loop thread of this process, started at its first use."""
    global _current  # noqa: PLW0603  one a process
    with _lock:
        if _current is None:
            _current = LoopThread()
        return _current


def _forget() -> None:
    """Called in a forked process, which does not have its parent's thread."""
    global _current, _lock  # another thread may have held the lock
    _current, _lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
