"""Records that the broker writes itself lie in the log as a client's do."""

from __future__ import annotations

from tests.support.engine import BORN_HOST, NOW_MS, open_store, own_properties, read_queue, send
from trovemq_proto.positions import QueueId, QueueOffset
from trovemq_store.engine.queue_messages import messages_from
from trovemq_store.engine.record_writer import NewRecord, RecordWriter
from trovemq_store.files.memory import MemoryFileSystem


def test_every_record_gets_its_own_place_and_runs_of_a_queue_one_append() -> None:
    store = open_store(MemoryFileSystem())
    appends: list[int] = []
    writer = RecordWriter(store, lambda: appends.append(store.end_offset))
    records = [
        NewRecord("orders", QueueId(queue), b"%d" % number) for number, queue in enumerate((0, 0, 1, 0))
    ]
    results = writer.append(records, NOW_MS)
    store.dispatch()
    assert len(appends) == 3
    assert [result.first_queue_offset for result in results] == [0, 1, 0, 2]
    for result, record in zip(results, records, strict=True):
        found = store.record_at(result.physical_offset)
        assert found is not None
        assert len(found) == result.bytes_written
        assert record.body in bytes(found)
    assert [message.body for message in read_queue(store, "orders", QueueId(0))] == [b"0", b"1", b"3"]


def test_a_copy_keeps_everything_but_its_place() -> None:
    store = open_store(MemoryFileSystem())
    writer = RecordWriter(store, lambda: None)
    send(store, b"body", keys="k1 k2", tag="t", unique_key="U1", properties={"colour": "blue"})
    (original,) = read_queue(store)
    copy = NewRecord.copy_of(original, "payments", QueueId(3)).with_properties(
        {"REAL_TOPIC": "orders", "colour": None}
    )
    writer.append([copy], NOW_MS + 5)
    store.dispatch()
    ((offset, found),) = messages_from(store, "payments", QueueId(3), QueueOffset(0))
    assert offset == 0
    assert found.body == b"body"
    assert own_properties(found) == {"UNIQ_KEY": "U1", "KEYS": "k1 k2", "TAGS": "t", "REAL_TOPIC": "orders"}
    assert (found.born_timestamp, found.born_host) == (original.born_timestamp, original.born_host)
    assert original.born_host.startswith(".".join(map(str, BORN_HOST[:4])))


def test_a_run_larger_than_a_batch_is_cut() -> None:
    store = open_store(MemoryFileSystem())
    writer = RecordWriter(store, lambda: None)
    results = writer.append([NewRecord("orders", QueueId(0), bytes(3_000)) for _ in range(9)], NOW_MS)
    store.dispatch()
    assert [result.first_queue_offset for result in results] == list(range(9))
    assert len(read_queue(store)) == 9
