"""Appends that wait until a part of the log is safe: on disk, or at the copies.

Invariants
- Waiters are resolved in the order of their ends, which is the order of the appends.
- Each waiter is resolved exactly once: after a timeout its sync or its commit does not resolve it again.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from trovemq_broker.produce.flush_settings import FlushSettings
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset
from trovemq_store.files.failures import failed_sync

Resolve: TypeAlias = Callable[[TroveError | None], None]
When: TypeAlias = Callable[[PhysicalOffset, Resolve], None]
"""(end, resolve): calls `resolve` once, with None when the log up to `end` is safe, else with the error."""


@dataclass(slots=True)
class _Waiter:
    end: PhysicalOffset
    deadline: float
    resolve: Resolve


class Waiters(ABC):
    """The waiting appends, and their time-outs."""

    def __init__(self, wait_max_ms: int) -> None:
        """wait_max_ms: how long an append waits."""
        self._wait_max_ms = wait_max_ms
        self._waiters: deque[_Waiter] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self.failure: Exception | None = None
        self.timeout_count = 0

    @property
    @abstractmethod
    def _safe_offset(self) -> PhysicalOffset:
        """The log is safe up to here."""

    @abstractmethod
    def _want(self) -> None:
        """An append waits."""

    @abstractmethod
    def _timed_out(self, end: PhysicalOffset) -> TroveError:
        """Counts an append that has waited too long. Returns its error."""

    @property
    def waiting(self) -> int:
        """How many appends wait."""
        return len(self._waiters)

    def wait(self, end: PhysicalOffset, resolve: Resolve) -> None:
        """Calls `resolve` once: with None when the log is safe up to `end`, else with the error:
        STORE_FAILED, or that of the time-out."""
        if self.failure is not None:
            resolve(store_failed(self.failure))
            return
        if end <= self._safe_offset:
            resolve(None)
            return
        deadline = asyncio.get_running_loop().time() + self._wait_max_ms / 1000
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

    def _set_wait(self, wait_max_ms: int) -> None:
        """Changes the time-out, also of the appends that wait."""
        self._wait_max_ms = wait_max_ms
        latest = asyncio.get_running_loop().time() + self._wait_max_ms / 1000
        for waiter in self._waiters:  # else they would hold up the time-outs of those after them
            waiter.deadline = min(waiter.deadline, latest)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._arm_timer()

    def _resolve_up_to(self, offset: PhysicalOffset) -> None:
        while self._waiters and self._waiters[0].end <= offset:
            self._waiters.popleft().resolve(None)

    def _arm_timer(self) -> None:
        """Sets one timer, for the oldest waiter: the deadlines have the order of the waiters."""
        if self._timer is None and self._waiters:
            self._timer = asyncio.get_running_loop().call_at(self._waiters[0].deadline, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        while self._waiters and self._waiters[0].deadline <= now:
            waiter = self._waiters.popleft()
            waiter.resolve(self._timed_out(waiter.end))
        self._arm_timer()

    def _fail_waiters(self, error: TroveError) -> None:
        while self._waiters:
            self._waiters.popleft().resolve(error)


class SyncWaiters(Waiters):
    """Appends that wait for the sync that covers them. The error of the time-out is FLUSH_DISK_TIMEOUT: the
    message is in the log."""

    def __init__(self, settings: FlushSettings) -> None:
        super().__init__(settings.sync_flush_timeout_ms)
        self._settings = settings

    def _timed_out(self, end: PhysicalOffset) -> TroveError:
        del end
        return self._late_sync(self._wait_max_ms)

    def _late_sync(self, waited_ms: int) -> TroveError:
        """Counts an append whose sync took longer. Returns its error."""
        self.timeout_count += 1
        return TroveError(errors.FLUSH_DISK_TIMEOUT, f"the sync did not end within {waited_ms} ms")


async def until(when: When, end: PhysicalOffset) -> None:
    """Waits until the log is safe up to `end`. Raises the error that `when` reports."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def resolve(error: TroveError | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    when(end, resolve)
    await future


def store_failed(failure: Exception) -> TroveError:
    """The error of appends that no sync covers any more."""
    return TroveError(failed_sync(failure), f"the store failed: {failure}")
