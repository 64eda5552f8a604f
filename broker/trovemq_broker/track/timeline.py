"""The timeline of one message: events of producer, broker and groups, in the order of time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from trovemq_broker.track.copies import CONSUMABLE, Copy, CopyRole, TrackedMessage
from trovemq_broker.track.history import RecordPosition
from trovemq_proto.positions import EpochMs, QueueId, QueueOffset
from trovemq_proto.records.dead_letter_reason import EXPIRED, DeadLetterReason, cut, reason_of
from trovemq_store.events.codec import Event, EventKind


class TrackEventKind(StrEnum):
    """The kinds of events. The names are stable: they are part of the protocol and of JSON output."""

    PRODUCED = "produced"
    STORED = "stored"
    DELAYED = "delayed"  # stored to wait until a time
    RECALLED = "recalled"
    WAIT_ENDED = "wait-ended"
    PREPARED = "prepared"  # stored as a half message
    CHECKED = "checked"
    ROLLED_BACK = "rolled-back"
    GIVEN_UP = "given-up"
    COMMITTED = "committed"
    RETRY_STORED = "retry-stored"
    DEAD_LETTER_STORED = "dead-letter-stored"
    CARRIED = "carried"
    STARTED = "started"
    DELIVERED = "delivered"
    RENEWED = "renewed"
    RELEASED = "released"
    RETURNED = "returned"
    EXPIRED = "expired"
    HELD = "held"
    ACKNOWLEDGED = "acknowledged"
    DROPPED = "dropped"  # consumed without another delivery: filtered now, or unreadable
    FILTERED = "filtered"
    DEAD_LETTERED = "dead-lettered"
    RETRIED = "retried"
    RESET = "reset"
    FORGOTTEN = "forgotten"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackEvent:
    """`until_ms`: the time until which the message then waits or is invisible; `count`: the number of equal
    events in a row (renewals)."""

    time_ms: EpochMs
    kind: TrackEventKind
    topic: str
    queue_id: QueueId
    queue_offset: QueueOffset
    group: str = ""
    client_id: str = ""
    attempt: int = 0
    until_ms: EpochMs = EpochMs(0)
    count: int = 1
    detail: str = ""


@dataclass(slots=True)
class LastEvent:
    """The last event of one group at one place. `result`: how the delivery ended, None before its end."""

    result: TrackEventKind | None = None
    result_ms: EpochMs = EpochMs(0)
    attempt: int = 0
    client_id: str = ""
    lease: int = 0
    until_ms: EpochMs = EpochMs(0)
    renewed: bool = False
    returned: bool = False
    is_out: bool = False  # delivered, and neither settled nor returned since

    def is_over(self, now_ms: EpochMs) -> bool:
        """Whether its lease has ended without a call of the client."""
        return not self.renewed and self.until_ms <= now_ms


_STORED_AS: Final = {
    CopyRole.MESSAGE: TrackEventKind.STORED,
    CopyRole.DELIVERED: TrackEventKind.STORED,
    CopyRole.COMMITTED: TrackEventKind.COMMITTED,
    CopyRole.DELAYED: TrackEventKind.DELAYED,
    CopyRole.RECALL: TrackEventKind.RECALLED,
    CopyRole.HALF: TrackEventKind.PREPARED,
    CopyRole.GIVEN_UP: TrackEventKind.GIVEN_UP,
    CopyRole.RETRY: TrackEventKind.RETRY_STORED,
    CopyRole.DEAD_LETTER: TrackEventKind.DEAD_LETTER_STORED,
    CopyRole.CARRIED: TrackEventKind.CARRIED,
}


def stored_events(tracked: TrackedMessage) -> list[TrackEvent]:
    """The events that the message was produced and that each of its copies was stored."""
    events = []
    first = tracked.copies[0]
    if first.role in CONSUMABLE or first.role in (CopyRole.HALF, CopyRole.DELAYED):
        by = f"by {first.born_host}"
        if first.producer_group:
            by += f" of producer group {first.producer_group}"
        events.append(_of_copy(first, first.born_ms, TrackEventKind.PRODUCED, by))
    stored = (
        _of_copy(copy, copy.store_ms, _STORED_AS[copy.role], _stored_detail(copy)) for copy in tracked.copies
    )
    return [*events, *stored]


def _of_copy(copy: Copy, time_ms: EpochMs, kind: TrackEventKind, detail: str) -> TrackEvent:
    return TrackEvent(
        time_ms=time_ms,
        kind=kind,
        topic=copy.topic,
        queue_id=copy.queue_id,
        queue_offset=copy.queue_offset,
        group=copy.group,
        until_ms=copy.deliver_ms,
        detail=detail,
    )


def _stored_detail(copy: Copy) -> str:
    where = f"at {copy.store_host}, {copy.size} bytes at {copy.physical_offset} of the log"
    if copy.role is CopyRole.DELIVERED:
        return f"its waiting time is over; {where}"
    if copy.is_moved:
        return f"appended again before its segment was removed; {where}"
    if copy.role in (CopyRole.RETRY, CopyRole.DEAD_LETTER):
        return f"after {deliveries(copy.reconsume_times)}; {where}"
    return where


REASON_SIZE_MAX: Final = 160
"""The most bytes of a reason in the timeline; the dead letter has more."""
LETTER_APART_MAX_MS: Final = 1_000
"""The longest time between a dead letter and the event that says so: both are written in one step."""


def deliveries(count: int) -> str:
    """The count in words."""
    return "1 delivery" if count == 1 else f"{count} deliveries"


class GroupEvents:
    """Turns the events of groups into a timeline; `last_events` has the last one of each (group, place).
    `tracked`: the message, whose dead letters say why they are."""

    def __init__(self, tracked: TrackedMessage | None = None) -> None:
        self._letters = (
            [copy for copy in tracked.copies if copy.role is CopyRole.DEAD_LETTER] if tracked else []
        )
        self.timeline: list[TrackEvent] = []
        self.last_events: dict[tuple[str, RecordPosition], LastEvent] = {}

    def add(self, found: Iterable[tuple[RecordPosition, Event]]) -> None:
        """Adds events, in log order."""
        for place, event in found:
            self._add_event(place, event)

    def expire(self, group: str, place: RecordPosition, now_ms: EpochMs) -> None:
        """Adds the end of the group's last delivery, which had no result."""
        last = self.last_events.get((group, place))
        if last is not None and last.is_out:
            self._add_expiry(place, group, last, now_ms)

    def _add_event(self, place: RecordPosition, event: Event) -> None:
        if event.kind is EventKind.TIMER_ENDED:
            self._append(place, event, TrackEventKind.WAIT_ENDED)
        elif event.kind is EventKind.TRANSACTION_CHECKED:
            detail = "the producer was asked to commit or roll back the transaction"
            self._append(place, event, TrackEventKind.CHECKED, attempt=event.attempt, detail=detail)
        elif event.kind is EventKind.FORGOTTEN:
            if self.last_events.pop((event.group, place), None) is not None:
                self._append(
                    place, event, TrackEventKind.FORGOTTEN, detail="the group or the topic was deleted"
                )
        else:
            self._add_of_group(place, event, self.last_events.setdefault((event.group, place), LastEvent()))

    def _add_of_group(self, place: RecordPosition, event: Event, last: LastEvent) -> None:
        names_it = event.offset <= place.offset < event.offset + event.count
        if event.kind in (EventKind.STARTED, EventKind.RESET):
            self._set_offset(place, event, last)
        elif event.kind is EventKind.ADVANCED or not names_it:
            last.result, last.result_ms = TrackEventKind.FILTERED, event.time_ms
            self._append(
                place, event, TrackEventKind.FILTERED, detail="its filter does not match the message"
            )
        elif event.kind is EventKind.RECEIVED:
            self._receive(place, event, last)
        elif event.kind is EventKind.CHANGED:
            self._change(place, event, last)
        elif event.kind is EventKind.HELD:
            self._append(
                place, event, TrackEventKind.HELD, detail="it waits for an earlier message in flight"
            )
        elif event.kind is EventKind.MOVED:
            return  # the stored copy has a separate event
        else:
            self._settle(place, event, last)

    def _set_offset(self, place: RecordPosition, event: Event, last: LastEvent) -> None:
        """Adds the event that the group's offset was set."""
        is_after = event.offset > place.offset
        kind = TrackEventKind.STARTED if event.kind is EventKind.STARTED else TrackEventKind.RESET
        fresh = LastEvent(kind, event.time_ms) if is_after else LastEvent()
        if is_after or kind is TrackEventKind.RESET:
            where = "after the message" if is_after else "to the message or before it"
            self._append(place, event, kind, detail=f"the group's offset was set to {event.offset}, {where}")
        self.last_events[event.group, place] = fresh

    def _receive(self, place: RecordPosition, event: Event, last: LastEvent) -> None:
        if last.is_out:
            self._add_expiry(place, event.group, last, event.time_ms)
        self.last_events[event.group, place] = LastEvent(
            attempt=event.attempt,
            client_id=event.client_id,
            lease=event.lease,
            until_ms=EpochMs(event.until),
            renewed=event.renewed,
            is_out=True,
        )
        self._append(
            place,
            event,
            TrackEventKind.DELIVERED,
            client_id=event.client_id,
            attempt=event.attempt,
            until_ms=EpochMs(event.until),
        )

    def _add_expiry(self, place: RecordPosition, group: str, last: LastEvent, now_ms: EpochMs) -> None:
        last.is_out = False
        self.timeline.append(
            TrackEvent(
                time_ms=min(last.until_ms, now_ms),
                kind=TrackEventKind.EXPIRED,
                topic=place.topic,
                queue_id=place.queue_id,
                queue_offset=QueueOffset(place.offset),
                group=group,
                client_id=last.client_id,
                attempt=last.attempt,
                detail="not acknowledged in time",
            )
        )

    def _change(self, place: RecordPosition, event: Event, last: LastEvent) -> None:
        kind, detail = TrackEventKind.RETURNED, "it is delivered again then"
        if event.lease == last.lease:
            kind = TrackEventKind.RENEWED if event.renewed else TrackEventKind.RELEASED
            detail = "" if event.renewed else "its client is gone, or held it for too long"
        last.returned = kind is TrackEventKind.RETURNED
        last.is_out = not last.returned
        last.lease, last.until_ms, last.renewed = event.lease, EpochMs(event.until), event.renewed
        last.attempt = event.attempt
        client_id = event.client_id or last.client_id
        if kind is TrackEventKind.RENEWED and self._renew(place, event):
            return
        self._append(
            place,
            event,
            kind,
            client_id=client_id,
            attempt=event.attempt,
            until_ms=EpochMs(event.until),
            detail=detail,
        )

    def _renew(self, place: RecordPosition, event: Event) -> bool:
        """Counts a renewal in the entry of the one before, if that was this group's, too. True if it did."""
        last = self.timeline[-1] if self.timeline else None
        if last is None or last.kind is not TrackEventKind.RENEWED or last.group != event.group:
            return False
        if (last.topic, last.queue_id, last.queue_offset) != place[:3]:
            return False
        self.timeline[-1] = replace(
            last, time_ms=event.time_ms, until_ms=EpochMs(event.until), count=last.count + 1
        )
        return True

    def _settle(self, place: RecordPosition, event: Event, last: LastEvent) -> None:
        kind, detail = TrackEventKind.ACKNOWLEDGED, ""
        if event.kind is EventKind.DEAD_LETTERED:
            reason = self._reason(event)
            kind, detail = TrackEventKind.DEAD_LETTERED, f"after {deliveries(event.attempt)}"
            detail = f"{detail}: {cut(str(reason), REASON_SIZE_MAX)}" if str(reason) else detail
            if last.is_out and (reason.kind == EXPIRED or (not reason.kind and last.is_over(event.time_ms))):
                self._add_expiry(place, event.group, last, event.time_ms)
            elif last.returned:
                self._was_last(place, event.group)
        elif event.kind is EventKind.RETRIED:
            kind, detail = TrackEventKind.RETRIED, "the broker stopped: it continues as a retry message"
        elif not event.lease:
            kind, detail = (
                TrackEventKind.DROPPED,
                "its filter no longer matches the message, or the record is damaged",
            )
        last.result, last.result_ms, last.is_out = kind, event.time_ms, False
        last.attempt = event.attempt or last.attempt
        self._append(place, event, kind, client_id=last.client_id, attempt=last.attempt, detail=detail)

    def _reason(self, event: Event) -> DeadLetterReason:
        """The reason of the dead letter that the event is about, which was stored with it."""
        for copy in self._letters:
            if copy.group == event.group and abs(copy.store_ms - event.time_ms) <= LETTER_APART_MAX_MS:
                return reason_of(copy.properties)
        return DeadLetterReason()

    def _was_last(self, place: RecordPosition, group: str) -> None:
        """The group's last return of the message there was the end of its last attempt."""
        for number in range(len(self.timeline) - 1, -1, -1):
            one = self.timeline[number]
            is_here = (one.topic, one.queue_id, one.queue_offset, one.group) == (*place[:3], group)
            if is_here and one.kind is TrackEventKind.RETURNED:
                self.timeline[number] = replace(one, detail="after the last attempt: a dead letter then")
                return

    def _append(
        self,
        place: RecordPosition,
        event: Event,
        kind: TrackEventKind,
        *,
        client_id: str = "",
        attempt: int = 0,
        until_ms: EpochMs = EpochMs(0),
        detail: str = "",
    ) -> None:
        self.timeline.append(
            TrackEvent(
                time_ms=event.time_ms,
                kind=kind,
                topic=place.topic,
                queue_id=place.queue_id,
                queue_offset=QueueOffset(place.offset),
                group=event.group,
                client_id=client_id,
                attempt=attempt,
                until_ms=until_ms,
                detail=detail,
            )
        )
