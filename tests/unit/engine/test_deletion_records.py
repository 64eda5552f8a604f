"""Deletions of topics from the log alone: of a node that follows, and of a store without deletions.json."""

from __future__ import annotations

import errno
import json
from dataclasses import replace

import pytest

from tests.support.atomic import SEGMENT
from tests.support.engine import NOW_MS, flush, read_queue
from tests.support.followers import Leader, bodies, commit, copy, follower, saved_commit
from trovemq_proto.positions import LOG_ORIGIN, PhysicalOffset, QueueId, QueueOffset
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.trim import trim_now
from trovemq_store.files.faulty import FaultyFileSystem, fail_always
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.topics.deletions import DELETIONS_PATH, TopicDeletions
from trovemq_store.topics.table_notes import NOTES_PATH
from trovemq_store.topics.topics_file import TOPICS_PATH

SETTINGS = replace(SEGMENT, tables_in_log=True)
QUEUE = QueueId(0)


class Deleting(Leader):
    """A leader whose topic `orders` has old messages, is deleted, is made again, and has new ones."""

    def __init__(self, *, again: bool = True, more: int = 1) -> None:
        super().__init__(settings=SETTINGS)
        for _ in range(more):
            self.store.topics.create("orders", 1)
            self.send("orders", 0, 5)
            self.send("bills", 0, 2)
            flush(self.store)
            self.before = self.store.end_offset
            self.deleted_at = self.store.delete_topic("orders", NOW_MS)
            self.deleted = self.store.end_offset
        if again:
            self.store.topics.create("orders", 1)
            self.send("orders", 0, 3)
            self.send("bills", 0, 1)
        flush(self.store)


def fill(leader: Leader) -> None:
    """Fills some segments."""
    for _ in range(12):
        leader.send("bills", 0, 1, 8_000)
        flush(leader.store)
    leader.store.flush_projections()


def is_as(store: MessageStore, leader: MessageStore) -> None:
    assert bodies(store) == bodies(leader)
    assert store.topics.names() == leader.topics.names()
    assert store.deletions.entries() == leader.deletions.entries()
    for topic in ("orders", "bills"):
        for queue in leader.consume_queues.queues(topic):
            copied = store.consume_queues.get(topic, queue.queue_id)
            assert copied is not None
            assert (copied.min_offset, copied.max_offset) == (queue.min_offset, queue.max_offset)
        assert store.next_queue_offset(topic, QUEUE) == leader.next_queue_offset(topic, QUEUE)


def remove(files: MemoryFileSystem, *paths: str) -> None:
    for name in paths:
        for path in (name, f"{name}.bak"):
            if files.exists(path):
                files.remove(path)


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("more", [1, 2])
def test_a_follower_deletes_what_the_leader_deleted(again: bool, more: int) -> None:
    leader = Deleting(again=again, more=more)
    for step in (1, 1_000_000):
        store = follower(MemoryFileSystem(), settings=SETTINGS)
        copy(leader.store, store)
        ends = leader.record_ends if step == 1 else []
        for end in (*ends, leader.store.end_offset):
            if end >= store.visible_offset:
                commit(store, PhysicalOffset(end))
        is_as(store, leader.store)


def test_a_follower_deletes_when_the_record_is_committed() -> None:
    leader = Deleting()
    files = MemoryFileSystem()
    store = follower(files, settings=SETTINGS)
    copy(leader.store, store)
    commit(store, leader.before)
    store.offsets.commit("readers", "orders", QUEUE, QueueOffset(4))
    assert len(read_queue(store, "orders", QUEUE)) == 5
    assert store.deleted_below("orders") == 0
    commit(store, leader.deleted)
    assert "orders" not in store.topics
    assert store.consume_queues.get("orders", QUEUE) is None
    assert store.offsets.get("readers", "orders", QUEUE) is None
    assert TopicDeletions.load(files.after_power_cut()).entries() == {"orders": leader.deleted_at}


@pytest.mark.parametrize("stop", ["close", "kill", "power cut"])
@pytest.mark.parametrize("lost", [(), (DELETIONS_PATH,), (DELETIONS_PATH, TOPICS_PATH, NOTES_PATH)])
@pytest.mark.parametrize("follows", [False, True])
def test_a_store_without_its_deletions_has_them_from_the_log(
    stop: str, lost: tuple[str, ...], follows: bool
) -> None:
    leader = Deleting()
    if follows:
        files = MemoryFileSystem()
        store = follower(files, settings=SETTINGS)
        copy(leader.store, store)
        commit(store, leader.store.end_offset)
    else:
        files, store = leader.files, leader.store
    store.flush_projections()
    if stop == "close":
        store.close(NOW_MS)
    files = {
        "close": lambda: files,
        "kill": files.after_process_kill,
        "power cut": files.after_power_cut,
    }[stop]()
    remove(files, *lost)
    limit = saved_commit(files) if follows else None
    again = follower(files, limit, SETTINGS)
    if follows:
        commit(again, leader.store.end_offset)
    expected = Deleting()
    is_as(again, expected.store)
    assert TopicDeletions.load(files).entries() == expected.store.deletions.entries()


def test_deleted_messages_were_back_in_a_log_that_was_copied_alone() -> None:
    leader = Deleting(more=2)
    leader.store.close(NOW_MS)
    files = MemoryFileSystem()
    for path in [path for path in leader.files._files if path.startswith("commitlog/")]:
        files.write_atomic(path, bytes(leader.files._files[path].data))
    is_as(MessageStore.open(files, SETTINGS, NOW_MS), Deleting(more=2).store)


def test_a_trimmed_log_alone_has_which_topic_of_a_name_it_is() -> None:
    leader = Deleting()
    store = leader.store
    fill(leader)
    leader.send("orders", 0, 2)
    end = store.closed_segments()[-1].end
    assert store.tables is not None
    assert leader.deleted < end
    assert store.tables.reappend_before(end) > 0
    flush(store)
    store.tables.write_now()
    trim_now(store.trim(end))
    store.close(NOW_MS)
    files = MemoryFileSystem()
    for path in [path for path in leader.files._files if path.startswith("commitlog/")]:
        files.write_atomic(path, bytes(leader.files._files[path].data))
    again = MessageStore.open(files, SETTINGS, NOW_MS)
    assert again.deletions.entries() == {"orders": leader.deleted_at}
    assert [len(again.topics.names()), len(read_queue(again, "orders", QUEUE))] == [1, 2]


def test_a_record_appended_again_removes_no_queue() -> None:
    leader = Deleting()
    store = leader.store
    fill(leader)
    leader.send("orders", 0, 2)
    end = store.closed_segments()[-1].end
    fill(leader)
    assert store.tables is not None
    assert store.tables.reappend_before(end) > 0
    leader.send("orders", 0, 2)
    flush(store)
    files = MemoryFileSystem()
    for path in [path for path in leader.files._files if path.startswith("commitlog/")]:
        if int(path.rpartition("/")[2]) >= end:
            files.write_atomic(path, bytes(leader.files._files[path].data))
    again = MessageStore.open(files, SETTINGS, NOW_MS)
    assert again.deletions.entries() == {"orders": leader.deleted_at}
    assert len(read_queue(again, "orders", QUEUE)) == 4


def test_a_deletion_that_a_later_leader_cut_hid_the_messages() -> None:
    files = MemoryFileSystem()
    source = Leader(settings=SETTINGS)
    source.store.topics.create("orders", 1)
    source.send("orders", 0, 5)
    flush(source.store)
    store = follower(files, settings=SETTINGS)
    copy(source.store, store)
    committed = store.end_offset
    commit(store, committed)
    assert store.tables is not None
    store.tables.follows = False  # it leads
    work = store.begin_delete_topic("orders", NOW_MS)
    work.run()
    flush(store)
    assert store.visible_offset == committed, "the record is not committed"
    left = files.after_process_kill()
    assert not left.exists(DELETIONS_PATH)
    again = follower(left, committed, SETTINGS)
    assert len(read_queue(again, "orders", QUEUE)) == 5


def test_a_follower_whose_disk_is_full_deletes_and_saves_later() -> None:
    leader = Deleting(again=False)
    disk = MemoryFileSystem()
    full = [fail_always("write_atomic", errno.ENOSPC, DELETIONS_PATH)]
    files = FaultyFileSystem(disk, lambda called, path: full[0](called, path) if full else None)
    store = MessageStore.open(files, SETTINGS, NOW_MS, process_id=2, commit_limit=LOG_ORIGIN)
    copy(leader.store, store)
    commit(store, leader.store.end_offset)
    assert store.deleted_below("orders") == leader.deleted_at
    assert not disk.exists(DELETIONS_PATH)
    full.clear()
    assert store.tables is not None
    store.tables.write_now()
    assert TopicDeletions.load(disk).entries() == {"orders": leader.deleted_at}


def test_a_topic_that_another_program_removed_keeps_its_messages() -> None:
    leader = Leader(settings=SETTINGS)
    leader.store.topics.create("orders", 1)
    leader.send("orders", 0, 5)
    flush(leader.store)
    leader.store.close(NOW_MS)
    document = json.loads(leader.files.read_bytes(TOPICS_PATH))
    del document["topicConfigTable"]["orders"]
    leader.files.write_atomic(TOPICS_PATH, json.dumps(document).encode())
    for _ in range(2):
        again = MessageStore.open(leader.files, SETTINGS, NOW_MS)
        assert "orders" not in again.topics
        assert again.deleted_below("orders") == 0
        assert len(read_queue(again, "orders", QUEUE)) == 5
        again.close(NOW_MS)


def test_a_start_without_deletions_reads_the_later_records_alone() -> None:
    leader = Leader(settings=SETTINGS)
    for number in range(5):
        leader.store.topics.create(f"t{number}", 1)
    flush(leader.store)
    leader.store.close(NOW_MS)
    assert not leader.files.exists(DELETIONS_PATH)
    opened = MessageStore.open(leader.files, SETTINGS, NOW_MS)
    opened.topics.create("orders", 1)
    opened.delete_topic("orders", NOW_MS)
    remove(left := leader.files.after_process_kill(), DELETIONS_PATH)
    assert MessageStore.open(left, SETTINGS, NOW_MS).deleted_below("orders") > 0


class Killed:
    """Copies of a store's files at each change of a file, as a kill or a power cut leaves them."""

    CHANGES = ("create", "write_atomic", "remove", "remove_directory", "rename", "sync_directory")

    def __init__(self, disk: MemoryFileSystem) -> None:
        self._disk = disk
        self.copies: list[MemoryFileSystem] = []
        self.files = FaultyFileSystem(disk, self._note)

    def _note(self, called: str, path: str) -> None:
        if called in self.CHANGES:
            self.copies += [self._disk.after_process_kill(), self._disk.after_power_cut()]


def test_a_follower_that_is_killed_while_it_deletes_deletes_at_its_start() -> None:
    leader = Deleting()
    killed = Killed(MemoryFileSystem())
    store = MessageStore.open(killed.files, SETTINGS, NOW_MS, process_id=2, commit_limit=LOG_ORIGIN)
    copy(leader.store, store)
    commit(store, leader.before)
    store.flush_projections()
    killed.copies.clear()
    commit(store, leader.store.end_offset)
    store.flush_projections()
    copies = list(killed.copies)
    assert len(copies) >= 8
    for files in copies:
        for limit in (saved_commit(files), leader.before):
            again = follower(files.after_process_kill(), limit, SETTINGS)
            commit(again, leader.store.end_offset)
            is_as(again, leader.store)


def test_a_start_from_the_log_alone_may_be_interrupted_anywhere() -> None:
    leader = Deleting(more=2)
    leader.store.close(NOW_MS)
    disk = MemoryFileSystem()
    for path in [path for path in leader.files._files if path.startswith("commitlog/")]:
        disk.write_atomic(path, bytes(leader.files._files[path].data))
    killed = Killed(disk)
    MessageStore.open(killed.files, SETTINGS, NOW_MS)
    assert len(killed.copies) >= 10
    expected = Deleting(more=2).store
    for files in killed.copies:
        if files.list("commitlog"):
            is_as(MessageStore.open(files, SETTINGS, NOW_MS), expected)
