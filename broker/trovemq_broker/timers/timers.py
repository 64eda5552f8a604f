"""Delayed messages: they wait in `rmq_sys_wheel_timer` (or a level of `SCHEDULE_TOPIC_XXXX`), and are copied
to their real topics at their time.

catch_up() builds the table of pending messages from the records. A record ends by an event, by a delete
marker in the wheel topic, or by being appended again.

Invariants
- A copy is appended not before its time, and before its event. If the event is lost, settle() finds the copy:
  a message is delivered once.
- A refused append ends no row: a later step delivers the message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import numpy as np

from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.timers import rocketmq_transfer
from trovemq_broker.timers.calendar import WAITS, Mask, Rows, slot_of
from trovemq_broker.timers.due_deliveries import deliver
from trovemq_broker.timers.ended import EndedOffsets
from trovemq_broker.timers.lookups import (
    DelayedMessage,
    PendingTimer,
    pending_of_topic,
    waiting_message,
    waiting_until,
)
from trovemq_broker.timers.sources import WHEEL_SOURCE, queue_of, source_of
from trovemq_broker.timers.unrecorded import unrecorded_rows
from trovemq_broker.timers.waiting_table import TimersState, WaitingTable
from trovemq_broker.timers.wheel_records import (
    WHEEL_TOPIC,
    WaitingRecord,
    delayed_record,
    delete_marker,
    read_waiting,
)
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import LOG_ORIGIN, EpochMs, PhysicalOffset, QueueId, QueueOffset
from trovemq_proto.records import PROPERTY_UNIQ_KEY
from trovemq_proto.records.layout import PROPERTY_TIMER_DELIVER_MS, SCHEDULE_TOPIC
from trovemq_store.engine.deduplication import withdraw
from trovemq_store.engine.message_store import AppendResult, MessageStore
from trovemq_store.engine.record_writer import NewRecord, RecordWriter
from trovemq_store.events.codec import Event, EventKind
from trovemq_store.events.event_log import EventLog
from trovemq_store.files.fault_points import fault_point
from trovemq_store.files.files import FileSystem, ScarceError

__all__ = ["SCHEDULE_TOPIC", "WHEEL_TOPIC", "PendingTimer", "Timers", "TimersState", "delayed_record"]

RECALLED_MAX: Final = 1_000_000
"""The most recalled messages that are remembered until their time."""


class Timers:
    """The delayed messages of one store. Used from one thread."""

    def __init__(
        self, store: MessageStore, writer: RecordWriter, events: EventLog, settings: ConsumerSettings
    ) -> None:
        self._store = store
        self._writer = writer
        self._events = events
        self._settings = settings
        self._table = WaitingTable(store)
        self._ended = EndedOffsets()
        self._late_ended = EndedOffsets()  # by events after the end to which all events are in the log
        self._late_from = LOG_ORIGIN
        self._wheel_end = 0
        self.enqueued: Counter[str] = Counter()
        """Since the start, by real topic: messages that schedule() stored."""
        self.dequeued: Counter[str] = Counter()
        """Since the start, by real topic: messages that ended because their time came."""
        self.recalled_count = 0
        self.delivered_count = 0
        """Since the start."""
        self.dropped_count = 0
        """Since the start: messages whose topic was deleted."""
        self.lost_count = 0
        """Since the start: messages whose record was missing or damaged when their time came."""

    @property
    def pending_count(self) -> int:
        return self._table.calendar.waiting_count

    def pending_by_topic(self) -> dict[str, int]:
        """The number of delayed messages for each real topic; 0 for topics that had some before."""
        return dict(zip(self._table.topics, self._table.calendar.waiting_by_topic.tolist(), strict=False))

    def pending_of(self, topic: str) -> int:
        """The number of delayed messages for that real topic."""
        number = self._table.topic_number(topic)
        return 0 if number is None else self._table.calendar.waiting_of(number)

    # --- sending and recalling ------------------------------------------------------------------------
    def schedule(self, record: NewRecord, deliver_ms: EpochMs, now_ms: EpochMs) -> AppendResult:
        """Stores the record to be delivered at deliver_ms (epoch ms) to its topic and queue; directly there
        if that time has come.

        TroveError DELIVERY_TIME_ILLEGAL, LIMIT_EXCEEDED, and the errors of MessageStore.append.
        """
        if deliver_ms <= now_ms:
            (result,) = self._writer.append(
                [record.with_properties({PROPERTY_TIMER_DELIVER_MS: str(deliver_ms)})],
                now_ms,
                internal=False,
            )
            return result
        longest_ms = self._settings.delivery_delay_max_ms
        if deliver_ms <= 0:  # the clock is before the epoch: the wheel's records cannot have such a time
            raise TroveError(
                errors.DELIVERY_TIME_ILLEGAL, "the delivery time is before 1970", field="delivery_timestamp"
            )
        if deliver_ms - now_ms > longest_ms:
            raise TroveError(
                errors.DELIVERY_TIME_ILLEGAL,
                f"the delivery time is {deliver_ms - now_ms} ms ahead, the limit is {longest_ms}",
                field="delivery_timestamp",
            )
        unique_key = record.properties.get(PROPERTY_UNIQ_KEY, "")
        if unique_key and self._table.recalled.has(slot_of(deliver_ms), record.topic, unique_key):
            raise TroveError(
                errors.DELIVERY_TIME_ILLEGAL,
                "a message of this id was recalled from that second, and its delete marker would end this "
                "one, too: give it a time in another second, or another id",
                field="delivery_timestamp",
            )
        unread = max(0, self._wheel_end - self._table.positions.get(WHEEL_SOURCE, 0))
        if self.pending_count + unread >= self._settings.timers_max:
            raise TroveError(
                errors.LIMIT_EXCEEDED, f"{self._settings.timers_max} delayed messages wait (timers_max)"
            )
        result = self._append_to_wheel(delayed_record(record, deliver_ms, now_ms), now_ms, internal=False)
        self.enqueued[record.topic] += 1
        return result

    def _append_to_wheel(self, record: NewRecord, now_ms: EpochMs, *, internal: bool = True) -> AppendResult:
        fault_point("timers.before_wheel")
        (result,) = self._writer.append([record], now_ms, internal=internal)
        self._wheel_end = result.first_queue_offset + 1
        return result

    def recall(
        self, topic: str, deliver_ms: EpochMs, unique_key: str, now_ms: EpochMs
    ) -> AppendResult | None:
        """Ends the delayed message without a delivery. None if it was recalled before, else the result for
        the delete marker: the recall is durable when the log is synced up to its end.

        TroveError RECALL_HANDLE_ILLEGAL (its time has passed, or there is no such message), LIMIT_EXCEEDED,
        and the errors of MessageStore.append.
        """
        if deliver_ms <= now_ms:
            raise _not_recallable("the message's time has passed")
        self.catch_up()
        slot = slot_of(deliver_ms)
        if self._table.recalled.has(slot, topic, unique_key):
            return None
        found = next(self._table.matching(slot, topic, unique_key), None)
        if found is None:
            raise _not_recallable("no such message waits")
        if len(self._table.recalled) >= RECALLED_MAX:
            raise TroveError(
                errors.LIMIT_EXCEEDED, f"{RECALLED_MAX} messages were recalled before their time"
            )
        marker = delete_marker(topic, found[2].queue_id, deliver_ms, unique_key, now_ms)
        result = self._append_to_wheel(marker, now_ms)
        self._table.recall(slot, topic, unique_key)
        withdraw(self._store, topic, unique_key, result)
        self.recalled_count += 1
        return result

    def due_ms_at(self, physical_offset: PhysicalOffset) -> EpochMs | None:
        """The delivery time of the delayed message, pending or ended, in the record at that offset, which may
        not be synced yet; None if there is no such record. Raises StorageError."""
        size = int.from_bytes(self._store.read(physical_offset, 4))
        waiting = read_waiting(self._store.read(physical_offset, size))
        return None if waiting is None else waiting.deliver_ms

    # --- delivering -----------------------------------------------------------------------------------
    def catch_up(self) -> None:
        """Reads new visible records in the wheel topic and the schedule topic. To be called when they
        grew."""
        self._table.catch_up()

    def levels(self) -> dict[int, tuple[int, int]]:
        """For each delay level whose queue has had a message: the offset of its first waiting one, and of its
        end. Messages that this broker takes wait in the wheel instead."""
        ends = {source: int(queue.max_offset) for source, queue in self._table.sources.queues()}
        ends.pop(WHEEL_SOURCE, None)
        first = dict(ends)
        for block in self._table.calendar.blocks() if ends else ():
            waiting = block[block["state"] == WAITS]
            for source, offset in first.items():
                offsets = waiting["offset"][waiting["source"] == source]
                first[source] = int(offsets.min(initial=offset))
        return {source: (first[source], end) for source, end in ends.items()}

    def next_due_ms(self) -> int | None:
        """When deliver_due() has something to do next, or a little earlier; None if no message is pending."""
        return self._table.calendar.next_ms if self.pending_count else None

    def deliver_due(self, now_ms: EpochMs) -> int:
        """Delivers due messages, up to timer_batch_max, in the order of their times; returns how many have
        ended. More may be due.

        Raises the TroveError of a refused append (a full disk) if no message has ended; call again later.
        """
        self._table.recalled.forget_before(slot_of(now_ms))
        rows = self._table.calendar.take_due(now_ms, self._settings.timer_batch_max)
        if not len(rows):
            return 0
        table = self._table
        try:
            outcome = deliver(self._store, self._writer, table.sources, table.topics, rows, now_ms)
        except ScarceError:  # nothing was appended
            table.calendar.put_back(rows)
            raise
        ended = np.zeros(len(rows), np.bool_)
        ended[outcome.ended] = True
        self._table.calendar.put_back(rows[~ended])
        fault_point("timers.after_step")
        self._record_ended(rows[ended], now_ms)
        for number, count in Counter(rows["topic"][ended].tolist()).items():
            self.dequeued[self._table.topics[number]] += count
        self.delivered_count += outcome.delivered_count
        self.dropped_count += outcome.dropped_count
        self.lost_count += outcome.lost_count
        if outcome.error is not None and not outcome.ended:
            raise outcome.error
        return len(outcome.ended)

    def _record_ended(self, rows: Rows, now_ms: EpochMs) -> None:
        """Adds the events that these rows have ended, one for each run of adjacent offsets."""
        rows = rows[np.lexsort((rows["offset"], rows["source"]))]
        for source, begin, end in _runs(zip(rows["source"].tolist(), rows["offset"].tolist(), strict=True)):
            self._record_range_ended(source, begin, end, now_ms)

    def _record_range_ended(self, source: int, begin: int, end: int, now_ms: EpochMs) -> None:
        topic, queue_id = queue_of(source)
        event = Event(
            EventKind.TIMER_ENDED, now_ms, topic=topic, queue_id=queue_id, offset=begin, count=end - begin
        )
        self._events.add(event)

    def pending(self, topic: str) -> Iterator[PendingTimer]:
        """The delayed messages for that real topic, in no order."""
        return pending_of_topic(self._table, topic)

    def waiting_message(
        self, topic: str, waiting_topic: str, record: memoryview, queue_offset: QueueOffset
    ) -> DelayedMessage | None:
        """The delayed message in this record of the wheel topic or a schedule queue, if it is pending and for
        that real topic."""
        return waiting_message(self._table, topic, waiting_topic, record, queue_offset)

    def status_of(self, topic: str, queue_id: QueueId, queue_offset: QueueOffset) -> int | None:
        """When the delayed message at that offset of the wheel topic or a schedule queue is delivered (epoch
        ms); None if none is pending there."""
        return waiting_until(self._table, topic, queue_id, queue_offset)

    def forget_topic(self, topic: str, now_ms: EpochMs) -> int:
        """Ends the delayed messages for a deleted topic without a delivery; returns how many."""
        number = self._table.topic_number(topic)
        count = 0
        for block in self._table.calendar.blocks() if number is not None else ():
            ended = self._table.calendar.end(block, block["topic"] == number)
            self._record_ended(ended, now_ms)
            count += len(ended)
        del self.enqueued[topic], self.dequeued[topic]
        return count

    def redirect(self, topic: str, to: str, changes: Mapping[str, str], now_ms: EpochMs) -> int:
        """The delayed messages for the topic become those for queue 0 of topic `to`, at their times, with
        these properties; returns how many. Raises the errors of MessageStore.append; messages before the
        failed one are redirected."""
        number = self._table.topic_number(topic)
        count = 0
        for block in self._table.calendar.blocks() if number is not None else ():
            for index in np.flatnonzero((block["state"] == WAITS) & (block["topic"] == number)).tolist():
                self._reappend(block, index, now_ms, lambda record: record.redirected(to, changes))
                count += 1
        return count

    # --- pending messages of old records ------------------------------------------------------------------
    def lowest_live_record(self) -> PhysicalOffset | None:
        """The lowest physical offset of a pending record."""
        lowest: dict[int, int] = {}
        for block in self._table.calendar.blocks():
            waiting = block[block["state"] == WAITS]
            for source in np.unique(waiting["source"]).tolist():
                offset = int(waiting["offset"][waiting["source"] == source].min())
                lowest[source] = min(offset, lowest.get(source, offset))
        units = [self._table.sources.unit(source, offset) for source, offset in lowest.items()]
        return min((unit[0] for unit in units if unit is not None), default=None)

    def reappend_live_records_before(self, physical_offset: PhysicalOffset, now_ms: EpochMs) -> int:
        """Appends every delayed message whose record lies below that offset to the wheel topic again, as
        RocketMQ rolls its timers; returns how many. Raises the errors of MessageStore.append; messages before
        the failed one are copied."""
        bounds = self._bounds(physical_offset)
        count = 0
        for block in self._table.calendar.blocks():
            for index in np.flatnonzero(_below(block, bounds)).tolist():
                self._reappend(block, index, now_ms)
                count += 1
        return count

    def live_records_before(self, physical_offset: PhysicalOffset) -> Iterator[PhysicalOffset]:
        """The physical offsets of the pending records below that offset."""
        bounds = self._bounds(physical_offset)
        for block in self._table.calendar.blocks():
            rows = block[_below(block, bounds)]
            for source, offset in zip(rows["source"].tolist(), rows["offset"].tolist(), strict=True):
                unit = self._table.sources.unit(source, offset)
                if unit is not None:
                    yield unit[0]

    def _bounds(self, physical_offset: PhysicalOffset) -> dict[int, int]:
        """For each source the first offset whose record lies at or after physical_offset."""
        return {source: queue.lower_bound(physical_offset) for source, queue in self._table.sources.queues()}

    def _reappend(
        self,
        block: Rows,
        index: int,
        now_ms: EpochMs,
        made: Callable[[WaitingRecord], NewRecord] = WaitingRecord.rolled,
    ) -> None:
        record = self._table.sources.record(int(block[index]["source"]), int(block[index]["offset"]))
        copy = None if record is None else self._rolled(record, made)
        if copy is not None:
            self._append_to_wheel(copy, now_ms)
        else:
            self.lost_count += 1
        chosen = np.zeros(len(block), np.bool_)
        chosen[index] = True
        self._record_ended(self._table.calendar.end(block, chosen), now_ms)

    def _rolled(self, record: WaitingRecord, made: Callable[[WaitingRecord], NewRecord]) -> NewRecord | None:
        failures = self._writer.copy_failures
        return failures.copied("retention", record.record, lambda: self._writer.checked(made(record)))

    # --- start and stop -------------------------------------------------------------------------------
    def apply(self, event: Event) -> None:
        """Replays a TIMER_ENDED event; settle() is to be called after the last one."""
        source = source_of(event.topic, event.queue_id)
        if source is not None:
            self._divide_ended()
            self._late_ended.add(source, event.offset, event.offset + event.count)

    def _divide_ended(self) -> None:
        if self._late_from != self._events.recorded_end:
            self._late_from = self._events.recorded_end
            self._ended.add_all(self._late_ended)
            self._late_ended = EndedOffsets()

    def snapshot(self) -> TimersState:
        """The state for restore(), with the events that were added before."""
        return self._table.snapshot()

    def restore(self, state: TimersState) -> None:
        """To be called before anything else."""
        self._table.restore(state)

    def settle(self, recorded_end: PhysicalOffset) -> None:
        """Completes the replay with the records in the log. recorded_end: the events of everything before
        are in the log."""
        self.catch_up()
        self._divide_ended()
        self._end(self._ended)
        rows = unrecorded_rows(self._store, self._table, recorded_end, self._late_ended)
        self._record_ended(rows, self._store.last_store_timestamp)
        for source, offset in zip(rows["source"].tolist(), rows["offset"].tolist(), strict=True):
            self._late_ended.add(source, offset, offset + 1)
        self._end(self._late_ended)
        self._ended, self._late_ended = EndedOffsets(), EndedOffsets()

    def _end(self, ended: EndedOffsets) -> None:
        for block in self._table.calendar.blocks() if ended else ():
            for source in np.unique(block["source"]).tolist():
                covered = ended.covers(source, block["offset"])
                self._table.calendar.end(block, covered & (block["source"] == source))

    def import_from_rocketmq(self, files: FileSystem, now_ms: EpochMs) -> None:
        """Continues from RocketMQ's files, instead of restore(). Raises StorageError, and TroveError
        STORE_FAILED."""
        outstanding = rocketmq_transfer.import_from_rocketmq(self._store, files)
        for source, position in outstanding.positions.items():
            queue = self._table.sources.queue(source)
            waiting = outstanding.waiting.get(source, [])
            for begin, end in _gaps(queue.min_offset if queue is not None else 0, waiting, position):
                self._record_range_ended(source, begin, end, now_ms)
            self._table.reread(source, waiting)
            self._table.positions[source] = position
        self.catch_up()

    def export_to_rocketmq(self, files: FileSystem, now_ms: EpochMs) -> None:
        """Writes RocketMQ's files, so that RocketMQ continues where this broker stops. Blocks. Raises
        StorageError, and TroveError DISK_FULL, STORE_FAILED."""
        self.catch_up()
        table = self._table
        rocketmq_transfer.export_to_rocketmq(
            self._store,
            files,
            table.calendar.rows(),
            table.topics,
            table.positions,
            now_ms,
            self._settings.timer_log_file_size,
        )


def _not_recallable(why: str) -> TroveError:
    return TroveError(errors.RECALL_HANDLE_ILLEGAL, f"{why}: it cannot be recalled", field="recall_handle")


def _below(block: Rows, bounds: dict[int, int]) -> Mask:
    """The waiting rows with offsets below the bound of their source."""
    chosen = np.zeros(len(block), np.bool_)
    for source, bound in bounds.items():
        chosen |= (block["source"] == source) & (block["offset"] < bound)
    below: Mask = chosen & (block["state"] == WAITS)
    return below


def _runs(places: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """(source, begin, end) of each run of adjacent offsets; the places are sorted."""
    run: tuple[int, int, int] | None = None
    for source, offset in places:
        if run is not None and run[0] == source and run[2] == offset:
            run = source, run[1], offset + 1
            continue
        if run is not None:
            yield run
        run = source, offset, offset + 1
    if run is not None:
        yield run


def _gaps(begin: int, offsets: list[int], end: int) -> Iterator[tuple[int, int]]:
    """The ranges of [begin, end) without the offsets, which are sorted."""
    for offset in offsets:
        if begin < offset:
            yield begin, offset
        begin = offset + 1
    if begin < end:
        yield begin, end
