"""All connections of an event loop share these: the receive buffer, the deadlines, the tick of each second.

Reads fill the receive buffer from its beginning to its end. Then it is used again, if no view of it exists: a
bytearray with a view refuses to change its size, so this can be asked. If there is a view, a reader has kept
a message. The buffer is left to that view and never changes any more, and a new one takes its place.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol
from weakref import WeakKeyDictionary

RECEIVE_BUFFER_SIZE: Final = 512 << 10
"""Several large reads, and small enough to stay in a processor's cache. No benchmark has a case for it."""
READ_SIZE_MIN: Final = 160 << 10
"""An incomplete frame of 64 KiB, and a good read after it. No benchmark has a case for it."""
TICKS_MAX: Final = 256  # in an iteration of the loop: each may send a PING, which takes 10 us
DEADLINE_TICK_S: Final = 0.01  # a deadline may be so late: few timers serve many calls


class Ticked(Protocol):
    """Is called about once a second."""

    def tick(self, now: float) -> None: ...


class ReceiveBuffer:
    """Bytes for the next read, whichever connection it is on."""

    __slots__ = ("_buffer", "_view", "poison", "position", "replaced")

    def __init__(self) -> None:
        self._buffer = bytearray(RECEIVE_BUFFER_SIZE)
        self._view = memoryview(self._buffer)
        self.position = 0  # before it, bytes are in use until their views are gone
        self.poison = False  # tests: overwrite reused bytes
        self.replaced = 0

    def view(self) -> memoryview:
        """At least READ_SIZE_MIN bytes that are not exported."""
        if RECEIVE_BUFFER_SIZE - self.position < READ_SIZE_MIN:
            self._begin_again()
        return self._view[self.position :]

    def _begin_again(self) -> None:
        try:
            self._view.release()
            self._buffer.append(0)
            self._buffer.pop()
            if self.poison:
                self._buffer[:] = b"\xdd" * RECEIVE_BUFFER_SIZE
        except BufferError:
            self._buffer = bytearray(RECEIVE_BUFFER_SIZE)
            self.replaced += 1
        self._view = memoryview(self._buffer)
        self.position = 0


class Timed(Protocol):
    """A call with a deadline."""

    def on_deadline(self) -> None: ...


class Wheel:
    """Deadlines, up to a tick late, never early. Adding and removing one is a look-up in a dict and a set."""

    __slots__ = ("_buckets", "_loop", "_next", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._buckets: dict[int, set[Timed]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._next = 0

    def add(self, when: float, call: Timed) -> int:
        """Calls `on_deadline` at `when` of the loop's clock; returns the key for `remove`."""
        key = int(when / DEADLINE_TICK_S) + 1
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = set()
            if self._timer is None or key < self._next:
                self._schedule(key)
        bucket.add(call)
        return key

    def remove(self, key: int, call: Timed) -> None:
        bucket = self._buckets.get(key)
        if bucket is not None:
            bucket.discard(call)

    def _schedule(self, key: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._next = key
        self._timer = self._loop.call_at(key * DEADLINE_TICK_S, self._run)

    def _run(self) -> None:
        self._timer = None
        # At least the tick that the timer was set for: the division may round, and a timer may be early.
        now = max(self._next, int(self._loop.time() / DEADLINE_TICK_S))
        due = sorted(key for key in self._buckets if key <= now)
        calls = [call for key in due for call in self._buckets.pop(key)]
        for key in sorted(self._buckets):
            if self._buckets[key]:
                self._schedule(key)
                break
            del self._buckets[key]  # all of it was removed meanwhile
        for call in calls:
            call.on_deadline()


class LoopParts:
    """One a loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.receive_buffer = ReceiveBuffer()
        self.plain_buffer = ReceiveBuffer()  # of TLS: decrypted bytes
        self.wheel = Wheel(loop)
        self.rests_size = 0  # of reads that were more work than an iteration takes
        self._ticked: set[Ticked] = set()
        self._due: list[Ticked] = []  # of this second's tick
        self._timer: asyncio.TimerHandle | None = None

    def add(self, endpoint: Ticked) -> None:
        self._ticked.add(endpoint)
        if self._timer is None:
            self._timer = self.loop.call_later(1.0, self._tick)

    def discard(self, endpoint: Ticked) -> None:
        self._ticked.discard(endpoint)
        if not self._ticked and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        """Calls the endpoints' `tick` after the loop has read the bytes that arrived: it may have stood still
        just now, in a callback of the same iteration. One iteration later uvloop has not read yet."""
        self._timer = self.loop.call_later(1.0, self._tick)
        running = bool(self._due)
        self._due = list(self._ticked)
        if not running:
            self.loop.call_soon(self.loop.call_soon, self._tick_some)

    def _tick_some(self) -> None:
        """Some of the ticks: those of 10,000 connections together hold up the loop for 10 ms and more."""
        now = self.loop.time()
        due, ticked = self._due, self._ticked
        for _ in range(min(len(due), TICKS_MAX)):
            endpoint = due.pop()
            if endpoint in ticked:  # else it was lost in between
                try:
                    endpoint.tick(now)
                except Exception as error:  # of this connection: the others have their ticks
                    self.loop.call_exception_handler({"message": "a tick failed", "exception": error})
        if due:
            self.loop.call_soon(self._tick_some)


_parts: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopParts] = WeakKeyDictionary()


def loop_parts(loop: asyncio.AbstractEventLoop) -> LoopParts:
    parts = _parts.get(loop)
    if parts is None:
        parts = _parts[loop] = LoopParts(loop)
    return parts
