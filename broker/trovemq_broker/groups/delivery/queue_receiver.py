"""Receives from one queue for a group that is not orderly.

Returned messages come first, then new ones. A message that the filter does not take is consumed; so is an
unreadable one, which is counted. A message without further attempts becomes a dead letter.

A run of adjacent new messages, for a group that takes all, is read from the log in one step, and one lease
and one event cover it. In all other cases messages are examined one by one, and adjacent ones form runs.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Final

from trovemq_broker.groups.delivery.context import Context
from trovemq_broker.groups.delivery.group_topic import GroupTopic
from trovemq_broker.groups.delivery.lease_writer import READS_OF_REDELIVERY, Batch, LeaseWriter
from trovemq_broker.groups.delivery.queue_state import QueueState
from trovemq_broker.groups.delivery.records import properties_of, reconsume_times_of
from trovemq_proto.positions import PhysicalOffset, QueueOffset
from trovemq_store.engine.queue_units import BLANK_UNIT_SIZE, readable_units
from trovemq_store.events.receipt_handle import SourceKind
from trovemq_store.events.sources import RETRY_TOPIC_PROPERTY
from trovemq_store.files.files import ScarceError
from trovemq_store.index.consume_queue import ConsumeQueue

UNITS_STEP: Final = 512
"""Units that are read at a time."""


class QueueReceiver:
    """Receives from one queue for one receive."""

    def __init__(self, context: Context, pair: GroupTopic, state: QueueState, batch: Batch) -> None:
        self._context = context
        self._pair = pair
        self._state = state
        self._batch = batch
        self._filter = batch.request.filter
        self._max_attempts = batch.request.group.max_attempts
        self.lease_writer = LeaseWriter(context, pair, state, batch)

    def take(self) -> None:
        """Delivers as many messages as the batch still needs."""
        state = self._state
        examined_to = None
        if state.open.packed.count:
            state.make_ready(self._batch.wanted)
        try:
            if state.ready or state.held:
                self._take_returned()
            if not self._batch.full and len(state.open) < self._context.settings.in_flight_max:
                examined_to = self._take_new()
        except ScarceError as error:
            self._batch.failure = error
        self.lease_writer.finish(examined_to)

    # --- returned messages ----------------------------------------------------------------------------
    def _take_returned(self) -> None:
        state = self._state
        others: list[int] = []
        changed = False
        while state.ready and not self._batch.full and not self._out_of_reads(changed):
            offset = heappop(state.ready)
            lease = state.open.get(offset)
            if lease is None or not lease.ended or self.lease_writer.has(offset):
                continue  # settled, or delivered again since
            try:
                if self._belongs_to_pair(offset) and self._offer(offset, lease.attempt + 1):
                    changed = True
                    continue
            except ScarceError as error:
                self._batch.failure = error
            others.append(offset)
        for offset in others:
            heappush(state.ready, offset)
        if state.held and self._batch.failure is None:
            self._take_held()

    def _take_held(self) -> None:
        changed = False
        for offset in sorted(self._state.held):
            if self._batch.full or self._out_of_reads(changed):
                return
            if self._belongs_to_pair(offset):
                changed |= self._offer(offset, 0)

    def _out_of_reads(self, changed: bool) -> bool:
        """Whether the read budget is used up, so that this receive stops here. It counts as unfinished only
        if something was `changed`: otherwise the remaining messages are for other members, or wait, and the
        next receive would find nothing either."""
        if self._batch.reads_remaining > 0:
            return False
        self._batch.unfinished |= changed
        return True

    def _belongs_to_pair(self, offset: int) -> bool:
        """In a classic retry topic: whether the message belongs to the pair's topic, or its topic is
        unknown."""
        state = self._state
        if state.kind is not SourceKind.CLASSIC_RETRY:
            return True
        if offset not in state.keys:  # it could not be read at the start
            record = self._context.record_of(state, offset)
            if record is None:
                return True
            state.keys[offset] = properties_of(record).get(RETRY_TOPIC_PROPERTY, "")
        return state.keys[offset] == self._pair.topic

    def _offer(self, offset: int, attempt: int) -> bool:
        """Delivers a message that is open or held, drops it, or makes it a dead letter. attempt 0: the record
        has the number. False if the message stays as it is."""
        if attempt > self._max_attempts and self._batch.dead_letters_refused:
            return False
        self._batch.reads_remaining -= READS_OF_REDELIVERY
        record = self._context.record_of(self._state, offset)
        if record is None:
            if self._context.waits_for_copy(self._state, offset):
                return False
            self._context.damaged_count += 1
            self.lease_writer.drop(offset)
            return True
        if not self._batch.passes(record):
            if self._batch.is_reserved(record):
                return False
            self.lease_writer.drop(offset)
            return True
        attempt = attempt or first_attempt(self._state, record)
        if attempt > self._max_attempts:
            return self.lease_writer.dead_letter(offset, attempt, record, new=False)
        self.lease_writer.deliver(offset, attempt, (record,), len(record))
        return True

    # --- new messages ----------------------------------------------------------------------------------
    def _take_new(self) -> int | None:
        """Delivers new messages. Returns the offset up to which messages were examined, if that is after the
        delivered ones."""
        state = self._state
        queue = self._context.store.consume_queues.get(state.topic, state.queue_id)
        if queue is None or state.next_offset >= queue.max_offset:
            return None
        begin = max(state.next_offset, queue.min_offset)
        if self._filter.takes_all and state.kind is SourceKind.TOPIC and self._take_run(queue, begin):
            return begin if begin > state.next_offset else None
        return self._examine(queue, begin)

    def _take_run(self, queue: ConsumeQueue, begin: int) -> bool:
        """Delivers a run of messages. False if they must be examined one by one."""
        batch = self._batch
        open_max = self._context.settings.in_flight_max - len(self._state.open)
        count = min(batch.wanted, open_max, queue.max_offset - begin)
        found = self._context.records.read_run(
            queue, begin, count, batch.space, at_least=not batch.has_messages
        )
        if found is None:
            return False
        records, size = found
        if records:
            self.lease_writer.deliver(begin, 1, records, size)
            if len(records) < count:
                batch.space = min(batch.space, 0)  # the next one is too large for this batch
        return True

    def _examine(self, queue: ConsumeQueue, begin: int) -> int:
        batch, state = self._batch, self._state
        open_max = self._context.settings.in_flight_max
        hashes = self._filter.tag_hashes
        offset, end = begin, queue.max_offset
        given_max = open_max - len(state.open)
        wanted_before = batch.wanted
        while offset < end:
            if batch.units_remaining <= 0:
                batch.unfinished = True
                break
            units = readable_units(queue, QueueOffset(offset), min(UNITS_STEP, end - offset))
            batch.units_remaining -= len(units)
            codes = units["tags_code"].tolist() if hashes is not None else None
            rows = zip(units["physical_offset"].tolist(), units["size"].tolist(), strict=True)
            for index, (physical_offset, size) in enumerate(rows):
                if size and codes is not None and hashes is not None and codes[index] not in hashes:
                    if batch.request.others and self._is_reserved(physical_offset, size):
                        return offset + index
                    continue
                if size == BLANK_UNIT_SIZE:
                    continue
                if batch.full or wanted_before - batch.wanted >= given_max:
                    return offset + index
                if batch.reads_remaining <= 0:
                    batch.unfinished = True
                    return offset + index
                if not self._take_examined(offset + index, physical_offset, size):
                    return offset + index
            offset += len(units)
        return offset

    def _is_reserved(self, physical_offset: PhysicalOffset, size: int) -> bool:
        return size != BLANK_UNIT_SIZE and self._batch.is_reserved(
            self._context.records.read(physical_offset, size)
        )

    def _take_examined(self, offset: int, physical_offset: PhysicalOffset, size: int) -> bool:
        """Examines one new message. False if the queue cannot be read any further."""
        context, batch, state = self._context, self._batch, self._state
        batch.reads_remaining -= 1
        record = context.records.read(physical_offset, size)
        if record is None:
            context.damaged_count += 1
            return True
        if state.kind is SourceKind.CLASSIC_RETRY:
            topic = properties_of(record).get(RETRY_TOPIC_PROPERTY, "")
            if topic != self._pair.topic:
                if len(state.held) >= context.settings.in_flight_max:
                    return False
                self.lease_writer.hold(offset, topic)
                return True
            state.keys[offset] = topic
        if not self._batch.passes(record):
            state.keys.pop(offset, None)
            return not self._batch.is_reserved(record)
        attempt = first_attempt(state, record)
        if attempt > self._max_attempts:
            return self.lease_writer.dead_letter(offset, attempt, record, new=True)
        self.lease_writer.deliver(offset, attempt, (record,), len(record))
        return True


def first_attempt(state: QueueState, record: memoryview) -> int:
    """The number of the first delivery from this queue: a copy in a retry topic was delivered before."""
    return 1 if state.kind is SourceKind.TOPIC else reconsume_times_of(record) + 1
