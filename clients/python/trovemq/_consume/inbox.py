"""Received messages for the program, within a limit; for orderly groups one of each lane at a time.

A lane is one message group of one queue (messages without a group share their queue's lane). Invariants:

- a message that was put and not taken is counted in `count` and `size`, and is contained exactly once, by its
  place;
- a batch waits as a whole and hands out its messages one by one, unless they have an order, or one of them
  waits here already. Batches and single messages never wait at the same time;
- orderly: exactly one message of each lane, its head, is ready or with the program. The others wait in queue
  order until the head is settled, or its lease has ended and the broker delivers the lane again.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Protocol

from trovemq._consume.hold import Hold
from trovemq._consume.waiters import Waiters
from trovemq.received import ReceivedMessage
from trovemq_proto.errors import TroveError

ASKED_TOGETHER: Final = 32
EXCESS: Final = 2
"""While more messages wait than this many holds, some are returned."""

_Place = tuple[object, ...]
_LaneKey = tuple[str, int, str | None]


@dataclass(slots=True)
class _Lane:
    head: ReceivedMessage
    later: list[ReceivedMessage] = field(default_factory=list)


class MessageBatch(Protocol):
    """Messages of one broker that are handed out one by one."""

    @property
    def messages(self) -> Iterator[ReceivedMessage]:
        """Hands them out."""

    def __len__(self) -> int:
        """The number of messages that were not handed out yet."""

    @property
    def nbytes(self) -> int:
        """Their bytes."""

    @property
    def broker(self) -> str:
        """Their broker."""

    @property
    def lease_end(self) -> float | None:
        """The end of their leases, in the loop's time."""

    @property
    def physical_offsets(self) -> list[int]:
        """Where all messages of the batch lie in the broker's log."""


class Inbox:
    """Receive loops put messages, and the program takes them. Used on one event loop.

    Args:
        count_max: The most waiting messages; callers of put await `wait_for_capacity` before. None: as many
            as `hold` says.
        bytes_max: The most bytes of their bodies.

    Attributes:
        count_max: The present limit.
        hold: Measures the program's work.
        messages: The messages of the first batch, if no lease of them ends. It may be at its end while other
            messages wait: `take` has those. The caller that takes one calls `note_space` if there are
            `askers`.
        askers: The streams' tasks that wait for space.
    """

    def __init__(self, count_max: int | None, bytes_max: int) -> None:
        assert count_max is None or count_max > 0, count_max
        assert bytes_max > 0, bytes_max
        self.hold: Final = Hold(count_max)
        self._limit(self.hold.least if count_max is None else count_max)
        self.bytes_max = bytes_max
        self._put_count = 0  # of all messages ever put, without those that were returned
        self.ordered = False
        self.closed = False
        self._failure: TroveError | None = None
        self._ready: deque[ReceivedMessage] = deque()
        self._lanes: dict[_LaneKey, _Lane] = {}
        self._waiting: dict[_Place, ReceivedMessage] = {}
        self._size = 0  # of these
        self._first: MessageBatch | None = None
        self.messages: Iterator[ReceivedMessage] = iter(())
        self._later: deque[MessageBatch] = deque()
        self._later_count = self._later_size = 0
        self._places: dict[str, set[int]] = {}
        """By broker, the physical offsets of the batches that wait, and of messages of theirs that were
        taken."""
        self._came_again = False
        self.turn_is_due: Callable[[], bool] = _always
        """Whether `before_take` is to be awaited."""
        self.before_take: Callable[[], Awaitable[None]] | None = None
        """Awaited before each message that `get` returns, so that the event loop can do its other work."""
        self.on_put: Callable[[], None] = _nothing
        self._getters = Waiters()
        self._putters = Waiters()
        self.askers: Final = self._putters.waiting

    @property
    def count(self) -> int:
        """The number of waiting messages."""
        if self._first is None:
            return len(self._waiting)
        return len(self._first) + self._later_count

    @property
    def ready_count(self) -> int:
        """The number of messages that the program may take now."""
        return len(self._ready) if self._first is None else self.count

    def has_lane(self, broker: str) -> bool:
        """Orderly groups: whether messages of this broker wait, or are with the program."""
        return any(name == broker for name, *_ in self._lanes)

    @property
    def size(self) -> int:
        """The bytes of the waiting messages."""
        return self._size if self._first is None else self._first.nbytes + self._later_size

    @property
    def free(self) -> int:
        """The number of further messages that may be received."""
        return max(self.count_max - self.count, 0) if self.size < self.bytes_max else 0

    def _limit(self, count_max: int) -> None:
        self.count_max = count_max
        # A request for each removed message would cost one call per message.
        self.ask_min = max(1, min(ASKED_TOGETHER, count_max // 2))

    def adapt(self) -> bool:
        """Sets `count_max` to the present hold. Returns whether more messages wait than the program should
        have, and some are to be returned."""
        hold, now = self.hold, _time()
        waiting = self.count
        count_max = hold.count(now, self._put_count - waiting, waiting, ordered=self.ordered)
        if count_max != self.count_max:
            self._limit(count_max)
        if hold.yields(now):
            return waiting > count_max
        return waiting > EXCESS * count_max and not hold.is_fixed and not self.ordered

    # --- in -------------------------------------------------------------------------------------------

    async def wait_for_capacity(self) -> int:
        """Returns `free` when it is large enough for a call: half of the total, or ASKED_TOGETHER."""
        self.adapt()
        while self.free < self.ask_min:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.hold.looked_at_again(_time(), self.count)):
                    await self._putters.wait()
            self.adapt()
        return self.free

    async def taken(self) -> None:
        """Returns when there is space for `ask_min` messages, or when the hold may be too small."""
        await self._putters.wait()

    def put(self, message: ReceivedMessage) -> None:
        """Adds a message. If it waits here already and was delivered again, it gets the newer lease."""
        self._break_up()
        place = message.place
        known = self._waiting.get(place)
        if known is not None:
            known.take_over(message)
            if self.ordered:
                self._follow_void_head(self._lanes[_lane_key(message)], message)
            return
        self._waiting[place] = message
        self._put_count += 1
        self._size += message.nbytes
        if self.ordered:
            lane = self._lanes.get(_lane_key(message))
            if lane is not None:
                insort(lane.later, message, key=lambda other: other.queue_offset)
                self._follow_void_head(lane, message)
                if self._getters.count:
                    self._putters.wake_all()  # the hold may be too small
                return
            self._lanes[_lane_key(message)] = _Lane(message)
        self._make_ready(message)

    def _follow_void_head(self, lane: _Lane, newest: ReceivedMessage) -> None:
        """If the program has the head, and its lease has ended, the broker delivers the lane again, from
        there. A redelivery of the head says so, too: its lease ends here a moment later than there."""
        head = lane.head
        if head.lease_end is None or self._waiting.get(head.place) is head:
            return
        comes_again = newest.place == head.place and newest.attempt > head.attempt
        if not comes_again and not _is_over(head):
            return
        delivered = [message for message in lane.later if not _is_over(message)]
        if delivered:
            self._return([message for message in lane.later if _is_over(message)])
            lane.head, lane.later = delivered[0], delivered[1:]
            self._make_ready(lane.head)

    def put_all(self, messages: Iterable[ReceivedMessage]) -> None:
        """Puts each message."""
        for message in messages:
            self.put(message)

    def put_batch(self, batch: MessageBatch) -> None:
        """Puts a batch of which no message was handed out."""
        if self.ordered or self._waiting or not self._is_new(batch):
            self.put_all(batch.messages)
            return
        if not len(batch):
            return
        self._places.setdefault(batch.broker, set()).update(batch.physical_offsets)
        self._later.append(batch)
        self._put_count += len(batch)
        self._later_count += len(batch)
        self._later_size += batch.nbytes
        if self._first is None:
            self._next_batch()
        self.on_put()
        self._getters.wake(len(batch))

    def _is_new(self, batch: MessageBatch) -> bool:
        """Whether none of its messages waits here already."""
        places = self._places.get(batch.broker)
        if not places or places.isdisjoint(batch.physical_offsets):
            return True
        places.clear()
        for other in () if self._first is None else (self._first, *self._later):
            if other.broker == batch.broker and (left := len(other)):
                places.update(other.physical_offsets[-left:])
        self._came_again = True
        return places.isdisjoint(batch.physical_offsets)

    def _next_batch(self) -> None:
        """The first batch is used up."""
        used = self._first
        if not self._later:
            self._first, self.messages = None, iter(())
            self._places.clear()
            self._came_again = False
            return
        if used is not None:
            places = self._places[used.broker]
            places.difference_update(used.physical_offsets)
            if self._came_again:  # one that the program has may wait in a later batch
                for other in self._later:
                    if other.broker == used.broker:
                        places.update(other.physical_offsets)
        self._first = first = self._later.popleft()
        self.messages = iter(()) if self.closed or first.lease_end is not None else first.messages
        self._later_count -= len(first)
        self._later_size -= first.nbytes

    def _take_of_batches(self, count_max: int, now: float) -> list[ReceivedMessage]:
        """The next messages of the batches that wait."""
        taken: list[ReceivedMessage] = []
        while (first := self._first) is not None and len(taken) < count_max:
            if not len(first):
                self._next_batch()
                continue
            some = islice(first.messages, count_max - len(taken))
            if first.lease_end is None or first.lease_end > now:
                taken += some
            else:
                deque(some, 0)
        self.note_space()
        return taken

    def _break_up(self) -> None:
        """The messages of batches wait as single ones from now on."""
        if self._first is None:
            return
        left = [message for batch in (self._first, *self._later) for message in batch.messages]
        self._first, self.messages = None, iter(())
        self._later.clear()
        self._later_count = self._later_size = 0
        self._places.clear()
        self._put_count -= len(left)
        for message in left:
            self.put(message)

    def _make_ready(self, message: ReceivedMessage) -> None:
        self._ready.append(message)
        self.on_put()
        self._getters.wake(1)

    # --- out ------------------------------------------------------------------------------------------

    async def get(self) -> ReceivedMessage | None:
        """The next message; None when the inbox is closed. Raises the TroveError passed to `fail`."""
        while True:
            if self.before_take is not None and self.turn_is_due() and not self.closed:
                await self._take_turn(self.before_take)
            if self.closed:
                return None
            message = self.take()
            if message is not None:
                return message
            if self._failure is not None:
                raise self._failure
            await self._wait_for_message()

    async def _wait_for_message(self) -> None:
        getters, hold = self._getters, self.hold
        hold.workers = max(hold.workers, getters.count + 1)
        if not getters.count:
            hold.note_waiting(_time(), self._put_count - self.count)
        if self.ordered and self.count:
            self._putters.wake_all()  # the hold may be too small
        try:
            await getters.wait()
        finally:
            if not getters.count:
                hold.note_working(_time(), self._put_count - self.count)

    async def _take_turn(self, before_take: Callable[[], Awaitable[None]]) -> None:
        try:
            await before_take()
        except asyncio.CancelledError:
            self._getters.wake(1)  # this one may have been woken for a message
            raise

    async def get_until(self, end: float) -> ReceivedMessage | None:
        """The next message; None if there is none until `end` (the loop's time, seconds). Raises TroveError
        after the ready messages if the subscription has failed."""
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
        while (first := self._first) is not None:
            for message in first.messages:
                if self.askers:
                    self.note_space()
                lease_end = first.lease_end
                if lease_end is None or lease_end > (_time() if now is None else now):
                    return message
            self._next_batch()
        ready = self._ready
        while ready:
            message = ready.popleft()
            del self._waiting[message.place]
            self._size -= message.nbytes
            if self.askers:
                self.note_space()
            lease_end = message.lease_end
            if lease_end is None or lease_end > (_time() if now is None else now):
                return message
            lane = self._lanes.pop(_lane_key(message), None)
            if lane is not None:
                self._return(lane.later)
        return None

    def take_all(self, count_max: int) -> list[ReceivedMessage]:
        """The next messages that are ready, as `take`; [] if there is none or the inbox is closed."""
        if self.closed:
            return []
        ready, now = self._ready, _time()
        taken = self._take_of_batches(count_max, now)
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
        """The program has settled a message; `done`: it is consumed. A batch was put as a whole before.

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
        self._return(lane.later)
        return lane.later

    def drain(self, broker: str | None = None, keep: int = 0) -> list[ReceivedMessage]:
        """Removes and returns all waiting messages, or those of one broker. The first `keep` of all that are
        ready stay, but no message whose lane has an earlier one here. A lane stays while the program has its
        head: later messages wait for it."""
        if keep and self.count <= keep:
            return []
        self._break_up()
        kept = {message.place for message in islice(self._ready, keep)}
        return self._remove(
            [
                message
                for place, message in self._waiting.items()
                if broker in (None, message.broker) and place not in kept
            ]
        )

    def drain_before(self, broker: str, poll: int | None) -> list[ReceivedMessage]:
        """Removes and returns the waiting messages that came from this broker before `poll`; None: all from
        it. A lane stays while the program has its head: later messages wait for it."""
        self._break_up()
        return self._remove(
            [
                message
                for message in self._waiting.values()
                if message.broker == broker and (poll is None or message.poll < poll)
            ]
        )

    def _remove(self, left: list[ReceivedMessage]) -> list[ReceivedMessage]:
        """Removes these waiting messages, and returns them."""
        heads = {id(message) for message in self._ready}  # the others are with the program
        self._return(left)
        waiting = self._waiting
        self._ready = deque(message for message in self._ready if message.place in waiting)
        for key, lane in list(self._lanes.items()):
            lane.later = [message for message in lane.later if message.place in waiting]
            if id(lane.head) not in heads or lane.head.place in waiting:
                continue
            if lane.later:
                lane.head = lane.later.pop(0)
                self._make_ready(lane.head)
            else:
                del self._lanes[key]
        return left

    def _return(self, messages: Sequence[ReceivedMessage]) -> None:
        """The program does not get these."""
        self._put_count -= len(messages)
        self._forget(messages)

    def _forget(self, messages: Iterable[ReceivedMessage]) -> None:
        waiting, size = self._waiting, self._size
        for message in messages:
            del waiting[message.place]
            size -= message.nbytes
        self._size = size
        self.note_space()

    def note_space(self) -> None:
        """There are fewer messages: wakes the tasks that wait for space, if there is enough."""
        assert self.size >= 0, self.size
        if self.free >= self.ask_min:
            self._putters.wake_all()

    # --- the end --------------------------------------------------------------------------------------

    def fail(self, error: TroveError) -> None:
        """After the ready messages, `get` raises this error."""
        self._failure = self._failure or error
        self._getters.wake_all()

    def close(self) -> None:
        """`get` returns None from now on."""
        self.closed = True
        self.messages = iter(())
        self._getters.wake_all()


def _always() -> bool:
    return True


def _nothing() -> None:
    pass


def _time() -> float:
    return asyncio.get_running_loop().time()


def _is_over(message: ReceivedMessage) -> bool:
    """Whether its lease has ended."""
    return message.lease_end is not None and message.lease_end <= _time()


def _lane_key(message: ReceivedMessage) -> _LaneKey:
    return message.broker, message.queue_id, message.message_group
