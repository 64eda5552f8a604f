"""The event loop for all calls of this process to brokers: in its own thread, as long as the process lives.

Spark's planner, its tasks and notebooks call from synchronous code, some while they run their own loop. A new
loop for each call would also work, but gRPC logs an error if its work ends after the loop was closed.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncGenerator, Coroutine, Generator
from contextlib import suppress
from typing import Any, Final, TypeVar

_CLOSE_SECONDS: Final = 10
_Answer = TypeVar("_Answer")

_starting: Final = threading.Lock()
_loops: Final[dict[int, asyncio.AbstractEventLoop]] = {}
"""By process id: after a fork the child has the object but not its thread."""


def run(coroutine: Coroutine[Any, Any, _Answer]) -> _Answer:
    """The coroutine's result or error; an interrupted caller cancels it."""
    future = asyncio.run_coroutine_threadsafe(coroutine, _loop())
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def iterate(items: AsyncGenerator[_Answer, None]) -> Generator[_Answer, None, None]:
    """The items one by one; closing the iterator closes the generator."""
    try:
        while True:
            try:
                yield run(_next(items))
            except StopAsyncIteration:
                return
    finally:
        _close(items)


def _close(items: AsyncGenerator[_Answer, None]) -> None:
    """Closes the generator without raising and without waiting for ever: the process may be about to end."""
    if sys.is_finalizing():
        return
    closing = asyncio.run_coroutine_threadsafe(_closed(items), _loop())
    with suppress(TimeoutError):
        closing.result(_CLOSE_SECONDS)


async def _closed(items: AsyncGenerator[_Answer, None]) -> None:
    await items.aclose()


async def _next(items: AsyncGenerator[_Answer, None]) -> _Answer:
    return await anext(items)


def _loop() -> asyncio.AbstractEventLoop:
    with _starting:
        loop = _loops.get(os.getpid())
        if loop is None:
            loop = _loops[os.getpid()] = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="trovemq-client", daemon=True).start()
        return loop
