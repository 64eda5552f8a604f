"""The requests and answers of the delivery engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from broker.groups.filters.filter import TAKE_ALL, Filter
from trovemq_proto.positions import QueueOffset
from trovemq_store.topics.subscription_groups import SubscriptionGroup

ANY_QUEUE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiveRequest:
    """A group's receive from a topic.

    `renewed`: the broker renews the lease while the client lives; `invisible_ms` is then not looked at.
    `attempt_id` names the call (orderly groups): the same one again gets the same messages again.
    """

    group: SubscriptionGroup
    topic: str
    queue_id: int = ANY_QUEUE
    filter: Filter = TAKE_ALL
    count_max: int = 32
    invisible_ms: int
    now_ms: int
    client_id: str = ""
    renewed: bool = False
    attempt_id: str = ""
    others: tuple[Filter, ...] = ()
    """The filters of other members that wait: messages for them are not skipped."""
    left: list[Filter] = field(default_factory=list)
    """The engine's: of `others`, those for whom something was left."""


class Delivered(NamedTuple):
    """One delivered message.

    `record` is the stored record, perhaps that of a copy in a retry topic (a view of the log: use it at
    once); `topic` the original topic; queue id and offset say where the record lies now; `attempt` counts
    from 1.
    """

    record: memoryview
    topic: str
    queue_id: int
    queue_offset: QueueOffset
    attempt: int
    receipt_handle: str
    until_ms: int


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """How far a group has come in one queue. `committed`: everything below is consumed (None: it never read
    the queue); `next_offset`: the next message that is new to it; in_flight_count: delivered, not settled."""

    queue_id: int
    committed: QueueOffset | None
    next_offset: QueueOffset
    in_flight_count: int
    held_count: int = 0
    """Below next_offset, not delivered: of an orderly group, after a message in flight of their message
    group; of a queue that is received by priority, skipped by higher ones."""
    visible_count: int = 0
    """Of in_flight_count: returned, or their time is over; they wait for their next delivery."""
