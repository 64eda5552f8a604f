"""The state of one (group, topic): its queues, its retry queues, its leases in the order of their ends.

Invariants
- Each queue state belongs to one pair, except those of a classic retry topic, which all pairs of the group
  share.
- A pair's heap has all live leases of its messages that are not renewed; `renewed` has the others.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final

from trovemq_broker.groups.delivery.leases import Lease, LeaseHeap
from trovemq_broker.groups.delivery.open_messages import LOOSE_MAX
from trovemq_broker.groups.delivery.queue_state import QueueState
from trovemq_proto.positions import EpochMs
from trovemq_store.events.receipt_handle import HandleReader, SourceKind, handle_seed
from trovemq_store.events.sources import RETRY_KINDS, source_topic
from trovemq_store.topics.topics import TopicConfig

ATTEMPTS_KEPT_MAX: Final = 1_024
"""Receives with an attempt id that a pair remembers: the latest ones."""
LOOSE_PAIR_MAX: Final = 16_384
"""The most messages of all its queues that are not packed; LOOSE_MIN per queue if that is more."""
LOOSE_MIN: Final = 64
ENDED_STEP: Final = 2_048
"""The most leases that one call ends."""


class GroupTopic:
    def __init__(self, group: str, topic: str, broker: str) -> None:
        self.group = group
        self.topic = topic
        self.seed = handle_seed(group, topic, broker)
        self.handles = HandleReader(self.seed)
        self.leases: LeaseHeap[QueueState] = LeaseHeap()
        self.exhausted: deque[tuple[QueueState, Lease]] = deque()
        """Ended leases of messages that were delivered as often as the group allows."""
        self.receive_count = 0
        """The number of receives so far. It determines the queue with which the next receive begins."""
        self.sources: dict[tuple[SourceKind, int], QueueState] = {}
        self.queues: list[QueueState] = []
        self.retry_queues: list[QueueState] = []
        self.seen: dict[SourceKind, TopicConfig | None] = {}
        """By source: the topic's configuration by which its queues were found."""
        self.retry_topics = [source_topic(kind, group, topic) for kind in RETRY_KINDS]
        self.redelivered_count = 0
        """Since the start: deliveries of messages that had been delivered before."""
        self.dead_letter_count = 0
        """Since the start."""
        self.keyed = False
        """Whether the states' keys are the message groups, because the group is orderly."""
        self._attempts: OrderedDict[str, list[tuple[QueueState, Lease]]] = OrderedDict()

    def add(self, state: QueueState) -> None:
        self.sources[state.kind, state.queue_id] = state
        group = self.queues if state.kind is SourceKind.TOPIC else self.retry_queues
        group.append(state)
        group.sort(key=lambda one: (one.kind, one.queue_id))
        if state.kind is not SourceKind.CLASSIC_RETRY:
            state.open.heap = self.leases
        loose_max = min(LOOSE_MAX, max(LOOSE_MIN, LOOSE_PAIR_MAX // len(self.sources)))
        for each in self.sources.values():
            each.open.limit(loose_max)

    def remove(self, state: QueueState) -> None:
        """The state was forgotten."""
        if self.sources.pop((state.kind, state.queue_id), None) is not None:
            (self.queues if state.kind is SourceKind.TOPIC else self.retry_queues).remove(state)
            self.seen.pop(state.kind, None)

    def drop_keys(self) -> None:
        """Forgets the message groups: the group is no longer orderly."""
        for state in self.queues:
            state.keys.clear()
            if state.order is None:  # else `order` knows them
                state.ready = sorted(offset for offset, lease in state.open.items() if lease.ended)
        self.keyed = False

    def end_leases(self, now_ms: EpochMs, max_attempts: int) -> bool:
        """Ends the leases whose time is over, at most ENDED_STEP of them; the others stay in `leases`. True
        if messages became visible."""
        some = False
        for lease, state in self.leases.pop_until(now_ms, ENDED_STEP):
            some |= state.end_due(lease, now_ms)
            if lease.attempt >= max_attempts:
                self.exhausted.append((state, lease))
        return some

    def note_attempt(self, attempt_id: str, state: QueueState, lease: Lease) -> None:
        """Stores the messages of a receive with that attempt id, for its repetition."""
        self._attempts.setdefault(attempt_id, []).append((state, lease))
        while len(self._attempts) > ATTEMPTS_KEPT_MAX:
            self._attempts.popitem(last=False)

    def repeat_attempt(self, attempt_id: str) -> None:
        """Makes messages in flight of the receive with that id visible again: its reply was lost."""
        for state, lease in self._attempts.pop(attempt_id, ()):
            if lease.ended:
                continue
            if lease.attempt_id:  # otherwise it was returned, and no longer counts
                lease.attempt -= 1  # the reply did not arrive: it was no delivery
            state.end_lease(lease)
