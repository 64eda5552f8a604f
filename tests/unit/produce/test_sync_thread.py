"""The thread that syncs: results, errors, cancellations, the end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine

import pytest

from trovemq_broker.produce.sync_thread import SyncThread

WAIT_S_MAX = 240


def play(scene: Callable[[SyncThread], Coroutine[None, None, None]]) -> None:
    thread = SyncThread()

    async def whole() -> None:
        async with asyncio.timeout(WAIT_S_MAX):
            await scene(thread)

    try:
        asyncio.run(whole())
    finally:
        thread.close()


async def run(thread: SyncThread, call: Callable[[], None]) -> None:
    """Returns when the call has; raises its exception."""
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(failure: BaseException | None) -> None:
        assert threading.current_thread() is threading.main_thread()
        if not ended.done():  # cancelled
            ended.set_result(None) if failure is None else ended.set_exception(failure)

    thread.start(call, done)
    await ended


def fail() -> None:
    raise OSError("the disk")


def test_calls_run_one_after_the_other_in_one_other_thread() -> None:
    names: list[str] = []

    async def scene(thread: SyncThread) -> None:
        calls = [run(thread, lambda: names.append(threading.current_thread().name)) for _ in range(20)]
        await asyncio.gather(*calls)

    play(scene)
    assert names == ["flush"] * 20


def test_the_caller_gets_the_error_and_the_thread_stays() -> None:
    async def scene(thread: SyncThread) -> None:
        with pytest.raises(OSError, match="the disk"):
            await run(thread, fail)
        await run(thread, lambda: None)

    play(scene)


@pytest.mark.parametrize("call_fails", [False, True])
def test_a_caller_that_is_cancelled_leaves_its_call_running(call_fails: bool) -> None:
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def call() -> None:
        begun.set()
        assert may_end.wait(WAIT_S_MAX)
        ended.set()
        if call_fails:
            fail()

    async def scene(thread: SyncThread) -> None:
        waiting = asyncio.ensure_future(run(thread, call))
        while not begun.is_set():
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert not ended.is_set()
        may_end.set()
        await run(thread, lambda: None)
        assert ended.is_set()

    play(scene)


def test_close_waits_for_a_call_whose_loop_is_closed() -> None:
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def call() -> None:
        begun.set()
        assert may_end.wait(WAIT_S_MAX)
        ended.set()

    async def leave(thread: SyncThread) -> None:
        waiting = asyncio.ensure_future(run(thread, call))
        while not begun.is_set():
            await asyncio.sleep(0)
        waiting.cancel()

    thread = SyncThread()
    asyncio.run(leave(thread))
    may_end.set()
    thread.close()
    assert ended.is_set()


def test_a_sync_waited_for_ever_after_the_machine_had_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def scene(thread: SyncThread) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(RuntimeError, match="new thread"):
                await run(thread, lambda: None)
            thread.close()
        await run(thread, lambda: None)

    play(scene)


def test_one_that_never_ran_is_closed_at_once() -> None:
    SyncThread().close()
