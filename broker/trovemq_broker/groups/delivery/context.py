"""The common tools of the delivery engine.

Invariant: while acknowledgements are gathered, every other event comes after those that are waiting.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TypeAlias

from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.groups.delivery.due_watch import NOW, DueWatch
from trovemq_broker.groups.delivery.gathered_events import GatheredAcknowledgements
from trovemq_broker.groups.delivery.group_topic import GroupTopic
from trovemq_broker.groups.delivery.lease_time import LeaseTime
from trovemq_broker.groups.delivery.leases import Lease
from trovemq_broker.groups.delivery.prepared import settled_event
from trovemq_broker.groups.delivery.priority_order import PriorityOrder, PriorityQueues
from trovemq_broker.groups.delivery.queue_state import QueueState
from trovemq_broker.groups.delivery.records import RecordReader
from trovemq_broker.groups.delivery.renewals import Renewals
from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueOffset
from trovemq_proto.records.dead_letter_reason import KINDS
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.queue_units import BLANK_UNIT_SIZE, readable_units
from trovemq_store.engine.record_writer import RecordWriter
from trovemq_store.events.codec import Event, EventKind
from trovemq_store.events.event_log import EventLog
from trovemq_store.topics.subscription_groups import SubscriptionGroups

GroupTopicKey: TypeAlias = tuple[str, str]
"""A consumer group and the topic that it reads."""
VoidListener: TypeAlias = Callable[[GroupTopicKey], None]


class Context:
    """The store and its tools, and the counts for metrics."""

    def __init__(
        self,
        store: MessageStore,
        writer: RecordWriter,
        events: EventLog,
        groups: SubscriptionGroups,
        settings: ConsumerSettings,
    ) -> None:
        self.store = store
        self.writer = writer
        self.events = events
        self.groups = groups
        self.settings = settings
        self.records = RecordReader(store)
        self.priority_order: PriorityOrder = PriorityQueues(store, self.records)
        self.renewals = Renewals()
        self.lease_time = LeaseTime(settings.event_interval_ms)
        self.timed: set[GroupTopic] = set()
        """Pairs with a lease that ends unless it is settled."""
        self.woken: set[GroupTopic] = set()
        """Pairs with more messages for a receive than before, for another reason than time."""
        self.due_watch = DueWatch()
        self.void_listeners: list[VoidListener] = []
        self.damaged_count = 0
        """Messages skipped because their record cannot be read."""
        self.dead_letters = Counter(dict.fromkeys(KINDS, 0))
        """Dead letters made, by the kind of their reason."""
        self.dead_letter_failures = 0
        """Copies to a dead-letter topic that were refused (a full disk); each is tried again."""
        self.gathering = GatheredAcknowledgements(events, self.commit)

    def note_void(self, pairs: Iterable[GroupTopic]) -> None:
        """Messages of these pairs that were in flight are so no more. Calls each listener once for a pair,
        however many of its queues are concerned, and before a message of it is delivered again."""
        for pair in pairs:
            for listener in self.void_listeners:
                listener((pair.group, pair.topic))

    def add(self, event: Event) -> None:
        if self.gathering.is_open:
            self.gathering.add_events()
        self.events.add(event)

    def add_settled(
        self, kind: EventKind, state: QueueState, lease: Lease, offsets: range, now_ms: EpochMs
    ) -> None:
        """Adds the event that messages which were open under the lease are consumed; `kind` says how."""
        if self.gathering.is_open and kind is EventKind.ACKNOWLEDGED:
            self.gathering.add(state, lease, offsets, now_ms)
        else:
            self.add(settled_event(kind, state, lease, offsets, now_ms))

    def note_lease(self, pair: GroupTopic, state: QueueState, lease: Lease) -> None:
        """The lease is new, or its end has changed."""
        if lease.renewed:
            self.renewals.add(pair, state, lease)
        else:
            pair.leases.push(lease, state)
            self.timed.add(pair)
            self.due_watch.due(lease.until_ms)

    def wake(self, pair: GroupTopic) -> None:
        """The pair has more messages for a receive than before."""
        self.woken.add(pair)
        self.due_watch.due(NOW)

    def commit(self, state: QueueState) -> None:
        """Sets the group's stored offset (consumerOffset.json) to `committed`."""
        self.store.offsets.commit(state.group, state.topic, state.queue_id, QueueOffset(state.committed))

    def is_orderly(self, group: str) -> bool:
        found = self.groups.get(group)
        return found is not None and found.orderly

    def record_of(self, state: QueueState, offset: int) -> memoryview | None:
        """The record of a message that is open or held; None if it cannot be read (see waits_for_copy())."""
        moved = state.moved.get(offset)
        if moved is not None and moved < self.store.visible_offset:
            return self.records.read_at(moved)
        place = self._place_of(state, offset)
        return None if place is None else self.records.read(*place)

    def waits_for_copy(self, state: QueueState, offset: int) -> bool:
        """Whether the message's record was appended again, and the copy cannot be read yet."""
        return state.moved.get(offset, -1) >= self.store.visible_offset

    def physical_offset_of(self, state: QueueState, offset: int) -> PhysicalOffset | None:
        """The physical offset of the record of a message that is open or held; None if the queue does not
        have it."""
        moved = state.moved.get(offset)
        if moved is not None:
            return moved
        place = self._place_of(state, offset)
        return None if place is None else place[0]

    def _place_of(self, state: QueueState, offset: int) -> tuple[PhysicalOffset, int] | None:
        """(physical offset, size) of the record in the consume queue; None if it does not have it."""
        queue = self.store.consume_queues.get(state.topic, state.queue_id)
        if queue is None or not queue.min_offset <= offset < queue.max_offset:
            return None
        ((physical_offset, size, _),) = readable_units(queue, QueueOffset(offset), 1).tolist()
        return (physical_offset, size) if physical_offset >= 0 and size != BLANK_UNIT_SIZE else None
