"""Open atomic transactions: their messages are in memory until the commit.

Invariants
- Nothing of an open transaction is in the log.
- The number of open transactions and their memory are bounded; the memory of a transaction is free as soon as
  it ends.
- A transaction ends once: by its commit, its rollback, its time-out, or because a new one has its id.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from trovemq_broker.atomic.commits import AtomicCommits, check_acknowledgement_count
from trovemq_broker.atomic.ends import Committed
from trovemq_broker.atomic.limits import AtomicLimits
from trovemq_broker.groups.delivery.prepared import Acknowledgement
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, QueueId
from trovemq_proto.records.batch import RecordBatch
from trovemq_proto.records.run_mark import check_transaction_id
from trovemq_store.engine.transaction_run import TransactionRun

DEFAULT_TIMEOUT_MS: Final = 60_000
HANDLE_OVERHEAD: Final = 200  # bytes of memory of an acknowledgement without its text


@dataclass(slots=True)
class AtomicCounters:
    """Counters since the start."""

    committed: int = 0
    rolled_back: int = 0
    timed_out: int = 0
    refused: int = 0
    repeated: int = 0


@dataclass(slots=True, eq=False)
class AtomicTransaction:
    """One transaction; `run` is None once it has ended."""

    transaction_id: str
    timeout_ms: int
    run: TransactionRun | None
    acknowledgements: list[Acknowledgement] = field(default_factory=list)
    bytes: int = 0


class OpenTransactions:
    """The open transactions of one broker. Used from one thread; nothing blocks.

    check_queue: raises TroveError if (topic, queue id) may not be written now.
    """

    def __init__(
        self, commits: AtomicCommits, limits: AtomicLimits, check_queue: Callable[[str, QueueId], object]
    ) -> None:
        self._commits = commits
        self._limits = limits
        self._check_queue = check_queue
        self._open: dict[str, AtomicTransaction] = {}
        self.bytes = 0
        self.counters: Final = AtomicCounters()

    def apply(self, limits: AtomicLimits) -> None:
        """Sets the limits for transactions and messages from now on."""
        self._limits = limits

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, transaction_id: str, timeout_ms: int) -> AtomicTransaction:
        """Opens a transaction. An open one with that id is rolled back, because its client has started over.

        TroveError TRANSACTION_ILLEGAL, LIMIT_EXCEEDED, REQUEST_ILLEGAL.
        """
        limits = self._limits
        check_transaction_id(transaction_id)
        if not 0 <= timeout_ms <= limits.atomic_timeout_max_ms:
            text = (
                f"timeout_ms {timeout_ms} is not 0 to {limits.atomic_timeout_max_ms} (atomic_timeout_max_ms)"
            )
            raise TroveError(errors.REQUEST_ILLEGAL, text, timeout_max_ms=limits.atomic_timeout_max_ms)
        before = self._open.get(transaction_id)
        if before is not None:
            self.roll_back(before)
        if len(self._open) >= limits.atomic_open_max:
            text = f"{len(self._open)} transactions are open (atomic_open_max)"
            raise TroveError(errors.LIMIT_EXCEEDED, text)
        timeout_ms = timeout_ms or min(DEFAULT_TIMEOUT_MS, limits.atomic_timeout_max_ms)
        opened = AtomicTransaction(transaction_id, timeout_ms, self._commits.new_run(transaction_id))
        self._open[transaction_id] = opened
        return opened

    def add(
        self,
        transaction: AtomicTransaction,
        topic: str,
        queue_id: QueueId,
        batch: RecordBatch,
        born_host: bytes | None,
    ) -> None:
        """Adds messages: a validated batch of that topic and queue.

        TroveError TRANSACTION_SIZE_EXCEEDED, LIMIT_EXCEEDED, PROPERTIES_SIZE_EXCEEDED, TRANSACTION_ILLEGAL
        (it has ended).
        """
        run = _run_of(transaction)
        self._check_space(batch.nbytes)
        before = len(run.data)
        run.add(batch, topic, queue_id, born_host)
        self._count(transaction, len(run.data) - before)

    def acknowledge(
        self, transaction: AtomicTransaction, group: str, topic: str, receipt_handles: Sequence[str]
    ) -> None:
        """Adds acknowledgements; the commit checks their handles. TroveError TRANSACTION_SIZE_EXCEEDED,
        LIMIT_EXCEEDED, TRANSACTION_ILLEGAL (it has ended)."""
        _run_of(transaction)
        check_acknowledgement_count(len(transaction.acknowledgements) + len(receipt_handles))
        size = sum(len(handle) + HANDLE_OVERHEAD for handle in receipt_handles)
        self._check_space(size)
        transaction.acknowledgements += (Acknowledgement(group, topic, handle) for handle in receipt_handles)
        self._count(transaction, size)

    def commit(self, transaction: AtomicTransaction, now_ms: EpochMs) -> Committed:
        """Commits: messages and acknowledgements are in the log when this returns, and durable once the log
        is on disk up to the result's `end`. TroveError TRANSACTION_SIZE_EXCEEDED, TRANSACTION_DUPLICATE,
        TRANSACTION_ILLEGAL, RECEIPT_HANDLE_ILLEGAL, a refusal of a queue, or an error of the append: then the
        transaction is rolled back."""
        run = _run_of(transaction)
        try:
            if transaction.transaction_id not in self._commits.ends:
                for queue in run.queues:
                    self._check_queue(*queue)
            committed = self._commits.commit(run, transaction.acknowledgements, now_ms)
        except TroveError:
            self.counters.refused += 1
            raise
        finally:
            self._end(transaction)
        if committed.repeated:
            self.counters.repeated += 1
        else:
            self.counters.committed += 1
        return committed

    def roll_back(self, transaction: AtomicTransaction) -> None:
        """Rolls back, unless it has ended: nothing of it was stored."""
        if transaction.run is not None:
            self._end(transaction)
            self.counters.rolled_back += 1

    def give_up(self, transaction: AtomicTransaction) -> TroveError:
        """Rolls back after the time-out. Returns the client's error."""
        self._end(transaction)
        self.counters.timed_out += 1
        text = f"transaction {transaction.transaction_id} was not ended within {transaction.timeout_ms} ms"
        return TroveError(errors.TRANSACTION_TIMED_OUT, text, timeout_ms=transaction.timeout_ms)

    def committed(self, transaction_id: str, now_ms: EpochMs) -> Committed:
        """The result of a committed transaction. TroveError TRANSACTION_NOT_FOUND (with `remembered_ms` if
        older commits are forgotten), RECORD_DAMAGED, TRANSACTION_ILLEGAL."""
        ends = self._commits.ends
        try:
            return ends.committed(check_transaction_id(transaction_id))
        except TroveError as error:
            if error.spec is not errors.TRANSACTION_NOT_FOUND or not ends.forgotten_ms:
                raise
            remembered_ms = max(0, now_ms - ends.forgotten_ms)
            text = f"{error.message}; those of the last {remembered_ms} ms are"
            raise TroveError(error.spec, text, **error.fields, remembered_ms=remembered_ms) from error

    def check_not_committed(self, transaction: AtomicTransaction) -> None:
        """TroveError TRANSACTION_ILLEGAL if a transaction with this id was committed: that cannot be
        undone."""
        if transaction.transaction_id in self._commits.ends:
            text = f"transaction {transaction.transaction_id} was committed; it cannot be rolled back"
            raise TroveError(errors.TRANSACTION_ILLEGAL, text)

    def _check_space(self, size: int) -> None:
        if self.bytes + size > self._limits.atomic_bytes_max:
            text = f"open transactions keep {self.bytes} bytes, the limit is {self._limits.atomic_bytes_max}"
            raise TroveError(errors.LIMIT_EXCEEDED, f"{text} (atomic_bytes_max)")

    def _count(self, transaction: AtomicTransaction, size: int) -> None:
        transaction.bytes += size
        self.bytes += size

    def _end(self, transaction: AtomicTransaction) -> None:
        if transaction.run is None:
            return
        self.bytes -= transaction.bytes
        transaction.run, transaction.bytes = None, 0
        transaction.acknowledgements = []
        if self._open.get(transaction.transaction_id) is transaction:
            del self._open[transaction.transaction_id]


def _run_of(transaction: AtomicTransaction) -> TransactionRun:
    if transaction.run is None:
        raise TroveError(errors.TRANSACTION_ILLEGAL, f"transaction {transaction.transaction_id} has ended")
    return transaction.run
