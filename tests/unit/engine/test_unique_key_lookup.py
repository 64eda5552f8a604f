"""Records by their unique key, from the key index and from the log where the index does not help."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from tests.support.engine import NOW_MS, SMALL, append, open_store, record, send
from trovemq_proto.positions import LOG_ORIGIN, PhysicalOffset
from trovemq_proto.records import decode_message
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.unique_key_lookup import records_with_unique_key
from trovemq_store.files.faulty import FaultyFileSystem, fail_always
from trovemq_store.files.files import FileSystem, StorageError
from trovemq_store.files.memory import MemoryFileSystem


def found(store: MessageStore, unique_key: str, *, topic: str = "orders", begin: int = 0) -> list[bytes]:
    return [
        decode_message(one).body
        for one in records_with_unique_key(store, topic, unique_key, PhysicalOffset(begin))
    ]


def filled(files: FileSystem | None = None) -> MessageStore:
    """`Aa` and `BB` have one hash; `Aa` is another record's key, too, and a unique key in another topic."""
    store = open_store(files or MemoryFileSystem(), SMALL, topics=("orders", "other"))
    send(store, b"first", unique_key="Aa", queue_id=1)
    send(store, b"hash", unique_key="BB")
    send(store, b"key", unique_key="C", keys="Aa Aa")
    send(store, b"other", unique_key="Aa", topic="other")
    send(store, b"second", unique_key="Aa", keys="Aa", queue_id=2)
    return store


def test_only_records_of_that_topic_with_that_unique_key_are_found() -> None:
    store = filled()
    assert found(store, "Aa") == [b"first", b"second"], "in log order, each once"
    assert found(store, "BB") == [b"hash"]
    assert found(store, "Aa", topic="other") == [b"other"]
    assert found(store, "D") == []


def test_the_search_begins_at_a_physical_offset() -> None:
    store = filled()
    first, second = records_with_unique_key(store, "orders", "Aa", LOG_ORIGIN)
    last = decode_message(second).physical_offset
    assert found(store, "Aa", begin=decode_message(first).physical_offset) == [b"first", b"second"]
    assert found(store, "Aa", begin=1) == found(store, "Aa", begin=last) == [b"second"]
    assert found(store, "Aa", begin=last + 1) == []


def test_records_that_the_index_does_not_have_yet_are_read_from_the_log() -> None:
    store = filled(FaultyFileSystem(MemoryFileSystem(), fail_always("create", errno.ENOSPC, "index")))
    assert store.lagging
    assert found(store, "Aa") == [b"first", b"second"]


def test_where_the_disk_does_not_give_the_index_the_log_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(*_: object) -> Iterator[int]:
        yield 0
        raise StorageError("read", "index/1", errno.EIO)

    store = filled()
    monkeypatch.setattr(store.key_index, "candidates", unreadable)
    assert found(store, "Aa") == [b"first", b"second"]


def test_a_damaged_record_is_left_out() -> None:
    store = filled()
    (first, _) = records_with_unique_key(store, "orders", "Aa", LOG_ORIGIN)
    segment = store.log.segments.at(LOG_ORIGIN)
    assert segment is not None
    segment.file.write(decode_message(first).physical_offset + len(first) - 30, b"?")
    assert found(store, "Aa") == [b"second"]


def test_a_record_that_is_not_visible_is_not_found() -> None:
    store = open_store(MemoryFileSystem(), SMALL)
    append(store, record(b"body", unique_key="A"), now_ms=NOW_MS)
    assert found(store, "A") == []
    store.dispatch()
    assert found(store, "A") == [b"body"]
