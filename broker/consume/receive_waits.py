"""Who waits for messages of a topic in the name of a consumer group.

A wake-up says "look again", not "this is yours": whoever is woken tries to receive, wakes the next one where
it got something, and waits on where it got nothing. So one new message costs one or two attempts a group,
however many wait.

Invariants
- Waiters of a pair (group, topic) are woken in the order in which they came, one a wake-up; who got nothing
  keeps its place.
- A wake-up is not lost: one whose waiter is gone before it could look is passed on to the next.
- The number of waiters is bounded; a waiter costs one timer, and nothing while it waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from broker.topics.names import RETRY_PREFIX
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

WAITERS_MAX: Final = 65_536

Pair = tuple[str, str]
"""A consumer group and the topic that it reads."""


class Wait:
    """One poll's wait, over all its attempts."""

    __slots__ = ("_future", "_waits", "pair")

    def __init__(self, waits: ReceiveWaits, pair: Pair) -> None:
        self._waits = waits
        self._future: asyncio.Future[bool] | None = None
        self.pair: Final = pair

    @property
    def waiting(self) -> bool:
        """Whether a wake-up would reach it."""
        return self._future is not None and not self._future.done()

    async def woken(self, until: float) -> bool:
        """True: look again. False: `until` (the loop's time, in s) has come."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()
        self._future = future
        timer = loop.call_at(until, _resolve, future, False)
        try:
            return await future
        except asyncio.CancelledError:
            if not future.cancelled() and future.result():
                self._waits.wake(self.pair)
            raise
        finally:
            timer.cancel()
            self._future = None

    def wake(self) -> None:
        assert self._future is not None, "only who waits is woken"
        self._future.set_result(True)


class ReceiveWaits:
    """The waiters of all groups. Used on the event loop only."""

    def __init__(self, waiters_max: int = WAITERS_MAX) -> None:
        self._waiters_max = waiters_max
        self._by_pair: dict[Pair, dict[Wait, None]] = {}  # a dict keeps the order of arrival
        self._by_topic: dict[str, dict[Pair, None]] = {}  # stored topic: whose messages may come from there
        self._count = 0
        self.closed = False

    def __len__(self) -> int:
        return self._count

    @contextmanager
    def enter(self, group: str, topic: str) -> Iterator[Wait]:
        """A place in the line of the pair. Raises TroveError LIMIT_EXCEEDED."""
        if self._count >= self._waiters_max:
            raise TroveError(errors.LIMIT_EXCEEDED, f"{self._count} receives are waiting already")
        pair = (group, topic)
        wait = Wait(self, pair)
        waiters = self._by_pair.get(pair)
        if waiters is None:
            waiters = self._by_pair[pair] = {}
            for name in _sources(group, topic):
                self._by_topic.setdefault(name, {})[pair] = None
        waiters[wait] = None
        self._count += 1
        try:
            yield wait
        finally:
            self._leave(wait)

    def _leave(self, wait: Wait) -> None:
        waiters = self._by_pair[wait.pair]
        del waiters[wait]
        self._count -= 1
        if not waiters:
            del self._by_pair[wait.pair]
            for name in _sources(*wait.pair):
                pairs = self._by_topic[name]
                del pairs[wait.pair]
                if not pairs:
                    del self._by_topic[name]

    def wake(self, pair: Pair) -> None:
        """The pair may have a message to receive: its first waiter looks."""
        for wait in self._by_pair.get(pair, ()):
            if wait.waiting:
                wait.wake()
                return

    def wake_pairs(self, pairs: Iterable[Pair]) -> None:
        if self._count:
            for pair in pairs:
                self.wake(pair)

    def grown(self, queues: Iterable[tuple[str, int]]) -> None:
        """These queues (topic, queue id) have new messages: one waiter of each group looks, a queue."""
        if not self._count:
            return
        for topic, _ in queues:
            for pair in self._by_topic.get(topic, ()):
                self.wake(pair)

    def wake_topic(self, topic: str) -> None:
        """The topic was deleted or changed: all its waiters look again, and find out."""
        for pair in self._by_topic.get(topic, ()):
            self._wake_all(pair)

    def wake_group(self, group: str) -> None:
        """The group was deleted or changed."""
        for pair in self._by_pair:
            if pair[0] == group:
                self._wake_all(pair)

    def _wake_all(self, pair: Pair) -> None:
        for wait in self._by_pair[pair]:
            if wait.waiting:
                wait.wake()

    def close(self) -> None:
        """The broker is stopping: everybody answers now, and nobody should wait again."""
        self.closed = True
        for pair in self._by_pair:
            self._wake_all(pair)


def _sources(group: str, topic: str) -> tuple[str, ...]:
    """The topics under which messages for the pair are stored: its own, and the forms of retry topics."""
    retry = RETRY_PREFIX + group
    return tuple(dict.fromkeys((topic, f"{retry}_{topic}", f"{retry}+{topic}", retry)))


def _resolve(future: asyncio.Future[bool], value: bool) -> None:
    if not future.done():
        future.set_result(value)
