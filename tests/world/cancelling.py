"""Cancels a coroutine at its n-th suspension, by each means of cancelling a task there."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

Result = TypeVar("Result")

Moment = Literal["waiting", "woken"]
"""`waiting`: before that for which it waits has come; `woken`: in the same moment, just after it came."""


@dataclass(eq=False)
class Suspensions(Generic[Result]):
    """An awaitable that runs the coroutine and counts its suspensions. At number `cancelled_at` (1, 2, …) it
    cancels the task that awaits it."""

    coroutine: Coroutine[Any, Any, Result]
    cancelled_at: int = 0
    moment: Moment = "waiting"
    count: int = 0

    def __await__(self) -> Generator[Any, Any, Result]:
        inner = self.coroutine.__await__()
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        thrown: BaseException | None = None
        while True:
            try:
                awaited = inner.send(None) if thrown is None else inner.throw(thrown)
            except StopIteration as end:
                result: Result = end.value
                return result
            thrown = None
            self.count += 1
            if self.count == self.cancelled_at:
                if self.moment == "woken" and isinstance(awaited, asyncio.Future):
                    # Called before the task is woken: it does not know the future's result yet.
                    awaited.add_done_callback(lambda _: task.cancel())
                else:
                    loop.call_soon(task.cancel)
            try:
                yield awaited
            except BaseException as error:
                thrown = error


async def suspension_count(coroutine: Coroutine[Any, Any, object]) -> int:
    """How often it is suspended when nothing cancels it."""
    counted = Suspensions(coroutine)
    await counted
    return counted.count


async def cancelled(coroutine: Coroutine[Any, Any, Result], number: int, moment: Moment) -> Result | None:
    """Runs it in a task, and cancels it at that suspension. Its result, if it ended first; None if it was
    cancelled."""

    async def run() -> Result:
        return await Suspensions(coroutine, number, moment)

    task = asyncio.get_running_loop().create_task(run())
    await asyncio.wait({task})
    return None if task.cancelled() else task.result()
