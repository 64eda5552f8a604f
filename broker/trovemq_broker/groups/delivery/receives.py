"""Receives: which queues of a group and topic a receive reads, in which order, and by which receiver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Protocol

from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.groups.delivery.context import Context
from trovemq_broker.groups.delivery.due_watch import NOW
from trovemq_broker.groups.delivery.group_topic import GroupTopic
from trovemq_broker.groups.delivery.group_topics import GroupTopicTable
from trovemq_broker.groups.delivery.lease_writer import Batch
from trovemq_broker.groups.delivery.orderly_receiver import OrderlyReceiver
from trovemq_broker.groups.delivery.priority_receiver import (
    PriorityReceiver,
    receive_in_log_order,
)
from trovemq_broker.groups.delivery.queue_receiver import QueueReceiver
from trovemq_broker.groups.delivery.queue_state import QueueState
from trovemq_broker.groups.delivery.request import (
    RECEIVE_BYTES_MAX,
    Delivered,
    DeliveredRun,
    ReceiveRequest,
    messages_of,
)
from trovemq_broker.groups.delivery.settlements import Settling, illegal_duration
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import ANY_QUEUE, EpochMs
from trovemq_store.events.receipt_handle import SourceKind
from trovemq_store.files.files import ScarceError
from trovemq_store.index.consume_queues import ConsumeQueues

RECEIVE_UNITS_MAX: Final = 16_384
RECEIVE_READS_MAX: Final = 2_048
"""The most units and records that one receive reads to find messages for its filter; due_pairs() then asks
for another receive."""
UNITS_OF_READ: Final = RECEIVE_UNITS_MAX // RECEIVE_READS_MAX
"""Examining this many units takes as long as reading one record."""
RETRY_FIRST_EVERY: Final = 5
"""One receive in this many reads the retry topics first (RocketMQ: 20 %)."""


class CheckDelivery(Protocol):
    """TroveError: no consumer may get a message now."""

    def __call__(self, *, in_order: bool) -> None: ...


class Receiving(Settling):
    """The part of the delivery engine that receives messages."""

    def __init__(self, context: Context, group_topics: GroupTopicTable, settings: ConsumerSettings) -> None:
        super().__init__(context, group_topics, settings)
        self._exhausted_pairs: set[GroupTopic] = set()
        """Pairs that have messages whose last attempt has ended."""
        self.check_delivery: CheckDelivery | None = None
        """Of a replica group's leader."""
        self.last_reads = 0
        """How many records the last receive read to test them, with one for each UNITS_OF_READ units that it
        examined."""

    def receive(self, request: ReceiveRequest) -> list[Delivered]:
        """The messages of receive_runs(); at most receive_count_max of them."""
        count_max = min(request.count_max, self._settings.receive_count_max)
        return messages_of(self.receive_runs(replace(request, count_max=count_max)))

    def receive_runs(self, request: ReceiveRequest) -> list[DeliveredRun]:
        """Up to count_max messages, without a wait; none if there are none now. They are views of the log:
        use them at once.

        TroveError REQUEST_ILLEGAL, INVISIBLE_DURATION_ILLEGAL, TOPIC_NOT_FOUND, QUEUE_NOT_FOUND,
        LIMIT_EXCEEDED, NOT_LEADER, SERVICE_NOT_AVAILABLE.
        """
        self._check(request)
        self.context.events.check_space()
        pair = self.group_topics.for_receive(request.group, request.topic, request.now_ms)
        pair.end_leases(self.context.lease_time.at(request.now_ms), request.group.max_attempts)
        if pair.exhausted:
            self._exhausted_pairs.add(pair)
            self.context.due_watch.due(NOW)
        self.context.woken.discard(pair)
        pair.receive_count += 1
        orderly = request.group.orderly
        if orderly and request.attempt_id:
            pair.repeat_attempt(request.attempt_id)
        lasts_ms = self._settings.renewed_lease_ms if request.renewed else request.invisible_ms
        if not request.confirmed:
            lasts_ms = min(lasts_ms, self._settings.invisible_min_ms)
        batch = Batch(
            request,
            request.count_max,
            min(request.bytes_max, RECEIVE_BYTES_MAX),
            RECEIVE_UNITS_MAX,
            RECEIVE_READS_MAX,
            request.now_ms + lasts_ms,
        )
        config = self.context.store.topics.get(request.topic)
        by_priority = config is not None and config.by_priority and not orderly
        wants_all = request.queue_id == ANY_QUEUE and not orderly and not by_priority
        empty = wants_all and not _may_have_some(pair, self.context.store.consume_queues)
        for state in () if empty else self._queues_in_order(pair, request):
            if state.order is not None and not by_priority:
                try:
                    receive_in_log_order(self.context, state, request.now_ms)
                    if orderly:
                        self.group_topics.fill_keys(pair)
                except ScarceError as error:
                    batch.failure = error
                    break
            if orderly:
                OrderlyReceiver(self.context, pair, state, batch).take()
            elif by_priority and state.kind is SourceKind.TOPIC:
                PriorityReceiver(self.context, pair, state, batch).take()
            else:
                QueueReceiver(self.context, pair, state, batch).take()
            if batch.full:
                break
        if batch.failure is not None and not batch.delivered:
            raise batch.failure
        units = RECEIVE_UNITS_MAX - batch.units_remaining
        self.last_reads = RECEIVE_READS_MAX - batch.reads_remaining + units // UNITS_OF_READ
        next_ms = pair.leases.earliest_ms()
        if next_ms is not None and next_ms <= self.context.lease_time.at(request.now_ms):
            batch.unfinished = True  # more leases have ended than one step ends
        if batch.unfinished and not batch.full:
            self.context.wake(pair)
        return batch.delivered

    def _check(self, request: ReceiveRequest) -> None:
        if request.count_max < 1:
            raise TroveError(errors.REQUEST_ILLEGAL, f"count_max {request.count_max} is not positive")
        low, high = self._settings.invisible_min_ms, self._settings.invisible_max_ms
        if not request.renewed and not low <= request.invisible_ms <= high:
            raise illegal_duration(request.invisible_ms, low, high)
        if self.check_delivery is not None:
            self.check_delivery(in_order=request.group.orderly)

    def _queues_in_order(self, pair: GroupTopic, request: ReceiveRequest) -> Sequence[QueueState]:
        """The queues in the order in which this receive reads them."""
        queues: Sequence[QueueState] = pair.queues
        if request.queue_id != ANY_QUEUE:
            chosen = pair.sources.get((SourceKind.TOPIC, request.queue_id))
            if chosen is None:
                raise TroveError(
                    errors.QUEUE_NOT_FOUND,
                    f"topic {request.topic[:200]} has no queue {request.queue_id}",
                    queue_id=request.queue_id,
                )
            queues = (chosen,)
        elif len(queues) > 1:
            begin = pair.receive_count % len(queues)
            queues = [*queues[begin:], *queues[:begin]]
        if request.group.orderly or not pair.retry_queues:
            return queues
        if pair.receive_count % RETRY_FIRST_EVERY == 0:
            return [*pair.retry_queues, *queues]
        return [*queues, *pair.retry_queues]

    def next_visible_ms(self, group: str, topic: str) -> int | None:
        """When the next invisible message, except those of renewed leases, can be received again; 0 if a
        receive may find messages now."""
        pair = self.group_topics.get(group, topic)
        if pair is None:
            return None
        return 0 if pair in self.context.woken else pair.leases.earliest_ms()

    def seems_empty(self, group: str, topic: str, now_ms: EpochMs) -> bool:
        """Whether a receive would find nothing, judged without reading the queues. False if that is not
        known, for example for an orderly group. A queue or retry topic that is new does not count."""
        pair = self.group_topics.get(group, topic)
        if pair is None or pair.keyed or pair in self.context.woken:
            return False
        next_ms = pair.leases.earliest_ms()
        if next_ms is not None and next_ms <= self.context.lease_time.at(now_ms):
            return False
        return not _may_have_some(pair, self.context.store.consume_queues)


def _may_have_some(pair: GroupTopic, queues: ConsumeQueues) -> bool:
    """Whether the group may receive something from one of the pair's queues."""
    for state in pair.sources.values():
        if state.ready or state.held or state.order is not None or state.open.packed.count:
            return True
        queue = queues.get(state.topic, state.queue_id)
        if queue is not None and state.next_offset < queue.max_offset:
            return True
    return False
