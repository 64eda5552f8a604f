"""Receives that wait for messages of a topic for a consumer group.

A wake-up promises no message: a woken receive tries again. If it gets messages it wakes the next one, else it
waits again. So one new message costs one or two attempts per group, however many receives wait.

A receive skips messages that its filter drops, for the whole group. So new messages wake only receives whose
filters match some of them: while a group's filter is changed member by member, receives with the old filter
stay asleep, and messages for the new filter remain for the members that have it.

Invariants
- Waiters of a pair (group, topic) are woken in the order in which they came, one per wake-up; a receive that
  got nothing keeps its place.
- A wake-up is not lost: if its waiter ends before it could try, the next one is woken.
- New messages wake one waiter of each filter that takes some of them.
- The number of waiters is bounded; a waiter costs nothing while it waits, and one timer if it has a task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Final

from trovemq_broker.filters.filter import TAKE_ALL, Filter
from trovemq_broker.groups.group_topic_key import GroupTopicKey
from trovemq_broker.groups.members.new_messages import NewMessages
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueId
from trovemq_store.topics.names import RETRY_PREFIX

WAITERS_MAX: Final = 65_536
"""The most receives that wait at once."""
FILTERS_MAX: Final = 64
"""The most filters of one pair that are distinguished; with more of them, new messages wake one waiter."""
OTHERS_MAX: Final = 8
"""The most filters of other receives that one receive considers."""

_FilterKey = tuple[str, str]


class Wait:
    """The wait of one receive, over all its attempts."""

    __slots__ = ("_callback", "_future", "_waits", "filter", "pair")

    def __init__(self, waits: ReceiveWaits, pair: GroupTopicKey, filter_: Filter) -> None:
        self._waits = waits
        self.filter: Final = filter_
        self._future: asyncio.Future[bool] | None = None
        self._callback: Callable[[], object] | None = None
        self.pair: Final = pair

    @property
    def waiting(self) -> bool:
        """Whether a wake-up would end its wait."""
        return self._callback is not None or (self._future is not None and not self._future.done())

    async def woken(self, until: float) -> bool:
        """True: try again. False: `until` (the loop's time, in s) has come."""
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

    def call_when_woken(self, callback: Callable[[], object]) -> None:
        """Calls back after the next wake-up, in the next iteration of the event loop, without a task. There
        is no time-out."""
        assert self._callback is None, "a receive waits once"
        assert self._future is None, "it waits with a task or without"
        self._callback = callback

    def stop_waiting(self) -> None:
        """Forgets the callback. The receive keeps its place until it ends, or waits again."""
        self._callback = None

    def wake(self) -> None:
        if self._callback is not None:
            callback, self._callback = self._callback, None
            asyncio.get_running_loop().call_soon(callback)
            return
        assert self._future is not None, "only a waiting receive is woken"
        assert not self._future.done(), "one wake-up ends one wait"
        self._future.set_result(True)


class _WaitingReceives:
    """The waiting receives of one group and topic."""

    __slots__ = ("filters", "seen", "waiters")

    def __init__(self) -> None:
        self.waiters: dict[Wait, None] = {}  # a dict keeps the order of arrival
        self.filters: dict[_FilterKey, tuple[Filter, int]] = {}  # each with the number of its members
        self.seen: dict[int, int] = {}  # by queue: up to which offset its new messages were tested

    def add(self, wait: Wait) -> None:
        self.waiters[wait] = None
        key = _key(wait.filter)
        self.filters[key] = (wait.filter, self.filters.get(key, (wait.filter, 0))[1] + 1)

    def remove(self, wait: Wait) -> None:
        del self.waiters[wait]
        key = _key(wait.filter)
        filter_, count = self.filters.pop(key)
        if count > 1:
            self.filters[key] = (filter_, count - 1)

    @property
    def takes_all(self) -> bool:
        """Whether every message matches all waiting receives."""
        return all(filter_.takes_all for filter_, _ in self.filters.values())

    @property
    def filters_differ(self) -> bool:
        """Whether new messages may match some of the waiting receives and not others."""
        return len(self.filters) <= FILTERS_MAX and not self.takes_all


class ReceiveWaits:
    """The waiters of all groups. Used on the event loop only.

    `new_messages` finds the filters that match new messages; without it they wake one waiter, whatever its
    filter is.
    """

    def __init__(self, waiters_max: int = WAITERS_MAX, new_messages: NewMessages | None = None) -> None:
        self._waiters_max = waiters_max
        self._new_messages = new_messages
        self._by_pair: dict[GroupTopicKey, _WaitingReceives] = {}
        self._by_topic: dict[
            str, dict[GroupTopicKey, None]
        ] = {}  # by stored topic: the pairs whose messages may be there
        self._count = 0
        self.closed = False

    def __len__(self) -> int:
        return self._count

    @contextmanager
    def enter(self, group: str, topic: str, filter_: Filter = TAKE_ALL) -> Iterator[Wait]:
        """Enters the queue of the pair's waiters. Raises TroveError LIMIT_EXCEEDED."""
        wait = self.begin(group, topic, filter_)
        try:
            yield wait
        finally:
            self.end(wait)

    def begin(self, group: str, topic: str, filter_: Filter = TAKE_ALL) -> Wait:
        """Enters the queue of the pair's waiters; the caller must call end() later. Raises TroveError
        LIMIT_EXCEEDED."""
        if self._count >= self._waiters_max:
            raise TroveError(errors.LIMIT_EXCEEDED, f"{self._count} receives are waiting already")
        pair = (group, topic)
        wait = Wait(self, pair, filter_)
        receives = self._by_pair.get(pair)
        if receives is None:
            receives = self._by_pair[pair] = _WaitingReceives()
            for name in _sources(group, topic):
                self._by_topic.setdefault(name, {})[pair] = None
        receives.add(wait)
        self._count += 1
        return wait

    def end(self, wait: Wait) -> None:
        """The receive waits no more."""
        receives = self._by_pair[wait.pair]
        receives.remove(wait)
        self._count -= 1
        if not receives.waiters:
            del self._by_pair[wait.pair]
            for name in _sources(*wait.pair):
                pairs = self._by_topic[name]
                del pairs[wait.pair]
                if not pairs:
                    del self._by_topic[name]

    def has(self, pair: GroupTopicKey, filter_: Filter) -> bool:
        """Whether a receive waits for the pair's messages with this filter."""
        receives = self._by_pair.get(pair)
        return receives is not None and _key(filter_) in receives.filters

    def any_for(self, pair: GroupTopicKey) -> bool:
        """Whether a receive waits for the pair's messages."""
        return pair in self._by_pair

    def wake(self, pair: GroupTopicKey) -> None:
        """Wakes the first waiter of the pair, which may have a message to receive."""
        receives = self._by_pair.get(pair)
        if receives is not None:
            _wake_first(receives.waiters)

    def wake_for(self, pair: GroupTopicKey, filter_: Filter) -> None:
        """Wakes the pair's first waiter with this filter, which matches a new message."""
        receives, key = self._by_pair.get(pair), _key(filter_)
        if receives is not None and key in receives.filters:
            _wake_first(wait for wait in receives.waiters if _key(wait.filter) == key)

    def other_filters(self, pair: GroupTopicKey, filter_: Filter) -> tuple[Filter, ...]:
        """The filters of the pair's waiters that differ from this one."""
        receives = self._by_pair.get(pair)
        if receives is None:
            return ()
        key = _key(filter_)
        others = (other for other_key, (other, _) in receives.filters.items() if other_key != key)
        return tuple(islice(others, OTHERS_MAX))

    def wake_pairs(self, pairs: Iterable[GroupTopicKey]) -> None:
        if self._count:
            for pair in pairs:
                self.wake(pair)

    def on_messages_available(self, queues: Iterable[tuple[str, QueueId]]) -> None:
        """Wakes waiters for new messages of these queues (topic, queue id): one per group and queue, or, if
        filters differ, one for each filter that matches a new message."""
        if not self._count:
            return
        for topic, queue_id in queues:
            for pair in self._by_topic.get(topic, ()):
                receives = self._by_pair[pair]
                # messages in a retry topic have passed a filter of the group
                if self._new_messages is not None and topic == pair[1] and receives.filters_differ:
                    self._wake_matching(self._new_messages, pair, receives, queue_id)
                else:
                    _wake_first(receives.waiters)

    def _wake_matching(
        self, new_messages: NewMessages, pair: GroupTopicKey, receives: _WaitingReceives, queue_id: QueueId
    ) -> None:
        filters = [filter_ for filter_, _ in receives.filters.values()]
        found = new_messages.matching_filters(*pair, queue_id, receives.seen.get(queue_id, 0), filters)
        receives.seen[queue_id] = found.end
        for filter_ in found.filters:
            self.wake_for(pair, filter_)

    def wake_topic(self, topic: str) -> None:
        """Wakes all waiters of a topic that was deleted or changed: they try again, and find out."""
        for pair in self._by_topic.get(topic, ()):
            self._wake_all(pair)

    def wake_group(self, group: str) -> None:
        """Wakes all waiters of a group that was deleted or changed."""
        for pair in self._by_pair:
            if pair[0] == group:
                self._wake_all(pair)

    def _wake_all(self, pair: GroupTopicKey) -> None:
        for wait in self._by_pair[pair].waiters:
            if wait.waiting:
                wait.wake()

    def close(self) -> None:
        """Wakes all waiters, because the broker is stopping; none waits again."""
        self.closed = True
        for pair in self._by_pair:
            self._wake_all(pair)


def _sources(group: str, topic: str) -> tuple[str, ...]:
    """The topics under which messages for the pair are stored: its own, and the forms of retry topics."""
    retry = RETRY_PREFIX + group
    return tuple(dict.fromkeys((topic, f"{retry}_{topic}", f"{retry}+{topic}", retry)))


def _key(filter_: Filter) -> _FilterKey:
    return filter_.kind, filter_.expression


def _wake_first(waiters: Iterable[Wait]) -> None:
    for wait in waiters:
        if wait.waiting:
            wait.wake()
            return


def _resolve(future: asyncio.Future[bool], value: bool) -> None:
    if not future.done():
        future.set_result(value)
