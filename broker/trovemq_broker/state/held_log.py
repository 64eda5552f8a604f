"""Finds from where on the log is held by topics with `retention = until_acknowledged`.

A queue of such a topic holds the log from its first message that a group has not acknowledged and that is not
older than the topic's `retention_age_max` (or the broker's limit). If no group reads the topic, every message
counts as unacknowledged: a group may subscribe later.

| a record                                           | may go                                |
|----------------------------------------------------|---------------------------------------|
| of such a topic, from that message of its queue on | when the disk is full                 |
| of such a topic, before it                         | at once                               |
| of the broker's own topics and of retry topics     | at once: pending messages are carried |
| of any other topic                                 | by its age                            |

Segments are removed from the front only, and the records of a queue lie in the log in their order. So two
positions suffice: `held_from`, the lowest record that is held, and `free_to`, the lowest that may not be
removed at once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from trovemq_broker.state.consumer_state import ConsumerState
from trovemq_broker.transactions.records import HALF_TOPIC, OP_TOPIC
from trovemq_proto.positions import LOG_ORIGIN, QUEUE_ORIGIN, EpochMs, PhysicalOffset, QueueId, QueueOffset
from trovemq_proto.records.layout import SCHEDULE_TOPIC
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.index.consume_queue import ConsumeQueue
from trovemq_store.topics.names import RETRY_PREFIX, SYSTEM_PREFIX

NOWHERE: Final = PhysicalOffset((1 << 63) - 1)
_NEVER_MS: Final = (1 << 63) - 1
_OWN_TOPICS: Final = frozenset({HALF_TOPIC, OP_TOPIC, SCHEDULE_TOPIC})

Subscribers = Callable[[str], Iterable[str]]
"""Returns the groups whose members subscribe to the topic now."""


@dataclass(frozen=True, slots=True)
class Holder:
    """One queue that holds the log; `group`: the group with the largest lag, "" if no group reads the
    queue."""

    topic: str
    queue_id: QueueId
    group: str
    queue_offset: QueueOffset
    physical_offset: PhysicalOffset


@dataclass(frozen=True, slots=True)
class HeldLog:
    """`holders`: all queues that hold the log, the one that holds most first."""

    held_from: PhysicalOffset = NOWHERE
    free_to: PhysicalOffset = LOG_ORIGIN
    holders: tuple[Holder, ...] = ()

    def first_of_each_topic(self, count_max: int) -> list[Holder]:
        """For each topic, the queue that holds the most."""
        first: dict[str, Holder] = {}
        for one in self.holders:
            if len(first) < count_max:
                first.setdefault(one.topic, one)
        return list(first.values())

    def count_before(self, store: MessageStore, end: PhysicalOffset) -> dict[Holder, int]:
        """How many messages of each holder lie between its first held message and `end`."""
        counts = {}
        for one in self.holders:
            queue = store.consume_queues.get(one.topic, one.queue_id)
            if queue is not None and one.physical_offset < end:
                counts[one] = queue.lower_bound(end) - one.queue_offset
        return counts


NOTHING_HELD: Final = HeldLog()


@dataclass(frozen=True, slots=True)
class TopicHold:
    """The hold of one topic on the log; `holder`: its queue that holds most."""

    holder: Holder
    byte_count: int
    """Bytes of all topics from the holder's message to the end of the log."""
    until_ms: EpochMs
    """When the topic's age limit releases that message; 0 if its age is not known."""


def topic_hold(
    store: MessageStore,
    model: ConsumerState,
    topic: str,
    age_max_ms: int,
    subscribers: Subscribers,
    now_ms: EpochMs,
) -> TopicHold | None:
    """The present hold; None if the topic holds nothing. Raises StorageError."""
    option = store.topics.options(topic)
    if not option.until_acknowledged:
        return None
    age_max_ms = option.retention_age_max_ms or age_max_ms
    received = (group for group, received_topic in model.delivery.pairs() if received_topic == topic)
    groups = _groups(store, topic, received, subscribers)
    holders = _holders(store, model, topic, groups, now_ms - age_max_ms)
    holder = min(holders, key=lambda one: one.physical_offset, default=None)
    if holder is None:
        return None
    stored_ms = store.store_timestamp_at(holder.physical_offset)
    until_ms = EpochMs(0) if stored_ms is None else stored_ms + age_max_ms
    return TopicHold(holder, max(0, store.end_offset - holder.physical_offset), until_ms)


def held_log(
    store: MessageStore, model: ConsumerState, age_max_ms: int, subscribers: Subscribers, now_ms: EpochMs
) -> HeldLog:
    """The present holds of all topics. Raises StorageError."""
    steps = held_log_steps(store, model, age_max_ms, subscribers, now_ms)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: HeldLog = end.value
            return found


def held_log_steps(
    store: MessageStore, model: ConsumerState, age_max_ms: int, subscribers: Subscribers, now_ms: EpochMs
) -> Generator[None, None, HeldLog]:
    """The steps of held_log(), one for each topic; between them the log may change. Raises StorageError."""
    names = store.topics.names()
    options = {name: found for name in names if (found := store.topics.options(name)).until_acknowledged}
    if not options:
        return NOTHING_HELD
    received: dict[str, list[str]] = {}
    for group, topic in model.delivery.pairs():
        received.setdefault(topic, []).append(group)
    holders: list[Holder] = []
    for topic, option in options.items():
        since_ms = now_ms - (option.retention_age_max_ms or age_max_ms)
        groups = _groups(store, topic, received.get(topic, ()), subscribers)
        holders += _holders(store, model, topic, groups, since_ms)
        yield
    holders.sort(key=lambda one: one.physical_offset)
    held_from = holders[0].physical_offset if holders else NOWHERE
    free_to = min(held_from, _lowest_by_age(store, options))
    return HeldLog(held_from, free_to, tuple(holders))


def _groups(store: MessageStore, topic: str, received: Iterable[str], subscribers: Subscribers) -> list[str]:
    """The groups that read the topic: they have an offset or a state in it, or subscribe to it now."""
    return sorted({*store.offsets.groups(topic), *received, *subscribers(topic)})


def _holders(
    store: MessageStore, model: ConsumerState, topic: str, groups: list[str], since_ms: int
) -> Iterator[Holder]:
    for queue in store.consume_queues.queues(topic):
        if queue.min_offset >= queue.max_offset:
            continue
        acknowledged = [(_acknowledged(store, model, group, queue), group) for group in groups]
        offset, group = min(acknowledged, default=(0, ""))
        offset = _first_since(store, queue, QueueOffset(max(offset, queue.min_offset)), since_ms)
        if offset < queue.max_offset:
            yield Holder(topic, queue.queue_id, group, offset, queue.physical_before(offset))


def _acknowledged(store: MessageStore, model: ConsumerState, group: str, queue: ConsumeQueue) -> QueueOffset:
    """The group has acknowledged everything below this offset; 0 if it has never read the queue."""
    stored = store.offsets.get(group, queue.topic, queue.queue_id)
    state = model.delivery.group_topics.state(group, queue.topic, queue.queue_id)
    if state is None:
        return stored or QUEUE_ORIGIN
    return QueueOffset(state.committed if stored is None else min(stored, state.committed))


def _first_since(store: MessageStore, queue: ConsumeQueue, begin: QueueOffset, since_ms: int) -> QueueOffset:
    """The first offset from `begin` on whose message was stored after since_ms."""
    if begin >= queue.max_offset or _stored_ms(store, queue, begin) > since_ms:
        return begin
    offsets = range(begin, queue.max_offset)
    count = bisect_right(offsets, since_ms, key=lambda at: _stored_ms(store, queue, QueueOffset(at)))
    return QueueOffset(begin + count)


def _stored_ms(store: MessageStore, queue: ConsumeQueue, offset: QueueOffset) -> int:
    """The store time of the record. For an unreadable one it is far in the future, so that it does not count
    as old."""
    stored_ms = store.store_timestamp_at(queue.physical_before(offset))
    return _NEVER_MS if stored_ms is None else stored_ms


def _lowest_by_age(store: MessageStore, held_topics: Iterable[str]) -> PhysicalOffset:
    """The lowest record that only its age removes."""
    at_once = set(held_topics)
    lowest = NOWHERE
    for topic in store.consume_queues.topics():
        if topic in at_once or is_own_topic(topic):
            continue
        for queue in store.consume_queues.queues(topic):
            if queue.min_offset < queue.max_offset:
                lowest = min(lowest, queue.physical_before(queue.min_offset))
                if lowest < store.min_offset + store.settings.commit_log_file_size:
                    return lowest  # not even the first segment may be removed at once
    return lowest


def is_own_topic(name: str) -> bool:
    """Whether only the broker reads it, and its pending messages are carried."""
    return name in _OWN_TOPICS or name.startswith((SYSTEM_PREFIX, RETRY_PREFIX))
