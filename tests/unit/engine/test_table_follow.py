"""The topics of a node that follows: another node's records make them, up to the commit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.atomic import SEGMENT
from tests.support.engine import NOW_MS, flush
from tests.support.followers import Leader, commit, copy, follower, saved_commit
from trovemq_proto.positions import LOG_ORIGIN, PhysicalOffset
from trovemq_store.engine import table_log
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.replica.epochs import Epochs
from trovemq_store.topics.subscription_groups import SubscriptionGroups
from trovemq_store.topics.table_records import TableRecord, decode_table_record
from trovemq_store.topics.topics_file import TOPICS_PATH

SETTINGS = replace(SEGMENT, tables_in_log=True)


def queue_counts(store: MessageStore) -> dict[str, int]:
    return {name: store.topics.require(name).queue_count for name in store.topics.names()}


def test_a_follower_has_each_committed_change_of_topics() -> None:
    leader = Leader(settings=SETTINGS).store
    files = MemoryFileSystem()
    store = follower(files, settings=SETTINGS)
    leader.topics.create("orders", 2)
    created = leader.end_offset
    leader.topics.alter("orders", queue_count=4)
    leader.topics.create("bills", 3)
    flush(leader)
    copy(leader, store)
    assert queue_counts(store) == {}
    commit(store, created)
    assert queue_counts(store) == {"orders": 2}
    commit(store, leader.end_offset)
    assert queue_counts(store) == queue_counts(leader) == {"orders": 4, "bills": 3}
    leader.topics.delete("bills")
    flush(leader)
    copy(leader, store)
    commit(store, leader.end_offset)
    assert queue_counts(store) == {"orders": 4}
    assert store.topics.data_version == leader.topics.data_version
    store.close(NOW_MS)
    again = follower(files, saved_commit(files), SETTINGS)
    commit(again, leader.end_offset)
    assert queue_counts(again) == {"orders": 4}


def test_a_topic_deleted_in_skipped_records_was_back_after_a_new_log() -> None:
    """The follower's log began again at the leader's, which had no longer the record of the deletion."""
    leader = Leader(settings=SETTINGS).store
    store = follower(files := MemoryFileSystem(), settings=SETTINGS)
    leader.topics.create("orders", 2)
    flush(leader)
    copy(leader, store)
    commit(store, leader.end_offset)
    store.flush_projections()
    assert store.tables is not None
    store.tables.write_now()
    assert files.exists(TOPICS_PATH)
    begin = PhysicalOffset(2 * SETTINGS.commit_log_file_size)
    store.begin_new_log(begin, Epochs.of([]))
    store.close(NOW_MS)
    again = follower(files, begin, SETTINGS)
    assert (again.min_offset, queue_counts(again)) == (begin, {})


def test_each_record_is_read_once_while_no_group_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The records of all topics were read again for each commit, because the groups had none."""
    leader = Leader(settings=SETTINGS).store
    store = follower(MemoryFileSystem(), settings=SETTINGS)
    assert store.tables is not None
    store.tables.attach(SubscriptionGroups.load(store.files))
    read: list[str] = []
    decode = decode_table_record

    def noting(body: bytes | memoryview) -> TableRecord:
        read.append((record := decode(body)).name)
        return record

    monkeypatch.setattr(table_log, "decode_table_record", noting)
    names = [f"topic-{number}" for number in range(5)]
    for name in names:
        leader.topics.create(name, 1)
        flush(leader)
        copy(leader, store)
        commit(store, leader.end_offset)
    assert read == names == store.topics.names()


def test_a_follower_appends_nothing_for_a_file_of_another_program() -> None:
    files = MemoryFileSystem()
    own = MessageStore.open(files, replace(SETTINGS, tables_in_log=False), NOW_MS)
    own.topics.create("orders", 2)
    own.close(NOW_MS)
    end = own.end_offset
    store = follower(files, LOG_ORIGIN, SETTINGS)
    assert store.end_offset == end


def test_a_topic_that_a_later_leader_cut_was_in_the_file() -> None:
    store = follower(files := MemoryFileSystem(), LOG_ORIGIN, SETTINGS)
    assert store.tables is not None
    store.tables.follows = False  # it leads
    store.topics.create("orders", 2)
    flush(store)
    assert queue_counts(store) == {"orders": 2}
    store.close(NOW_MS)
    assert not files.exists(TOPICS_PATH), "its record is not committed"
