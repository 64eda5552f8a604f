"""Parts of the disk that cannot be read: reading them is an error, everything else is served."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.engine import NOW_MS, SMALL, append, open_store, read_queue, record, scan_bodies, send
from trovemq_broker.fetch.pull import Puller, PullRequest, PullSettings
from trovemq_broker.query.key_query import KeyQuery, KeyType
from trovemq_broker.query.query_by_key import query_page
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset, QueueId, QueueOffset
from trovemq_store.check.layouts import index_paths, read_index
from trovemq_store.check.layouts import read_queue as read_layout_queue
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.queue_messages import messages_from
from trovemq_store.files.faulty import FaultyFileSystem
from trovemq_store.files.files import StorageError
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.files.real import RealFileSystem
from trovemq_store.log import checkpoint
from trovemq_store.log.commit_log import CommitLog
from trovemq_store.log.recovery import foreign_scan_start

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
            assert store.record_at(PhysicalOffset(begin)) is not None
        else:
            with pytest.raises(TroveError, match="RECORD_DAMAGED"):
                store.record_at(PhysicalOffset(begin))
    pulled = Puller(store, PullSettings()).pull(PullRequest("orders", QueueId(0), QueueOffset(0)))
    assert (pulled.message_count, pulled.next_offset) == (len(good), COUNT)
    assert list(pulled.damaged_offsets) == [i for i in range(COUNT) if i not in good]
    assert [body[0] for body in scan_bodies(store)] == good
    page = query_page(store, KeyQuery("orders", "k", KeyType.KEY))
    assert sorted(page.physical_offsets) == [places[i][0] for i in good]
    assert page.complete
    assert page.notes


def test_a_start_keeps_what_lies_after_an_unreadable_page() -> None:
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


def test_an_unreadable_consume_queue_page_costs_only_its_own_messages() -> None:
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
        result = puller.pull(PullRequest("orders", QueueId(0), QueueOffset(offset)))
        assert result.next_offset > offset
        offset, found = result.next_offset, found + result.message_count
        damaged += result.damaged_offsets
    assert damaged == list(range(4_096 // 20, -(-8_192 // 20)))
    assert found == 450 - len(damaged)


def test_reading_past_the_end_of_a_shortened_file_is_an_error_not_a_signal(tmp_path: Path) -> None:
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


def can_find(store: MessageStore, physical_offset: int) -> bool:
    try:
        return store.record_at(PhysicalOffset(physical_offset)) is not None
    except TroveError:
        return False


def test_a_start_with_a_shortened_segment_did_not_say_what_to_do(tmp_path: Path) -> None:
    """The error's advice helps: with its size the file has its remaining records again."""
    store = open_store(RealFileSystem(tmp_path), SETTINGS)
    places = [send(store, bytes([i]) * 900, keys="k") for i in range(100)]  # in two segments
    store.close(NOW_MS)
    cut_at = 20_000
    os.truncate(tmp_path / SEGMENT, cut_at)
    with pytest.raises(TroveError, match=rf"{SEGMENT}.*backup.*fallocate -l 65536 FILE") as refused:
        MessageStore.open(RealFileSystem(tmp_path), SETTINGS, NOW_MS)
    assert refused.value.symbol == "STORE_SETTINGS_MISMATCH"
    os.truncate(tmp_path / SEGMENT, 65_536)
    store = MessageStore.open(RealFileSystem(tmp_path), SETTINGS, NOW_MS)
    for result in places:
        if result.end <= cut_at or result.physical_offset >= 65_536:
            assert store.record_at(result.physical_offset) is not None
        else:
            assert not can_find(store, result.physical_offset)
    assert places[-1].physical_offset > 65_536
    store.close(NOW_MS)


def test_an_unreadable_page_of_the_brokers_own_queue_stopped_its_readers() -> None:
    """Delayed, half and other records of the broker: those of the page are skipped, and counted."""
    files = FaultyFileSystem(MemoryFileSystem())
    store = open_store(files, SETTINGS, topics=("orders",))
    for i in range(450):
        send(store, bytes([i % 256]))
    files.unreadable["consumequeue/orders/0/" + "0" * 20] = (4_096, 8_192)
    lost = range(4_096 // 20, -(-8_192 // 20))
    found = [offset for offset, _ in messages_from(store, "orders", QueueId(0), QueueOffset(0))]
    assert found == [offset for offset in range(450) if offset not in lost]
    assert store.damage.ranges == {"unit-unreadable": len(lost)}
    assert len(list(messages_from(store, "orders", QueueId(0), QueueOffset(0)))) == len(found)
    assert store.damage.ranges == {"unit-unreadable": len(lost)}, "each once"


# --- bytes of a partial write are read first ----------------------------------------------------------------
@pytest.mark.parametrize("part", ["head", "slots", "items"])
@pytest.mark.parametrize("count", [1, 20])
def test_an_unreadable_index_file_lags_and_the_log_finds_its_messages(part: str, count: int) -> None:
    settings = replace(SMALL, index_slot_count=2_000, index_item_count=2_000)
    files = FaultyFileSystem(MemoryFileSystem())
    store = open_store(files, settings)
    send(store, b"first", keys="first")
    assert store.key_index is not None
    name = f"index/{store.key_index.file_names[0]}"
    files.unreadable[name] = {"head": (0, 40), "slots": (40, 8_040), "items": (8_040, 50_000)}[part]
    records = [record(b"later", keys=f"k{number}") for number in range(count)]
    append(store, *records)
    store.dispatch()
    assert store.key_index.position < store.end_offset
    assert [message.body for message in read_queue(store)] == [b"first", *[b"later"] * count]
    page = query_page(store, KeyQuery("orders", f"k{count - 1}"))
    assert len(page.records) == 1
    assert len(query_page(store, KeyQuery("orders", "first")).records) == 1
    assert (part == "slots") == any("the log was searched" in note for note in page.notes)
    files.unreadable.clear()
    while store.catch_up(1 << 20):
        pass
    assert store.key_index.position == store.end_offset
    assert len(query_page(store, KeyQuery("orders", "k0")).records) == 1


def test_an_index_file_that_cannot_be_read_is_not_cut_at_a_start() -> None:
    memory = MemoryFileSystem()
    store, _ = filled(FaultyFileSystem(memory))
    assert store.key_index is not None
    name = f"index/{store.key_index.file_names[0]}"
    files = FaultyFileSystem(memory.after_process_kill())
    files.unreadable[name] = (40, 40 + 4 * SETTINGS.index_slot_count + 20 * COUNT)
    with pytest.raises(TroveError, match="STORE_FAILED"):
        MessageStore.open(files, SETTINGS, NOW_MS)
    files.unreadable.clear()
    assert len(scan_bodies(MessageStore.open(files, SETTINGS, NOW_MS))) == COUNT


def test_what_lies_after_the_logs_end_is_asked_for_before_it_is_zeroed() -> None:
    """A start of a store of RocketMQ; of ours no more than one failed append can be there."""
    memory = MemoryFileSystem()
    store, places = filled(FaultyFileSystem(memory))
    store.close(NOW_MS)
    for path in [path for path in memory._files if path.startswith("trovemq/")]:
        memory.remove(path)
    memory.open(SEGMENT).write(50_000, b"left behind")
    files = FaultyFileSystem(memory)
    files.unreadable[SEGMENT] = (49_152, 53_248)
    assert places[-1][1] < 49_152
    with pytest.raises(TroveError, match="STORE_FAILED"):
        MessageStore.open(files, SETTINGS, NOW_MS)
    files.unreadable.clear()
    assert MessageStore.open(files, SETTINGS, NOW_MS).recovery.bytes_cut == len(b"left behind")


def test_an_unreadable_first_segment_does_not_say_where_a_scan_begins() -> None:
    memory = MemoryFileSystem()
    store = open_store(memory, SMALL)
    for number in range(60):
        send(store, b"x" * 800, NOW_MS + 10_000 * number)
    store.close(NOW_MS + 700_000)
    for path in [path for path in memory._files if path.startswith("trovemq/")]:
        memory.remove(path)
    memory.write_atomic("abort", b"1")
    files = FaultyFileSystem(memory)
    log = CommitLog(files, SMALL.commit_log_file_size)
    log.segments.load()
    marks = checkpoint.load(files)
    start = foreign_scan_start(log, marks)
    files.unreadable[f"commitlog/{start:020d}"] = (0, 4_096)
    assert foreign_scan_start(log, marks) == start - SMALL.commit_log_file_size


def test_views_of_a_stopped_store_are_asked_for_first() -> None:
    memory = MemoryFileSystem()
    store, _ = filled(FaultyFileSystem(memory))
    store.close(NOW_MS)
    files = FaultyFileSystem(memory)
    (index,) = index_paths(files)
    for path in (index, "consumequeue/orders/0/" + "0" * 20):
        files.unreadable[path] = (0, 1)
    with pytest.raises(StorageError):
        read_layout_queue(files, "orders", QueueId(0))
    with pytest.raises(StorageError):
        read_index(files, index, SETTINGS.index_slot_count, SETTINGS.index_item_count)
