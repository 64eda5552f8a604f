"""Open atomic transactions: how many there may be, and the memory of those that ended."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.atomic import SEGMENT, AtomicStore, batch_of
from trovemq_broker.atomic.limits import AtomicLimits
from trovemq_broker.atomic.open_transactions import AtomicTransaction, OpenTransactions
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueId
from trovemq_store.engine.trim import trim_now
from trovemq_store.files.memory import MemoryFileSystem

QUEUE = QueueId(0)


@pytest.fixture
def atomic() -> AtomicStore:
    return AtomicStore(MemoryFileSystem())


def opened(atomic: AtomicStore, **limits: int) -> OpenTransactions:
    return OpenTransactions(atomic.commits, AtomicLimits(**limits), lambda _topic, _queue_id: None)


def with_a_message(transactions: OpenTransactions, transaction_id: str) -> AtomicTransaction:
    transaction = transactions.begin(transaction_id, 0)
    transactions.add(transaction, "orders", QUEUE, batch_of("orders", QUEUE, [b"body"], SEGMENT), None)
    return transaction


ENDS: list[Callable[[AtomicStore, OpenTransactions, AtomicTransaction], object]] = [
    lambda atomic, transactions, one: transactions.commit(one, atomic.now_ms),
    lambda _atomic, transactions, one: transactions.roll_back(one),
    lambda _atomic, transactions, one: transactions.give_up(one),
]


@pytest.mark.parametrize("end", ENDS)
def test_the_memory_of_a_transaction_was_counted_after_its_end(
    atomic: AtomicStore, end: Callable[[AtomicStore, OpenTransactions, AtomicTransaction], object]
) -> None:
    transactions = opened(atomic)
    transaction = with_a_message(transactions, "t")
    assert (len(transactions), transactions.bytes > 0) == (1, True)
    end(atomic, transactions, transaction)
    assert (len(transactions), transactions.bytes) == (0, 0)


def test_a_client_that_started_over_left_its_first_transaction_open(atomic: AtomicStore) -> None:
    transactions = opened(atomic)
    first = with_a_message(transactions, "t")
    size = transactions.bytes
    second = with_a_message(transactions, "t")
    assert (len(transactions), transactions.bytes, first.run) == (1, size, None)
    with pytest.raises(TroveError) as ended:
        transactions.commit(first, atomic.now_ms)
    assert ended.value.spec is errors.TRANSACTION_ILLEGAL
    assert transactions.commit(second, atomic.now_ms).messages
    assert transactions.counters.rolled_back == 1


def test_as_many_are_open_as_the_limit_says(atomic: AtomicStore) -> None:
    transactions = opened(atomic, atomic_open_max=2)
    first, _ = transactions.begin("t1", 0), transactions.begin("t2", 0)
    with pytest.raises(TroveError) as refused:
        transactions.begin("t3", 0)
    assert refused.value.spec is errors.LIMIT_EXCEEDED
    transactions.roll_back(first)
    transactions.begin("t3", 0)


def test_a_commit_whose_messages_retention_removed_was_read_from_nothing(atomic: AtomicStore) -> None:
    transactions = opened(atomic)
    transactions.commit(with_a_message(transactions, "t"), atomic.now_ms)
    assert transactions.committed("t", atomic.now_ms).repeated
    for number in range(12):
        atomic.feed(bytes([number]) * 4_000)
    atomic.store.flush_projections()
    trim_now(atomic.store.trim(atomic.store.closed_segments()[0].end))
    with pytest.raises(TroveError) as unknown:
        transactions.committed("t", atomic.now_ms)
    assert unknown.value.spec is errors.TRANSACTION_NOT_FOUND
    assert "remembered_ms" in unknown.value.fields
