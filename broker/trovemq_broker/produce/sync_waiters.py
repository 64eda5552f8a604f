"""Appends that wait for the sync that covers them.

Invariants
- Waiters are resolved in the order of their ends, which is the order of the appends.
- Each waiter is resolved exactly once: after a timeout its sync does not resolve it again.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from trovemq_broker.produce.flush_settings import FlushSettings
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset

Resolve = Callable[[TroveError | None], None]


@dataclass(slots=True)
class _Waiter:
    end: PhysicalOffset
    deadline: float
    resolve: Resolve


class SyncWaiters(ABC):
    """The waiting appends, and their time-outs."""

    def __init__(self, settings: FlushSettings) -> None:
        self._settings = settings
        self._waiters: deque[_Waiter] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self.failure: Exception | None = None
        self.timeout_count = 0

    @property
    @abstractmethod
    def _flushed_offset(self) -> PhysicalOffset:
        """The log is on disk up to here."""

    @abstractmethod
    def _want(self) -> None:
        """A sync is wanted."""

    @property
    def waiting(self) -> int:
        """How many appends wait for the sync that covers them."""
        return len(self._waiters)

    def when_durable(self, end: PhysicalOffset, resolve: Resolve) -> None:
        """Calls `resolve` once: with None when the log is on disk up to `end`, else with the error.

        Errors: FLUSH_DISK_TIMEOUT (the message is in the log), STORE_FAILED.
        """
        if self.failure is not None:
            resolve(store_failed(self.failure))
            return
        if end <= self._flushed_offset:
            resolve(None)
            return
        deadline = asyncio.get_running_loop().time() + self._settings.sync_flush_timeout_ms / 1000
        self._add(_Waiter(end, deadline, resolve))
        self._want()
        self._arm_timer()

    def _add(self, waiter: _Waiter) -> None:
        """Adds the waiter in the order of ends: nearly always last, but a later append's waiter may come an
        iteration of the loop earlier."""
        at = len(self._waiters)
        while at and self._waiters[at - 1].end > waiter.end:
            at -= 1
            waiter.deadline = self._waiters[at].deadline
        self._waiters.insert(at, waiter)

    async def durable(self, end: PhysicalOffset) -> None:
        """Waits until the log is on disk up to `end`. Raises the error that when_durable reports."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def resolve(error: TroveError | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

        self.when_durable(end, resolve)
        await future

    async def acknowledgeable(self, end: PhysicalOffset) -> None:
        """Waits until the log up to `end` is as durable as an acknowledged message: in sync mode on disk."""
        if self._settings.flush_mode == "sync":
            await self.durable(end)

    def _shorten_waits(self) -> None:
        """Applies a changed time-out to the appends that wait."""
        latest = asyncio.get_running_loop().time() + self._settings.sync_flush_timeout_ms / 1000
        for waiter in self._waiters:  # else they would hold up the time-outs of those after them
            waiter.deadline = min(waiter.deadline, latest)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._arm_timer()

    def _resolve_up_to(self, flushed_offset: PhysicalOffset) -> None:
        while self._waiters and self._waiters[0].end <= flushed_offset:
            self._waiters.popleft().resolve(None)

    def _arm_timer(self) -> None:
        """Sets one timer, for the oldest waiter: the deadlines have the order of the waiters."""
        if self._timer is None and self._waiters:
            self._timer = asyncio.get_running_loop().call_at(self._waiters[0].deadline, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        while self._waiters and self._waiters[0].deadline <= now:
            self.timeout_count += 1
            waited_ms = self._settings.sync_flush_timeout_ms
            self._waiters.popleft().resolve(
                TroveError(errors.FLUSH_DISK_TIMEOUT, f"the sync did not end within {waited_ms} ms")
            )
        self._arm_timer()

    def _fail_waiters(self, failure: Exception) -> None:
        while self._waiters:
            self._waiters.popleft().resolve(store_failed(failure))


def store_failed(failure: Exception) -> TroveError:
    """The error of appends that no sync covers any more."""
    return TroveError(errors.STORE_FAILED, f"the store failed: {failure}")
