"""Unfinished transactions: cut at the log's end, kept and reported where other records follow them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.atomic import SEGMENT, AtomicStore, batch_of
from tests.support.engine import flush, read_queue, send
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import LOG_ORIGIN, PhysicalOffset, QueueId
from trovemq_proto.records import Message, decode_message
from trovemq_proto.records.run_mark import check_transaction_id, marked_records, read_mark
from trovemq_store.engine.record_writer import NewRecord, RecordWriter
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.log.reader import LogReader
from trovemq_store.log.whole_runs import WholeRuns

PATH = f"commitlog/{0:020d}"
MESSAGES = [("orders", n % 2, b"m%d" % n * 20) for n in range(5)]


def killed(atomic: AtomicStore) -> MemoryFileSystem:
    assert isinstance(atomic.files, MemoryFileSystem)
    return atomic.files.after_process_kill()


def seen(atomic: AtomicStore) -> list[Message]:
    """The transaction's messages by the log alone, without those that are damaged."""
    found = []
    for begin, records, _ in atomic.store.scan(LOG_ORIGIN, atomic.store.visible_offset):
        for position in records.positions.tolist():
            try:
                record = atomic.store.record_at(begin + position)
            except TroveError:
                continue
            assert record is not None
            found.append(decode_message(record))
    return [m for m in found if m.properties.get("TROVEMQ_TX_ID") == "t" and m.topic == "orders"]


@pytest.mark.parametrize("broken", range(6))
def test_damage_within_a_transaction_loses_that_record_alone(broken: int) -> None:
    """Bytes that went bad later, in a run that was written whole: no crash explains them."""
    atomic = AtomicStore(MemoryFileSystem())
    committed = atomic.commit("t", MESSAGES)
    atomic.flush()
    send(atomic.store, b"behind", topic="bills")
    places = [message.physical_offset for message in committed.messages] + [committed.end - 150]
    tree = killed(atomic)
    tree._files[PATH].data[places[broken] + 90] ^= 0xFF
    again = AtomicStore(tree)
    whole = [body for number, (_, _, body) in enumerate(MESSAGES) if number != broken]
    assert [message.body for message in seen(again)] == whole
    assert [m.body for m in read_queue(again.store, "bills")] == [b"behind"]
    report = again.store.recovery
    assert report.damages
    assert report.cut_transaction is None
    assert len(report.unfinished) == (broken == 5), "the others are seen by their damage"


def test_another_brokers_writes_after_an_open_transaction_keep_its_records() -> None:
    """RocketMQ knows nothing of transactions: it continues after the first records of one."""
    atomic = AtomicStore(MemoryFileSystem())
    atomic.flush()
    committed = atomic.commit("t", MESSAGES)
    whole = killed(atomic)
    cut_at = committed.messages[3].physical_offset
    whole._files[PATH].data[cut_at:] = bytes(len(whole._files[PATH].data) - cut_at)
    other_files = MemoryFileSystem()
    other = AtomicStore(other_files)  # makes the record after it
    while other.store.end_offset < cut_at:
        space = cut_at - other.store.end_offset
        send(other.store, b"x" * max(0, min(space - 200, 4_000)), topic="orders", queue_id=1)
        if space < 450:
            break
    result = send(other.store, b"behind", topic="bills", queue_id=0)
    data = other_files._files[PATH].data[result.physical_offset : result.end]
    shifted = bytearray(data)
    shifted[28:36] = cut_at.to_bytes(8)
    whole._files[PATH].data[cut_at : cut_at + len(shifted)] = _with_right_crc(shifted)
    again = AtomicStore(whole)
    (unfinished,) = again.store.recovery.unfinished
    assert (unfinished.transaction_id, unfinished.seen) == ("t", 3)
    assert (unfinished.physical_offset, unfinished.end) == (committed.messages[0].physical_offset, cut_at)
    assert again.store.recovery.cut_transaction is None
    assert [m.body for m in seen(again)] == [body for _, _, body in MESSAGES[:3]]
    assert [m.body for m in read_queue(again.store, "bills")] == [b"behind"]
    assert "t" not in again.commits.ends


def _with_right_crc(record: bytearray) -> bytes:
    from trovemq_proto.records.layout import CRC_PROPERTY_SIZE
    from trovemq_proto.records.record_crc import record_crc_property

    end = len(record)
    record[end - CRC_PROPERTY_SIZE :] = record_crc_property(memoryview(record), 0, end)
    return bytes(record)


def test_a_copy_of_its_first_message_is_not_an_unfinished_transaction() -> None:
    """Retries and dead letters carry the properties of their originals."""
    atomic = AtomicStore(MemoryFileSystem())
    atomic.commit("t", MESSAGES)
    atomic.flush()
    writer = RecordWriter(atomic.store, lambda: None)
    writer.append([NewRecord.copy_of(seen(atomic)[0], "bills", QueueId(1))], atomic.now_ms)
    again = AtomicStore(killed(atomic))
    assert again.store.recovery.cut_transaction is None
    assert again.store.recovery.unfinished == ()
    assert [m.body for m in read_queue(again.store, "bills", QueueId(1))] == [MESSAGES[0][2]]


def test_a_power_cut_that_lost_one_sector_of_a_transaction_takes_all_of_it() -> None:
    atomic = AtomicStore(MemoryFileSystem())
    atomic.feed(b"1")
    begin = atomic.store.end_offset
    committed = atomic.commit("t", [("orders", 0, b"y" * 700) for _ in range(5)])
    for sector in range(begin // 512 + 1, committed.end // 512):
        tree = killed(atomic)
        tree._files[PATH].data[sector * 512 : (sector + 1) * 512] = bytes(512)
        again = AtomicStore(tree)
        assert seen(again) == []
        assert again.store.end_offset == begin
        assert "t" not in again.commits.ends


def test_runs_of_many_pieces_are_given_out_whole_and_once() -> None:
    atomic = AtomicStore(MemoryFileSystem())
    for number in range(12):
        atomic.commit(f"t{number}", [("orders", n % 2, b"%d" % n * 30) for n in range(number % 4 + 1)])
        send(atomic.store, b"between", topic="bills")
    flush(atomic.store)
    log, end = atomic.store.log, atomic.store.end_offset
    for size in (1, 500, 1_000, 3_000, 1 << 20):
        runs = WholeRuns(LogReader(log, LOG_ORIGIN, end, run_bytes_max=size))
        places = [run.physical_offset + p for run in runs for p in run.records.positions.tolist()]
        assert places == sorted(set(places))
        assert runs.position == end
        assert (runs.unfinished, runs.cut, runs.damages, runs.damaged_bytes) == ([], None, [], 0)
    runs = WholeRuns(LogReader(log, LOG_ORIGIN, end))
    assert sum(len(marked_records(run.records)) for run in runs) == sum(n % 4 + 2 for n in range(12))


def test_a_mark_counts_at_its_own_place_only() -> None:
    atomic = AtomicStore(MemoryFileSystem())
    committed = atomic.commit("t", MESSAGES)
    flush(atomic.store)
    ((begin, records, _),) = atomic.store.scan(LOG_ORIGIN, committed.end)
    first = committed.messages[0].physical_offset
    assert read_mark(records, 0, begin) == ("t", 0, 6, first)
    assert read_mark(records, 0, PhysicalOffset(begin + 1)) is None
    assert read_mark(records, 1, first) is None
    assert read_mark(batch_of("orders", QueueId(0), [b"plain"], SEGMENT), 0, LOG_ORIGIN) is None
    for bad in ("", "a b", "x" * 65, "é", "a\x01"):
        with pytest.raises(TroveError) as refused:
            check_transaction_id(bad)
        assert refused.value.spec is errors.TRANSACTION_ILLEGAL


def test_without_record_crcs_it_is_the_same() -> None:
    settings = replace(SEGMENT, append_property_crc=False)
    atomic = AtomicStore(MemoryFileSystem(), settings)
    committed = atomic.commit("t", MESSAGES)
    assert len(AtomicStore(killed(atomic), settings).messages("t")) == len(MESSAGES)
    tree = killed(atomic)
    at = committed.messages[2].physical_offset
    tree._files[PATH].data[at:] = bytes(len(tree._files[PATH].data) - at)
    again = AtomicStore(tree, settings)
    assert seen(again) == []
