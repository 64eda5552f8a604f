"""Delivers messages of one queue under new leases, and records the events.

Invariants
- Events of new messages are in the order of their offsets, and an event says of everything between the last
  one and itself that it is consumed: so HELD and RECEIVED come as the queue is read, ADVANCED at its end.
  Where a queue is received by priority, PASSED says that instead (priority_receiver.py).
- All messages that one receive delivers from one queue have the same lease number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from trovemq_broker.groups.delivery.context import Context
from trovemq_broker.groups.delivery.dead_letters import copy_to_dead_letters, reads_of_copy, reason_of_end
from trovemq_broker.groups.delivery.group_topic import GroupTopic
from trovemq_broker.groups.delivery.leases import Lease
from trovemq_broker.groups.delivery.queue_state import QueueState
from trovemq_broker.groups.delivery.records import property_block_of
from trovemq_broker.groups.delivery.request import DeliveredRun, ReceiveRequest
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, QueueOffset
from trovemq_proto.records import parse_properties
from trovemq_store.events.codec import Event, EventKind
from trovemq_store.events.receipt_handle import encode_receipt, handle_head
from trovemq_store.files.files import ScarceError

PROPERTY_BYTES_OF_READ: Final = 128
"""A property block that is parsed is charged one read for each of this many bytes."""
READS_OF_REDELIVERY: Final = 2
"""The reads that a receive is charged for a message which was open or held."""


class Batch:
    """The messages that one receive has gathered, and its remaining budget: messages, bytes, units and
    reads."""

    __slots__ = (
        "_wanted_first",
        "dead_letters_refused",
        "delivered",
        "failure",
        "reads_remaining",
        "request",
        "space",
        "unfinished",
        "units_remaining",
        "until_ms",
        "wanted",
    )

    def __init__(
        self, request: ReceiveRequest, wanted: int, space: int, units: int, reads: int, until_ms: EpochMs
    ) -> None:
        self.request = request
        self.wanted = self._wanted_first = wanted
        self.space = space  # bytes
        self.units_remaining = units
        self.reads_remaining = reads
        self.until_ms = until_ms
        self.delivered: list[DeliveredRun] = []
        self.dead_letters_refused = False
        """Whether a copy to the dead-letter topic was refused: then no further copy is tried."""
        self.unfinished = False
        """Whether it stopped before the end of a queue, so that there may be more messages."""
        self.failure: ScarceError | None = None
        """The error of the read at which it stopped. The message stays: nothing is known of it."""

    @property
    def full(self) -> bool:
        return self.failure is not None or self.wanted <= 0 or (self.space <= 0 and self.has_messages)

    def passes(self, record: memoryview) -> bool:
        """Whether the request's filter takes the record. Large properties are charged as several reads, so
        that a receive that parses them stops as early as one of many small messages."""
        filter_ = self.request.filter
        if filter_.takes_all:
            return True
        block = property_block_of(record)
        self.reads_remaining -= len(block) // PROPERTY_BYTES_OF_READ
        return filter_.matches(parse_properties(block))

    def is_reserved(self, record: memoryview | None) -> bool:
        """Whether a message that the request's filter does not take is kept for another waiting member."""
        request = self.request
        if not request.others or record is None:
            return False
        block = property_block_of(record)
        self.reads_remaining -= 1 + len(block) // PROPERTY_BYTES_OF_READ
        properties = parse_properties(block)
        for other in request.others:
            if other.takes_all or other.matches(properties):
                request.left.append(other)
                return True
        return False

    @property
    def has_messages(self) -> bool:
        return self.wanted < self._wanted_first


class LeaseWriter:
    """The leases that one receive grants in one queue."""

    def __init__(self, context: Context, pair: GroupTopic, state: QueueState, batch: Batch) -> None:
        self._context = context
        self._pair = pair
        self._state = state
        self._batch = batch
        self._number = 0
        self._first = self._end = self._attempt = 0
        self._records: Sequence[memoryview] = ()
        self._size = 0
        self._held_first = self._held_end = 0
        self._recorded_to = state.next_offset
        self._committed_before = state.committed

    def deliver(self, first: int, attempt: int, records: Sequence[memoryview], size: int) -> None:
        """Delivers adjacent messages, from queue offset `first` on; `size`: the sum of their records' bytes.
        Adjacent calls with the same attempt share a lease and an event."""
        self._record_held()
        if self._records and (
            first != self._end
            or attempt != self._attempt
            or self._first < self._state.next_offset <= first  # an event is of old messages or of new ones
        ):
            self._close_run()
        if self._records:
            self._join(records)
        else:
            self._first, self._attempt, self._records = first, attempt, records
        self._size += size
        self._end = first + len(records)
        self._batch.wanted -= len(records)
        self._batch.space -= size

    def has(self, offset: int) -> bool:
        """Whether the run that is not closed yet has the message: then it is delivered already. (A message
        whose ended lease was changed late is in `ready` twice.)"""
        return bool(self._records) and self._first <= offset < self._end

    def hold(self, offset: int, key: str) -> None:
        """Holds a new message, whose key is `key`: it waits."""
        self._close_run()
        if offset != self._held_end:
            self._record_held()
            self._held_first = offset
        self._held_end = offset + 1
        self._state.hold(offset)
        self._state.keys[offset] = key

    def drop(self, offset: int) -> None:
        """Consumes a message that was open or held without delivering it: it is filtered out or damaged."""
        self._close_run()
        self._state.settle(offset)
        self._record(EventKind.ACKNOWLEDGED, offset)

    def dead_letter(self, offset: int, attempt: int, record: memoryview, *, new: bool) -> bool:
        """Makes a message whose attempts are over a dead letter. False if its copy was refused: then the
        message stays as it is."""
        if self._batch.dead_letters_refused:
            return False
        self._close_run()
        self._record_held()
        self._batch.reads_remaining -= reads_of_copy(record)
        now_ms = self._batch.request.now_ms
        try:
            reason = reason_of_end(self._state, offset)
            copy_to_dead_letters(self._context, self._pair, record, attempt - 1, reason, now_ms)
        except TroveError:
            self._context.dead_letter_failures += 1
            self._batch.dead_letters_refused = True
            return False
        if new:
            self._state.mark_examined(offset + 1)
        else:
            self._state.settle(offset)
        self._record(EventKind.DEAD_LETTERED, offset, attempt - 1)
        self._recorded_to = max(self._recorded_to, offset + 1)
        return True

    def finish(self, examined_to: int | None = None) -> None:
        """Ends the receive from this queue: everything below examined_to was examined (None: nothing after
        the delivered messages). Commits the group's offset if it has moved."""
        self._close_run()
        self._record_held()
        state = self._state
        if examined_to is not None and examined_to > self._recorded_to:
            state.mark_examined(examined_to)
            self._context.add(
                Event(
                    EventKind.ADVANCED,
                    self._batch.request.now_ms,
                    state.group,
                    state.topic,
                    state.queue_id,
                    self._recorded_to,
                    until=examined_to,
                )
            )
        if state.committed != self._committed_before:
            self._context.commit(state)

    def _join(self, records: Sequence[memoryview]) -> None:
        """Adds the records to those of the run that is not closed yet."""
        if not isinstance(self._records, list):
            self._records = list(self._records)
        self._records.extend(records)

    def _close_run(self) -> None:
        if self._records:
            records, size = self._records, self._size
            self._records, self._size = (), 0
            self._lease_run(records, size)

    def _lease_run(self, records: Sequence[memoryview], size: int) -> None:
        state, batch, request = self._state, self._batch, self._batch.request
        if not self._number:
            self._number = state.take_lease_number()
        lease = Lease(
            self._number,
            self._attempt,
            self._first,
            self._end,
            batch.until_ms,
            request.now_ms,
            request.client_id,
            request.renewed and request.confirmed,
            request.attempt_id,
        )
        if self._attempt > 1:
            state.note_redelivered(range(self._first, self._end), self._attempt)
        state.open_under(lease, range(self._first, self._end))
        if self._attempt > 1:
            self._pair.redelivered_count += len(records)
        self._recorded_to = max(self._recorded_to, self._end)
        self._context.add(
            Event(
                EventKind.RECEIVED,
                request.now_ms,
                state.group,
                state.topic,
                state.queue_id,
                self._first,
                len(records),
                batch.until_ms,
                self._attempt,
                self._number,
                request.client_id,
                request.renewed and request.confirmed,
            )
        )
        self._context.note_lease(self._pair, state, lease)
        if request.attempt_id and request.group.orderly:
            self._pair.note_attempt(request.attempt_id, state, lease)
        self._add_to_batch(records, size)

    def _add_to_batch(self, records: Sequence[memoryview], size: int) -> None:
        state, batch = self._state, self._batch
        head = handle_head(state.kind, state.queue_id, self._number, batch.until_ms, batch.request.renewed)
        batch.delivered.append(
            DeliveredRun(
                records,
                size,
                self._pair.topic,
                state.queue_id,
                QueueOffset(self._first),
                self._attempt,
                encode_receipt(self._pair.seed, head),
                batch.until_ms,
            )
        )

    def _record_held(self) -> None:
        if self._held_first < self._held_end:
            self._record(EventKind.HELD, self._held_first, count=self._held_end - self._held_first)
            self._recorded_to = max(self._recorded_to, self._held_end)
        self._held_first = self._held_end = 0

    def _record(self, kind: EventKind, offset: int, attempt: int = 0, *, count: int = 1) -> None:
        state, now_ms = self._state, self._batch.request.now_ms
        self._context.add(
            Event(kind, now_ms, state.group, state.topic, state.queue_id, offset, count, attempt=attempt)
        )
