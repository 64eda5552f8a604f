"""The thread that syncs: one call at a time, so that a disk that does not answer stops no other work.

A call costs a queue and a call of the event loop from the thread. A pool's futures, locks and records of each
call are not needed for a single caller.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue

Done = Callable[[BaseException | None], None]


class SyncThread:
    """Runs calls in a dedicated thread, which starts with the first call."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Callable[[], None], Done] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self, call: Callable[[], None], done: Done) -> None:
        """Runs `call` in the thread, then `done` on the loop with its exception."""
        if self._thread is None:
            loop = asyncio.get_running_loop()
            thread = threading.Thread(target=self._serve, args=(loop,), name="flush", daemon=True)
            thread.start()
            self._thread = thread  # once it runs: else the calls would wait for ever
        self._calls.put((call, done))

    def close(self) -> None:
        """Waits for the calls, and ends the thread."""
        if self._thread is not None:
            self._calls.put(None)
            self._thread.join()

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        while (asked := self._calls.get()) is not None:
            call, done = asked
            failure: BaseException | None = None
            try:
                call()
            except BaseException as error:  # whatever it is, it is the caller's
                failure = error
            with suppress(RuntimeError):  # the loop is closed: no caller waits
                loop.call_soon_threadsafe(done, failure)
