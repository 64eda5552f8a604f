"""Consumer offsets of a node that follows: the leader's records make them, up to the commit."""

from __future__ import annotations

from dataclasses import replace

from tests.support.atomic import SEGMENT
from tests.support.engine import NOW_MS, flush, send
from tests.support.followers import Leader, commit, copy, follower, saved_commit
from tests.unit.engine.test_offset_records import ALL_FILES, Offsets, offsets_of
from tests.unit.engine.test_table_log import remove
from trovemq_proto.positions import LOG_ORIGIN, PhysicalOffset, QueueId, QueueOffset
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.replica.epochs import Epochs
from trovemq_store.topics.offsets import OFFSETS_PATH

SETTINGS = replace(SEGMENT, tables_in_log=True)


def leader_with_messages() -> MessageStore:
    store = Leader(settings=SETTINGS).store
    store.topics.create("orders", 1)
    for number in range(20):
        send(store, b"%d" % number)
    flush(store)
    return store


def put(store: MessageStore, group: str, offset: int) -> PhysicalOffset:
    """As a call that sets an offset; returns the end of its record."""
    store.offsets.commit(group, "orders", QueueId(0), QueueOffset(offset))
    store.offsets.record_next(group, "orders")
    assert store.tables is not None
    end = store.tables.record_offsets()
    assert end is not None
    flush(store)
    return end


def of(**groups: int) -> Offsets:
    return {(group, "orders", 0): offset for group, offset in groups.items()}


def test_a_follower_has_each_committed_offset() -> None:
    leader = leader_with_messages()
    store = follower(files := MemoryFileSystem(), settings=SETTINGS)
    first = put(leader, "billing", 3)
    put(leader, "audit", 5)
    put(leader, "billing", 8)
    copy(leader, store)
    assert offsets_of(store) == {}
    commit(store, first)
    assert offsets_of(store) == of(billing=3)
    commit(store, leader.end_offset)
    assert offsets_of(store) == offsets_of(leader) == of(billing=8, audit=5)
    leader.offsets.delete_group("audit")
    assert leader.tables is not None
    leader.tables.record_offsets()
    flush(leader)
    copy(leader, store)
    commit(store, leader.end_offset)
    assert offsets_of(store) == of(billing=8)
    store.close(NOW_MS)
    assert files.exists(OFFSETS_PATH)
    end = store.end_offset
    again = follower(files, saved_commit(files), SETTINGS)
    commit(again, end)
    assert offsets_of(again) == of(billing=8)
    assert again.end_offset == end, "it appends nothing"


def test_a_former_leaders_file_wins_over_no_record_of_the_next_one() -> None:
    former = leader_with_messages()
    put(former, "billing", 9)
    next_ = follower(MemoryFileSystem(), settings=SETTINGS)
    copy(former, next_)
    commit(next_, former.end_offset)
    next_.limit_commits(None)
    former.close(NOW_MS)
    assert next_.tables is not None
    next_.tables.follows = False
    put(next_, "billing", 4)
    again = MessageStore.open(former.files, SETTINGS, NOW_MS, commit_limit=former.end_offset)
    copy(next_, again)
    commit(again, next_.end_offset)
    assert offsets_of(again) == of(billing=4)


def test_offsets_that_a_later_leader_cut_were_in_the_file() -> None:
    store = follower(files := MemoryFileSystem(), LOG_ORIGIN, SETTINGS)
    assert store.tables is not None
    store.tables.follows = False  # it leads
    store.topics.create("orders", 1)
    put(store, "billing", 0)
    store.close(NOW_MS)
    assert not files.exists(OFFSETS_PATH), "their record is not committed"


def test_a_topics_deletion_and_a_new_topic_of_its_name_come_at_one_commit() -> None:
    leader = leader_with_messages()
    store = follower(MemoryFileSystem(), settings=SETTINGS)
    put(leader, "billing", 9)
    put(leader, "audit", 5)
    leader.delete_topic("orders", NOW_MS)
    leader.topics.create("orders", 1)
    send(leader, b"new")
    put(leader, "billing", 1)
    copy(leader, store)
    commit(store, leader.end_offset)
    assert offsets_of(store) == offsets_of(leader) == of(billing=1)


def test_a_node_that_joins_after_a_trim_has_the_offsets_of_deliveries() -> None:
    """Their events are below the beginning of the leader's log."""
    leader = leader_with_messages()
    assert isinstance(leader.files, object)
    leader.offsets.commit("workers", "orders", QueueId(0), QueueOffset(7))
    assert leader.tables is not None
    while leader.tables.reappend_before(leader.end_offset):
        flush(leader)
        if not leader.tables.reappend_before(PhysicalOffset(1)):
            break
    store = follower(MemoryFileSystem(), settings=SETTINGS)
    copy(leader, store)
    commit(store, leader.end_offset)
    assert offsets_of(store) == of(workers=7)


def test_a_log_that_begins_again_keeps_no_offset() -> None:
    leader = leader_with_messages()
    store = follower(files := MemoryFileSystem(), settings=SETTINGS)
    put(leader, "billing", 3)
    copy(leader, store)
    commit(store, leader.end_offset)
    store.flush_projections()
    assert store.tables is not None
    store.tables.write_now()
    assert files.exists(OFFSETS_PATH)
    begin = PhysicalOffset(2 * SETTINGS.commit_log_file_size)
    store.begin_new_log(begin, Epochs.of([]))
    store.close(NOW_MS)
    assert offsets_of(follower(files, begin, SETTINGS)) == {}


def test_a_follower_without_files_has_the_offsets_of_its_log() -> None:
    leader = leader_with_messages()
    store = follower(files := MemoryFileSystem(), settings=SETTINGS)
    end = put(leader, "billing", 3)
    copy(leader, store)
    commit(store, end)
    store.close(NOW_MS)
    remove(files, ALL_FILES)
    assert offsets_of(follower(files, end, SETTINGS)) == of(billing=3)
