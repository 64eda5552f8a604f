"""Parts of the disk that cannot be read: what lies on them errs, everything else is served."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from broker.consume.pull import Puller, PullRequest, PullSettings
from broker.message_store import MessageStore
from broker.query.key_query import KeyQuery, KeyType
from broker.query.query_by_key import query_page
from broker.storage.faulty import FaultyFileSystem
from broker.storage.files import StorageError
from broker.storage.memory import MemoryFileSystem
from broker.storage.real import RealFileSystem
from tests.support.engine import NOW_MS, SMALL, open_store, scan_bodies, send
from trovemq_proto.errors import TroveError

SETTINGS = replace(SMALL, commit_log_file_size=65_536, consume_queue_file_size=20_000)
SEGMENT = "commitlog/00000000000000000000"
COUNT = 30
BAD = (8_192, 12_288)


def filled(files: FaultyFileSystem) -> tuple[MessageStore, list[tuple[int, int]]]:
    """The store, and where each of its records lies."""
    store = open_store(files, SETTINGS)
    results = [send(store, bytes([i]) * 900, keys="k") for i in range(COUNT)]
    return store, [(result.physical_offset, result.end) for result in results]


def whole(places: list[tuple[int, int]]) -> list[int]:
    """The numbers of the messages that do not lie on the bad part."""
    return [i for i, (begin, end) in enumerate(places) if end <= BAD[0] or begin >= BAD[1]]


def test_an_unreadable_page_of_the_log_costs_its_messages_and_no_others() -> None:
    files = FaultyFileSystem(MemoryFileSystem())
    store, places = filled(files)
    files.unreadable[SEGMENT] = BAD
    good = whole(places)
    assert 0 < len(good) < COUNT
    for i, (begin, _) in enumerate(places):
        if i in good:
            assert store.record_at(begin) is not None
        else:
            with pytest.raises(TroveError, match="RECORD_DAMAGED"):
                store.record_at(begin)
    pulled = Puller(store, PullSettings()).pull(PullRequest("orders", 0, 0))
    assert (pulled.message_count, pulled.next_offset) == (len(good), COUNT)
    assert list(pulled.damaged_offsets) == [i for i in range(COUNT) if i not in good]
    assert [body[0] for body in scan_bodies(store)] == good
    page = query_page(store, KeyQuery("orders", "k", KeyType.KEY))
    assert sorted(page.physical_offsets) == [places[i][0] for i in good]
    assert page.complete
    assert page.notes


def test_a_start_keeps_what_lies_behind_an_unreadable_page() -> None:
    memory = MemoryFileSystem()
    store, places = filled(FaultyFileSystem(memory))
    store.flush_projections(index=True)
    work = store.begin_flush()
    assert work is not None
    work.run()
    store.finish_flush(work)
    store.flush_projections(index=True)
    files = FaultyFileSystem(memory.after_process_kill())
    files.unreadable[SEGMENT] = BAD
    for path in [f"consumequeue/orders/0/{name}" for name in files.list("consumequeue/orders/0")]:
        assert files.file_size(path) > 0
    store = MessageStore.open(files, SETTINGS, NOW_MS)
    assert [body[0] for body in scan_bodies(store)] == whole(places)


def test_an_unreadable_end_of_the_log_is_never_cut() -> None:
    memory = MemoryFileSystem()
    _, places = filled(FaultyFileSystem(memory))
    files = FaultyFileSystem(memory.after_process_kill())
    files.unreadable[SEGMENT] = BAD  # nothing says how far the log was written
    with pytest.raises(TroveError, match="STORE_FAILED"):
        MessageStore.open(files, SETTINGS, NOW_MS)
    files.unreadable.clear()
    store = MessageStore.open(files, SETTINGS, NOW_MS)
    assert len(scan_bodies(store)) == COUNT == len(places)


def test_an_unreadable_page_of_a_consume_queue_costs_its_messages_and_no_others() -> None:
    settings = replace(SETTINGS, consume_queue_file_size=20_000)
    files = FaultyFileSystem(MemoryFileSystem())
    store = open_store(files, settings)
    for i in range(450):
        send(store, bytes([i % 256]))
    files.unreadable["consumequeue/orders/0/" + "0" * 20] = (4_096, 8_192)
    puller = Puller(store, PullSettings())
    offset, found = 0, 0
    damaged: list[int] = []
    while offset < 450:
        result = puller.pull(PullRequest("orders", 0, offset))
        assert result.next_offset > offset
        offset, found = result.next_offset, found + result.message_count
        damaged += result.damaged_offsets
    assert damaged == list(range(4_096 // 20, -(-8_192 // 20)))
    assert found == 450 - len(damaged)


def test_what_lies_behind_the_end_of_a_shortened_file_is_an_error_and_no_signal(tmp_path: Path) -> None:
    files = RealFileSystem(tmp_path)
    file = files.create("f", 16_384, preallocate=True)
    file.write(0, b"x" * 16_384)
    view = file.view()
    os.truncate(tmp_path / "f", 4_096)
    file.check_readable(10, 4_000)
    with pytest.raises(StorageError) as caught:
        file.check_readable(4_000, 5_000)
    assert caught.value.operation == "read"
    assert bytes(view[:4]) == b"xxxx"
    file.close()
