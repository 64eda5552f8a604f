"""Runs handlers until they are stopped, or as a whole program until a signal; then drains them.

| event                              | then                                                                 |
|------------------------------------|----------------------------------------------------------------------|
| SIGTERM, SIGINT, `stop`            | handlers get no more messages; calls end; other messages are returned |
| `drain_seconds` over, or a second  | calls are cancelled, their messages returned at once                 |
| signal                             |                                                                      |
| a subscription ends with an error  | as `stop`; `wait` raises it                                          |
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from types import FrameType, TracebackType
from typing import Any, Final, Self

from trovemq._common.arguments import check_amount, check_type
from trovemq._run.worker import Shown, Subscribe, Worker
from trovemq.handlers import Handlers
from trovemq.subscription import check_concurrency
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

DRAIN_SECONDS_DEFAULT: Final = 30.0
SIGNALS_DEFAULT: Final = (signal.SIGTERM, signal.SIGINT)


class Running:
    """Running handlers; created by `Client.run`: to be awaited, or used as an async context manager.

    await client.run(handlers)     # until SIGTERM or Ctrl-C, and all calls have ended

    async with client.run(handlers) as running:    # signals are its program's
        await running.wait()       # until `stop`, and all calls have ended
    """

    def __init__(
        self,
        subscribe: Subscribe,
        handlers: Handlers,
        *,
        drain_seconds: float = DRAIN_SECONDS_DEFAULT,
        signals: Sequence[signal.Signals] | None = None,
        shown: Shown = lambda message: message,
    ) -> None:
        check_type("handlers", handlers, Handlers)
        check_amount("drain_seconds", drain_seconds)
        if not handlers.all:
            raise TroveError(errors.REQUEST_ILLEGAL, "there are no handlers to run")
        for handler in handlers.all:
            check_concurrency(handler.concurrency)
        self._subscribe = subscribe
        self._handlers = handlers
        self._drain_seconds = drain_seconds
        self._signals = signals
        self._shown = shown
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._workers: list[Worker] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        self._failure_raised = False
        self._draining: asyncio.Task[None] | None = None
        self._open = AsyncExitStack()

    def stop(self) -> None:
        """Begins to drain; may be called from any thread. A second call cancels the calls that still run."""
        if self._loop is None:
            raise TroveError(errors.REQUEST_ILLEGAL, "nothing runs yet: async with client.run(…)")
        self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        if self._stopping.is_set():
            self._hurry.set()
        self._stopping.set()
        if self._draining is None:
            self._draining = asyncio.get_running_loop().create_task(self._drain())

    async def wait(self) -> None:
        """Returns when it was stopped, and all calls have ended. A cancelled call no longer waits.

        Raises:
            TroveError: A subscription has ended, because continuing is useless (GROUP_NOT_FOUND, …).
        """
        await self._stopping.wait()
        assert self._draining is not None
        await asyncio.shield(self._draining)
        if self._failure is not None:
            self._failure_raised = True
            raise self._failure

    def __await__(self) -> Generator[Any, None, None]:
        return self._run_to_end().__await__()

    async def _run_to_end(self) -> None:
        if self._signals is None:
            self._signals = SIGNALS_DEFAULT
        async with self:
            await self.wait()

    async def __aenter__(self) -> Self:
        """Opens all subscriptions. Raises TroveError TOPIC_NOT_FOUND, GROUP_ILLEGAL, GROUP_NOT_FOUND,
        FILTER_ILLEGAL, BROKER_UNREACHABLE, …: then all are closed."""
        loop = self._loop = asyncio.get_running_loop()
        async with AsyncExitStack() as opened:
            opened.enter_context(signals_call(self._signals or (), self.stop))
            for handler in self._handlers.all:
                worker = Worker(handler, self._handlers, self._subscribe, self._shown)
                opened.callback(worker.close)
                await opened.enter_async_context(worker.subscription)
                self._workers.append(worker)
            self._open = opened.pop_all()
        for worker in self._workers:
            for _ in range(worker.handler.concurrency):
                task = loop.create_task(worker.work(), name=worker.handler.name)
                self._tasks.add(task)
                task.add_done_callback(self._ended)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, where: TracebackType | None
    ) -> None:
        if not self._stopping.is_set():
            self._stop()
        raised = self._failure_raised or failure is not None
        try:
            await self.wait()
        except asyncio.CancelledError:
            self._hurry.set()
            assert self._draining is not None
            await self._draining
            raise
        except Exception:
            if not raised:
                raise

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        failure = None if task.cancelled() else task.exception()
        self._failure = self._failure or failure
        if (failure is not None or not self._tasks) and not self._stopping.is_set():
            self._stop()

    async def _drain(self) -> None:
        for worker in self._workers:
            worker.end()
        calls, loop = list(self._tasks), asyncio.get_running_loop()
        hurry = loop.create_task(self._hurry.wait())
        try:
            if calls:
                ended = loop.create_task(_all_ended(calls))
                await asyncio.wait(
                    {ended, hurry}, timeout=self._drain_seconds, return_when=asyncio.FIRST_COMPLETED
                )
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
        finally:
            hurry.cancel()
            await self._open.aclose()


async def _all_ended(tasks: Sequence[asyncio.Task[None]]) -> bool:
    await asyncio.wait(tasks)
    return True


@contextmanager
def signals_call(signals: Sequence[signal.Signals], function: Callable[[], object]) -> Iterator[None]:
    """Calls the function at each of the signals, within the block, and then the handler that the program had
    before: a web server ends, too. Only the main thread gets signals: in other threads this does nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_signal(number: int, frame: FrameType | None) -> None:
        function()
        earlier = before[signal.Signals(number)]
        if callable(earlier) and not _is_pythons(earlier):
            earlier(number, frame)

    before = {number: signal.getsignal(number) for number in signals}
    for number in before:
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is on_signal:  # else a later one, which stays
                signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _is_pythons(handler: Callable[[int, FrameType | None], Any]) -> bool:
    """Whether it is Python's own answer to Ctrl-C, which interrupts the program, or asyncio.run's, which
    cancels its task."""
    runner = getattr(getattr(handler, "func", None), "__self__", None)
    return handler is signal.default_int_handler or isinstance(runner, asyncio.Runner)
