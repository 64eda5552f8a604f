"""Transactions of producers: half messages, their ends, and the checks that ask their producers.

Invariants
- A half message is open from its append until a commit record, an op record or a give-up record ends it.
- The commit record is appended before the op record; after a crash in between, settle() finds it. So a
  transaction is committed once.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.transactions.records import (
    GIVEN_UP_TOPIC,
    HALF_TOPIC,
    TRANSACTION_QUEUE_ID,
    HalfMessage,
    commit_record,
    given_up_record,
    half_record,
    moved_record,
    real_message,
)
from trovemq_broker.transactions.transaction_log import TransactionLog
from trovemq_proto import errors
from trovemq_proto.errors import DamagedError, TroveError
from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueOffset
from trovemq_proto.records import PROPERTY_UNIQ_KEY, Message
from trovemq_store.engine.message_store import AppendResult, MessageStore
from trovemq_store.engine.record_writer import NewRecord, RecordWriter
from trovemq_store.events.codec import Event, EventKind
from trovemq_store.events.event_log import EventLog
from trovemq_store.files.fault_points import fault_point
from trovemq_store.files.files import ScarceError

CHECKS_PER_STEP_MAX: Final = 256
"""The most checks of one call."""
UNASKED_TIME_MAX_MS: Final = 72 * 3_600_000
"""How long a transaction waits for a producer that can be asked: RocketMQ keeps files for this time."""


@dataclass(frozen=True, slots=True)
class TransactionCheck:
    """A question to the producer of an open transaction. `message`: the half message as the producer sent it
    (real topic and queue); `client_id`: the producer's, "" if it is no longer known."""

    topic: str
    transaction_id: str
    client_id: str
    message: Message


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A transaction that ended without an answer of its producer, after `checks` checks."""

    topic: str
    transaction_id: str
    client_id: str
    checks: int


class Transactions(TransactionLog):
    """The transactions of one store. Used from one thread."""

    def __init__(
        self, store: MessageStore, writer: RecordWriter, events: EventLog, settings: ConsumerSettings
    ) -> None:
        super().__init__(store, writer, events, settings)
        self._given_up: deque[GivenUp] = deque(maxlen=CHECKS_PER_STEP_MAX)
        self.committed: Counter[str] = Counter()
        self.rolled_back: Counter[str] = Counter()
        """Rolled-back transactions since the start, by topic."""
        self.given_up_count = 0
        """Since the start: transactions whose last check had no answer."""

    @property
    def open_count(self) -> int:
        return len(self._open)

    @property
    def open_by_topic(self) -> Mapping[str, int]:
        return self._open.by_topic

    def status_of(self, queue_offset: QueueOffset) -> HalfMessage | None:
        """The open transaction whose half message lies at that offset of the half topic, if there is one. The
        caller must not change it."""
        return self._open.at(queue_offset)

    def forget_topic(self, topic: str) -> None:
        """Forgets the counts of a deleted topic. Its open transactions can only be rolled back."""
        del self.committed[topic], self.rolled_back[topic]

    def lowest_live_record(self) -> PhysicalOffset | None:
        """The lowest physical offset of an open half message."""
        lowest = self._open.lowest()
        return None if lowest is None else lowest.physical_offset

    # --- producers ----------------------------------------------------------------------------------
    def prepare(
        self, record: NewRecord, now_ms: EpochMs, *, client_id: str = "", immunity_ms: int = 0
    ) -> AppendResult:
        """Stores the record as a half message, invisible before end(); its UNIQ_KEY is the transaction id. A
        second half of the same topic and id replaces the first one.

        Its first check is after `immunity_ms`; 0: after the time in the settings. TroveError
        TRANSACTION_ILLEGAL (no UNIQ_KEY), LIMIT_EXCEEDED, and the errors of MessageStore.append.
        """
        if not record.properties.get(PROPERTY_UNIQ_KEY):
            raise TroveError(
                errors.TRANSACTION_ILLEGAL, "a half message needs a message id", field="message_id"
            )
        if len(self._open) >= self._settings.transactions_max:
            raise TroveError(
                errors.LIMIT_EXCEEDED, f"{len(self._open)} transactions are open, which is the limit"
            )
        self._store.topics.ensure_internal(HALF_TOPIC, 1, now_ms=now_ms)
        self._read_new()
        fault_point("transactions.before_half")
        result = self._append(half_record(record, immunity_ms), now_ms, internal=False)
        fault_point("transactions.after_half")
        half = HalfMessage(
            result.first_queue_offset,
            result.physical_offset,
            result.bytes_written,
            record.topic,
            record.queue_id,
            record.properties[PROPERTY_UNIQ_KEY],
            self._op_next,
            result.store_timestamp,
            immunity_ms,
            client_id=client_id,
        )
        self._half_next = QueueOffset(half.offset + 1)
        replaced = self._open.add(half)
        if replaced is not None:
            self._write_ops([replaced], now_ms)
        return result

    def end(self, transaction_id: str, topic: str, commit: bool, now_ms: EpochMs) -> AppendResult | None:
        """Commits or rolls back. Returns the result for the committed message, None for a rollback.

        TroveError TRANSACTION_ILLEGAL (unknown, or ended before), TOPIC_NOT_FOUND (the topic was deleted),
        and the errors of MessageStore.append; then the transaction is still open.
        """
        half = self._open.of(topic, transaction_id)
        if half is None:
            raise TroveError(
                errors.TRANSACTION_ILLEGAL,
                f"no transaction {transaction_id[:100]!r} of topic {topic[:200]!r} is open",
                field="transaction_id",
            )
        result = None
        if commit:
            self._store.topics.require(topic)
            fault_point("transactions.before_commit")
            result = self._append(self._writer.checked(commit_record(self._message(half))), now_ms)
            fault_point("transactions.after_commit")
        if not commit:
            self._withdrawn.add(half.offset)
        self._end([half], now_ms)
        (self.committed if commit else self.rolled_back)[topic] += 1
        return result

    # --- checks -------------------------------------------------------------------------------------
    def next_check_ms(self) -> int | None:
        """When due_checks() has something to do next; None if nothing is open."""
        return self._open.next_due_ms()

    def due_checks(
        self, now_ms: EpochMs, may_ask: Callable[[str, str], bool] = lambda _client_id, _topic: True
    ) -> list[TransactionCheck]:
        """The transactions whose producers are to be asked now, the longest due first. Each is counted as
        checked. `may_ask`: whether a producer is connected that can be asked about a client's transaction of
        a topic; if not, the check is postponed by the interval, for at most UNASKED_TIME_MAX_MS.

        At most CHECKS_PER_STEP_MAX per call: if more are due, next_check_ms() is not in the future.
        Transactions that had transaction_check_max checks are given up instead: moved to
        TRANS_CHECK_MAX_TIME_TOPIC.
        """
        self.save_positions()
        asked: list[TransactionCheck] = []
        for _ in range(CHECKS_PER_STEP_MAX):
            half = self._open.take_due(now_ms)
            if half is None:
                break
            if half.checks >= self._settings.transaction_check_max:
                self._give_up(half, now_ms)
            elif not may_ask(half.client_id, half.topic) and self._waits_for_producer(half, now_ms):
                self._open.count_check(half, half.checks, now_ms)
            elif (checked := self._check(half, now_ms)) is not None:
                asked.append(checked)
        return asked

    def _waits_for_producer(self, half: HalfMessage, now_ms: EpochMs) -> bool:
        """Whether a transaction without a connected producer stays open, and its check is not counted: for
        UNASKED_TIME_MAX_MS, unless half of transactions_max are open."""
        is_young = now_ms - half.prepared_ms < UNASKED_TIME_MAX_MS
        return is_young and 2 * len(self._open) < self._settings.transactions_max

    def _check(self, half: HalfMessage, now_ms: EpochMs) -> TransactionCheck | None:
        if half.physical_offset >= self._store.commit_limit:  # as one that cannot be read now
            self._open.count_check(half, half.checks, now_ms)
            return None
        try:
            message = real_message(self._message(half))
        except ScarceError:  # asked after the next interval, and not counted
            self._open.count_check(half, half.checks, now_ms)
            return None
        except DamagedError:
            message = None  # damaged: its producer cannot be asked, it can only be given up
        self._open.count_check(half, half.checks + 1, now_ms)
        self._events.add(
            Event(
                EventKind.TRANSACTION_CHECKED,
                now_ms,
                topic=half.topic,
                queue_id=TRANSACTION_QUEUE_ID,
                offset=half.offset,
                attempt=half.checks,
            )
        )
        if message is None:
            return None
        return TransactionCheck(half.topic, half.transaction_id, half.client_id, message)

    def _give_up(self, half: HalfMessage, now_ms: EpochMs) -> None:
        try:
            message = self._message(half)
        except ScarceError:  # tried again after the next interval
            self._open.count_check(half, half.checks, now_ms)
            return
        except DamagedError:
            self._end([half], now_ms)  # damaged: there is nothing to move
            self._note_given_up(half)
            return
        try:
            copy = self._copied("given up", message, given_up_record, half.checks)
            if copy is not None:
                self._store.topics.ensure_internal(GIVEN_UP_TOPIC, 1, now_ms=now_ms)
                fault_point("transactions.before_giving_up")
                self._append(copy, now_ms)
        except TroveError:  # the disk may be full: tried again after the next interval
            self._open.count_check(half, half.checks, now_ms)
            return
        self._withdrawn.add(half.offset)
        self._end([half], now_ms)
        self._note_given_up(half)

    def _note_given_up(self, half: HalfMessage) -> None:
        self.given_up_count += 1
        self._given_up.append(GivenUp(half.topic, half.transaction_id, half.client_id, half.checks))

    def take_given_up(self) -> list[GivenUp]:
        """The transactions that were given up since the last call, CHECKS_PER_STEP_MAX at most."""
        given_up = list(self._given_up)
        self._given_up.clear()
        return given_up

    def _copied(
        self, purpose: str, message: Message, make: Callable[[Message, int], NewRecord], checks: int
    ) -> NewRecord | None:
        """The copy of the half message that make() returns; None if it cannot be copied."""
        failures, writer = self._writer.copy_failures, self._writer
        return failures.copied(purpose, message.record, lambda: writer.checked(make(message, checks)))

    # --- retention ----------------------------------------------------------------------------------
    def live_records_before(self, physical_offset: PhysicalOffset) -> Iterator[PhysicalOffset]:
        """The physical offsets of the open halves below that offset."""
        return (half.physical_offset for half in self._open.all() if half.physical_offset < physical_offset)

    def reappend_live_records_before(self, physical_offset: PhysicalOffset, now_ms: EpochMs) -> int:
        """Appends open halves below that offset again, at the end of their topic. Returns how many.

        Raises the errors of MessageStore.append; halves before the failed one are copied.
        """
        assert physical_offset <= self._store.end_offset, (
            "else the carried records would have to be carried again"
        )
        open_count, count = len(self._open), 0
        while (half := self._open.lowest()) is not None and half.physical_offset < physical_offset:
            self._carry(half, now_ms)
            count += 1
        assert count <= open_count, "no half is carried twice"
        return count

    def _carry(self, half: HalfMessage, now_ms: EpochMs) -> None:
        try:
            message = self._message(half)
        except DamagedError:
            self._end([half], now_ms)  # damaged: there is nothing to copy
            return
        copy = self._copied("retention", message, moved_record, half.checks)
        if copy is None:
            self._end([half], now_ms)
            return
        fault_point("transactions.before_carry")
        result = self._append(copy, now_ms)
        fault_point("transactions.after_carry")
        moved = msgspec.structs.replace(
            half,
            offset=result.first_queue_offset,
            physical_offset=result.physical_offset,
            size=result.bytes_written,
            op_offset=self._op_next,
            is_copy=True,
        )
        self._half_next = QueueOffset(moved.offset + 1)
        self._open.add(moved)
        self._write_ops([half], now_ms)
