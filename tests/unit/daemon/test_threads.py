"""Blocking work beside the loop: a cancelled caller waits for its thread."""

from __future__ import annotations

import asyncio
import threading

import pytest

from trovemq_daemon.threads import run_in_thread


@pytest.mark.asyncio
async def test_result_and_error_arrive() -> None:
    assert await run_in_thread(threading.get_ident) != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        await run_in_thread(lambda: 1 // 0)


@pytest.mark.asyncio
@pytest.mark.parametrize("fails", [False, True])
async def test_a_cancelled_caller_continues_when_the_work_is_over(fails: bool) -> None:
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        may_end.wait(10)
        ended.set()
        if fails:
            raise OSError

    lock = asyncio.Lock()

    async def caller() -> None:
        async with lock:
            await run_in_thread(work)

    task = asyncio.create_task(caller())
    while not begun.is_set():
        await asyncio.sleep(0)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        assert lock.locked()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()
    assert not lock.locked()
