"""Runs blocking work in threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


async def run_in_thread(work: Callable[[], Result]) -> Result:
    """Runs `work` in a thread of the loop's pool and returns its result, or raises its error.

    A thread cannot be ended from outside. So a cancelled caller continues only after the work: then no thread
    uses its objects (a file, a lock that the caller holds).
    """
    future = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await until_done(future)
        raise


async def until_done(future: asyncio.Future[Result]) -> None:
    """Waits for the future, or the task, whose error is neither raised nor reported. A caller that is
    cancelled, however often, continues only afterwards, with its CancelledError."""
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancelled = error
    if not future.cancelled():
        future.exception()
    if cancelled is not None:
        raise cancelled
