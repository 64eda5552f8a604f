"""Received messages for the program, within a limit; for orderly groups one of each lane at a time.

A lane is one message group of one queue (messages without a group share their queue's lane). Invariants:

- a message that was put and not taken is counted in `count` and `size`, and is contained exactly once, by its
  place;
- orderly: exactly one message of each lane, its head, is ready or with the program. The others wait in queue
  order until the head is settled.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from trovemq.received import ReceivedMessage
from trovemq_proto.errors import TroveError

ASKED_TOGETHER: Final = 32

_Place = tuple[object, ...]
_LaneKey = tuple[str, int, str | None]


@dataclass(slots=True)
class _Lane:
    head: ReceivedMessage
    later: list[ReceivedMessage] = field(default_factory=list)


class Inbox:
    """Receive loops put messages, and the program takes them. Used on one event loop.

    Args:
        count_max: The most waiting messages; callers of put await `wait_for_capacity` before.
        bytes_max: The most bytes of their bodies.
    """

    def __init__(self, count_max: int, bytes_max: int) -> None:
        assert count_max > 0, count_max
        assert bytes_max > 0, bytes_max
        self.count_max = count_max
        self.bytes_max = bytes_max
        # A request for each message that was taken would cost one call per message.
        self.ask_min = max(1, min(ASKED_TOGETHER, count_max // 2))
        self.ordered = False
        self.size = 0
        self.closed = False
        self._failure: TroveError | None = None
        self._ready: deque[ReceivedMessage] = deque()
        self._lanes: dict[_LaneKey, _Lane] = {}
        self._polls: set[int] = set()
        self._given_back: dict[_LaneKey, int] = {}
        self._waiting: dict[_Place, ReceivedMessage] = {}
        self._takers = _Waiters()
        self._putters = _Waiters()

    @property
    def count(self) -> int:
        """The number of waiting messages."""
        return len(self._waiting)

    @property
    def free(self) -> int:
        """The number of further messages that may be received."""
        return max(self.count_max - self.count, 0) if self.size < self.bytes_max else 0

    # --- in -------------------------------------------------------------------------------------------

    async def wait_for_capacity(self) -> int:
        """Returns `free` when it is large enough for a call: half of the total, or ASKED_TOGETHER."""
        while self.free < self.ask_min:
            await self._putters.wait()
        return self.free

    async def taken(self) -> None:
        """Returns when so many messages were taken that a call for more is worth it."""
        await self._putters.wait()

    def begin_poll(self, poll: int) -> None:
        """Messages with this `poll` will be put."""
        self._polls.add(poll)

    def end_poll(self, poll: int) -> None:
        """No more messages of this poll will be put."""
        self._polls.discard(poll)
        self._given_back = {key: other for key, other in self._given_back.items() if other != poll}

    def put(self, message: ReceivedMessage) -> bool:
        """Adds a message. If it waits here already and was delivered again, it gets the newer lease.

        Returns False if an earlier message of its lane, from the same poll, was returned meanwhile; then this
        one must be returned, too.
        """
        if self.ordered and self._given_back.get(_lane_key(message)) == message.poll:
            return False
        place = message.place
        known = self._waiting.get(place)
        if known is not None:
            known.take_over(message)
            return True
        self._waiting[place] = message
        self.size += message.nbytes
        if self.ordered:
            lane = self._lanes.get(_lane_key(message))
            if lane is not None:
                insort(lane.later, message, key=lambda other: other.queue_offset)
                return True
            self._lanes[_lane_key(message)] = _Lane(message)
        self._make_ready(message)
        return True

    def put_all(self, messages: Sequence[ReceivedMessage]) -> list[ReceivedMessage]:
        """Puts each message. Returns those that must be returned."""
        if self.ordered:
            return [message for message in messages if not self.put(message)]
        waiting, size, ready = self._waiting, self.size, self._ready
        for message in messages:
            place = message.place
            known = waiting.get(place)
            if known is None:
                waiting[place] = message
                size += message.nbytes
                ready.append(message)
            else:
                known.take_over(message)
        self.size = size
        self._takers.wake(len(messages))
        return []

    def _make_ready(self, message: ReceivedMessage) -> None:
        self._ready.append(message)
        self._takers.wake(1)

    # --- out ------------------------------------------------------------------------------------------

    async def get(self) -> ReceivedMessage | None:
        """The next message; None when the inbox is closed. Raises the TroveError passed to `fail`."""
        while True:
            if self.closed:
                return None
            message = self.take()
            if message is not None:
                return message
            if self._failure is not None:
                raise self._failure
            await self._takers.wait()

    async def get_until(self, end: float) -> ReceivedMessage | None:
        """As `get`, but None at `end` (the loop's time) at the latest."""
        if not self.closed and (message := self.take()) is not None:
            return message
        try:
            async with asyncio.timeout_at(end):
                return await self.get()
        except TimeoutError:
            return None

    def take(self, now: float | None = None) -> ReceivedMessage | None:
        """The next message that is ready, or None. Messages whose lease has ended by `now` are dropped,
        because they are delivered again. `now` None: the present time."""
        ready = self._ready
        while ready:
            message = ready.popleft()
            del self._waiting[message.place]
            self.size -= message.nbytes
            if self._putters.waiting:
                self._note_space()
            lease_end = message.lease_end
            if lease_end is None or lease_end > (asyncio.get_running_loop().time() if now is None else now):
                return message
            lane = self._lanes.pop(_lane_key(message), None)
            if lane is not None:
                self._forget(lane.later)
        return None

    def take_all(self, count_max: int) -> list[ReceivedMessage]:
        """The next messages that are ready, as `take`; [] if there is none or the inbox is closed."""
        taken: list[ReceivedMessage] = []
        ready, now = self._ready, asyncio.get_running_loop().time()
        while ready and len(taken) < count_max and not self.closed:
            if self.ordered:
                message = self.take(now)
                taken += () if message is None else (message,)
                continue
            some = [ready.popleft() for _ in range(min(count_max - len(taken), len(ready)))]
            self._forget(some)
            taken += [message for message in some if message.lease_end is None or message.lease_end > now]
        return taken

    def settled(self, message: ReceivedMessage, *, done: bool) -> list[ReceivedMessage]:
        """The program has settled a message; `done`: it is consumed.

        Returns:
            settled: Messages of its lane that must be returned, because it is delivered again before them.
        """
        key = _lane_key(message)
        lane = self._lanes.get(key)
        if lane is None or lane.head is not message:
            return []
        if done and lane.later:
            lane.head = lane.later.pop(0)
            self._make_ready(lane.head)
            return []
        del self._lanes[key]
        if not done and message.poll in self._polls:
            self._given_back[key] = message.poll
        self._forget(lane.later)
        return lane.later

    def drain(self) -> list[ReceivedMessage]:
        """Removes and returns all waiting messages."""
        left = list(self._waiting.values())
        self._forget(left)
        self._ready.clear()
        self._lanes.clear()
        return left

    def _forget(self, messages: Iterable[ReceivedMessage]) -> None:
        waiting, size = self._waiting, self.size
        for message in messages:
            del waiting[message.place]
            size -= message.nbytes
        self.size = size
        self._note_space()

    def _note_space(self) -> None:
        assert self.size >= 0, self.size
        if self.free >= self.ask_min:
            self._putters.wake_all()

    # --- the end --------------------------------------------------------------------------------------

    def fail(self, error: TroveError) -> None:
        """After the ready messages, `get` raises this error."""
        self._failure = self._failure or error
        self._takers.wake_all()

    def close(self) -> None:
        """`get` returns None from now on."""
        self.closed = True
        self._takers.wake_all()


class _Waiters:
    """Tasks that wait for their turn. A woken waiter checks its condition again."""

    def __init__(self) -> None:
        self.waiting: Final[deque[asyncio.Future[None]]] = deque()

    async def wait(self) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append(future)
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.wake(1)  # the turn that arrived with the cancellation belongs to the next one
            raise

    def wake(self, count: int) -> None:
        while count and self.waiting:
            future = self.waiting.popleft()
            if not future.done():
                future.set_result(None)
                count -= 1

    def wake_all(self) -> None:
        self.wake(len(self.waiting))


def _lane_key(message: ReceivedMessage) -> _LaneKey:
    return message.broker, message.queue_id, message.message_group
