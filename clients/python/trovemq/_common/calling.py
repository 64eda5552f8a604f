"""Calls of a program's function: an async one on the event loop, any other in a thread."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any


class Calling:
    """Calls one function.

    Args:
        function: The function; its result may be awaitable, too.
        threads_max: The most calls at a time.
        name: The prefix of its threads' names.

    Attributes:
        call: Its result is awaited; the function itself if that is async.
    """

    def __init__(self, function: Callable[..., Any], threads_max: int, name: str) -> None:
        self._function = function
        self._threads: ThreadPoolExecutor | None = None
        self.call: Callable[..., Awaitable[Any]] = function
        if not any(map(inspect.iscoroutinefunction, (function, _call_of(function)))):
            self._threads = ThreadPoolExecutor(threads_max, thread_name_prefix=name)
            self.call = self._in_thread

    async def _in_thread(self, *arguments: Any) -> Any:
        run = partial(contextvars.copy_context().run, self._function, *arguments)
        result = await asyncio.get_running_loop().run_in_executor(self._threads, run)
        return await result if inspect.isawaitable(result) else result

    def close(self) -> None:
        """Calls that run are not waited for: a thread cannot be cancelled."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)


def _call_of(function: Callable[..., Any]) -> object:
    return getattr(function, "__call__", None)  # noqa: B004  it may be a coroutine function
