"""The ends of deliveries: acknowledgements, changes of the invisible time, dead letters.

A receipt handle names one delivered message. Consecutive messages of one receive can be named together: by
the receipt that their handles share, and by their offsets. Both ways change the same state and write the same
events.

Invariant: a handle or receipt changes a message only while the message is open under the lease that it names.
A lease that has ended counts only for the member that had it, by a receipt, until the message is delivered
again: a member whose program stood still has done its work, and can say so only afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.groups.delivery.context import Context
from trovemq_broker.groups.delivery.dead_letters import copy_open_message
from trovemq_broker.groups.delivery.group_topic import GroupTopic
from trovemq_broker.groups.delivery.group_topics import GroupTopicTable
from trovemq_broker.groups.delivery.leases import Lease
from trovemq_broker.groups.delivery.prepared import Acknowledgement, PreparedAcknowledgement
from trovemq_broker.groups.delivery.priority_receiver import was_skipped
from trovemq_broker.groups.delivery.queue_state import QueueState
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs
from trovemq_store.events.codec import Event, EventKind
from trovemq_store.events.receipt_handle import (
    HandleHead,
    encode_handle,
    handle_head,
    illegal_handle,
)

OnSettled = Callable[[EventKind, QueueState, range], None]
"""Called for messages that are acknowledged, become dead letters, or get another invisible time."""


class RefusedOffset(NamedTuple):
    """The message of a run that could not be settled, and why."""

    offset: int
    error: TroveError


class Settling:
    """The part of the delivery engine that settles messages."""

    def __init__(self, context: Context, group_topics: GroupTopicTable, settings: ConsumerSettings) -> None:
        self.context = context
        self.group_topics = group_topics
        self._settings = settings
        self.on_settled: OnSettled | None = None

    def gathering(self) -> AbstractContextManager[None]:
        """A block without a pause, whose acknowledgements share events. Else each call here adds its own."""
        return self.context.gathering

    def acknowledge(self, group: str, topic: str, receipt_handle: str, now_ms: EpochMs) -> None:
        """The message is consumed. To repeat the call while the handle is valid changes nothing.

        TroveError RECEIPT_HANDLE_ILLEGAL.
        """
        pair, state, head, offset = self._find(group, topic, receipt_handle)
        lease = self._open_lease(state, head, offset, now_ms)
        if lease is not None:
            self._settle(pair, state, EventKind.ACKNOWLEDGED, lease, range(offset, offset + 1), now_ms)

    def acknowledge_many(
        self, group: str, topic: str, receipt_handles: Sequence[str], now_ms: EpochMs
    ) -> list[TroveError | None]:
        """As acknowledge(), for several messages: None, or the error, for each. Consecutive messages under
        one lease are handled together."""
        results: list[TroveError | None] = []
        last: tuple[GroupTopic, QueueState, Lease] | None = None
        last_head: HandleHead | None = None
        first = end = 0
        kind = EventKind.ACKNOWLEDGED
        for handle in receipt_handles:
            try:
                pair, state, head, offset = self._find(group, topic, handle)
                if (
                    last is not None
                    and head is last_head
                    and offset == end
                    and state.open.get(end) is last[2]
                ):
                    end += 1
                    results.append(None)
                    continue
                if last is not None:
                    self._settle(*last[:2], kind, last[2], range(first, end), now_ms)
                    last = None
                lease = self._open_lease(state, head, offset, now_ms)
            except TroveError as error:
                results.append(error)
                continue
            results.append(None)
            if lease is not None:
                last, last_head, first, end = (pair, state, lease), head, offset, offset + 1
        if last is not None:
            self._settle(*last[:2], kind, last[2], range(first, end), now_ms)
        return results

    def acknowledge_run(
        self, group: str, topic: str, receipt: str, offsets: range, now_ms: EpochMs, client_id: str = ""
    ) -> list[RefusedOffset]:
        """As acknowledge(), for messages under one receipt; returns the refused ones. `client_id`: the
        member, whose lease may have ended. Raises TroveError RECEIPT_HANDLE_ILLEGAL if the receipt is not of
        this group and topic."""
        pair, state, head = self._find_run(group, topic, receipt)
        refused = []
        at, end = offsets.start, offsets.stop
        while at < end:
            first, at = at, at + 1
            try:
                lease = self._open_lease(state, head, first, now_ms, client_id)
            except TroveError as error:
                refused.append(RefusedOffset(first, error))
                continue
            if lease is None:
                continue
            while at < end and state.open.get(at) is lease:
                at += 1
            self._settle(pair, state, EventKind.ACKNOWLEDGED, lease, range(first, at), now_ms)
        return refused

    def change_invisible(
        self,
        group: str,
        topic: str,
        receipt_handle: str,
        invisible_ms: int,
        now_ms: EpochMs,
        *,
        suspend: bool = False,
    ) -> str:
        """Makes the message visible again after invisible_ms. Returns its new handle; the old one is void.

        `suspend`: this delivery does not count as an attempt. TroveError RECEIPT_HANDLE_ILLEGAL,
        INVISIBLE_DURATION_ILLEGAL, LIMIT_EXCEEDED.
        """
        self._check_change(invisible_ms)
        pair, state, head, offset = self._find(group, topic, receipt_handle)
        before = self._lease_to_change(state, head, offset, now_ms)
        lease = self._change(pair, state, before, offset, now_ms, invisible_ms, suspend=suspend)
        text = handle_head(state.kind, state.queue_id, lease.number, lease.until_ms, False)
        return encode_handle(pair.seed, text, offset)

    def change_run(
        self,
        group: str,
        topic: str,
        receipt: str,
        offsets: range,
        invisible_ms: int,
        now_ms: EpochMs,
        *,
        suspend: bool = False,
        client_id: str = "",
    ) -> list[RefusedOffset]:
        """As change_invisible(), for messages under one receipt; returns the refused ones. The others have no
        valid handle any more. `client_id`: as acknowledge_run(). Raises TroveError as change_invisible(), and
        then nothing has changed."""
        self._check_change(invisible_ms)
        pair, state, head = self._find_run(group, topic, receipt)
        refused = []
        for offset in offsets:
            try:
                before = self._lease_to_change(state, head, offset, now_ms, client_id)
                self._change(pair, state, before, offset, now_ms, invisible_ms, suspend=suspend)
            except TroveError as error:
                refused.append(RefusedOffset(offset, error))
        return refused

    def _check_change(self, invisible_ms: int) -> None:
        if not 0 <= invisible_ms <= self._settings.invisible_max_ms:
            raise illegal_duration(invisible_ms, 0, self._settings.invisible_max_ms)
        self.context.events.check_space()

    def _lease_to_change(
        self, state: QueueState, head: HandleHead, offset: int, now_ms: EpochMs, client_id: str = ""
    ) -> Lease:
        lease = self._open_lease(state, head, offset, now_ms, client_id)
        if lease is None:
            raise illegal_handle("is of a message that is consumed")
        return lease

    def _change(
        self,
        pair: GroupTopic,
        state: QueueState,
        before: Lease,
        offset: int,
        now_ms: EpochMs,
        invisible_ms: int,
        *,
        suspend: bool,
    ) -> Lease:
        """The message's new lease."""
        lease = Lease(
            state.take_lease_number(),
            max(0, before.attempt - suspend),
            offset,
            offset + 1,
            now_ms + invisible_ms,
            before.received_ms,
            before.client_id,
            renewed=False,
        )
        state.hand_out(lease, range(offset, offset + 1))
        self.context.note_lease(pair, state, lease)
        self._record_changed(state, lease, now_ms)
        if self.on_settled is not None:
            self.on_settled(EventKind.CHANGED, state, range(offset, offset + 1))
        return lease

    def _record_changed(self, state: QueueState, lease: Lease, now_ms: EpochMs) -> None:
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

    def dead_letter(
        self, group: str, topic: str, handle: str, now_ms: EpochMs, attempts_min: int = 0
    ) -> bool:
        """Copies the message to `%DLQ%group`; it is then consumed. To repeat the call changes nothing.

        Returns False if it was delivered less often than attempts_min. Raises TroveError
        RECEIPT_HANDLE_ILLEGAL and the errors of an append, and then nothing has changed.
        """
        pair, state, head, offset = self._find(group, topic, handle)
        lease = self._open_lease(state, head, offset, now_ms)
        if lease is None:
            return True
        if lease.attempt < attempts_min:
            return False
        copy_open_message(self.context, pair, state, lease, offset, now_ms)
        self._settle(pair, state, EventKind.DEAD_LETTERED, lease, range(offset, offset + 1), now_ms)
        return True

    def _find(self, group: str, topic: str, handle: str) -> tuple[GroupTopic, QueueState, HandleHead, int]:
        pair = self.group_topics.get(group, topic) or self._pair(group, topic)
        head, offset = pair.handles.read(handle)
        state = pair.sources.get(head[:2]) or _state_of(pair, head)
        return pair, state, head, offset

    def _find_run(self, group: str, topic: str, receipt: str) -> tuple[GroupTopic, QueueState, HandleHead]:
        pair = self._pair(group, topic)
        head = pair.handles.read_receipt(receipt)
        return pair, _state_of(pair, head), head

    def _pair(self, group: str, topic: str) -> GroupTopic:
        pair = self.group_topics.get(group, topic)
        if pair is None:
            raise illegal_handle("is of a group that has received nothing from this topic")
        return pair

    def _open_lease(
        self, state: QueueState, head: HandleHead, offset: int, now_ms: EpochMs, client_id: str = ""
    ) -> Lease | None:
        """The lease of the handle, which may have ended if `client_id` had it. None if the message is
        consumed and the handle would still be valid."""
        lease = state.open.get(offset)
        now_ms = self.context.lease_time.at(now_ms)
        if lease is None:
            if (
                offset >= state.next_offset
                or head.lease <= state.ended_lease
                or offset in state.held
                or (not head.renewed and head.granted_until_ms <= now_ms)
                or was_skipped(self.context, state, offset)  # a crash has lost the lease
            ):
                raise illegal_handle("is not valid any more")
            return None
        if lease.number != head.lease or lease.granted_until_ms != head.granted_until_ms:
            raise illegal_handle("was replaced: the message was received again, or its time was changed")
        if lease.over(now_ms) and (not client_id or lease.client_id != client_id):
            raise illegal_handle("has expired")
        return lease

    def _settle(
        self,
        pair: GroupTopic,
        state: QueueState,
        kind: EventKind,
        lease: Lease,
        offsets: range,
        now_ms: EpochMs,
    ) -> None:
        """Marks messages that are open under the lease as consumed."""
        if self.on_settled is not None:
            self.on_settled(kind, state, offsets)
        self._consume(pair, state, lease, offsets)
        self.context.add_settled(kind, state, lease, offsets, now_ms)

    def _consume(self, pair: GroupTopic, state: QueueState, lease: Lease, offsets: range) -> None:
        """As _settle(), without its event."""
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
                pair, state, head, offset = self._find(group, topic, handle)
                lease = self._open_lease(state, head, offset, now_ms)
            except TroveError as error:
                text = f"acknowledgement {index} (group {group[:80]}, topic {topic[:80]}): {error.message}"
                raise TroveError(error.spec, text, **{**error.fields, "index": index}) from error
            if lease is not None:
                prepared[id(state), offset] = PreparedAcknowledgement(pair, state, lease, offset)
        return list(prepared.values())

    def consume_prepared(self, prepared: Sequence[PreparedAcknowledgement]) -> None:
        """Marks the prepared messages as consumed, when the events of their acknowledgements are in the log.
        Must be called before anything else changes the groups."""
        for pair, state, lease, offset in prepared:
            if self.on_settled is not None:
                self.on_settled(EventKind.ACKNOWLEDGED, state, range(offset, offset + 1))
            self._consume(pair, state, lease, range(offset, offset + 1))


def illegal_duration(invisible_ms: int, low: int, high: int) -> TroveError:
    return TroveError(
        errors.INVISIBLE_DURATION_ILLEGAL,
        f"an invisible duration of {invisible_ms} ms is not {low} to {high} ms",
        field="invisible_duration",
    )


def _state_of(pair: GroupTopic, head: HandleHead) -> QueueState:
    state = pair.sources.get(head[:2])
    if state is None:
        raise illegal_handle("is of a queue that does not exist")
    return state
