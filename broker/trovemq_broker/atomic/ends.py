"""The end records of atomic transactions, by which the broker remembers them: the last record of each run.

An end record is in queue 0 of the internal topic `rmq_sys_trovemq_transactions`; its properties name the
transaction, and where the run begins (trovemq_proto.records.run_mark). All numbers are little-endian.

| off | width | field                                                     |
|-----|-------|-----------------------------------------------------------|
| 0   | u8    | format, 1                                                 |
| 1   | u8 x3 | 0                                                         |
| 4   | u32   | messages: the run's first records                         |
| 8   | u32   | acknowledged messages                                     |
| 12  | u32   | 0                                                         |
| 16  | i64   | when it was committed, epoch ms                           |

If there are acknowledgements, a record of events lies between the messages and this record. The results of
the messages are not stored: they are read from the run.

Invariant: a remembered transaction is complete in the log. Recovery cuts an incomplete run; a trimmed one is
forgotten.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from struct import Struct
from typing import Final

from trovemq_proto import errors
from trovemq_proto.errors import DamagedError, TroveError
from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueId, QueueOffset
from trovemq_proto.records.batch import RecordBatch
from trovemq_proto.records.layout import PROPERTY_TX_BEGIN, PROPERTY_TX_ID
from trovemq_proto.records.message import decode_stored
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.queue_messages import messages_from
from trovemq_store.engine.transaction_run import RunResult, TransactionRun

ENDS_TOPIC: Final = "rmq_sys_trovemq_transactions"
ENDS_QUEUE_ID: Final = QueueId(0)
REMEMBERED_MAX: Final = 4_096
"""How many transactions are remembered: the latest ones."""
FORMAT: Final = 1
_END: Final = Struct("<B3xII4xq")


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """The place of one message of a transaction."""

    topic: str
    queue_id: QueueId
    queue_offset: QueueOffset
    physical_offset: PhysicalOffset


@dataclass(frozen=True, slots=True)
class Committed:
    """A transaction that is complete in the log. It is committed durably once the log is on disk up to
    `end`."""

    transaction_id: str
    messages: tuple[StoredMessage, ...]
    """In the order in which they were sent."""
    acknowledged_count: int
    store_timestamp: EpochMs
    store_host: bytes
    end: PhysicalOffset
    repeated: bool = False
    """Whether it had been committed before this call."""


@dataclass(frozen=True, slots=True)
class _End:
    begin: PhysicalOffset
    end: PhysicalOffset  # of the whole run
    message_count: int
    acknowledged_count: int
    committed_ms: int


def encode_end(message_count: int, acknowledged_count: int, now_ms: EpochMs) -> bytes:
    """The body of a run's last record."""
    return _END.pack(FORMAT, message_count, acknowledged_count, now_ms)


def committed_run(run: TransactionRun, result: RunResult, acknowledged_count: int) -> Committed:
    """The result for the client that committed the run."""
    messages: dict[int, StoredMessage] = {}
    for queue, first in result.first_queue_offsets.items():
        part = run.part(queue)
        for order, index in enumerate(run.indexes(queue)):
            at = PhysicalOffset(result.physical_offset + int(part.positions[order]))
            messages[index] = StoredMessage(*queue, QueueOffset(first + order), at)
    return Committed(
        run.transaction_id,
        tuple(messages[index] for index in range(run.message_count)),
        acknowledged_count,
        result.store_timestamp,
        result.store_host,
        result.end,
    )


class TransactionEnds:
    """The latest committed transactions of one store, by id; a start reads them from the log."""

    def __init__(self, store: MessageStore, remembered_max: int = REMEMBERED_MAX) -> None:
        self._store = store
        self._remembered_max = remembered_max
        self._ends: OrderedDict[str, _End] = OrderedDict()
        self.forgotten_ms = 0
        """Transactions that were committed up to this time may be forgotten; 0: none is."""
        self._load()

    def __len__(self) -> int:
        return len(self._ends)

    def __contains__(self, transaction_id: str) -> bool:
        return transaction_id in self._ends

    def add(self, committed: Committed, begin: PhysicalOffset) -> None:
        count, committed_ms = len(committed.messages), committed.store_timestamp
        end = _End(begin, committed.end, count, committed.acknowledged_count, committed_ms)
        self._remember(committed.transaction_id, end)

    def _remember(self, transaction_id: str, end: _End) -> None:
        self._ends[transaction_id] = end
        if len(self._ends) > self._remembered_max:
            _, forgotten = self._ends.popitem(last=False)
            self.forgotten_ms = max(self.forgotten_ms, forgotten.committed_ms)

    def _load(self) -> None:
        last = self._store.consume_queues.next_offset(ENDS_TOPIC, ENDS_QUEUE_ID)
        begin = max(0, last - self._remembered_max)
        for _, message in messages_from(self._store, ENDS_TOPIC, ENDS_QUEUE_ID, QueueOffset(begin)):
            transaction_id = message.properties.get(PROPERTY_TX_ID, "")
            run_begin = message.properties.get(PROPERTY_TX_BEGIN, "")
            if len(message.body) != _END.size or not transaction_id or not run_begin.isdecimal():
                continue
            form, message_count, acknowledged_count, _ = _END.unpack(message.body)
            if form == FORMAT:
                counts, committed_ms = (message_count, acknowledged_count), message.store_timestamp
                end = PhysicalOffset(message.physical_offset + message.store_size)
                self._remember(
                    transaction_id, _End(PhysicalOffset(int(run_begin)), end, *counts, committed_ms)
                )
                if message.queue_offset and len(self._ends) == 1:
                    self.forgotten_ms = committed_ms  # of those before it

    def committed(self, transaction_id: str) -> Committed:
        """The result that the commit returned. TroveError TRANSACTION_NOT_FOUND, RECORD_DAMAGED."""
        end = self._ends.get(transaction_id)
        if end is not None and end.begin < self._store.min_offset:
            self.forgotten_ms = max(self.forgotten_ms, end.committed_ms)
            end = None
        if end is None:
            shown = transaction_id[:80]
            raise TroveError(
                errors.TRANSACTION_NOT_FOUND, f"no committed transaction {shown!r} is known here", id=shown
            )
        data = self._store.read_or_empty(end.begin, end.end - end.begin)
        try:
            records = RecordBatch.split(data)
            messages = _stored_messages(records, end)
            first = decode_stored(records.record(0))
        except (TroveError, IndexError) as error:
            text = f"the records of transaction {transaction_id} at {end.begin} cannot be read"
            raise DamagedError(errors.RECORD_DAMAGED, text) from error
        return Committed(
            transaction_id,
            messages,
            end.acknowledged_count,
            first.store_timestamp,
            first.packed_store_host,
            end.end,
            repeated=True,
        )


def _stored_messages(records: RecordBatch, end: _End) -> tuple[StoredMessage, ...]:
    """Where the messages of a run lie, without reading the messages themselves. Raises IndexError if some are
    missing."""
    topics = [""] * len(records)
    for topic, indexes in records.topic_groups():
        for index in indexes.tolist():
            topics[index] = topic
    offsets = (end.begin + records.positions).tolist()
    queue_ids, queue_offsets = records.queue_ids.tolist(), records.queue_offsets.tolist()
    return tuple(
        StoredMessage(topics[index], queue_ids[index], queue_offsets[index], offsets[index])
        for index in range(end.message_count)
    )
