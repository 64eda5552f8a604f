"""The events' way into the log, and back at the next start.

Events gather in memory and are appended as one record, at least every 100 ms (the daemon's timer) or when
they are many. The append waits for no sync of its own: a tail that a power cut takes means that messages are
delivered again, never that one is lost.

Invariants
- Events lie in the log in the order in which they were added.
- Waiting events are bounded: a caller that makes events without end calls check_space() before.
- After flush() the log has every event that was added: a state made from them is the state at the log's end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, QueueId, QueueOffset
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.queues import messages_from
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
        """Remembers the event; see flush()."""
        self._pending.append(event)

    def check_space(self) -> None:
        """TroveError LIMIT_EXCEEDED where too many events wait for the log already."""
        if len(self._pending) >= PENDING_MAX:
            raise TroveError(errors.LIMIT_EXCEEDED, f"{len(self._pending)} events wait for the disk")

    def flush(self, now_ms: EpochMs) -> None:
        """Appends the pending events. TroveError as MessageStore.append: then they are still pending."""
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
        """A record of events lies in the log at that offset of the events' queue: an atomic transaction's,
        appended with the rest of it. Nothing was pending before it."""
        assert not self._pending, "events lie in the log in their order"
        assert queue_offset >= self._next_offset, "events lie in the log in their order"
        self._next_offset = QueueOffset(queue_offset + 1)
        self.appended_count += event_count

    def replay(self, begin: QueueOffset) -> Iterator[Event]:
        """Every event of the log from that queue offset on, in order; an unreadable record is skipped."""
        for _, message in messages_from(self._store, EVENTS_TOPIC, EVENTS_QUEUE_ID, begin):
            try:
                yield from decode_events(message.body)
            except ValueError:
                continue
