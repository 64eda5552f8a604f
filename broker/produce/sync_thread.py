"""The thread that syncs: one call at a time, so that a disk that stands still stops nobody else.

A call costs a queue, a call of the event loop from the thread, and one future: a third of a pool's, whose
futures, locks and records of each call a single caller does not need.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue

Call = tuple[Callable[[], None], asyncio.Future[None]]


class SyncThread:
    """Runs calls in a thread of its own, which begins with the first one."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    async def run(self, call: Callable[[], None]) -> None:
        """Returns when the call has; raises its exception. A cancellation leaves the call running."""
        loop = asyncio.get_running_loop()
        if self._thread is None:
            thread = threading.Thread(target=self._serve, args=(loop,), name="flush", daemon=True)
            thread.start()
            self._thread = thread  # if there can be one: else nobody would take the calls
        future: asyncio.Future[None] = loop.create_future()
        self._calls.put((call, future))
        await future

    def close(self) -> None:
        """Waits for the calls, and ends the thread."""
        if self._thread is not None:
            self._calls.put(None)
            self._thread.join()

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        while (asked := self._calls.get()) is not None:
            call, future = asked
            failure: BaseException | None = None
            try:
                call()
            except BaseException as error:  # whatever it is, it is the caller's
                failure = error
            with suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(_answer, future, failure)


def _answer(future: asyncio.Future[None], failure: BaseException | None) -> None:
    if future.done():  # cancelled
        return
    if failure is None:
        future.set_result(None)
    else:
        future.set_exception(failure)
