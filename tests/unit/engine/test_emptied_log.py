"""A log whose records are all gone still begins where it ends."""

from __future__ import annotations

from tests.support.engine import NOW_MS, SMALL, append, flush, open_store, read_queue, record, send
from trovemq_proto.positions import QueueId
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.trim import trim_now
from trovemq_store.files.memory import MemoryFileSystem


def emptied() -> MemoryFileSystem:
    """One message, expired; the second segment was begun, and a power cut took its content."""
    files = MemoryFileSystem()
    store = open_store(files)
    send(store, bytes(7_000), queue_id=1)
    flush(store)
    store.flush_projections()
    append(store, record(bytes(7_000)))  # rolls; the blank is on disk, the record is not
    for segment in store.log.segments:
        if segment.start == 0:
            segment.file.sync()
    files.sync_directory("commitlog")
    files = files.after_power_cut()
    store = MessageStore.open(files, SMALL, NOW_MS)
    assert store.end_offset == SMALL.commit_log_file_size
    store.close(NOW_MS)
    store = MessageStore.open(files, SMALL, NOW_MS)
    trim_now(store.trim(store.end_offset))
    return files


def test_after_a_kill_an_emptied_stores_log_does_not_begin_at_0_again() -> None:
    files = emptied()
    for _ in range(2):
        files = files.after_process_kill()
        store = MessageStore.open(files, SMALL, NOW_MS)
        assert store.min_offset == store.end_offset == SMALL.commit_log_file_size
        assert read_queue(store, queue_id=QueueId(1)) == []
    assert send(store, b"next", queue_id=1).first_queue_offset == 1
