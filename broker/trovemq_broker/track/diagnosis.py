"""Why a group has not consumed a message yet, or how it did: exactly one status per group.

The status is the first of these that is true:
- no group can receive the message: it is delayed, recalled, in an open or ended transaction, or no longer in
  the log;
- it is pending for the group: in flight, returned, held, ready;
- the group has settled it: acknowledged, dead, skipped, …; if the group's retry topic has a copy of it, the
  status is that of the copy;
- it is new to the group: its filter does not match, its message group is locked, or other messages are before
  it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from trovemq_broker.filters.filter import Filter
from trovemq_broker.groups.delivery.message_status import LeaseView, MessagePhase, MessageStatus
from trovemq_broker.groups.lag.filtered import messages_between
from trovemq_broker.state.consumer_state import ConsumerState
from trovemq_broker.track.copies import Copy, CopyRole, TrackedMessage
from trovemq_broker.track.history import RecordPosition
from trovemq_broker.track.timeline import REASON_SIZE_MAX, LastEvent, TrackEventKind
from trovemq_proto.positions import EpochMs, QueueId, QueueOffset
from trovemq_proto.records.dead_letter_reason import cut, reason_of
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.topics.names import DEAD_LETTER_PREFIX, RETRY_PREFIX


class Reason(StrEnum):
    """The names are stable: they are part of the protocol and of JSON output."""

    ACKNOWLEDGED = "acknowledged"
    CONSUMED = "consumed"  # below the group's offset, without an event
    DEAD = "dead"
    FILTERED_OUT = "filtered-out"
    SKIPPED = "skipped"  # the group began after it, or was reset to after it
    DROPPED = "dropped"
    IN_FLIGHT = "in-flight"
    RETURNED = "returned"
    READY = "ready"
    LOCKED = "locked"
    NOT_REACHED = "not-reached"
    NO_MEMBER = "no-member"
    DELAYED = "delayed"
    RECALLED = "recalled"
    IN_TRANSACTION = "in-transaction"
    ROLLED_BACK = "rolled-back"
    GIVEN_UP = "given-up"
    GONE = "gone"


CONSUMED_REASONS: Final = frozenset(
    {Reason.ACKNOWLEDGED, Reason.CONSUMED, Reason.FILTERED_OUT, Reason.SKIPPED, Reason.DROPPED}
)
"""The group has finished the message without a failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumptionStatus:
    """`until_ms`: when the reason expires, or when the group finished the message; `ahead`: the
    number of messages before it; `blocked_by`: the queue offset of the message that locks its message
    group; `online`: members of the group that are connected, `subscribed`: those of them that subscribe
    the topic."""

    group: str
    reason: Reason
    topic: str
    queue_id: QueueId
    queue_offset: QueueOffset
    until_ms: EpochMs = EpochMs(0)
    attempt: int = 0
    client_id: str = ""
    ahead: int = 0
    ahead_estimated: bool = False
    blocked_by: int = -1
    committed: int = -1
    next_offset: int = -1
    online: int = 0
    subscribed: int = 0
    filter: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Members:
    """The connected members of a group, and its last subscription of one topic (even if no member is
    connected). Without filters the subscription is unknown, or cannot be parsed."""

    online: int = 0
    subscribed: int = 0
    expression: str = ""
    filters: Sequence[Filter] = ()


MembersOf = Callable[[str, str], Members]


@dataclass(frozen=True, slots=True)
class _Case:
    """One group and its known state."""

    group: str
    members: Members
    tracked: TrackedMessage
    last_events: Mapping[tuple[str, RecordPosition], LastEvent] = field(repr=False)


class ConsumptionDiagnosis:
    """Finds the status of messages in groups at one time."""

    def __init__(
        self, store: MessageStore, model: ConsumerState, members_of: MembersOf, now_ms: EpochMs
    ) -> None:
        self._store = store
        self._model = model
        self._members_of = members_of
        self._now_ms = now_ms

    def status(
        self, tracked: TrackedMessage, group: str, last_events: Mapping[tuple[str, RecordPosition], LastEvent]
    ) -> Generator[None, None, ConsumptionStatus]:
        """The status of the message in the group. `last_events`: the last event of (group, place). Yields
        between steps of work."""
        case = _Case(group, self._members_of(group, tracked.topic), tracked, last_events)
        copy = tracked.consumable
        if copy is None:
            found = yield from self._unconsumable(case)
        else:
            found = yield from self._at(case, copy)
        members = case.members
        return replace(found, online=members.online, subscribed=members.subscribed, filter=members.expression)

    # --- messages that cannot be delivered --------------------------------------------------------------
    def _unconsumable(self, case: _Case) -> Generator[None, None, ConsumptionStatus]:
        tracked = case.tracked
        own = [copy for copy in tracked.copies if copy.group == case.group]
        if own:  # the message itself is no longer in the log, the group's copy is
            base = _of(case, Reason.GONE, own[-1], detail="the group's copy is no longer in the log")
            return (yield from self._settled(case, own[0], base, after_offset=-1))
        recall = tracked.newest(CopyRole.RECALL)
        delayed = next((copy for copy in reversed(tracked.copies) if _waits_for_all(copy)), None)
        half = tracked.newest(CopyRole.HALF)
        waiting = self._waiting(case, delayed) if delayed is not None else None
        if waiting is not None:
            return waiting
        if recall is not None:
            return _of(case, Reason.RECALLED, recall, until_ms=recall.store_ms)
        if delayed is not None:
            detail = "it is no longer pending, and no delivered copy is in the log"
            return _of(case, Reason.GONE, delayed, detail=detail)
        if half is not None:
            return self._transaction(case, half)
        return _of(case, Reason.GONE, tracked.copies[-1], detail="the message itself is no longer in the log")

    def _waiting(self, case: _Case, copy: Copy) -> ConsumptionStatus | None:
        deliver_ms = self._model.timers.status_of(copy.topic, copy.queue_id, copy.queue_offset)
        return None if deliver_ms is None else _of(case, Reason.DELAYED, copy, until_ms=deliver_ms)

    def _transaction(self, case: _Case, half: Copy) -> ConsumptionStatus:
        given_up = case.tracked.newest(CopyRole.GIVEN_UP)
        if given_up is not None:
            return _of(case, Reason.GIVEN_UP, given_up, until_ms=given_up.store_ms)
        open_half = self._model.transactions.status_of(half.queue_offset)
        if open_half is None:
            return _of(case, Reason.ROLLED_BACK, half)
        detail = f"the transaction is open; its producer was asked {open_half.checks} times"
        return _of(case, Reason.IN_TRANSACTION, half, detail=detail)

    # --- messages in a topic that groups receive ----------------------------------------------------------
    def _at(self, case: _Case, copy: Copy) -> Generator[None, None, ConsumptionStatus]:
        place = place_of(copy)
        standing = self._model.delivery.status_of(
            case.group,
            *place[:3],
            message_group=copy.message_group,
            priority=copy.priority,
            now_ms=self._now_ms,
        )
        if standing is None:
            return (yield from self._unserved(case, copy))
        base = _of(
            case, Reason.CONSUMED, copy, committed=standing.committed, next_offset=standing.next_offset
        )
        if standing.phase is MessagePhase.OPEN:
            return self._open(case, base, standing, case.last_events.get((case.group, place)))
        if standing.phase is MessagePhase.HELD:
            return self._ready(case, base, standing, 0)
        if standing.phase is MessagePhase.NEW:
            return (yield from self._new(case, copy, base, standing.next_offset, standing))
        return (yield from self._settled(case, copy, base))

    def _open(
        self, case: _Case, base: ConsumptionStatus, standing: MessageStatus, last: LastEvent | None
    ) -> ConsumptionStatus:
        lease = standing.lease
        assert lease is not None, "an open message has a lease"
        assert lease.over or standing.lock is None, "a message in flight blocks others, and is not blocked"
        base = replace(base, attempt=lease.attempt, client_id=lease.client_id, until_ms=lease.until_ms)
        if lease.over:
            return self._ready(case, base, standing, lease.attempt)
        if last is not None and last.returned and last.lease == lease.number:
            return replace(base, reason=Reason.RETURNED)
        detail = "the broker renews it while its client is alive" if lease.renewed else ""
        return replace(base, reason=Reason.IN_FLIGHT, detail=detail)

    def _ready(
        self, case: _Case, base: ConsumptionStatus, standing: MessageStatus, attempt: int
    ) -> ConsumptionStatus:
        """The message may be delivered by the next receive, unless its message group is locked or the group
        has no member."""
        base = replace(base, attempt=attempt)
        if standing.lock is not None:
            return _locked(base, standing.lock)
        if not case.members.subscribed:
            return replace(base, reason=Reason.NO_MEMBER, detail=_who_is_there(case))
        return replace(base, reason=Reason.READY)

    def _new(
        self,
        case: _Case,
        copy: Copy,
        base: ConsumptionStatus,
        next_offset: int,
        standing: MessageStatus | None,
    ) -> Generator[None, None, ConsumptionStatus]:
        filters = case.members.filters if copy.role is not CopyRole.RETRY else ()
        if filters and not any(one.takes_all or one.matches(copy.properties) for one in filters):
            return replace(base, reason=Reason.FILTERED_OUT, detail="not examined yet")
        if standing is not None and standing.lock is not None:
            return _locked(base, standing.lock)
        queue = self._store.consume_queues.get(copy.topic, copy.queue_id)
        if standing is not None and standing.ahead is not None:
            base = replace(base, ahead=standing.ahead, ahead_estimated=bool(filters))
        elif queue is not None:
            ahead, estimated = yield from messages_between(
                self._store, queue, next_offset, copy.queue_offset, filters
            )
            base = replace(base, ahead=ahead, ahead_estimated=estimated)
        if not case.members.subscribed and (standing is not None or case.members.expression):
            return replace(base, reason=Reason.NO_MEMBER, detail=_who_is_there(case))
        detail = "" if case.members.subscribed else "no member is connected; who pulls by offset is not seen"
        return replace(base, reason=Reason.NOT_REACHED, detail=detail)

    def _unserved(self, case: _Case, copy: Copy) -> Generator[None, None, ConsumptionStatus]:
        """The group has not received from that queue: only its stored offset shows its position."""
        stored = self._store.offsets.get(case.group, copy.topic, copy.queue_id)
        base = _of(case, Reason.CONSUMED, copy, committed=-1 if stored is None else stored)
        if stored is not None and copy.queue_offset < stored:
            return (yield from self._settled(case, copy, base))
        return (yield from self._new(case, copy, base, stored or 0, None))

    # --- messages that the group has settled --------------------------------------------------------------
    def _settled(
        self, case: _Case, copy: Copy, base: ConsumptionStatus, after_offset: int | None = None
    ) -> Generator[None, None, ConsumptionStatus]:
        """The result in the retry topic or as a dead letter; else that of the last event."""
        after_offset = copy.physical_offset if after_offset is None else after_offset
        dead = _dead_letter(case, after_offset)
        retry = _newest(case, after_offset, CopyRole.RETRY)
        waiting = _newest(case, after_offset, CopyRole.DELAYED)
        if waiting is not None and (status := self._waiting(case, waiting)) is not None:
            return replace(status, detail="as a retry")
        if retry is not None and (dead is None or dead.physical_offset < retry.physical_offset):
            return (yield from self._at(case, retry))
        last = case.last_events.get((case.group, place_of(copy)))
        if dead is not None and (last is None or last.result in (None, *_LEAD_TO_DEATH)):
            why, attempt = cut(str(reason_of(dead.properties)), REASON_SIZE_MAX), dead.reconsume_times
            return _of(case, Reason.DEAD, dead, until_ms=dead.store_ms, attempt=attempt, detail=why)
        if last is None or last.result not in _REASON_OF_RESULT:
            if base.reason is Reason.GONE:
                return base
            return replace(base, detail="the group's offset is after it; no event says when it passed")
        return replace(
            base,
            reason=_REASON_OF_RESULT[last.result],
            until_ms=last.result_ms,
            attempt=last.attempt,
            client_id=last.client_id,
        )


_LEAD_TO_DEATH: Final = (TrackEventKind.DEAD_LETTERED, TrackEventKind.RETRIED)
_REASON_OF_RESULT: Final[dict[TrackEventKind | None, Reason]] = {
    TrackEventKind.ACKNOWLEDGED: Reason.ACKNOWLEDGED,
    TrackEventKind.DEAD_LETTERED: Reason.DEAD,
    TrackEventKind.FILTERED: Reason.FILTERED_OUT,
    TrackEventKind.STARTED: Reason.SKIPPED,
    TrackEventKind.RESET: Reason.SKIPPED,
    TrackEventKind.DROPPED: Reason.DROPPED,
}


def place_of(copy: Copy) -> RecordPosition:
    return RecordPosition(copy.topic, copy.queue_id, copy.queue_offset)


def _waits_for_all(copy: Copy) -> bool:
    return copy.role is CopyRole.DELAYED and not copy.real_topic.startswith(RETRY_PREFIX)


def _newest(case: _Case, after_offset: int, role: CopyRole) -> Copy | None:
    """The group's newest retry or waiting retry after that physical offset."""
    for copy in reversed(case.tracked.copies):
        is_retry = copy.role is CopyRole.RETRY or copy.real_topic.startswith(RETRY_PREFIX)
        if is_retry and (copy.role, copy.group) == (role, case.group) and copy.physical_offset > after_offset:
            return copy
    return None


def _dead_letter(case: _Case, after_offset: int) -> Copy | None:
    name = DEAD_LETTER_PREFIX + case.group
    for copy in reversed(case.tracked.copies):
        if copy.role is CopyRole.DEAD_LETTER and copy.topic == name and copy.physical_offset > after_offset:
            return copy
    return None


def _of(case: _Case, reason: Reason, copy: Copy, **figures: int | str) -> ConsumptionStatus:
    base = ConsumptionStatus(
        group=case.group,
        reason=reason,
        topic=copy.topic,
        queue_id=copy.queue_id,
        queue_offset=copy.queue_offset,
    )
    return replace(base, **figures)  # type: ignore[arg-type]  # each figure has its field's type


def _locked(base: ConsumptionStatus, lock: LeaseView) -> ConsumptionStatus:
    return replace(
        base,
        reason=Reason.LOCKED,
        until_ms=lock.until_ms,
        client_id=lock.client_id,
        blocked_by=lock.offset,
        detail=f"offset {lock.offset} of its message group is in flight",
    )


def _who_is_there(case: _Case) -> str:
    if case.members.online:
        who = "1 member is" if case.members.online == 1 else f"{case.members.online} members are"
        return f"{who} connected, and none subscribes to {case.tracked.topic}"
    return "no member is connected"
