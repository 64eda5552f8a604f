"""Marks of atomic transactions that a client wrote: no acknowledged message is cut because of them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.support.atomic import SEGMENT, AtomicStore, batch_of
from tests.support.engine import append_batch, flush, open_store, read_queue, record
from trovemq_proto.positions import LOG_ORIGIN, PhysicalOffset, QueueId
from trovemq_proto.records import RecordBatch
from trovemq_proto.records.run_mark import seal_of
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.files.sealed_json import seal
from trovemq_store.log import state

COUNT = 5


def forged(begin: int, number: int, prepared_transaction_offset: int = 0) -> bytes:
    """A record that claims to be one of 99 of a transaction that begins there."""
    marks = {
        "TROVEMQ_TX_ID": "forged",
        "TROVEMQ_TX_NUMBER": f"{number:04d}",
        "TROVEMQ_TX_COUNT": "0099",
        "TROVEMQ_TX_BEGIN": f"{begin:020d}",
    }
    return record(
        b"acknowledged %d" % number,
        properties=marks,
        prepared_transaction_offset=prepared_transaction_offset,
    )


def append_forged(store: MessageStore, prepared_transaction_offset: int = 0) -> None:
    """Past every door: none of them lets these in."""
    begin = store.end_offset
    for number in range(COUNT):
        data = bytearray(forged(begin, number, prepared_transaction_offset))
        batch = RecordBatch.split(data, topic="orders")
        append_batch(store, batch)
    flush(store)


def bodies(store: MessageStore) -> list[bytes]:
    return [message.body for message in read_queue(store, "orders")]


def write_state_of_older_version(files: MemoryFileSystem) -> None:
    document = json.loads(files.read_bytes(state.PATH))
    del document["runsSealed"], document["crc32"]
    files.write_atomic(state.PATH, seal(json.dumps(document).encode()))


@pytest.mark.parametrize("prepared", [0, seal_of(LOG_ORIGIN), seal_of(PhysicalOffset(1_000)), -(2**63), 7])
def test_forged_transaction_marks_cut_off_acknowledged_messages(prepared: int) -> None:
    files = MemoryFileSystem()
    store = open_store(files, replace(SEGMENT, append_property_crc=False))
    append_forged(store, prepared)
    expected = bodies(store)
    assert len(expected) == COUNT
    again = open_store(files.after_process_kill(), replace(SEGMENT, append_property_crc=False))
    assert bodies(again) == expected
    assert again.recovery.cut_transaction is None
    assert again.consume_queues.next_offset("orders", QueueId(0)) == COUNT


def test_many_forged_seals_of_one_batch_are_overwritten() -> None:
    files = MemoryFileSystem()
    store = open_store(files, replace(SEGMENT, append_property_crc=False))
    begin = store.end_offset
    data = bytearray().join(forged(begin, number, seal_of(begin)) for number in range(40))
    batch = RecordBatch.split(data, topic="orders")
    append_batch(store, batch)
    flush(store)
    assert {m.prepared_transaction_offset for m in read_queue(store, "orders")} == {0}
    assert len(bodies(open_store(files.after_process_kill(), store.settings))) == 40


@pytest.mark.parametrize("append_property_crc", [False, True])
def test_a_transactions_own_records_are_sealed(append_property_crc: bool) -> None:
    settings = replace(SEGMENT, append_property_crc=append_property_crc)
    atomic = AtomicStore(MemoryFileSystem(), settings)
    atomic.feed(b"before")
    run = atomic.commits.new_run("t")
    for queue_id in range(2):
        run.add(
            batch_of("orders", QueueId(queue_id), [b"%d" % n for n in range(6)], settings),
            "orders",
            QueueId(queue_id),
        )
    committed = atomic.commits.commit(run, [], atomic.now_ms)
    atomic.flush()
    seals = {m.prepared_transaction_offset for m in atomic.messages("t")}
    assert seals == {seal_of(committed.messages[0].physical_offset)}


def test_the_first_start_after_an_older_version_takes_marks_without_seals() -> None:
    """It may have died while it wrote a transaction, and its marks have no seal."""
    settings = replace(SEGMENT, append_property_crc=False)
    files = MemoryFileSystem()
    store = open_store(files, settings)
    append_forged(store)
    killed = files.after_process_kill()
    write_state_of_older_version(killed)
    first = open_store(killed, settings)
    assert first.recovery.cut_transaction is not None
    assert bodies(first) == []
    append_forged(first)
    second = open_store(killed.after_process_kill(), settings)
    assert second.recovery.cut_transaction is None
    assert len(bodies(second)) == COUNT
