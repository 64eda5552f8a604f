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
        await _until_done(future)
        raise


async def _until_done(future: asyncio.Future[Result]) -> None:
    """Waits for the future, however often the waiter is cancelled; asyncio does not report the future's
    error."""
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            continue
    if not future.cancelled():
        future.exception()
