"""The delivery engine: the messages in flight and the pending messages of consumer groups.

The state of a (group, topic, queue) is built from events (store: events/): a change is applied at once, and
its event is added to the event log, which is flushed within 100 ms. If the last events are lost, messages are
delivered again; no message is lost.

Invariants
- A message that is not consumed is delivered again when its lease ends, with an attempt number one higher.
- A consumed message is not delivered again, unless its event was lost.
- The group's offset (consumerOffset.json) never passes a message that is in flight or held.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Final

from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.groups.delivery import reappends, replay, rocketmq_export, snapshots
from trovemq_broker.groups.delivery.context import Context, VoidListener
from trovemq_broker.groups.delivery.due_watch import NOW, DueWatch
from trovemq_broker.groups.delivery.exhausted import ExhaustedMessages
from trovemq_broker.groups.delivery.group_topic import GroupTopic
from trovemq_broker.groups.delivery.group_topics import GroupTopicTable
from trovemq_broker.groups.delivery.lease_time import LeaseTime
from trovemq_broker.groups.delivery.leases import Lease
from trovemq_broker.groups.delivery.message_status import MessageStatus, message_status
from trovemq_broker.groups.delivery.own_offsets import own_offsets_steps
from trovemq_broker.groups.delivery.priority_receiver import (
    waiting_of,
)
from trovemq_broker.groups.delivery.queue_state import QueueState
from trovemq_broker.groups.delivery.receives import Receiving
from trovemq_broker.groups.delivery.request import (
    Delivered,
    QueueProgress,
    ReceiveRequest,
)
from trovemq_broker.groups.delivery.settlements import COPIED, RENEW_BEFORE_MS
from trovemq_broker.groups.delivery.snapshots import DeliveryState
from trovemq_broker.groups.group_topic_key import GroupTopicKey
from trovemq_broker.timers.timers import Timers
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QUEUE_ORIGIN, EpochMs, PhysicalOffset, QueueId, QueueOffset
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.queues import queue_ids
from trovemq_store.engine.record_writer import RecordWriter
from trovemq_store.engine.steps import Steps
from trovemq_store.events.codec import Event, EventKind
from trovemq_store.events.event_log import EventLog
from trovemq_store.files.files import FileSystem
from trovemq_store.topics.subscription_groups import SubscriptionGroup, SubscriptionGroups

__all__ = ["Delivered", "Delivery", "DeliveryState", "QueueProgress", "ReceiveRequest"]

RENEWED_STEP: Final = 1_024
"""The most leases that one step extends or releases."""


class Delivery(Receiving):
    """All groups of one store. Used from one thread; nothing blocks except creating a topic."""

    def __init__(
        self,
        store: MessageStore,
        writer: RecordWriter,
        events: EventLog,
        groups: SubscriptionGroups,
        settings: ConsumerSettings,
    ) -> None:
        context = Context(store, writer, events, groups, settings)
        super().__init__(context, GroupTopicTable(context), settings)
        self._exhausted = ExhaustedMessages(context, self._dead_lettered)
        self._renew_before_ms = min(RENEW_BEFORE_MS, settings.renewed_lease_ms // 2)

    # --- timed work --------------------------------------------------------------------------------------
    def next_due_ms(self) -> int | None:
        """When due_pairs() will return something; NOW if it does. due_watch notifies of an earlier time."""
        if self.context.woken or self._exhausted_pairs:
            return NOW
        times = [until for pair in self.context.timed if (until := pair.leases.earliest_ms()) is not None]
        return min(times, default=None)

    @property
    def due_watch(self) -> DueWatch:
        return self.context.due_watch

    def add_void_listener(self, listener: VoidListener) -> None:
        """`listener((group, topic))` is called when messages in flight of this group and topic have become
        void: by a reset of the group, or because the group or the topic was deleted."""
        self.context.void_listeners.append(listener)

    def due_pairs(self, now_ms: EpochMs) -> list[GroupTopicKey]:
        """(group, topic) of pairs that have messages to deliver since the last call: leases ended, held
        messages became free, or a receive stopped before the end of its queues."""
        now_ms = self.context.lease_time.at(now_ms)
        due = self.context.woken
        self.context.woken = set()
        for pair in list(self.context.timed):
            group = self.context.groups.get(pair.group)
            if pair.end_leases(now_ms, group.max_attempts if group is not None else sys.maxsize):
                due.add(pair)
            if pair.exhausted:
                self._exhausted_pairs.add(pair)
            if not len(pair.leases):
                self.context.timed.discard(pair)
        return sorted((pair.group, pair.topic) for pair in due)

    def make_dead_letters(self, now_ms: EpochMs) -> None:
        """Makes messages whose last attempt has ended dead letters; the work of one call is bounded."""
        self._exhausted.make_dead_letters(self._exhausted_pairs, now_ms)

    def _dead_lettered(
        self, pair: GroupTopic, state: QueueState, lease: Lease, offsets: range, now_ms: EpochMs
    ) -> None:
        self.settle_granted(pair, state, offsets, COPIED, now_ms)

    @property
    def lease_time(self) -> LeaseTime:
        """The time by which leases end."""
        return self.context.lease_time

    def renew(self, now_ms: EpochMs, is_alive: Callable[[str], bool]) -> bool:
        """Extends renewed leases that would end within 10 s; releases those of clients that are gone, and
        those that are older than renewed_total_max_ms. Runs one step; True if there is more to do."""
        self._release_dropped(now_ms)
        renewals = self.context.renewals
        for entry in renewals.due(now_ms + self._renew_before_ms, RENEWED_STEP):
            lease = entry.lease
            old = now_ms - lease.received_ms >= self._settings.renewed_total_max_ms
            if old or not is_alive(lease.client_id):
                self.release(entry, now_ms, now_ms)
                continue
            renewals.extend(entry, now_ms + self._settings.renewed_lease_ms)
            self.record_changed(entry.state, lease, now_ms)
        renewals.forget_idle()
        next_ms = renewals.earliest_ms()
        return renewals.has_dropped or (next_ms is not None and next_ms <= now_ms + self._renew_before_ms)

    def release_client(self, client_id: str, now_ms: EpochMs, gone_ms: EpochMs | None = None) -> None:
        """The client is gone since gone_ms (None: now): its messages under renewed leases can be received
        again released_after_ms later. If it has many, the next calls of renew() release the rest."""
        self.context.renewals.drop_client(client_id, now_ms if gone_ms is None else gone_ms)
        self._release_dropped(now_ms)

    @property
    def is_releasing(self) -> bool:
        """Whether renew() has leases of gone clients to release."""
        return self.context.renewals.has_dropped

    def _release_dropped(self, now_ms: EpochMs) -> None:
        for entry, gone_ms in self.context.renewals.take_dropped(RENEWED_STEP):
            self.release(entry, now_ms, gone_ms)

    # --- administration ----------------------------------------------------------------------------------
    def reset(
        self, group: str, topic: str, offsets: Mapping[QueueId, int], now_ms: EpochMs
    ) -> dict[QueueId, int]:
        """The group continues at these offsets (queue -> offset). Returns how many messages in flight each
        queue forgets. Queues without a state of the group are not changed. Does not set the stored
        offsets."""
        forgotten = {}
        voided: dict[GroupTopic, None] = {}
        for queue_id, offset in offsets.items():
            state = self.group_topics.state(group, topic, queue_id)
            if state is None:
                continue
            forgotten[queue_id] = state.reset_to(offset)
            self.context.add(
                Event(EventKind.RESET, now_ms, group, topic, queue_id, offset, lease=state.ended_lease)
            )
            for pair in self.group_topics.of_state(state):
                self.context.wake(pair)
                if forgotten[queue_id]:
                    voided[pair] = None
        self.context.note_void(voided)
        if forgotten:
            self.context.events.flush(now_ms)  # a reset is kept even if the process dies now
        return forgotten

    def own_offsets_steps(
        self, timers: Timers, group: SubscriptionGroup, topics: Iterable[str], now_ms: EpochMs
    ) -> Steps[None]:
        """Copies the group's unacknowledged messages to its classic retry topic: from then on its consumers
        keep their offsets themselves. forget_group() follows when the offsets are in the log. TroveError."""
        return own_offsets_steps(self.context, self.group_topics, timers, group, topics, now_ms)

    def has_group(self, group: str) -> bool:
        """Whether there is a state of the group."""
        return self.group_topics.has_group(group)

    def forget_group(self, group: str, now_ms: EpochMs) -> None:
        """Forgets a deleted group, without its stored offsets. The event is in the log before the first
        delivery to a new group of that name: otherwise a start would take new messages for consumed ones."""
        if self.group_topics.forget(group, None):
            self.context.add(Event(EventKind.FORGOTTEN, now_ms, group))
            self._flush_events(now_ms)

    def forget_topic(self, topic: str, now_ms: EpochMs) -> None:
        """Forgets a deleted topic for all groups. The event is in the log before the first message of a new
        topic of that name: otherwise a start would take new messages for consumed ones."""
        forgotten = [group for group in self.group_topics.groups() if self.group_topics.forget(group, topic)]
        for group in forgotten:
            self.context.add(Event(EventKind.FORGOTTEN, now_ms, group, topic))
        if forgotten:
            self._flush_events(now_ms)

    def _flush_events(self, now_ms: EpochMs) -> None:
        with suppress(TroveError):  # the events are still pending then
            self.context.events.flush(now_ms)

    def progress(self, group: str, topic: str, now_ms: EpochMs) -> list[QueueProgress]:
        """The progress in each queue of the topic (which may be a retry topic). TroveError
        TOPIC_NOT_FOUND."""
        found = []
        for queue_id in queue_ids(self.context.store, topic):
            state = self.group_topics.state(group, topic, queue_id)
            if state is None:
                offset = self.context.store.offsets.get(group, topic, queue_id)
                found.append(QueueProgress(queue_id, offset, offset or QUEUE_ORIGIN, 0))
            else:
                found.append(
                    QueueProgress(
                        queue_id,
                        QueueOffset(state.committed),
                        QueueOffset(state.next_offset),
                        len(state.open),
                        len(state.held) + waiting_of(self.context.priority_order, state),
                        len(state.open) - state.open.in_flight_count(now_ms),
                    )
                )
        return found

    def next_offset(self, group: str, topic: str, queue_id: QueueId) -> int | None:
        """The offset of the queue's first message that is new to the group; None if the group has no state of
        the queue."""
        state = self.group_topics.state(group, topic, queue_id)
        return None if state is None else state.next_offset

    def status_of(
        self,
        group: str,
        topic: str,
        queue_id: QueueId,
        offset: int,
        *,
        message_group: str,
        priority: int,
        now_ms: EpochMs,
    ) -> MessageStatus | None:
        """The status of one message in the group; `topic` is the topic in which the message is stored,
        perhaps a retry topic. None if the group has no state of that queue."""
        state = self.group_topics.state(group, topic, queue_id)
        if state is None:
            return None
        return message_status(self.context, state, offset, message_group, priority, now_ms)

    def held_by(self, client_id: str) -> int:
        """The number of messages that the client has under renewed leases."""
        return self.context.renewals.held_by(client_id)

    @property
    def in_flight_count(self) -> int:
        return sum(len(state.open) for state in self.group_topics.states())

    @property
    def damaged_count(self) -> int:
        """The number of messages that were skipped because their record cannot be read."""
        return self.context.damaged_count

    @property
    def dead_letter_count(self) -> int:
        return self.context.dead_letters.total()

    @property
    def dead_letters_by_reason(self) -> Mapping[str, int]:
        """The same, by the kind of the reason."""
        return self.context.dead_letters

    @property
    def dead_letter_failures(self) -> int:
        return self.context.dead_letter_failures

    def pairs(self) -> list[GroupTopicKey]:
        """The pairs (group, original topic) with a state, sorted."""
        return self.group_topics.names()

    # --- start and stop ------------------------------------------------------------------------------------
    def apply(self, event: Event) -> None:
        """Applies one event; events come in log order, then complete_replay() is to be called."""
        replay.apply(self.group_topics, event)

    def forget_deleted(self, group: str) -> None:
        """As the event of forget_group(): the log has the group's deletion there, and the event perhaps
        not."""
        self.group_topics.forget(group, None)

    def snapshot(self) -> DeliveryState:
        """The whole state."""
        return snapshots.snapshot(self.group_topics)

    def restore(self, state: DeliveryState) -> None:
        """Restores the state of an empty engine; then apply() is to be called for later events, then
        complete_replay()."""
        snapshots.restore(self.group_topics, state)

    def complete_replay(self) -> None:
        """Completes the replay: higher stored offsets count, offsets after a queue's end are cut, and the
        pairs get their leases."""
        replay.complete(self.context, self.group_topics)

    def export_to_rocketmq(self, now_ms: EpochMs, files: FileSystem) -> None:
        """Prepares the store for RocketMQ at a clean stop. Blocks. TroveError DISK_FULL,
        CREATE_MAPPED_FILE_FAILED, STORE_FAILED, UNKNOWN_ERROR."""
        rocketmq_export.export_to_rocketmq(self.context, self.group_topics, files, now_ms)

    def reappend_live_records_before(self, physical_offset: PhysicalOffset, now_ms: EpochMs) -> int:
        """Appends each unconsumed message below that offset again; returns how many. TroveError DISK_FULL,
        CREATE_MAPPED_FILE_FAILED, STORE_FAILED, UNKNOWN_ERROR."""
        table = self.group_topics
        return reappends.reappend_live_records_before(self.context, table, physical_offset, now_ms)

    def live_records_before(self, physical_offset: PhysicalOffset) -> Iterator[PhysicalOffset]:
        """The physical offsets of the unconsumed messages below that offset."""
        return reappends.live_records_before(self.context, self.group_topics, physical_offset)

    def lowest_live_record(self) -> PhysicalOffset | None:
        """The lowest physical offset of a record that is in flight or held."""
        return reappends.lowest_live_record(self.context, self.group_topics)
