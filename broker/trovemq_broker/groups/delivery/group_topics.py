"""The table of all queue states, by stored topic, and by (group, topic) for receives.

Invariants
- A queue state that a receive uses began with a STARTED event, and the group has a stored offset for it.
- The states of all queues of a topic begin together, when the group first receives from it: messages that are
  sent later, to any queue, are new to the group.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from trovemq_broker.consumer_settings import EARLIEST, LATEST
from trovemq_broker.groups.delivery.context import Context
from trovemq_broker.groups.delivery.group_topic import GroupTopic
from trovemq_broker.groups.delivery.orderly_receiver import message_group_of
from trovemq_broker.groups.delivery.queue_state import QueueState
from trovemq_broker.groups.delivery.records import properties_of
from trovemq_broker.groups.group_topic_key import GroupTopicKey
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, QueueId, QueueOffset
from trovemq_store.engine.queue_units import readable_units
from trovemq_store.engine.queues import queue_ids
from trovemq_store.events.codec import Event, EventKind
from trovemq_store.events.receipt_handle import SourceKind
from trovemq_store.events.sources import RETRY_KINDS, RETRY_TOPIC_PROPERTY, kind_of, source_topic
from trovemq_store.topics.config_marks import came_after
from trovemq_store.topics.subscription_groups import SubscriptionGroup


class GroupTopicTable:
    """The states of one store."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._states: dict[tuple[str, str], dict[int, QueueState]] = {}
        self._pairs: dict[GroupTopicKey, GroupTopic] = {}

    # --- look-ups ---------------------------------------------------------------------------------------
    def get(self, group: str, topic: str) -> GroupTopic | None:
        """The state of the group in the topic; None if there is none."""
        return self._pairs.get((group, topic))

    def state(self, group: str, stored_topic: str, queue_id: QueueId) -> QueueState | None:
        return self._states.get((group, stored_topic), {}).get(queue_id)

    def states(self) -> Iterator[QueueState]:
        for queues in self._states.values():
            yield from queues.values()

    def of_state(self, state: QueueState) -> list[GroupTopic]:
        """The pairs that read the state's queue."""
        kind, topic = kind_of(state.group, state.topic)
        if kind is SourceKind.CLASSIC_RETRY:
            return [pair for pair in self._pairs.values() if pair.group == state.group]
        pair = self._pairs.get((state.group, topic))
        return [pair] if pair is not None else []

    def has_group(self, group: str) -> bool:
        """Whether there is a state of the group."""
        return any(name == group for name, _ in self._states)

    def groups(self) -> list[str]:
        return sorted({group for group, _ in self._states})

    def items(self) -> Iterable[tuple[GroupTopicKey, GroupTopic]]:
        """The pairs by (group, original topic)."""
        return self._pairs.items()

    def names(self) -> list[GroupTopicKey]:
        """(group, original topic), sorted."""
        return sorted(self._pairs)

    # --- creation ---------------------------------------------------------------------------------------
    def add(self, group: str, stored_topic: str, queue_id: QueueId, offset: int) -> QueueState:
        """A new state: everything below `offset` is consumed."""
        kind, _ = kind_of(group, stored_topic)
        state = QueueState(group, stored_topic, queue_id, kind, offset)
        self._states.setdefault((group, stored_topic), {})[queue_id] = state
        return state

    def pair(self, group: str, topic: str) -> GroupTopic:
        """The pair, which is created if it is missing, with all its existing states."""
        pair = self._pairs.get((group, topic))
        if pair is None:
            pair = self._pairs[group, topic] = GroupTopic(group, topic, self._context.store.settings.broker)
        for kind in SourceKind:
            for state in self._states.get((group, source_topic(kind, group, topic)), {}).values():
                if (kind, state.queue_id) not in pair.sources:
                    pair.add(state)
        return pair

    def complete(self) -> None:
        """Makes the pairs of all states: once each, since a pair looks at all its queues."""
        for group, name in list(self._states):
            kind, topic = kind_of(group, name)
            if kind is not SourceKind.CLASSIC_RETRY:
                self.pair(group, topic)

    def for_receive(self, group: SubscriptionGroup, topic: str, now_ms: EpochMs) -> GroupTopic:
        """The pair with a state for every existing queue. TroveError TOPIC_NOT_FOUND, TOPIC_ILLEGAL,
        LIMIT_EXCEEDED."""
        pair = self._pairs.get((group.name, topic))
        if pair is None:
            if kind_of(group.name, topic)[0] is not SourceKind.TOPIC:
                raise TroveError(
                    errors.TOPIC_ILLEGAL,
                    f"{topic[:200]} holds the group's own retries; it gets them with the topic itself",
                    topic=topic[:200],
                )
            pair = self._create(group.name, topic, now_ms)
        else:
            self._add_missing_states(pair, SourceKind.TOPIC, topic, now_ms)
        if group.orderly:
            if not pair.keyed:
                self.fill_keys(pair)
            return pair
        if pair.keyed:
            pair.drop_keys()
        consume_queues = self._context.store.consume_queues
        for kind, name in zip(RETRY_KINDS, pair.retry_topics, strict=True):
            if (kind in pair.seen) or consume_queues.get(name, QueueId(0)) is not None:
                self._add_missing_states(pair, kind, name, now_ms)
        return pair

    def _create(self, group: str, topic: str, now_ms: EpochMs) -> GroupTopic:
        queue_ids(self._context.store, topic)  # raises TOPIC_NOT_FOUND before anything is created
        pair = self.pair(group, topic)
        try:
            self._add_missing_states(pair, SourceKind.TOPIC, topic, now_ms)
        except TroveError:
            del self._pairs[group, topic]  # the states that it has created are found again
            raise
        return pair

    def _add_missing_states(self, pair: GroupTopic, kind: SourceKind, name: str, now_ms: EpochMs) -> None:
        """Creates the states of a source's queues that the pair does not have yet."""
        config = self._context.store.topics.get(name)
        if kind in pair.seen and pair.seen[kind] is config:
            return
        offsets = self._context.store.offsets
        first_time = (pair.group, name) not in self._states and not offsets.of(pair.group, name)
        try:
            numbers = queue_ids(self._context.store, name)
        except TroveError:
            if kind is SourceKind.TOPIC:
                raise
            return  # a retry topic that was deleted
        for queue_id in numbers:
            if (kind, queue_id) not in pair.sources:
                known = self.state(pair.group, name, queue_id)
                pair.add(known or self._start(pair.group, name, queue_id, kind, first_time, now_ms))
        pair.seen[kind] = config

    def _start(
        self, group: str, name: str, queue_id: QueueId, kind: SourceKind, first_time: bool, now_ms: EpochMs
    ) -> QueueState:
        offset = _start_offset(self._context, group, name, queue_id, kind, first_time=first_time)
        self._context.store.offsets.commit(group, name, queue_id, QueueOffset(offset))
        self._context.add(Event(EventKind.STARTED, now_ms, group, name, queue_id, offset))
        return self.add(group, name, queue_id, offset)

    # --- keys -------------------------------------------------------------------------------------------
    def fill_keys(self, pair: GroupTopic) -> None:
        """Reads the message groups of the pending messages from the records."""
        pair.keyed = False  # if a read fails, until it is tried again
        for state in pair.queues:
            state.open.loosen_all()
            for offset in state.outstanding_offsets():
                state.keys[offset] = message_group_of(self._context.record_of(state, offset))
            state.unblocked = True
        pair.keyed = True

    def fill_topics(self, state: QueueState) -> None:
        """Reads the original topics of pending messages in a classic retry topic from the records."""
        for offset in state.outstanding_offsets():
            record = self._context.record_of(state, offset)
            if record is not None:
                state.keys[offset] = properties_of(record).get(RETRY_TOPIC_PROPERTY, "")

    # --- forgetting -------------------------------------------------------------------------------------
    def forget(self, group: str, topic: str | None) -> bool:
        """Drops the states of the group, or those of one topic and its retries, or of one retry topic.

        False if there is nothing."""
        gone = [
            key
            for key in self._states
            if key[0] == group and (topic is None or key[1] == topic or kind_of(*key)[1] == topic)
        ]
        voided: dict[GroupTopic, None] = {}
        for key in gone:
            for state in self._states.pop(key).values():
                in_flight = state.reset_to(state.committed)  # its leases are void
                for pair in self.of_state(state):
                    pair.remove(state)
                    if in_flight:
                        voided[pair] = None
        empty = [name for name, pair in self._pairs.items() if name[0] == group and not pair.queues]
        for name in empty:
            pair = self._pairs.pop(name)
            self._context.timed.discard(pair)
            self._context.woken.discard(pair)
        self._context.note_void(voided)
        return bool(gone)


def _start_offset(
    context: Context, group: str, topic: str, queue_id: QueueId, kind: SourceKind, *, first_time: bool
) -> int:
    """The group's stored offset if there is one, else the offset by ConsumerSettings.new_group_start.

    Retry topics, and queues that the topic got after the group first read it or had an offset of it, are read
    from their beginning. So are those of a topic that came to this broker after the group was made
    (store: topics/config_marks.py): the group may have read it on another broker, and would miss the
    messages that were sent here before its first receive. A group that its first use made has no id, and no
    known age.
    """
    queue = context.store.consume_queues.get(topic, queue_id)
    low, high = (queue.min_offset, queue.max_offset) if queue is not None else (0, 0)
    stored = context.store.offsets.get(group, topic, queue_id)
    if stored is not None:
        return min(max(stored, low), high)
    if kind is not SourceKind.TOPIC or not first_time or queue is None or low == high:
        return low
    start = context.settings.new_group_start
    if start in EARLIEST or _came_after(context, group, topic):
        return low
    if start in LATEST:
        return high
    physical_offset = int(readable_units(queue, QueueOffset(low), 1)["physical_offset"][0])
    if low == 0 and context.store.end_offset - physical_offset <= context.settings.recent_bytes_max:
        return 0
    return high - 1  # as RocketMQ's broker, which includes the last message


def _came_after(context: Context, group: str, topic: str) -> bool:
    config, reader = context.store.topics.get(topic), context.groups.get(group)
    return config is not None and came_after(config.attributes, {} if reader is None else reader.attributes)
