"""Back-pressure: limits the bytes of a producer's unacknowledged messages."""

from __future__ import annotations

import asyncio
from collections import deque

from trovemq_proto import errors
from trovemq_proto.errors import TroveError


class InFlightLimiter:
    """A number of bytes that is granted in the order of the requests.

    One item larger than the limit is admitted if nothing else is in flight, so that it can be sent at all.
    """

    def __init__(self, bytes_max: int) -> None:
        assert bytes_max > 0, bytes_max
        self.bytes_max = bytes_max
        self.used = 0
        self._waiters: deque[asyncio.Future[None]] = deque()

    def has(self, size: int) -> bool:
        """Whether that many bytes fit now."""
        return self.used + size <= self.bytes_max or self.used == 0

    def try_take(self, size: int) -> bool:
        """Takes the bytes at once, if they fit."""
        used = self.used + size
        if used > self.bytes_max and self.used:
            return False
        self.used = used
        return True

    def take(self, size: int) -> None:
        """Takes the bytes at once. Raises TroveError LIMIT_EXCEEDED if they do not fit."""
        if not self.try_take(size):
            raise TroveError(
                errors.LIMIT_EXCEEDED,
                f"{self.used} of {self.bytes_max} bytes are not acknowledged yet (in_flight_bytes_max)",
                used=self.used,
                bytes_max=self.bytes_max,
            )

    async def enter(self, size: int) -> None:
        """Takes the bytes when they fit. A cancelled caller gives up its place in the queue."""
        await self.wait(size)
        self.take(size)
        if self._waiters and self.used < self.bytes_max:
            self._wake_next()  # the remaining space may be enough for the next

    async def wait(self, size: int = 1) -> None:
        """Returns when that many bytes fit. A cancelled caller gives up its place in the queue."""
        while not self.has(size):
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._wake_next()  # it was woken and cancelled at once: the next one gets the wake-up
                raise

    def give(self, size: int) -> None:
        """Releases the bytes."""
        self.used -= size
        assert self.used >= 0, self.used
        if self._waiters:
            self._wake_next()

    def _wake_next(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
