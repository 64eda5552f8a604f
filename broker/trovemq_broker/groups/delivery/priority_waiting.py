"""Counts the waiting messages of each priority for a metric, incrementally.

For each priority of a queue state the last count is stored, with its range of offsets [begin, end). Messages
that the cursor has passed since are subtracted, new ones are added, so that a million waiting messages are
counted only once, and over several rounds: a round reads a bounded number of messages.

Invariant: a `Counted` is exact for its range. If the range may have changed otherwise (a cursor that
went back, a queue that was cut or trimmed beyond `begin`), it is counted again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from trovemq_broker.groups.delivery.by_priority import ByPriority, Counted
from trovemq_broker.groups.delivery.context import Context
from trovemq_broker.groups.delivery.priority_order import PriorityOrder
from trovemq_broker.groups.delivery.queue_state import QueueState
from trovemq_broker.groups.group_topic_key import GroupTopicKey
from trovemq_proto.records.priorities import PRIORITY_COUNT
from trovemq_store.engine.steps import Steps

MESSAGES_MAX: Final = 32_768
"""About how many messages one round reads."""
STATES_STEP: Final = 1_024
"""The number of queue states in one step, if none has an order."""
_STEP: Final = 16_384
"""The number of offsets whose messages of one priority are counted in one step."""


def waiting_steps(
    context: Context, states: Iterable[QueueState], entries_max: int, messages_max: int = MESSAGES_MAX
) -> Steps[dict[GroupTopicKey, list[int]]]:
    """(group, topic) -> messages of priority 0 … 9 that were never delivered to the group, for at most that
    many of them. A count that is not complete yet is left out; the next rounds continue with it."""
    found: dict[GroupTopicKey, list[int]] = {}
    unknown: set[GroupTopicKey] = set()
    budget = messages_max
    for number, state in enumerate(list(states), 1):
        if number % STATES_STEP == 0 or state.order is not None:
            yield
        key, order = (state.group, state.topic), state.order
        if order is None or (key not in found and len(found) >= entries_max):
            continue
        sums = found.setdefault(key, [0] * PRIORITY_COUNT)
        budget = _continue_counts(context, state, order, budget)
        if not _is_complete(context, state, order):
            unknown.add(key)
        for priority, counted in enumerate(order.counted):
            sums[priority] += counted.count
    return {key: sums for key, sums in found.items() if key not in unknown}


def _bounds(context: Context, state: QueueState) -> tuple[int, int]:
    queue = context.store.consume_queues.get(state.topic, state.queue_id)
    return (queue.min_offset, queue.max_offset) if queue is not None else (0, 0)


def _is_complete(context: Context, state: QueueState, order: ByPriority) -> bool:
    low, end = _bounds(context, state)
    return all(
        counted.end == max(end, begin) and counted.begin == begin
        for counted, begin in zip(order.counted, _begins(order, low), strict=True)
    )


def _begins(order: ByPriority, low: int) -> list[int]:
    return [max(low, order.next_from(priority)) for priority in range(PRIORITY_COUNT)]


def _continue_counts(context: Context, state: QueueState, order: ByPriority, budget: int) -> int:
    """Continues the counts of one state. Returns how many messages may still be read."""
    places = context.priority_order
    low, end = _bounds(context, state)
    read_before = places.units_read
    known = budget > 0 and places.catch_up(state.topic, state.queue_id, max(low, order.waiting_from), budget)
    budget -= places.units_read - read_before
    if not known:
        return budget
    for priority, begin in enumerate(_begins(order, low)):
        budget = _count_priority(
            places, state, order.counted[priority], priority, begin, low, max(end, begin), budget
        )
    return budget


def _count_priority(
    places: PriorityOrder,
    state: QueueState,
    counted: Counted,
    priority: int,
    begin: int,
    low: int,
    end: int,
    budget: int,
) -> int:
    if not low <= counted.begin <= begin < counted.end <= end:
        counted.begin = counted.end = begin
        counted.count = 0

    def count(first: int, last: int) -> int:
        return places.count(state.topic, state.queue_id, priority, first, last)

    while counted.begin < begin and budget > 0:
        step = min(begin, counted.begin + _STEP)
        passed = count(counted.begin, step)
        counted.begin, counted.count = step, counted.count - passed
        budget -= passed + 1
    while counted.end < end and budget > 0:
        step = min(end, counted.end + _STEP)
        came = count(counted.end, step)
        counted.end, counted.count = step, counted.count + came
        budget -= came + 1
    return budget
