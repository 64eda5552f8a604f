"""The track of one message: its copies, its timeline, and a status for each group of its topic.

The sources are the log (by the key index), the events of delivery, and the states of delivery, timers and
transactions. The work is done in steps, between which the broker serves other requests. All figures of a
status are of the moment at which it was made.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from typing import Final

from trovemq_broker.state.consumer_state import ConsumerState
from trovemq_broker.track.copies import CONSUMABLE, Copy, CopyRole, Location, TrackedMessage, find_messages
from trovemq_broker.track.diagnosis import (
    ConsumptionDiagnosis,
    ConsumptionStatus,
    Members,
    MembersOf,
    Reason,
    place_of,
)
from trovemq_broker.track.history import BYTES_MAX, RECORDS_MAX, RecordPosition, Scan, scan_events
from trovemq_broker.track.timeline import GroupEvents, TrackEvent, TrackEventKind, stored_events
from trovemq_broker.transactions.records import OP_TOPIC, TRANSACTION_QUEUE_ID, read_op
from trovemq_proto.positions import QUEUE_ORIGIN, EpochMs, PhysicalOffset, QueueOffset
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.queue_messages import messages_from
from trovemq_store.events.codec import EVENTS_TOPIC
from trovemq_store.events.event_log import EVENTS_QUEUE_ID
from trovemq_store.topics.names import is_system_group

EVENTS_MAX: Final = 1_000
GROUPS_MAX: Final = 1_000
OPS_MAX: Final = 10_000
"""The most records of ended transactions that one answer reads."""


@dataclass(frozen=True, slots=True)
class TrackedEvents:
    """One message that a producer sent: copies in log order, events in the order of time, and one status per
    group, by name."""

    topic: str
    copies: list[Copy]
    events: list[TrackEvent]
    statuses: list[ConsumptionStatus]


@dataclass(frozen=True, slots=True)
class MessageTrack:
    """The track of one identifier, the oldest message first. complete is False if something was left out; the
    notes name it."""

    messages: list[TrackedEvents]
    complete: bool
    notes: list[str]


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one answer."""

    event_records_max: int = RECORDS_MAX
    event_bytes_max: int = BYTES_MAX
    events_max: int = EVENTS_MAX
    groups_max: int = GROUPS_MAX


@dataclass(frozen=True, slots=True)
class MessageTracker:
    """`model`: None on a follower, which has copies and events, but no state of groups. `members_of` is
    (group, topic) -> the connected members; `subscribed_groups`: topic -> groups that subscribe it."""

    store: MessageStore
    model: ConsumerState | None
    members_of: MembersOf = lambda _group, _topic: Members()
    subscribed_groups: Callable[[str], Iterable[str]] = lambda _topic: ()
    limits: Limits = field(default_factory=Limits)

    def steps(
        self,
        identifier: str | Location,
        topic: str,
        clock_ms: Callable[[], EpochMs],
        events_end: QueueOffset | None = None,
    ) -> Generator[None, None, MessageTrack]:
        """events_end: where the events end that the answer is to have; None: where they end now. Events
        that come while it is made, of other messages most often, are not missed.

        Raises TroveError MESSAGE_ID_ILLEGAL, MESSAGE_NOT_FOUND, RECORD_DAMAGED, INDEX_DISABLED,
        LIMIT_EXCEEDED, TOPIC_NOT_FOUND, QUEUE_NOT_FOUND, OFFSET_OUT_OF_RANGE."""
        if events_end is None and self.model is not None:
            events_end = self.model.events.next_offset
        found = yield from find_messages(self.store, identifier, topic)
        notes = list(found.notes)
        complete = found.complete
        lowest = min(tracked.copies[0].physical_offset for tracked in found.messages)
        places = [place for tracked in found.messages for place in _places_of(tracked)]
        scan = yield from self._scan(places, self._priorities(found.messages), lowest, events_end)
        stories = []
        events_remaining, groups_remaining = self.limits.events_max, self.limits.groups_max
        for tracked in reversed(found.messages):  # with too many, the newest message has the most events
            story = yield from self._story(tracked, scan, clock_ms, notes, groups_remaining)
            groups_remaining -= len(story.statuses)
            if len(story.events) > events_remaining:
                complete = False
                notes.append(f"older events are left out: an answer has {self.limits.events_max}")
                del story.events[: len(story.events) - events_remaining]
            events_remaining -= len(story.events)
            stories.append(story)
            yield
        stories.reverse()
        notes += scan.notes
        complete = complete and scan.complete and not any(note == _TOO_MANY_GROUPS for note in notes)
        if self.model is None:
            complete = False
            notes.append(_NO_GROUPS)
        return MessageTrack(stories, complete, notes)

    def _priorities(self, messages: Iterable[TrackedMessage]) -> dict[RecordPosition, int]:
        """The priorities of messages in topics with `order = priority`."""
        return {
            place_of(copy): copy.priority
            for tracked in messages
            for copy in tracked.copies
            if copy.role in CONSUMABLE
            and (config := self.store.topics.get(copy.topic)) is not None
            and config.by_priority
        }

    def _scan(
        self,
        places: list[RecordPosition],
        priorities: dict[RecordPosition, int],
        lowest: PhysicalOffset,
        events_end: QueueOffset | None,
    ) -> Generator[None, None, Scan]:
        queue = self.store.consume_queues.get(EVENTS_TOPIC, EVENTS_QUEUE_ID)
        readable = queue.max_offset if queue is not None else 0
        scan = yield from scan_events(
            self.store,
            places,
            lowest,
            () if self.model is None else self.model.events.view_pending(),
            priorities=priorities,
            records_max=self.limits.event_records_max,
            bytes_max=self.limits.event_bytes_max,
        )
        if events_end is not None and readable < events_end:
            scan.complete = False
            scan.notes.append("the newest events are not on disk yet")
        return scan

    def _story(
        self,
        tracked: TrackedMessage,
        scan: Scan,
        clock_ms: Callable[[], EpochMs],
        notes: list[str],
        groups_max: int,
    ) -> Generator[None, None, TrackedEvents]:
        mine = set(_places_of(tracked))
        groups = GroupEvents(tracked)
        groups.add((place, event) for place, event in scan.events if place in mine)
        names = [] if self.model is None else self._groups_of(self.model, tracked, groups)
        if len(names) > groups_max:
            names = names[:groups_max]
            if _TOO_MANY_GROUPS not in notes:
                notes.append(_TOO_MANY_GROUPS)
        statuses = []
        for model, name in [(self.model, name) for name in names if self.model is not None]:
            now_ms = clock_ms()
            diagnosis = ConsumptionDiagnosis(self.store, model, self.members_of, now_ms)
            statuses.append((yield from diagnosis.status(tracked, name, groups.last_events)))
            self._expire(groups, statuses[-1], now_ms)
            yield
        if tracked.consumable is None and tracked.copies[0].role not in _BEGINNINGS:
            notes.append("the message itself is no longer in the log: its topic was deleted, or it expired")
        rolled_back = yield from self._rolled_back(tracked)
        events = [*stored_events(tracked), *groups.timeline, *rolled_back]
        events.sort(key=_in_time)
        return TrackedEvents(tracked.topic, tracked.copies, events, statuses)

    def _groups_of(self, model: ConsumerState, tracked: TrackedMessage, groups: GroupEvents) -> list[str]:
        """The groups with a state, an offset or a subscription of the topic, and those that received the
        message."""
        names = {group for group, topic in model.delivery.pairs() if topic == tracked.topic}
        names.update(self.store.offsets.groups(tracked.topic))
        names.update(self.subscribed_groups(tracked.topic))
        names.update(group for group, _ in groups.last_events)
        names.update(copy.group for copy in tracked.copies)
        return sorted(name for name in names if name and not is_system_group(name))

    def _expire(self, groups: GroupEvents, status: ConsumptionStatus, now_ms: EpochMs) -> None:
        """Adds the end of a delivery whose time is over, and which no event has followed yet."""
        if status.reason in (Reason.READY, Reason.NO_MEMBER, Reason.LOCKED) and status.attempt:
            place = RecordPosition(status.topic, status.queue_id, status.queue_offset)
            groups.expire(status.group, place, now_ms)

    def _rolled_back(self, tracked: TrackedMessage) -> Generator[None, None, list[TrackEvent]]:
        """The time when the transaction of a half message ended without a commit, from its op record."""
        half = tracked.newest(CopyRole.HALF)
        ended_otherwise = tracked.newest(CopyRole.COMMITTED, CopyRole.GIVEN_UP) is not None
        if half is None or ended_otherwise:
            return []
        if self.model is not None and self.model.transactions.status_of(half.queue_offset):
            return []
        queue = self.store.consume_queues.get(OP_TOPIC, TRANSACTION_QUEUE_ID)
        begin = queue.lower_bound(half.physical_offset) if queue is not None else QUEUE_ORIGIN
        end = QueueOffset(begin + OPS_MAX)
        for _, message in messages_from(self.store, OP_TOPIC, TRANSACTION_QUEUE_ID, begin, end):
            if half.queue_offset in read_op(message):
                event = TrackEvent(
                    time_ms=message.store_timestamp,
                    kind=TrackEventKind.ROLLED_BACK,
                    topic=half.topic,
                    queue_id=half.queue_id,
                    queue_offset=half.queue_offset,
                )
                return [event]
            yield
        return []


_BEGINNINGS: Final = frozenset({*CONSUMABLE, CopyRole.HALF, CopyRole.DELAYED})
_NO_GROUPS: Final = "the state of its groups is known to the leader alone: this is a replica"
_TOO_MANY_GROUPS: Final = "the topic has too many groups: not all of them were judged"


def _in_time(event: TrackEvent) -> tuple[int, bool]:
    """A sort key. Within one millisecond, events by time come first, then those of the broker, then those of
    groups."""
    return event.time_ms, event.kind is not TrackEventKind.EXPIRED


def _places_of(tracked: TrackedMessage) -> list[RecordPosition]:
    places = [place_of(copy) for copy in tracked.copies if copy.role in _SPOKEN_OF]
    checked = [
        RecordPosition(copy.real_topic, TRANSACTION_QUEUE_ID, copy.queue_offset, half=True)
        for copy in tracked.copies
        if copy.role is CopyRole.HALF
    ]
    return places + checked


_SPOKEN_OF: Final = frozenset({*CONSUMABLE, CopyRole.RETRY, CopyRole.DELAYED})
"""The roles of records that events are about."""
