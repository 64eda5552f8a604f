"""Runs handlers in threads."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from trovemq import running as aio
from trovemq.client import Client
from trovemq.handlers import Handlers
from trovemq.sync._calls import SyncWrapper
from trovemq.sync._loop_thread import LoopThread
from trovemq.sync.received import ReceivedMessage


class Running(SyncWrapper[aio.Running]):
    """Running handlers; created by `Client.run`, used as a context manager."""

    def __init__(
        self,
        client: Client,
        thread: LoopThread,
        handlers: Handlers,
        drain_seconds: float,
        signals: Sequence[signal.Signals] | None,
    ) -> None:
        inner = aio.Running(
            client.subscribe,
            handlers,
            drain_seconds=drain_seconds,
            signals=(),
            shown=lambda message: ReceivedMessage.of(message, thread),
        )
        super().__init__(inner, thread)
        self._signals = signals
        self._signalled = ExitStack()

    def wait(self) -> None:
        """Returns when it was stopped, without `signals` also by SIGTERM or Ctrl-C, and all calls have ended.
        Raises TroveError if a subscription has ended, because continuing is useless (GROUP_NOT_FOUND, …)."""
        signals = aio.SIGNALS_DEFAULT if self._signals is None else ()
        with aio.signals_call(signals, self.stop):
            self._thread.run(self._inner.wait())

    def stop(self) -> None:
        """Begins to drain; may be called from any thread, also by a handler."""
        self._inner.stop()

    def __enter__(self) -> Self:
        with ExitStack() as signalled:
            signalled.enter_context(aio.signals_call(self._signals or (), self.stop))
            self._thread.run(self._inner.__aenter__())
            self._signalled = signalled.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, where: TracebackType | None
    ) -> None:
        with self._signalled:
            self._thread.run(self._inner.__aexit__(kind, failure, where))
