"""A few records at a time are left to the key index: it gets many at once, and is the same afterwards."""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from tests.support.engine import NOW_MS, SMALL, append, open_store, record, send
from trovemq_proto.positions import LOG_ORIGIN, PhysicalOffset
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.unique_key_lookup import records_with_unique_key
from trovemq_store.files.faulty import FaultyFileSystem
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.index.dispatcher import LEFT_BYTES_MAX, LEFT_RECORDS

ROOMY: Final = replace(SMALL, commit_log_file_size=4 * LEFT_BYTES_MAX, body_size_max=2 * LEFT_BYTES_MAX)


def index_of(files: MemoryFileSystem) -> dict[str, bytes]:
    return {name: files.read_bytes(f"index/{name}") for name in files.list("index")}


def indexed(store: MessageStore) -> PhysicalOffset:
    assert store.key_index is not None
    return store.key_index.position


def found(store: MessageStore, key: str) -> int:
    return len(list(records_with_unique_key(store, "orders", key, LOG_ORIGIN)))


@given(steps=st.lists(st.sampled_from([1, 1, 2, LEFT_RECORDS, LEFT_RECORDS + 1, 9, "catch up"]), max_size=25))
def test_look_ups_are_exact_meanwhile_and_the_files_the_same(steps: list[int | str]) -> None:
    now, later = MemoryFileSystem(), MemoryFileSystem()
    stores = [open_store(now), open_store(later)]
    stores[1].index_later()
    sent = 0
    for step in steps:
        if isinstance(step, str):
            stores[1].catch_up(1 << 20)
            continue
        for store in stores:
            append(store, *(record(b"x", unique_key=f"u{sent + n}", keys="all") for n in range(step)))
            store.dispatch()
        sent += step
        assert [found(store, f"u{sent - 1}") for store in stores] == [1, 1]
        assert stores[1].lagging == []
    for store in stores:
        store.close(NOW_MS)
    assert index_of(now) == index_of(later)


def test_a_kill_while_records_are_left_loses_no_key() -> None:
    files = MemoryFileSystem()
    store = open_store(files)
    store.index_later()
    for number in range(30):
        send(store, b"x", unique_key=f"u{number}")
    assert indexed(store) == LOG_ORIGIN
    again = open_store(files.after_process_kill())
    again.catch_up(1 << 20)
    assert indexed(again) == again.end_offset
    assert [found(again, f"u{number}") for number in range(30)] == [1] * 30


def test_only_so_much_is_left() -> None:
    store = open_store(MemoryFileSystem())
    store.index_later()
    for _ in range(LEFT_BYTES_MAX // 4_000 * 2):
        send(store, bytes(4_000))
        assert store.end_offset - indexed(store) <= LEFT_BYTES_MAX * 3 // 2, (
            "with the blanks at segments' ends"
        )
    assert indexed(store) > LOG_ORIGIN


def test_frames_of_many_sizes_reach_the_index_together() -> None:
    """A frame that was indexed at once, between others that were left, made the index read on each time."""
    store = open_store(MemoryFileSystem(), ROOMY)
    store.index_later()
    positions = [indexed(store)]
    for count in (20, LEFT_RECORDS, 33, 1) * 25:
        append(store, *(record(bytes(100)) for _ in range(count)))
        store.dispatch()
        assert indexed(store) in (positions[-1], store.end_offset), "all that was left, or nothing yet"
        positions.append(indexed(store))
    assert store.end_offset > 2 * LEFT_BYTES_MAX
    assert len(set(positions)) - 1 <= store.end_offset // LEFT_BYTES_MAX


def test_a_frame_larger_than_all_that_may_be_left_is_indexed_at_once() -> None:
    store = open_store(MemoryFileSystem(), ROOMY)
    store.index_later()
    append(store, record(bytes(LEFT_BYTES_MAX)), record(b"x"))
    store.dispatch()
    assert indexed(store) == store.end_offset


def test_records_that_were_left_and_cannot_be_indexed_lag() -> None:
    files = FaultyFileSystem(MemoryFileSystem())
    store = open_store(files)
    store.index_later()
    send(store, b"left", unique_key="u0")
    tries: list[str] = []

    def full(operation: str, path: str) -> int | None:
        if operation == "create" and "index" in path:
            tries.append(path)
            return errno.ENOSPC
        return None

    files.decide = full
    many = LEFT_RECORDS + 2
    append(store, *(record(b"x", unique_key=f"u{n}") for n in range(1, many)))
    store.dispatch()
    assert store.lagging == ["key_index"]
    tried = len(tries)
    for number in range(many, 99):
        send(store, b"x", unique_key=f"u{number}")
    assert len(tries) == tried, "who lags is left to catch_up()"
    assert [found(store, f"u{number}") for number in range(99)] == [1] * 99
    files.decide = lambda _operation, _path: None
    while store.catch_up(1 << 20):
        pass
    assert (store.lagging, indexed(store)) == ([], store.end_offset)
    send(store, b"x", unique_key="u99")
    assert (store.lagging, found(store, "u99")) == ([], 1)
