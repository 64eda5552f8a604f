"""Open transactions as the log has them: reads half messages and op records, and writes op records.

The state comes from the log: halves and op records from their two queues, checks from the events. The offsets
of RocketMQ's group CID_RMQ_SYS_TRANS in both queues are the positions from which they must be read: by this
broker after a crash, by RocketMQ at any time.

Invariant: the stored position of the half topic never passes a half whose op record is not on disk; the
stored position of the op topic never passes an op record that may name a half from there on.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import msgspec

from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.transactions.ended import find_ended
from trovemq_broker.transactions.open_halves import OpenHalves
from trovemq_broker.transactions.records import (
    HALF_TOPIC,
    OP_TOPIC,
    TRANSACTION_QUEUE_ID,
    HalfMessage,
    op_records,
    read_half,
    read_op,
)
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QUEUE_ORIGIN, EpochMs, PhysicalOffset, QueueOffset
from trovemq_proto.records import Message, decode_stored
from trovemq_store.engine.deduplication import withdraw
from trovemq_store.engine.message_store import AppendResult, MessageStore
from trovemq_store.engine.queue_messages import messages_from
from trovemq_store.engine.record_writer import NewRecord, RecordWriter
from trovemq_store.events.codec import Event, EventKind
from trovemq_store.events.event_log import EventLog
from trovemq_store.files.fault_points import fault_point

TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"


class TransactionsState(msgspec.Struct):
    """The open halves when the queues had been read up to half_next and op_next; `unnamed`: ended halves that
    no op record names yet."""

    half_next: int
    op_next: int
    open: list[HalfMessage]
    unnamed: list[HalfMessage]


@dataclass(frozen=True, slots=True)
class _Op:
    """An op record: its position, and the queue offsets of the halves that it names."""

    offset: QueueOffset
    physical_offset: PhysicalOffset
    halves: list[int]


class TransactionLog:
    """The open transactions of one store. Used from one thread."""

    def __init__(
        self, store: MessageStore, writer: RecordWriter, events: EventLog, settings: ConsumerSettings
    ) -> None:
        self._store = store
        self._writer = writer
        self._events = events
        self._settings = settings
        self._open = OpenHalves(settings)
        self._unnamed: list[HalfMessage] = []  # ended, and no op record names them yet
        self._withdrawn: set[int] = set()  # the offsets of those whose message will never be delivered
        self._unsynced: deque[tuple[PhysicalOffset, list[HalfMessage]]] = deque()
        """(end of an op record, its halves), for op records that are not synced yet"""
        self._checks: dict[int, tuple[int, int]] = {}  # replayed before their halves were read
        self._half_next = self._stored_position(HALF_TOPIC)
        self._op_next = self._stored_position(OP_TOPIC)
        self._is_appending = False
        self._saved_at = -1  # the log's synced end when the positions were saved last

    def _append(self, record: NewRecord, now_ms: EpochMs, *, internal: bool = True) -> AppendResult:
        self._is_appending = True  # a listener of the append may call catch_up(), and the caller is not done
        try:
            (result,) = self._writer.append([record], now_ms, internal=internal)
        finally:
            self._is_appending = False
        return result

    def _message(self, half: HalfMessage) -> Message:
        record = self._store.record_at(half.physical_offset)
        if record is None:  # not visible yet: its sync is running
            record = self._store.read(half.physical_offset, half.size)
        return decode_stored(record)

    def _end(self, halves: list[HalfMessage], now_ms: EpochMs) -> None:
        for half in halves:
            self._open.remove(half)
        self._write_ops(halves, now_ms)

    def _write_ops(self, halves: list[HalfMessage], now_ms: EpochMs) -> None:
        """Writes op records for ended halves. A record that cannot be written now is written with the next
        ones: its halves have ended, and must not end twice."""
        self._unnamed += halves
        try:
            self._store.topics.ensure_internal(OP_TOPIC, 1, now_ms=now_ms)
            for record, named in list(op_records(self._unnamed, now_ms, self._withdrawn)):
                fault_point("transactions.before_op")
                result = self._append(record, now_ms)
                fault_point("transactions.after_op")
                self._unnamed = self._unnamed[len(named) :]
                self._unsynced.append((result.end, named))
                self._op_next = QueueOffset(result.first_queue_offset + 1)
                if named[0].offset in self._withdrawn:
                    self._withdrawn.remove(named[0].offset)
                    withdraw(self._store, named[0].topic, named[0].transaction_id, result)
        except TroveError:
            return

    # --- reading the queues -------------------------------------------------------------------------
    def catch_up(self) -> None:
        """Reads new visible halves and op records, in the order of the log, and saves the positions if more
        of the log is on disk and committed. To be called when one of the two queues grew."""
        if self._is_appending:
            return
        self._read_new()
        if self._store.lasting_offset != self._saved_at:
            self.save_positions()

    def _read_new(self) -> None:
        half_end, op_end = self._queue_end(HALF_TOPIC), self._queue_end(OP_TOPIC)
        if half_end <= self._half_next and op_end <= self._op_next:
            return
        ops = [
            _Op(offset, message.physical_offset, read_op(message))
            for offset, message in messages_from(self._store, OP_TOPIC, TRANSACTION_QUEUE_ID, self._op_next)
        ]
        replaced = self._read_halves(ops)
        named = {offset for op in ops for offset in op.halves}
        for offset in named:
            half = self._open.at(offset)
            if half is not None:
                self._open.remove(half)
        self._unnamed = [half for half in self._unnamed + replaced if half.offset not in named]
        self._withdrawn -= named
        self._half_next = max(self._half_next, half_end)
        self._op_next = max(self._op_next, op_end)

    def _read_halves(self, ops: list[_Op]) -> list[HalfMessage]:
        """Reads new halves. Returns the halves that a later one replaced."""
        found: list[HalfMessage] = []
        op_offset = self._op_next
        waiting = deque(ops)
        halves = messages_from(self._store, HALF_TOPIC, TRANSACTION_QUEUE_ID, self._half_next)
        for offset, message in halves:
            while waiting and waiting[0].physical_offset < message.physical_offset:
                op_offset = QueueOffset(waiting.popleft().offset + 1)
            half = read_half(message, offset, op_offset)
            if half is not None:
                found.append(half)
        replaced: list[HalfMessage] = []
        for half in found:  # all of them are read: a read that is tried again adds none twice
            checks, checked_ms = self._checks.pop(half.offset, (0, 0))
            if checks > half.checks:
                half.checks, half.checked_ms = checks, checked_ms
            before = self._open.add(half)
            if before is not None:
                replaced.append(before)
        return replaced

    def _queue_end(self, topic: str) -> QueueOffset:
        queue = self._store.consume_queues.get(topic, TRANSACTION_QUEUE_ID)
        return queue.max_offset if queue is not None else QUEUE_ORIGIN

    # --- state --------------------------------------------------------------------------------------
    def restore(self, state: TransactionsState | None) -> None:
        """Starts over from a snapshot; without one from the stored positions of CID_RMQ_SYS_TRANS."""
        self._open = OpenHalves(self._settings)
        self._unnamed = [] if state is None else list(state.unnamed)
        self._unsynced.clear()
        self._withdrawn.clear()
        self._checks.clear()
        self._half_next = QueueOffset(self._stored_position(HALF_TOPIC) if state is None else state.half_next)
        self._op_next = QueueOffset(self._stored_position(OP_TOPIC) if state is None else state.op_next)
        for half in [] if state is None else state.open:
            self._open.add(half)

    def snapshot(self) -> TransactionsState:
        """The state. It must be encoded before anything else happens, because it shares its halves with the
        live state."""
        return TransactionsState(self._half_next, self._op_next, self._open.all(), list(self._unnamed))

    def apply(self, event: Event) -> None:
        """Replay of a TRANSACTION_CHECKED event."""
        assert event.kind is EventKind.TRANSACTION_CHECKED, "the only kind of event about transactions"
        half = self._open.at(event.offset)
        assert half is None or half.offset < self._half_next, "an open half was read"
        if half is None:
            if event.offset >= self._half_next and len(self._checks) < self._settings.transactions_max:
                self._checks[event.offset] = (event.attempt, event.time_ms)
        elif event.attempt > half.checks:
            self._open.count_check(half, event.attempt, event.time_ms)

    def settle(self) -> None:
        """After replay: reads the rest of the queues and ends transactions that have a commit record and no
        op record."""
        self._read_new()
        self._checks.clear()
        ended = find_ended(self._store, self._open.all(), checks_max=self._settings.transaction_check_max)
        if ended or self._unnamed:
            self._end(ended, self._store.last_store_timestamp)
        self.save_positions()

    def import_from_rocketmq(self) -> None:
        """Opens the state of a store that RocketMQ used last: RocketMQ's positions show which transactions
        are open."""
        self.restore(None)
        self.settle()

    def export_to_rocketmq(self, now_ms: EpochMs) -> None:
        """Saves, before a clean stop, the positions from which RocketMQ continues. They may be below
        transactions that have ended; op records above them name those."""
        if self._unnamed:
            self._write_ops([], now_ms)
        self.save_positions()

    def save_positions(self) -> None:
        """Moves the stored positions of both queues up to the synced and committed part of the log."""
        self._saved_at = self._store.lasting_offset
        while self._unsynced and self._unsynced[0][0] <= self._saved_at:
            self._unsynced.popleft()
        needed = [half for _, halves in self._unsynced for half in halves]
        if (first := self._open.lowest()) is not None:
            needed.append(first)
        lowest = min(needed, key=lambda half: half.offset, default=None)
        self._save_position(HALF_TOPIC, self._half_next if lowest is None else lowest.offset)
        self._save_position(OP_TOPIC, self._op_next if lowest is None else lowest.op_offset)

    def _save_position(self, topic: str, position: QueueOffset) -> None:
        if position > self._stored_position(topic):
            with suppress(TroveError):  # no space for another group: then the next start only reads more
                self._store.offsets.commit(TRANSACTION_GROUP, topic, TRANSACTION_QUEUE_ID, position)

    def _stored_position(self, topic: str) -> QueueOffset:
        return self._store.offsets.get(TRANSACTION_GROUP, topic, TRANSACTION_QUEUE_ID) or QUEUE_ORIGIN
