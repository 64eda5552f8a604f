"""Long polls: calls that wait at the end of a queue for its next message.

Invariants
- A waiter is called back at most once: with True when the queue grew or was deleted, with False at its
  deadline. One that stands is called back with True each time, until its deadline.
- A cancelled waiter is never called. A waiter ends with its stream.
- The number of waiters is bounded; one timer serves each, set once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueId

WAITERS_MAX: Final = 65_536

Queue = tuple[str, QueueId]


class Waiter:
    """One wait. `cancel()` ends it without a call."""

    __slots__ = ("_callback", "_polls", "_stands", "_timer", "queue")

    def __init__(
        self, polls: LongPolls, queue: Queue, callback: Callable[[bool], None], wait_s: float, *, stands: bool
    ) -> None:
        self._polls = polls
        self.queue = queue
        self._callback = callback
        self._stands = stands
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._finish, False)

    def cancel(self) -> None:
        self._timer.cancel()
        self._polls.forget(self)

    def wake(self) -> None:
        """Calls back, because the queue grew."""
        if not self._stands:
            self._timer.cancel()
            self._finish(True)
        elif not self._timer.cancelled():  # by another waiter's callback
            self._callback(True)

    def _finish(self, grown: bool) -> None:
        if self._polls.forget(self):  # otherwise another waiter's callback has cancelled it
            self._callback(grown)


class LongPolls:
    """The waiters of all queues."""

    def __init__(self, waiters_max: int = WAITERS_MAX) -> None:
        self._waiters_max = waiters_max
        self._by_queue: dict[Queue, dict[Waiter, None]] = {}  # a dict keeps the order of arrival
        self._count = 0
        self.closed = False
        self.woke_one = False
        """Whether the last growth concerned one waiter only."""

    def __len__(self) -> int:
        return self._count

    @property
    def full(self) -> bool:
        """Whether no more may wait."""
        return self._count >= self._waiters_max

    def wait(
        self,
        topic: str,
        queue_id: QueueId,
        wait_ms: int,
        callback: Callable[[bool], None],
        *,
        stands: bool = False,
    ) -> Waiter:
        """Calls `callback` when the queue grows (`stands`: whenever it grows), or after `wait_ms`. Raises
        TroveError LIMIT_EXCEEDED."""
        if self.full:
            raise TroveError(
                errors.LIMIT_EXCEEDED, f"{self._count} long polls are waiting already (longPollingCountMax)"
            )
        waiter = Waiter(self, (topic, queue_id), callback, wait_ms / 1000, stands=stands)
        self._by_queue.setdefault(waiter.queue, {})[waiter] = None
        self._count += 1
        return waiter

    def forget(self, waiter: Waiter) -> bool:
        """Removes the waiter; False if it was removed before."""
        waiters = self._by_queue.get(waiter.queue)
        if waiters is None or waiter not in waiters:
            return False
        del waiters[waiter]
        self._count -= 1
        if not waiters:
            del self._by_queue[waiter.queue]
        return True

    def wake(self, queues: Iterable[Queue]) -> None:
        """Calls the waiters of these queues, which have new messages."""
        if not self._count:
            return
        by_queue = self._by_queue
        waiters = [waiter for queue in queues for waiter in by_queue.get(queue, ())]
        self.woke_one = len(waiters) == 1
        for waiter in waiters:
            waiter.wake()

    def wake_topic(self, topic: str) -> None:
        """Calls the waiters of a deleted topic: they try again, and get the error."""
        self.wake([queue for queue in self._by_queue if queue[0] == topic])

    def close(self) -> None:
        """Calls all waiters, because the broker is stopping; no call waits any more."""
        self.closed = True
        self.wake(list(self._by_queue))
