"""Makes a group of leases one whose consumers keep their positions themselves, as RocketMQ's remoting clients
do: messages that its members have not acknowledged become those of the group's classic retry topic, the only
one that such a consumer reads.

| messages                                            | become                                              |
|-----------------------------------------------------|-----------------------------------------------------|
| in flight or held, of the topic or a retry topic    | classic retries, visible when their leases end      |
| of a pop retry topic, not delivered yet             | classic retries                                     |
| delayed ones for a pop retry topic                  | delayed ones for the classic retry topic            |
| of an orderly group, or of a queue read by priority | nothing: the group's offset is the first unconsumed |
|                                                     | one, and later ones are delivered again             |

Invariant: a copy is in the log before its original counts as consumed. So a conversion that ends anywhere has
lost nothing, and is begun again.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Final

from trovemq_broker.groups.delivery.context import Context
from trovemq_broker.groups.delivery.group_topics import GroupTopicTable
from trovemq_broker.groups.delivery.queue_state import QueueState
from trovemq_broker.groups.delivery.rocketmq_export import copy_steps
from trovemq_broker.timers.timers import Timers
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs
from trovemq_store.engine.steps import Steps
from trovemq_store.events.receipt_handle import SourceKind
from trovemq_store.events.sources import RETRY_TOPIC_PROPERTY, source_topic
from trovemq_store.files.fault_points import fault_point
from trovemq_store.topics.names import RETRY_PREFIX
from trovemq_store.topics.subscription_groups import SubscriptionGroup

_POP_KINDS: Final = (SourceKind.POP_RETRY, SourceKind.POP_RETRY_V2)


def own_offsets_steps(
    context: Context,
    pairs: GroupTopicTable,
    timers: Timers,
    group: SubscriptionGroup,
    topics: Iterable[str],
    now_ms: EpochMs,
) -> Steps[None]:
    """`topics`: those of which the group has an offset, or messages in flight. Nothing is delivered to the
    group meanwhile. TroveError DISK_FULL, CREATE_MAPPED_FILE_FAILED, STORE_FAILED, UNKNOWN_ERROR, and those
    of a replica group: then it is to be run again."""
    for topic in topics:
        _redirect_delayed(context, timers, group.name, topic, now_ms)
        with suppress(TroveError):  # a topic that is gone
            pairs.for_receive(replace(group, orderly=False), topic, now_ms)
        yield
    for state in [one for one in pairs.states() if one.group == group.name]:
        is_copied = state.kind is not SourceKind.TOPIC or not (group.orderly or state.order is not None)
        if is_copied:
            yield from copy_steps(context, state, _waiting(context, state), now_ms, classic=True)
        fault_point("own_offsets.before_offset")
        context.commit(state)
        context.store.offsets.record_next(state.group, state.topic)
        yield
    context.events.flush(now_ms)
    fault_point("own_offsets.after_offsets")


def _waiting(context: Context, state: QueueState) -> list[int]:
    """The offsets of the messages that are to be copied."""
    waiting = state.outstanding_offsets()
    queue = context.store.consume_queues.get(state.topic, state.queue_id)
    if queue is None or state.kind not in _POP_KINDS or _is_others(context, state.group, state.topic):
        return waiting
    return [*waiting, *range(max(state.next_offset, queue.min_offset), queue.max_offset)]


def _redirect_delayed(context: Context, timers: Timers, group: str, topic: str, now_ms: EpochMs) -> None:
    for kind in _POP_KINDS:
        name = source_topic(kind, group, topic)
        if timers.pending_of(name) and not _is_others(context, group, name):
            to = source_topic(SourceKind.CLASSIC_RETRY, group, topic)
            context.store.topics.ensure_internal(to, 1, now_ms=now_ms)
            timers.redirect(name, to, {RETRY_TOPIC_PROPERTY: topic}, now_ms)


def _is_others(context: Context, group: str, retry_topic: str) -> bool:
    """Whether the topic is the classic retry topic of another group: `%RETRY%a_b` is that of the group `a_b`,
    and the pop retry topic of the group `a` for the topic `b`."""
    other = retry_topic.removeprefix(RETRY_PREFIX)
    return other != group and other in context.groups
