"""The ends of deliveries as they were before settle(): each name of a delivery had its own function.

Tests compare settle() with it (test_settling.py). It changes the same state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from tests.support.oracles.receipt_handles import read_handle
from tests.support.settling import RefusedOffset
from trovemq_broker.groups.delivery.dead_letters import copy_open_message
from trovemq_broker.groups.delivery.delivery import Delivery
from trovemq_broker.groups.delivery.group_topic import GroupTopic
from trovemq_broker.groups.delivery.leases import Lease
from trovemq_broker.groups.delivery.priority_receiver import was_skipped
from trovemq_broker.groups.delivery.queue_state import QueueState
from trovemq_broker.groups.delivery.renewals import Renewed
from trovemq_broker.groups.delivery.settlements import CONFIRMED_MS, RENEW_BEFORE_MS, illegal_duration
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs
from trovemq_proto.records.dead_letter_reason import DeadLetterReason
from trovemq_store.events.codec import Event, EventKind
from trovemq_store.events.receipt_handle import HandleHead, encode_handle, handle_head, illegal_handle


class OldSettling:
    """Settles messages of this engine."""

    def __init__(self, delivery: Delivery) -> None:
        self.context = delivery.context
        self.group_topics = delivery.group_topics
        self._settings = delivery._settings
        self.on_settled = delivery.on_settled

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
        """acknowledge of several messages: None, or the error, for each. Consecutive messages under
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
                    and head == last_head
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
        """acknowledge of messages under one receipt; returns the refused ones. `client_id`: the
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
        """change_invisible of messages under one receipt; returns the refused ones. The others have no
        valid handle any more. `client_id`: of acknowledge_run. Raises the TroveError of change_invisible, and
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
        state.open_under(lease, range(offset, offset + 1))
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
        copy_open_message(self.context, pair, state, lease, offset, DeadLetterReason("explicit"), now_ms)
        self._settle(pair, state, EventKind.DEAD_LETTERED, lease, range(offset, offset + 1), now_ms)
        return True

    def _find(self, group: str, topic: str, handle: str) -> tuple[GroupTopic, QueueState, HandleHead, int]:
        pair = self.group_topics.get(group, topic) or self._pair(group, topic)
        head, offset = read_handle(pair.seed, handle)
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
        """_settle without its event."""
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

    def acknowledge_mixed(
        self, group: str, topic: str, receipt_handles: Sequence[bytes], now_ms: EpochMs
    ) -> list[bool]:
        """acknowledge of messages in flight, whose handles may come in any order. Returns whether each
        is consumed now: with the others nothing was done, as they are consumed already, packed, or refused.
        """
        done = [False] * len(receipt_handles)
        pair = self.group_topics.get(group, topic)
        if pair is None:
            return done
        leases = pair.handles.read_mixed(receipt_handles)
        left = _under_several_leases(leases)
        for head, places in leases:
            state = pair.sources.get(head[:2])
            if state is not None:
                own = sorted(place for place in places if not left or (*head[:2], place[0]) not in left)
                self._acknowledge_lease(pair, state, head, own, done, now_ms)
        return done

    def _acknowledge_lease(
        self,
        pair: GroupTopic,
        state: QueueState,
        head: HandleHead,
        places: list[tuple[int, int]],
        done: list[bool],
        now_ms: EpochMs,
    ) -> None:
        """`places`: (queue offset, place in `done`) of each message, sorted."""
        loose = state.open.loose
        lease_now_ms = self.context.lease_time.at(now_ms)
        at, count = 0, len(places)
        while at < count:
            first, place = places[at]
            lease = loose.get(first)
            at += 1
            if (
                lease is None
                or lease.number != head.lease
                or lease.granted_until_ms != head.granted_until_ms
                or lease.over(lease_now_ms)
            ):
                continue
            done[place] = True
            end = first + 1
            while at < count and places[at][0] == end and loose.get(end) is lease:
                done[places[at][1]] = True
                end += 1
                at += 1
            self._settle(pair, state, EventKind.ACKNOWLEDGED, lease, range(first, end), now_ms)

    def confirm_run(self, group: str, topic: str, receipt: str, offsets: range, now_ms: EpochMs) -> None:
        """The client has received these messages: their leases are renewed from now on. Settled messages and
        void receipts are skipped. No event records it before the first renewal: most messages are settled by
        then, and after a crash the others are delivered again when their short lease ends."""
        for pair, state, lease in self._leases_of(group, topic, receipt, offsets, now_ms):
            if not lease.renewed:
                lease.renewed, lease.until_ms = True, now_ms + RENEW_BEFORE_MS + CONFIRMED_MS
                self.context.note_lease(pair, state, lease)

    def release_run(
        self, group: str, topic: str, receipt: str, offsets: range, now_ms: EpochMs, *, counted: bool
    ) -> None:
        """release_handles for messages under one receipt."""
        self._release_leases(self._leases_of(group, topic, receipt, offsets, now_ms), now_ms, counted)

    def _leases_of(
        self, group: str, topic: str, receipt: str, offsets: range, now_ms: EpochMs
    ) -> list[Renewed]:
        """The leases of the receipt under which these messages are open; none if the receipt is void."""
        try:
            pair, state, head = self._find_run(group, topic, receipt)
        except TroveError:
            return []
        leases: dict[int, Lease] = {}
        for offset in offsets:
            lease = state.open.get(offset)
            if (
                lease is not None
                and lease.number == head.lease
                and lease.granted_until_ms == head.granted_until_ms  # a recreated topic has the same numbers
            ):
                leases[id(lease)] = lease
        now_ms = self.context.lease_time.at(now_ms)
        return [Renewed(pair, state, lease) for lease in leases.values() if not lease.over(now_ms)]

    def release_handles(
        self,
        group: str,
        topic: str,
        receipt_handles: Sequence[str],
        now_ms: EpochMs,
        *,
        counted: bool = False,
    ) -> None:
        """Ends the leases of these messages after released_after_ms; until then their handles are valid. The
        delivery does not count as an attempt unless `counted`. Settled messages and void handles are
        skipped."""
        leases: dict[int, Renewed] = {}
        for handle in receipt_handles:
            try:
                pair, state, head, offset = self._find(group, topic, handle)
                lease = self._open_lease(state, head, offset, now_ms)
            except TroveError:
                continue
            if lease is not None:
                leases[id(lease)] = Renewed(pair, state, lease)
        self._release_leases(leases.values(), now_ms, counted)

    def _release_leases(self, entries: Iterable[Renewed], now_ms: EpochMs, counted: bool) -> None:
        for entry in entries:
            if not counted:
                entry.lease.attempt, entry.lease.attempt_id = max(0, entry.lease.attempt - 1), ""
            self._release(entry, now_ms, now_ms)

    def _release(self, entry: Renewed, now_ms: EpochMs, gone_ms: EpochMs) -> None:
        entry.lease.renewed = False
        end_ms = max(now_ms, gone_ms + self._settings.released_after_ms)
        entry.lease.until_ms = min(entry.lease.until_ms, end_ms)
        self.context.note_lease(entry.pair, entry.state, entry.lease)
        self._record_changed(entry.state, entry.lease, now_ms)


def _under_several_leases(leases: Sequence[tuple[HandleHead, list[tuple[int, int]]]]) -> set[tuple[int, ...]]:
    """(kind, queue id, offset) of the messages that have handles of several leases: which of these counts is
    decided one by one, in the order in which they came."""
    if len(leases) < 2:
        return set()
    named = Counter((*head[:2], offset) for head, places in leases for offset, _ in places)
    return {message for message, count in named.items() if count > 1}


def _state_of(pair: GroupTopic, head: HandleHead) -> QueueState:
    state = pair.sources.get(head[:2])
    if state is None:
        raise illegal_handle("is of a queue that does not exist")
    return state
