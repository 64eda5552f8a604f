"""The ends of deliveries: acknowledgements, changes of the invisible time, dead letters, releases.

| outcome        | the messages                                        | their lease                    |
|----------------|-----------------------------------------------------|--------------------------------|
| `Consumed`     | are not delivered again                             | ends                           |
| `Invisible`    | are delivered again after a time                    | is replaced by one for each    |
| `DeadLettered` | are copied to `%DLQ%group`, and not delivered again | ends                           |
| `Released`     | are delivered again soon                            | ends after `released_after_ms` |
| `Confirmed`    | have reached the client                             | is renewed                     |

Invariants
- Whatever a caller has to name deliveries (lease_resolvers.py), one function ends them, that of settle().
- A dead letter's copy is in the log before the message counts as consumed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import ClassVar, Final, TypeAlias

from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.groups.delivery.context import Context
from trovemq_broker.groups.delivery.dead_letters import copy_open_message
from trovemq_broker.groups.delivery.group_topic import GroupTopic
from trovemq_broker.groups.delivery.group_topics import GroupTopicTable
from trovemq_broker.groups.delivery.lease_resolvers import (
    GrantedLease,
    Handles,
    Leases,
    NamedRun,
    Refusals,
    check_name,
)
from trovemq_broker.groups.delivery.leases import Lease
from trovemq_broker.groups.delivery.prepared import Acknowledgement, PreparedAcknowledgement
from trovemq_broker.groups.delivery.queue_state import QueueState
from trovemq_broker.groups.delivery.renewals import Renewed
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs
from trovemq_proto.records.dead_letter_reason import EXPLICIT, DeadLetterReason
from trovemq_store.events.codec import Event, EventKind
from trovemq_store.events.receipt_handle import encode_handle, handle_head, illegal_handle

OnSettled = Callable[[EventKind, QueueState, range], None]
"""Called for messages that are acknowledged, become dead letters, or get another invisible time."""
RENEW_BEFORE_MS: Final = 10_000
"""A renewed lease is extended when it would end within this time."""
CONFIRMED_MS: Final = 2_000
"""The time from the confirmation of a message to the first renewal of its lease."""


class Results:
    """The results of one settle(), by the places of the messages. A message without an entry is settled."""

    __slots__ = ("attempts_remaining", "handles", "refused")

    def __init__(self) -> None:
        self.refused: Refusals = {}
        """Why a message has not changed: RECEIPT_HANDLE_ILLEGAL, or an error of the dead letter's append."""
        self.handles: dict[int, str] = {}
        """The new handle of a message with another invisible time; its old one is void."""
        self.attempts_remaining = 0
        """How many messages were delivered less often than attempts_min, and have not changed."""

    def require(self, place: int = 0) -> None:
        """Raises the refusal of that message, if there is one."""
        if place in self.refused:
            raise self.refused[place]


OpenRun: TypeAlias = tuple[GroupTopic, QueueState, Lease | None, range, int]
"""Adjacent messages that are open under one lease (None: one message, which is consumed already): their group
and topic, queue, lease, offsets, and the place of the first."""


class Outcome:
    """The end of deliveries. `alone`: they are settled one by one. `open_only`: those that are
    consumed already are left out, whatever their names are."""

    alone: ClassVar[bool] = False
    open_only: ClassVar[bool] = False

    def check(self, engine: Settling) -> None:
        """Raises TroveError if no message can have this outcome now."""

    def apply(self, engine: Settling, run: OpenRun, now_ms: EpochMs, results: Results) -> None:
        """Settles the messages of the run, which is valid."""
        raise NotImplementedError


class Consumed(Outcome):
    """`kind`: the event that says so. `recorded`: it is in the log already."""

    def __init__(self, kind: EventKind, *, recorded: bool = False) -> None:
        self._kind = kind
        self._recorded = recorded

    def apply(self, engine: Settling, run: OpenRun, now_ms: EpochMs, results: Results) -> None:
        pair, state, lease, offsets, _ = run
        if lease is not None:
            engine.consume(pair, state, lease, offsets, self._kind)
            if not self._recorded:
                engine.context.add_settled(self._kind, state, lease, offsets, now_ms)


class Invisible(Outcome):
    """The messages are visible again after invisible_ms. `suspend`: the delivery does not count as an
    attempt; `extend`: the consumer keeps them. A message that is consumed is refused."""

    alone = True

    def __init__(self, invisible_ms: int, *, suspend: bool = False, extend: bool = False) -> None:
        self._invisible_ms = invisible_ms
        self._suspend = suspend
        self._extend = extend

    def check(self, engine: Settling) -> None:
        """TroveError INVISIBLE_DURATION_ILLEGAL, LIMIT_EXCEEDED."""
        engine.check_invisible_time(self._invisible_ms)

    def apply(self, engine: Settling, run: OpenRun, now_ms: EpochMs, results: Results) -> None:
        pair, state, before, offsets, place = run
        if before is None:
            results.refused[place] = illegal_handle("is of a message that is consumed")
            return
        lease = Lease(
            state.take_lease_number(),
            max(0, before.attempt - self._suspend),
            offsets.start,
            offsets.stop,
            EpochMs(now_ms + self._invisible_ms),
            before.received_ms,
            before.client_id,
            renewed=False,
            returned=not self._extend,
        )
        engine.replace_lease(pair, state, lease, now_ms)
        head = handle_head(state.kind, state.queue_id, lease.number, lease.until_ms, False)
        results.handles[place] = encode_handle(pair.seed, head, offsets.start)


_EXPLICIT: Final = DeadLetterReason(EXPLICIT)


class DeadLettered(Outcome):
    """The messages are copied to the group's dead-letter topic if they were delivered at least attempts_min
    times. A copy that is refused refuses its message, which stays as it is."""

    alone = True

    def __init__(self, attempts_min: int = 0, reason: DeadLetterReason = _EXPLICIT) -> None:
        self._attempts_min = attempts_min
        self._reason = reason

    def apply(self, engine: Settling, run: OpenRun, now_ms: EpochMs, results: Results) -> None:
        pair, state, lease, offsets, place = run
        if lease is None:
            return
        if lease.attempt < self._attempts_min:
            results.attempts_remaining += 1
            return
        try:
            copy_open_message(engine.context, pair, state, lease, offsets.start, self._reason, now_ms)
        except TroveError as error:
            results.refused[place] = error
            return
        engine.consume(pair, state, lease, offsets, EventKind.DEAD_LETTERED)
        engine.context.add_settled(EventKind.DEAD_LETTERED, state, lease, offsets, now_ms)


class Released(Outcome):
    """The leases of the messages end after released_after_ms; until then the messages can be settled. The
    delivery counts as an attempt only if `counted`."""

    open_only = True

    def __init__(self, *, counted: bool = False) -> None:
        """For one settle()."""
        self._counted = counted
        self._leases: set[Lease] = set()

    def apply(self, engine: Settling, run: OpenRun, now_ms: EpochMs, results: Results) -> None:
        pair, state, lease, _, _ = run
        if lease is None or lease in self._leases:
            return
        self._leases.add(lease)
        if not self._counted:
            lease.attempt, lease.attempt_id = max(0, lease.attempt - 1), ""
        engine.release(Renewed(pair, state, lease), now_ms, now_ms)


class Confirmed(Outcome):
    """The client has received the messages: their leases are renewed from now on.

    No event records it before the first renewal: most messages are settled by then, and after a crash the
    others are delivered again when their short lease ends.
    """

    open_only = True

    def apply(self, engine: Settling, run: OpenRun, now_ms: EpochMs, results: Results) -> None:
        pair, state, lease, _, _ = run
        if lease is None or lease.renewed:
            return
        lease.renewed, lease.until_ms = True, EpochMs(now_ms + RENEW_BEFORE_MS + CONFIRMED_MS)
        engine.context.note_lease(pair, state, lease)


ACKNOWLEDGED: Final = Consumed(EventKind.ACKNOWLEDGED)
COMMITTED: Final = Consumed(EventKind.ACKNOWLEDGED, recorded=True)
"""Acknowledged by an atomic transaction, whose record has the events."""
COPIED: Final = Consumed(EventKind.DEAD_LETTERED)
"""Dead letters whose copies are in the log."""
CONFIRMED: Final = Confirmed()


class Settling:
    """The part of the delivery engine that settles messages."""

    def __init__(self, context: Context, group_topics: GroupTopicTable, settings: ConsumerSettings) -> None:
        self.context = context
        self.group_topics = group_topics
        self._settings = settings
        self.on_settled: OnSettled | None = None

    def gathering(self) -> AbstractContextManager[None]:
        """A block without a pause: its acknowledgements share events, which are written at its end."""
        return self.context.gathering

    def settle(self, group: str, topic: str, leases: Leases, outcome: Outcome, now_ms: EpochMs) -> Results:
        """Ends deliveries of the group, or changes how long they last. To repeat a call while the names are
        valid changes nothing more.

        Raises TroveError RECEIPT_HANDLE_ILLEGAL (the receipt of a range is not of this group and topic),
        INVISIBLE_DURATION_ILLEGAL, LIMIT_EXCEEDED (too many events wait for the disk): then nothing has
        changed.
        """
        outcome.check(self)
        lease_now_ms = self.context.lease_time.at(now_ms)
        return self._settle(self.group_topics.get(group, topic), leases, outcome, now_ms, lease_now_ms)

    def settle_granted(
        self, pair: GroupTopic, state: QueueState, offsets: range, outcome: Outcome, now_ms: EpochMs
    ) -> None:
        """settle() of adjacent messages that are open under one lease, as the engine has checked. Their topic
        may be deleted: a classic retry topic, which is of all topics of its group, still has them."""
        self._settle(pair, GrantedLease(state, offsets), outcome, now_ms, now_ms)

    def _settle(
        self,
        pair: GroupTopic | None,
        leases: Leases,
        outcome: Outcome,
        now_ms: EpochMs,
        lease_now_ms: EpochMs,
    ) -> Results:
        results = Results()
        for run in leases.runs(pair, results.refused):
            self._settle_run(pair, run, outcome, now_ms, lease_now_ms, results)
        return results

    def _settle_run(
        self,
        pair: GroupTopic | None,
        run: NamedRun,
        outcome: Outcome,
        now_ms: EpochMs,
        lease_now_ms: EpochMs,
        results: Results,
    ) -> None:
        assert pair is not None, "without a state of the group no message is named"
        state, _, offsets, places, _ = run
        assert len(places) == len(offsets), "each message has a place"
        lease_of, loose, alone = state.open.get, state.open.loose.get, outcome.alone
        begin, end = offsets.start, offsets.stop
        at = begin
        while at < end:
            first, lease = at, lease_of(at)
            at += 1
            if lease is None and outcome.open_only:
                continue
            try:
                check_name(self.context, run, first, lease, lease_now_ms)
            except TroveError as error:
                results.refused[places[first - begin]] = error
                continue
            while at < end and not alone and lease is not None and loose(at) is lease:
                at += 1
            outcome.apply(
                self, (pair, state, lease, range(first, at), places[first - begin]), now_ms, results
            )

    # --- for outcomes ----------------------------------------------------------------------------------
    def check_invisible_time(self, invisible_ms: int) -> None:
        """TroveError INVISIBLE_DURATION_ILLEGAL, LIMIT_EXCEEDED."""
        if not 0 <= invisible_ms <= self._settings.invisible_max_ms:
            raise illegal_duration(invisible_ms, 0, self._settings.invisible_max_ms)
        self.context.events.check_space()

    def consume(
        self, pair: GroupTopic, state: QueueState, lease: Lease, offsets: range, kind: EventKind
    ) -> None:
        """Marks messages that are open under the lease as consumed; adds no event."""
        if self.on_settled is not None:
            self.on_settled(kind, state, offsets)
        begin = state.committed
        moved = state.settle_run(lease, offsets)
        if moved:
            gathering = self.context.gathering
            if gathering.is_open:
                gathering.note_moved(state)
            else:
                self.context.commit(state)
        window_was_full = state.next_offset - begin >= self._settings.ordered_window_max
        if (
            state.held
            or (pair.keyed and state.blocked)
            or len(state.open) + len(offsets) >= self._settings.in_flight_max
            or (pair.keyed and moved and window_was_full)
        ):
            self.context.wake(pair)  # others may have waited for that

    def replace_lease(self, pair: GroupTopic, state: QueueState, lease: Lease, now_ms: EpochMs) -> None:
        """The messages of the lease, which is new, are open under it from now on."""
        offsets = range(lease.first, lease.end)
        state.open_under(lease, offsets)
        self.context.note_lease(pair, state, lease)
        self.record_changed(state, lease, now_ms)
        if self.on_settled is not None:
            self.on_settled(EventKind.CHANGED, state, offsets)

    def release(self, entry: Renewed, now_ms: EpochMs, gone_ms: EpochMs) -> None:
        """The lease ends released_after_ms after gone_ms, and is not renewed."""
        entry.lease.renewed = False
        end_ms = EpochMs(max(now_ms, gone_ms + self._settings.released_after_ms))
        entry.lease.until_ms = min(entry.lease.until_ms, end_ms)
        self.context.note_lease(entry.pair, entry.state, entry.lease)
        self.record_changed(entry.state, entry.lease, now_ms)

    def record_changed(self, state: QueueState, lease: Lease, now_ms: EpochMs) -> None:
        """Adds the event of a lease that is new or has another end."""
        self.context.add(
            Event(
                EventKind.CHANGED,
                now_ms,
                state.group,
                state.topic,
                state.queue_id,
                lease.first,
                lease.end - lease.first,
                lease.until_ms,
                lease.attempt,
                lease.number,
                lease.client_id,
                lease.renewed,
            )
        )

    # --- acknowledgements of an atomic transaction ---------------------------------------------------------
    def prepare_acknowledgements(
        self, acknowledgements: Sequence[Acknowledgement], now_ms: EpochMs
    ) -> list[PreparedAcknowledgement]:
        """Prepares consume_prepared(); nothing has changed yet. Left out are messages that were consumed
        already by a handle that would still be valid, and handles that are named twice.

        Raises TroveError RECEIPT_HANDLE_ILLEGAL, with the handle's place in `index`; then none of them
        counts.
        """
        prepared: dict[tuple[int, int], PreparedAcknowledgement] = {}
        for index, (group, topic, handle) in enumerate(acknowledgements):
            try:
                found = self._prepared(group, topic, handle, now_ms)
            except TroveError as error:
                text = f"acknowledgement {index} (group {group[:80]}, topic {topic[:80]}): {error.message}"
                raise TroveError(error.spec, text, **{**error.fields, "index": index}) from error
            if found is not None:
                prepared[id(found.state), found.offset] = found
        return list(prepared.values())

    def _prepared(
        self, group: str, topic: str, handle: str, now_ms: EpochMs
    ) -> PreparedAcknowledgement | None:
        """None if the message is consumed already. TroveError RECEIPT_HANDLE_ILLEGAL."""
        refused: Refusals = {}
        pair, found = self.group_topics.get(group, topic), None
        for run in Handles((handle.encode(),)).runs(pair, refused):
            assert pair is not None, "without a state of the group no message is named"
            state, _, offsets, _, _ = run
            assert len(offsets) == 1, "one handle names one message"
            lease = state.open.get(offsets.start)
            check_name(self.context, run, offsets.start, lease, self.context.lease_time.at(now_ms))
            if lease is not None:
                found = PreparedAcknowledgement(pair, state, lease, offsets.start)
        for error in refused.values():
            raise error
        return found

    def consume_prepared(self, prepared: Sequence[PreparedAcknowledgement]) -> None:
        """Marks the prepared messages as consumed, when the events of their acknowledgements are in the log.
        Must be called before anything else changes the groups."""
        for pair, state, _, offset in prepared:
            self.settle_granted(pair, state, range(offset, offset + 1), COMMITTED, EpochMs(0))


def illegal_duration(invisible_ms: int, low: int, high: int) -> TroveError:
    return TroveError(
        errors.INVISIBLE_DURATION_ILLEGAL,
        f"an invisible duration of {invisible_ms} ms is not {low} to {high} ms",
        field="invisible_duration",
    )
