"""Odd stores at their opening: which are refused, believed, rebuilt."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from tests.support.engine import (
    NOW_MS,
    SMALL,
    SMALL_SYNC,
    append,
    flush,
    open_store,
    read_queue,
    record,
    send,
)
from tests.unit.engine.test_log_tail import SEGMENT, crashed, firsts, flip, overwrite, reopened
from trovemq_broker.query.key_query import KeyQuery
from trovemq_broker.query.query_by_key import query_page
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueId, QueueOffset
from trovemq_proto.records import Message, decode_message
from trovemq_proto.records.layout import QUEUE_OFFSET_AT
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.queue_messages import messages_from
from trovemq_store.engine.trim import trim_now
from trovemq_store.files.faulty import FaultyFileSystem
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.files.paths import parent_directory
from trovemq_store.log import state


def foreign(files: MemoryFileSystem) -> MemoryFileSystem:
    """The killed store as if RocketMQ had left it."""
    for path in [path for path in files._files if path.startswith("trovemq/")]:
        files.remove(path)
    files.write_atomic("abort", b"1")
    return files


@pytest.mark.parametrize("name", ["batchconsumequeue", "dledger-commitlog", "tieredstore"])
def test_a_form_of_store_that_is_not_served_is_refused(name: str) -> None:
    files, _ = crashed(3)
    files.create(f"{name}/orders", 10, preallocate=False).close()
    with pytest.raises(TroveError, match=name) as caught:
        reopened(files)
    assert caught.value.symbol == "STORE_NEWER"


def test_a_log_missing_its_last_segments_is_served_only_where_wanted() -> None:
    files, places = crashed(60)
    reopened(files).close(NOW_MS + 2_000)
    last = (places[-1] - 1) // SEGMENT * SEGMENT
    files.remove(f"commitlog/{last:020d}")
    with pytest.raises(TroveError, match="put the missing ones back"):
        reopened(files)
    files.remove(state.PATH)
    kept = sum(place < last for place in places)
    store = reopened(files)
    assert firsts(store) == list(range(1, kept + 1))
    assert store.end_offset <= last
    assert store.key_index is not None
    assert store.key_index.position <= last
    assert send(store, b"next").physical_offset <= last


def test_a_killed_store_of_rocketmq_is_opened_without_an_index() -> None:
    files, _ = crashed(12)
    store = MessageStore.open(foreign(files), replace(SMALL_SYNC, message_index_enable=False), NOW_MS + 1_000)
    assert firsts(store) == list(range(1, 13))


def test_a_killed_rocketmq_store_whose_queue_lacks_a_file_is_rebuilt() -> None:
    """The scan begins after the missing file's records, and finds a gap."""
    files = MemoryFileSystem()
    store = open_store(files, SMALL)
    for number in range(120):
        send(store, b"x" * 800, NOW_MS + 10_000 * number)
    store.close(NOW_MS + 2_000_000)
    foreign(files)
    for path in sorted(path for path in files._files if path.startswith("consumequeue/orders/0/"))[2:]:
        files.remove(path)
    again = MessageStore.open(files, SMALL, NOW_MS + 2_100_000)
    assert again.recovery.scan_begin == 0
    assert len(read_queue(again)) == 120


def test_a_state_that_promises_more_than_there_is_does_not_stop_a_start() -> None:
    """No damage after the queue's last message explains it: the queue continues there."""
    files, places = crashed(12)
    reopened(files).close(NOW_MS + 2_000)
    saved = state.load(files)
    assert saved is not None
    state.save(files, structs.replace(saved, queue_ends={"orders": {0: 50}}))
    flip(files, places[3] + 150)
    store = reopened(files)
    assert firsts(store) == [1, 2, 3, *range(5, 13)]
    assert send(store, b"next").first_queue_offset == 12


def test_a_damaged_record_naming_the_next_offset_too_early_is_not_believed() -> None:
    files, places = crashed(12)
    overwrite(files, places[4] + QUEUE_OFFSET_AT, (12).to_bytes(8))
    store = reopened(files)
    queue = store.consume_queues.get("orders", QueueId(0))
    assert queue is not None
    assert queue.max_offset == 12
    assert firsts(store) == [1, 2, 3, 4, *range(6, 13)]


def test_an_unreadable_record_is_not_looked_at_and_keeps_its_queue_offset() -> None:
    """The queues are gone, and the last message of one lies on a page that the disk does not give."""
    memory = MemoryFileSystem()
    settings = replace(SMALL_SYNC, commit_log_file_size=65_536)
    store = open_store(memory, settings)
    places = [
        send(store, bytes([number + 1]) * 2_000, NOW_MS + number, queue_id=number // 5).physical_offset
        for number in range(10)
    ]
    assert places[4] > 8_192
    flush(store)
    store.flush_projections(index=True)
    memory = memory.after_process_kill()
    for path in [path for path in memory._files if path.startswith("consumequeue/")]:
        memory.remove(path)
    files = FaultyFileSystem(memory)
    files.unreadable["commitlog/00000000000000000000"] = (8_192, 12_288)
    store = MessageStore.open(files, settings, NOW_MS + 1_000)
    good = [number + 1 for number, place in enumerate(places) if place + 2_200 <= 8_192 or place >= 12_288]
    assert [message.body[0] for queue_id in (0, 1) for message in readable(store, QueueId(queue_id))] == good
    assert send(store, b"next").first_queue_offset == 5


def readable(store: MessageStore, queue_id: QueueId) -> list[Message]:
    return [message for _, message in messages_from(store, "orders", queue_id, QueueOffset(0))]


def test_messages_of_a_queue_without_those_that_cannot_be_had() -> None:
    files, places = crashed(12)
    store = reopened(files)
    flip(files, places[5] + 150)
    assert [offset for offset, _ in messages_from(store, "orders", QueueId(0), QueueOffset(3))] == [
        3,
        4,
        *range(6, 12),
    ]
    assert list(messages_from(store, "orders", QueueId(3), QueueOffset(0))) == []
    store.delete_topic("orders", NOW_MS + 2_000)
    assert list(messages_from(store, "orders", QueueId(0), QueueOffset(0))) == []


# --- files that are gone ----------------------------------------------------------------------------------
@pytest.mark.parametrize("stop", ["clean", "kill"])
@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_queue_that_lost_a_file_is_rebuilt(stop: str, lost: int) -> None:
    """The first, a middle one, the last; of a log that begins at 0, and of one that begins later."""
    for trimmed in (False, True):
        files = MemoryFileSystem()
        store = open_store(files, SMALL)
        for number in range(90):
            send(store, bytes([number]) * 300, NOW_MS + number)
        flush(store)
        store.flush_projections(index=True)
        if trimmed:
            trim_now(store.trim(store.closed_segments()[0].end))
            store.flush_projections(index=True)
        expected = [message.body for message in read_queue(store)]
        if stop == "clean":
            store.close(NOW_MS + 1_000)
        files = files.after_process_kill()
        files.remove(sorted(path for path in files._files if path.startswith("consumequeue/orders/0/"))[lost])
        for _ in range(2):
            store = MessageStore.open(files, SMALL, NOW_MS + 2_000)
            assert [message.body for message in read_queue(store)] == expected
            files = files.after_process_kill()
        assert send(store, b"next").first_queue_offset == 90


def test_a_store_whose_first_segment_rocketmq_removed_rebuilds_no_queues() -> None:
    files = MemoryFileSystem()
    store = open_store(files, SMALL)
    for number in range(60):
        send(store, bytes([number]) * 300, NOW_MS + number)
    store.close(NOW_MS + 1_000)
    files.remove("commitlog/00000000000000000000")
    files.remove("consumequeue/orders/0/00000000000000000000")
    store = MessageStore.open(files, SMALL, NOW_MS + 2_000)
    assert store.recovery.records_scanned == 0
    queue = store.consume_queues.get("orders", QueueId(0))
    assert queue is not None
    assert (len(read_queue(store)), queue.max_offset) == (60 - queue.min_offset, 60)


@pytest.mark.parametrize("stop", ["clean", "kill"])
@pytest.mark.parametrize("lost", [0, 1, 2])
def test_an_index_that_lost_a_file_is_rebuilt(stop: str, lost: int) -> None:
    settings = replace(SMALL, index_item_count=16)
    files = MemoryFileSystem()
    for first in (0, 40):
        store = open_store(files, settings)
        for number in range(first, first + 40):
            send(store, b"x", NOW_MS + number, keys=f"k{number}")
        flush(store)
        store.flush_projections(index=True)
        if first == 0:
            store.close(NOW_MS + 1_000)
    assert store.key_index is not None
    if stop == "clean":
        store.close(NOW_MS + 2_000)
    files = files.after_process_kill()
    files.remove(f"index/{files.list('index')[lost]}")
    for _ in range(2):
        store = MessageStore.open(files, settings, NOW_MS + 3_000)
        assert store.key_index is not None
        while store.catch_up(1 << 20):
            pass
        for number in range(80):
            page = query_page(store, KeyQuery("orders", f"k{number}"))
            assert [decode_message(found).queue_offset for found in page.records] == [number]
        assert sum(file.count - 1 for file in store.key_index._index_files) == 80
        files = files.after_process_kill()


def test_an_index_whose_first_file_went_with_the_log_is_kept() -> None:
    settings = replace(SMALL, index_item_count=16)
    files = MemoryFileSystem()
    store = open_store(files, settings)
    for number in range(80):
        send(store, b"x" * 300, NOW_MS + number, keys=f"k{number}")
    flush(store)
    store.flush_projections(index=True)
    before = store.key_index.file_names if store.key_index else []
    trim_now(store.trim(store.closed_segments()[0].end))
    files = files.after_process_kill()
    store = MessageStore.open(files, settings, NOW_MS + 1_000)
    assert store.key_index is not None
    assert 0 < len(store.key_index.file_names) < len(before)
    assert store.key_index.position == store.end_offset


# --- our own files ----------------------------------------------------------------------------------------
def flip_digit(files: MemoryFileSystem, path: str, after: bytes) -> None:
    """One bit of the last digit of the number after `after`."""
    data = bytearray(files.read_bytes(path))
    at = data.index(after) + len(after)
    while not chr(data[at]).isdigit() or chr(data[at + 1]).isdigit():
        at += 1
    data[at] ^= 1
    files.write_atomic(path, bytes(data))


def test_a_flipped_digit_of_a_deletion_neither_hides_nor_revives_messages() -> None:
    files = MemoryFileSystem()
    store = open_store(files, SMALL)
    send(store, b"old")
    store.delete_topic("orders", NOW_MS)
    store.topics.create("orders", queue_count=4)
    send(store, b"new")
    store.close(NOW_MS + 1_000)
    flip_digit(files, "trovemq/deletions.json", b'"orders"')
    for path in [path for path in files._files if path.startswith("consumequeue/")]:
        files.remove(path)
    store = MessageStore.open(files, SMALL, NOW_MS + 2_000)
    assert [message.body for message in read_queue(store)] == [b"new"]
    store.close(NOW_MS + 3_000)
    flip_digit(files, "trovemq/deletions.json.bak", b'"orders"')
    with pytest.raises(TroveError, match="does not have the CRC"):
        MessageStore.open(files, SMALL, NOW_MS + 4_000)


@pytest.mark.parametrize("member", [b'"logEnd"', b'"consumeQueuePosition"', b'"queueEnds"', b'"crc32"'])
def test_a_state_with_a_flipped_digit_is_not_believed(member: bytes) -> None:
    files, _ = crashed(12)
    reopened(files).close(NOW_MS + 2_000)
    assert state.load(files) is not None
    flip_digit(files, state.PATH, member)
    assert state.load(files) is None
    assert firsts(reopened(files)) == list(range(1, 13))


def test_files_without_a_crc_are_those_of_an_earlier_version() -> None:
    files, _ = crashed(12)
    reopened(files).close(NOW_MS + 2_000)
    saved = state.load(files)
    data = files.read_bytes(state.PATH)
    files.write_atomic(state.PATH, data[: data.rindex(b",")] + b"\n}\n")
    assert b"crc32" not in files.read_bytes(state.PATH)
    assert saved is not None
    assert state.load(files) == saved


class FoldingFiles(MemoryFileSystem):
    """Upper and lower case are one, as on many disks of macOS and Windows."""

    def exists(self, path: str) -> bool:
        names = {name.lower() for name in self.list(parent_directory(path))}
        return path.rpartition("/")[2].lower() in names


def test_topics_of_one_name_but_for_case_shared_their_files() -> None:
    """Where the file system does not distinguish them the store does not open, and says why."""
    with pytest.raises(TroveError, match="distinguishes them") as refused:
        open_store(FoldingFiles())
    assert refused.value.spec is errors.STORE_FAILED
    store = open_store(MemoryFileSystem())
    store.topics.create("Orders", queue_count=1)
    for topic in ("orders", "Orders"):
        append(store, record(topic.encode(), topic=topic), topic=topic)
    flush(store)
    store.dispatch()
    assert [message.body for message in read_queue(store, "Orders")] == [b"Orders"]
