"""Runs tasks that succeed together or end together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from typing import Any, TypeVar

Item = TypeVar("Item")


async def together(coroutines: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Runs all coroutines; the first failure ends the others and is raised unchanged."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def for_each(
    items: Iterable[Item], work: Callable[[Item], Awaitable[None]], concurrency_max: int
) -> None:
    """Awaits `work` for every item, that many at a time; takes the items one by one when they are needed."""
    shared: Iterator[Item] = iter(items)

    async def worker() -> None:
        for item in shared:
            await work(item)

    await together(worker() for _ in range(concurrency_max))
