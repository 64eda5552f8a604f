"""Events go into the log and come back; a snapshot is used only where it is whole."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from tests.support.engine import NOW_MS, SMALL, open_store
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueOffset
from trovemq_store.engine.record_writer import NewRecord, RecordWriter
from trovemq_store.events.codec import EVENTS_MAX, EVENTS_TOPIC, Event, EventKind
from trovemq_store.events.event_log import EVENTS_QUEUE_ID, EventLog
from trovemq_store.events.snapshot import SnapshotFile
from trovemq_store.files.memory import MemoryFileSystem

ROOMY = replace(SMALL, commit_log_file_size=1 << 20, batch_size_max=1 << 20, body_size_max=1 << 19)


def event(number: int) -> Event:
    return Event(EventKind.ACKNOWLEDGED, NOW_MS, "group", "orders", offset=number)


def test_events_come_back_in_order_after_a_restart() -> None:
    files = MemoryFileSystem()
    store = open_store(files)
    log = EventLog(store, RecordWriter(store, store.dispatch))
    for number in range(3):
        log.add(event(number))
    assert log.pending_count == 3
    log.flush(NOW_MS)
    log.add(event(3))
    log.flush(NOW_MS)
    assert (log.pending_count, log.appended_count, log.next_offset) == (0, 4, 2)
    store.close(NOW_MS)
    store = open_store(files)
    again = EventLog(store, RecordWriter(store, store.dispatch))
    assert [found.offset for found in again.replay(QueueOffset(0))] == [0, 1, 2, 3]
    assert [found.offset for found in again.replay(QueueOffset(1))] == [3]
    assert again.next_offset == 2


def test_more_events_than_a_record_takes_become_several() -> None:
    store = open_store(MemoryFileSystem(), ROOMY)
    log = EventLog(store, RecordWriter(store, store.dispatch))
    for number in range(EVENTS_MAX):
        log.add(event(number))
    log.add(event(EVENTS_MAX))
    log.flush(NOW_MS)
    assert log.next_offset == 2
    assert len(list(log.replay(QueueOffset(0)))) == EVENTS_MAX + 1


def test_an_unreadable_record_is_skipped() -> None:
    store = open_store(MemoryFileSystem())
    writer = RecordWriter(store, store.dispatch)
    log = EventLog(store, writer)
    writer.append([NewRecord(EVENTS_TOPIC, EVENTS_QUEUE_ID, b"no events")], NOW_MS)
    log.add(event(1))
    log.flush(NOW_MS)
    assert [found.offset for found in log.replay(QueueOffset(0))] == [1]


class State(msgspec.Struct):
    position: int
    names: list[str]


def test_a_snapshot_comes_back_and_a_damaged_one_does_not() -> None:
    files = MemoryFileSystem()
    snapshot = SnapshotFile(files, "trovemq/some.snapshot", State)
    assert snapshot.load() is None
    content = snapshot.encode(State(7, ["a"]))
    snapshot.save(content)
    assert snapshot.load() == State(7, ["a"])
    for at in range(8, len(content)):
        snapshot.save(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        assert snapshot.load() is None, f"byte {at}"
    snapshot.save(content[:-1])
    assert snapshot.load() is None
    snapshot.save(content[:7] + b"\x01" + content[8:])
    assert snapshot.load() == State(7, ["a"]), "of an earlier version"
    snapshot.save(content[:7] + b"\x03" + content[8:])
    with pytest.raises(TroveError) as caught:
        snapshot.load()
    assert caught.value.spec is errors.STORE_NEWER
