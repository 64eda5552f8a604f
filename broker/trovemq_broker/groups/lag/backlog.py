"""The backlog of groups: messages in flight, and messages that are ready.

Filters are ignored: messages that a filter will drop count as ready until they are dropped.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from trovemq_broker.groups.delivery.queue_state import QueueState
from trovemq_broker.groups.group_topic_key import GroupTopicKey
from trovemq_proto.positions import EpochMs, QueueOffset
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.steps import Steps

STATES_STEP: Final = 256
"""The number of queue states in one step."""


@dataclass(slots=True)
class GroupBacklog:
    """The backlog of one group in one stored topic, which may be a retry topic.

    `in_flight`: messages that are invisible now; `ready`: all others that are not consumed; `oldest`: store
    time (epoch ms) of the oldest that was never delivered, None if there is none.
    """

    in_flight: int = 0
    ready: int = 0
    oldest: int | None = None

    def add(self, other: GroupBacklog) -> None:
        """Adds the counts; keeps the older one of `oldest`."""
        self.in_flight += other.in_flight
        self.ready += other.ready
        if other.oldest is not None and (self.oldest is None or other.oldest < self.oldest):
            self.oldest = other.oldest


def backlog_steps(
    store: MessageStore, states: Iterable[QueueState], now_ms: EpochMs, entries_max: int
) -> Steps[dict[GroupTopicKey, GroupBacklog]]:
    """The backlogs by (group, stored topic), of at most that many of them."""
    backlogs: dict[GroupTopicKey, GroupBacklog] = {}
    for number, state in enumerate(list(states), 1):
        if number % STATES_STEP == 0:
            yield
        key = (state.group, state.topic)
        backlog = backlogs.get(key)
        if backlog is None:
            if len(backlogs) >= entries_max:
                continue
            backlog = backlogs[key] = GroupBacklog()
        backlog.add(queue_backlog(store, state, now_ms))
    return backlogs


def queue_backlog(store: MessageStore, state: QueueState, now_ms: EpochMs) -> GroupBacklog:
    """The backlog of one queue; its cost grows with the number of open messages."""
    in_flight = state.open.in_flight_count(now_ms)
    ready = len(state.open) - in_flight + len(state.held)
    queue = store.consume_queues.get(state.topic, state.queue_id)
    if queue is None:
        return GroupBacklog(in_flight, ready)
    begin = max(state.next_offset, queue.min_offset)
    ready += max(0, queue.max_offset - begin)
    held, order = state.held.first(), state.order
    if order is not None and order.waiting_from < state.next_offset:
        begin = max(order.waiting_from, queue.min_offset)
        was_skipped = state.next_offset - begin - len(state.open)  # at most, until a receive has counted
        ready += max(0, was_skipped) if order.waiting_count is None else order.waiting_count
    first = max(begin if held is None else held, queue.min_offset)
    oldest = store.store_timestamp_at(queue.unit(QueueOffset(first))[0]) if first < queue.max_offset else None
    return GroupBacklog(in_flight, ready, oldest)
