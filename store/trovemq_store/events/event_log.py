"""Appends events to the log, and reads them at the next start.

Pending events are kept in memory and appended as one record, every 100 ms (the daemon's timer) or earlier if
there are many. No append waits for a sync: if a power cut takes the last events, messages are delivered
again, and none is lost.

Invariants
- Events lie in the log in the order in which they were added.
- Pending events are bounded: a caller that may add events without limit calls check_space() first.
- After flush() the log has every event that was added: a state that was built from them is the one at its
  end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import LOG_ORIGIN, EpochMs, PhysicalOffset, QueueId, QueueOffset
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.queue_messages import messages_from
from trovemq_store.engine.record_writer import NewRecord, RecordWriter
from trovemq_store.events.codec import EVENTS_MAX, EVENTS_TOPIC, Event, decode_events, encode_events
from trovemq_store.files.fault_points import fault_point

EVENTS_QUEUE_ID: Final = QueueId(0)
PENDING_MAX: Final = 32 * EVENTS_MAX
"""Events that may wait (for a full disk) before no more messages are delivered."""


class EventLog:
    """The events of one store. Used from one thread."""

    def __init__(self, store: MessageStore, writer: RecordWriter) -> None:
        self._store = store
        self._writer = writer
        self._pending: list[Event] = []
        self.appended_count = 0
        """Events in the log since the start."""
        self.recorded_end = LOG_ORIGIN
        """After a replay: every event that was added while the log was shorter is in the log."""
        self._next_offset = store.consume_queues.next_offset(EVENTS_TOPIC, EVENTS_QUEUE_ID)

    @property
    def pending_count(self) -> int:
        return len(self._pending)

    def view_pending(self) -> Sequence[Event]:
        """The events that are not in the log yet, in order."""
        return tuple(self._pending)

    @property
    def next_offset(self) -> QueueOffset:
        """Queue offset of the record that the next flush writes."""
        return self._next_offset

    def add(self, event: Event) -> None:
        """Adds the event to the pending ones, which flush() appends."""
        self._pending.append(event)

    def check_space(self) -> None:
        """TroveError LIMIT_EXCEEDED if too many events wait for the log already."""
        if len(self._pending) >= PENDING_MAX:
            raise TroveError(errors.LIMIT_EXCEEDED, f"{len(self._pending)} events wait for the disk")

    def flush(self, now_ms: EpochMs) -> None:
        """Appends the pending events. TroveError DISK_FULL, CREATE_MAPPED_FILE_FAILED, STORE_FAILED,
        UNKNOWN_ERROR: then the events that are not in the log are still pending."""
        while self._pending:
            part = self._pending[:EVENTS_MAX]
            record = NewRecord(EVENTS_TOPIC, EVENTS_QUEUE_ID, encode_events(part), born_timestamp=now_ms)
            fault_point("events.before_append")
            (result,) = self._writer.append([record], now_ms)
            fault_point("events.after_append")
            assert result.record_count == 1, "the events of a part are one record"
            assert result.first_queue_offset >= self._next_offset, "events lie in the log in their order"
            del self._pending[: len(part)]
            self._next_offset = QueueOffset(result.first_queue_offset + 1)
            self.appended_count += len(part)

    def appended_in_run(self, queue_offset: QueueOffset, event_count: int) -> None:
        """Notes that an atomic transaction has appended a record of events, at that offset of the events'
        queue. No event may be pending."""
        assert not self._pending, "events lie in the log in their order"
        assert queue_offset >= self._next_offset, "events lie in the log in their order"
        self._next_offset = QueueOffset(queue_offset + 1)
        self.appended_count += event_count

    def replay(self, begin: QueueOffset) -> Iterator[Event]:
        """Every event of the log from that queue offset on, in order; an unreadable record is skipped."""
        return (event for _, event in self.replay_places(begin))

    def replay_places(self, begin: QueueOffset) -> Iterator[tuple[PhysicalOffset, Event]]:
        """The same, with the physical offset of each event's record."""
        for _, message in messages_from(self._store, EVENTS_TOPIC, EVENTS_QUEUE_ID, begin):
            count = 0
            try:
                for event in decode_events(message.body):
                    count += 1
                    yield message.physical_offset, event
            except ValueError:
                continue
            if count < EVENTS_MAX:  # a full record may be followed by others of its flush
                self.recorded_end = message.physical_offset
