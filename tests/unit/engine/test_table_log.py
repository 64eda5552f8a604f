"""The tables of topics and groups as records of the log: starts with our files, others', and none."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support import golden
from tests.support.engine import NOW_MS, SMALL_SYNC, flush, send
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import LOG_ORIGIN, PhysicalOffset
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.table_log import TableLog
from trovemq_store.engine.trim import trim_now
from trovemq_store.files.fault_points import armed
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.files.real import RealFileSystem
from trovemq_store.settings import StoreSettings
from trovemq_store.topics.subscription_groups import (
    SUBSCRIPTION_GROUPS_PATH,
    SubscriptionGroup,
    SubscriptionGroups,
)
from trovemq_store.topics.table_notes import NOTES_PATH
from trovemq_store.topics.table_records import META_QUEUE_ID, META_TOPIC
from trovemq_store.topics.topics_file import TOPICS_PATH

SETTINGS: Final = replace(SMALL_SYNC, tables_in_log=True)
IN_FILES: Final = SMALL_SYNC
CONFIG_FILES: Final = tuple(
    path for name in (TOPICS_PATH, SUBSCRIPTION_GROUPS_PATH, NOTES_PATH) for path in (name, f"{name}.bak")
)


class Opened:
    """One open store with both tables."""

    def __init__(self, files: MemoryFileSystem, settings: StoreSettings = SETTINGS) -> None:
        self.files = files
        self.store = MessageStore.open(files, settings, NOW_MS)
        self.topics = self.store.topics
        self.groups = SubscriptionGroups.load(files)
        if self.store.tables is not None:
            self.store.tables.attach(self.groups)

    @property
    def tables(self) -> TableLog:
        assert self.store.tables is not None
        return self.store.tables

    def records(self) -> int:
        queue = self.store.consume_queues.get(META_TOPIC, META_QUEUE_ID)
        return 0 if queue is None else queue.max_offset

    def write_files(self) -> None:
        flush(self.store)
        self.tables.write_now()

    def close(self) -> MemoryFileSystem:
        self.groups.persist()
        flush(self.store)
        self.store.close(NOW_MS)
        return self.files

    def cut(self) -> MemoryFileSystem:
        """The files after a sync of the log and a power cut."""
        flush(self.store)
        return self.files.after_power_cut()


def queue_counts(opened: Opened) -> dict[str, int]:
    return {name: opened.topics.require(name).queue_count for name in opened.topics.names()}


def edit_topics(files: MemoryFileSystem, edit: Any) -> None:
    """Changes the table of topics.json as another program or a person does."""
    document = json.loads(files.read_bytes(TOPICS_PATH)) if files.exists(TOPICS_PATH) else {}
    edit(document.setdefault("topicConfigTable", {}))
    files.write_atomic(TOPICS_PATH, json.dumps(document).encode())


def topic_json(name: str, queue_count: int) -> dict[str, object]:
    return {"topicName": name, "readQueueNums": queue_count, "writeQueueNums": queue_count, "perm": 6}


def remove(files: MemoryFileSystem, paths: Iterable[str]) -> None:
    for path in paths:
        if files.exists(path):
            files.remove(path)


def test_a_new_store_has_no_record_and_no_note() -> None:
    opened = Opened(MemoryFileSystem())
    assert opened.store.end_offset == 0
    files = opened.close()
    assert not any(files.exists(path) for path in CONFIG_FILES)


def test_a_change_is_a_record_and_the_file_follows() -> None:
    opened = Opened(MemoryFileSystem())
    opened.topics.create("orders", 2)
    opened.groups.create(SubscriptionGroup("billing", retry_max=3))
    assert opened.records() == 0
    flush(opened.store)
    assert opened.records() == 2
    assert not opened.files.exists(TOPICS_PATH)
    opened.tables.write_now()
    assert (
        json.loads(opened.files.read_bytes(TOPICS_PATH))["topicConfigTable"]["orders"]["readQueueNums"] == 2
    )
    assert opened.tables.begin_write() is None


def test_a_power_cut_takes_no_synced_change() -> None:
    opened = Opened(MemoryFileSystem())
    opened.topics.create("orders", 2)
    opened.groups.create(SubscriptionGroup("billing", retry_max=3))
    opened.write_files()
    opened.topics.alter("orders", queue_count=4)
    opened.topics.create("bills", 1)
    opened.groups.alter("billing", retry_max=5)
    again = Opened(opened.cut())
    assert queue_counts(again) == {"orders": 4, "bills": 1}
    assert again.groups.require("billing").retry_max == 5
    assert again.topics.data_version == 3


def test_a_change_that_was_not_synced_is_gone_after_a_power_cut() -> None:
    opened = Opened(MemoryFileSystem())
    opened.topics.create("orders", 2)
    flush(opened.store)
    opened.topics.create("bills", 1)
    assert Opened(opened.files.after_power_cut()).topics.names() == ["orders"]
    assert Opened(opened.files.after_process_kill()).topics.names() == ["bills", "orders"]


def test_a_torn_last_record_changes_nothing() -> None:
    opened = Opened(MemoryFileSystem())
    opened.topics.create("orders", 2)
    flush(opened.store)
    end = opened.store.end_offset
    opened.topics.alter("orders", queue_count=4)
    files = opened.files.after_process_kill()
    file = files.open(f"commitlog/{0:020d}")
    file.write(end + 100, bytes(opened.store.end_offset - end - 100))
    file.close()
    again = Opened(files)
    assert queue_counts(again) == {"orders": 2}
    again.topics.alter("orders", queue_count=3)
    assert queue_counts(Opened(again.cut())) == {"orders": 3}


def test_a_deleted_entry_stays_deleted() -> None:
    opened = Opened(MemoryFileSystem())
    for name in ("orders", "bills"):
        opened.topics.create(name, 1)
    opened.groups.create(SubscriptionGroup("billing"))
    opened.write_files()
    opened.store.delete_topic("orders", NOW_MS)
    opened.groups.delete("billing")
    again = Opened(opened.cut())
    assert again.topics.names() == ["bills"]
    assert again.groups.names() == []
    third = Opened(again.close())
    assert third.topics.names() == ["bills"]


def test_the_tables_are_made_from_the_log_alone() -> None:
    opened = Opened(MemoryFileSystem())
    opened.topics.create("orders", 2, options={"deduplicate": "30d"}, message_type="FIFO")
    opened.topics.create("bills", 1)
    opened.groups.create(SubscriptionGroup("billing", retry_max=3))
    opened.store.delete_topic("bills", NOW_MS)
    config, version = opened.topics.require("orders"), opened.topics.data_version
    files = opened.close()
    remove(files, CONFIG_FILES)
    again = Opened(files)
    assert again.topics.require("orders") == config
    assert again.topics.names() == ["orders"]
    assert again.topics.data_version == version
    assert again.groups.require("billing").retry_max == 3
    assert files.exists(TOPICS_PATH)


def test_a_clean_stop_leaves_whole_files() -> None:
    opened = Opened(MemoryFileSystem())
    opened.topics.create("orders", 2)
    opened.groups.create(SubscriptionGroup("billing", retry_max=3))
    files = opened.close()
    before = MessageStore.open(files, IN_FILES, NOW_MS)
    assert before.topics.names() == ["orders"]
    assert SubscriptionGroups.load(files).require("billing").retry_max == 3


def test_a_start_of_our_own_files_appends_nothing() -> None:
    opened = Opened(MemoryFileSystem())
    opened.topics.create("orders", 2)
    opened.groups.create(SubscriptionGroup("billing"))
    again = Opened(opened.close())
    assert again.records() == 2
    assert again.tables.begin_write() is None


# --- other programs -----------------------------------------------------------------------------------
def test_an_old_store_is_converted_at_its_first_start() -> None:
    before = Opened(MemoryFileSystem(), IN_FILES)
    for number in range(300):
        before.topics.create(f"topic-{number}", 1 + number % 4)
    before.groups.create(SubscriptionGroup("billing", retry_max=3))
    files = before.close()
    opened = Opened(files)
    assert opened.records() == 301
    assert queue_counts(opened) == queue_counts(before)
    remove(files, CONFIG_FILES)
    again = Opened(files.after_power_cut())
    assert queue_counts(again) == queue_counts(before)
    assert again.groups.require("billing").retry_max == 3


def test_the_journal_of_an_old_store_is_converted() -> None:
    before = Opened(MemoryFileSystem(), IN_FILES)
    for number in range(300):
        before.topics.create(f"topic-{number}", 1)
    opened = Opened(before.cut())
    assert opened.topics.names() == before.topics.names()
    assert not opened.files.exists("trovemq/topics.journal")


def test_a_topic_that_the_version_before_left_in_its_journal_counts() -> None:
    opened = Opened(MemoryFileSystem())
    for number in range(300):
        opened.topics.create(f"topic-{number}", 1)
    before = Opened(opened.close(), IN_FILES)
    before.topics.create("new", 2)
    before.topics.delete("topic-7")
    again = Opened(before.cut())
    assert again.topics.require("new").queue_count == 2
    assert again.topics.get("topic-7") is None


def test_a_file_that_was_changed_by_hand_is_imported() -> None:
    opened = Opened(MemoryFileSystem())
    for name in ("orders", "bills", "tasks"):
        opened.topics.create(name, 1)
    files = opened.close()

    def edit(table: dict[str, Any]) -> None:
        del table["bills"]
        table["orders"]["readQueueNums"] = 5
        table["new"] = topic_json("new", 3)

    edit_topics(files, edit)
    again = Opened(files)
    assert queue_counts(again) == {"orders": 5, "tasks": 1, "new": 3}
    assert again.records() == 6
    files = again.cut()
    remove(files, CONFIG_FILES)
    assert queue_counts(Opened(files)) == {"orders": 5, "tasks": 1, "new": 3}


def test_a_file_changed_after_a_crash_undid_the_last_changes() -> None:
    """An operator edits topics.json, which lacks the last changes: his edit counts, and these, too."""
    opened = Opened(MemoryFileSystem())
    for name in ("orders", "bills"):
        opened.topics.create(name, 1)
    opened.write_files()
    opened.topics.alter("bills", queue_count=8)
    opened.topics.create("tasks", 2)
    files = opened.cut()
    edit_topics(files, lambda table: table.update(new=topic_json("new", 3)))
    assert queue_counts(Opened(files)) == {"orders": 1, "bills": 8, "tasks": 2, "new": 3}


def test_an_imported_file_is_not_imported_twice() -> None:
    opened = Opened(MemoryFileSystem())
    opened.topics.create("orders", 1)
    files = opened.close()
    edit_topics(files, lambda table: table["orders"].update(readQueueNums=5))
    again = Opened(files)
    again.topics.alter("orders", queue_count=7)
    assert queue_counts(Opened(again.cut())) == {"orders": 7}


def test_records_win_over_a_file_without_a_note() -> None:
    opened = Opened(MemoryFileSystem())
    for name in ("orders", "bills"):
        opened.topics.create(name, 1)
    opened.write_files()
    opened.topics.alter("orders", queue_count=4)
    opened.topics.delete("bills")
    files = opened.cut()
    remove(files, (NOTES_PATH, f"{NOTES_PATH}.bak"))
    edit_topics(files, lambda table: table.update(new=topic_json("new", 3)))
    assert queue_counts(Opened(files)) == {"orders": 4, "new": 3}


def test_the_second_copy_of_a_file_undid_the_last_change() -> None:
    opened = Opened(MemoryFileSystem())
    opened.topics.create("orders", 1)
    opened.write_files()
    opened.topics.alter("orders", queue_count=4)
    opened.write_files()
    files = opened.cut()
    files.write_atomic(TOPICS_PATH, b"\xff")
    again = Opened(files)
    assert queue_counts(again) == {"orders": 4}
    assert again.topics.fault
    files = again.close()
    files.remove(TOPICS_PATH)
    assert queue_counts(Opened(files)) == {"orders": 4}


def test_a_second_copy_whose_import_was_interrupted_was_dropped() -> None:
    """The next start took the log, which had no records yet, for whole: no topic was there."""
    opened = Opened(MemoryFileSystem(), IN_FILES)
    opened.topics.create("orders", 1)
    opened.topics.alter("orders", queue_count=4)
    files = opened.close()
    files.write_atomic(TOPICS_PATH, b"{")
    left: list[MemoryFileSystem] = []

    def act(name: str) -> None:
        if name == "tables.before_append":
            left.append(files.after_process_kill())

    with armed(act):
        Opened(files)
    assert "orders" in Opened(left[0]).topics


def test_deleted_topics_came_back_from_the_second_copy() -> None:
    """Of a table that has become empty, retention had removed the records of the deletions."""
    opened = Opened(MemoryFileSystem())
    opened.topics.create("orders", 1)
    opened.write_files()
    opened.topics.delete("orders")
    fill_segments(opened)
    opened.tables.write_now()
    trim(opened)
    files = opened.cut()
    files.write_atomic(TOPICS_PATH, b"{")
    assert Opened(files).topics.names() == []


def test_a_change_during_a_write_of_the_file_was_undone() -> None:
    """The broker was killed after the file, before anything named its content."""
    opened = Opened(MemoryFileSystem())
    opened.topics.create("orders", 1)
    opened.write_files()
    opened.topics.alter("orders", queue_count=2)
    flush(opened.store)
    left: list[MemoryFileSystem] = []

    def act(name: str) -> None:
        if name == "tables.after_files":
            opened.topics.alter("orders", queue_count=3)
            left.append(opened.cut())

    with armed(act):
        opened.tables.write_now()
    assert [queue_counts(Opened(files)) for files in left] == [{"orders": 3}]


def test_a_record_of_a_newer_format_is_refused() -> None:
    opened = Opened(MemoryFileSystem())
    opened.topics.create("orders", 1)
    files = opened.cut()
    path = f"commitlog/{0:020d}"
    assert files.read_bytes(path).count(b'"format":1') == 1
    newer = replace(SETTINGS, append_property_crc=False)
    opened = Opened(MemoryFileSystem(), newer)
    send(opened.store, b'{"format":2}', topic=META_TOPIC)
    with pytest.raises(TroveError) as caught:
        Opened(opened.cut(), newer)
    assert caught.value.spec is errors.STORE_NEWER


# --- retention ----------------------------------------------------------------------------------------
def fill_segments(opened: Opened, count: int = 12) -> None:
    for _ in range(count):
        send(opened.store, b"x" * 4_000)
        flush(opened.store)
    opened.store.flush_projections()


def trim(opened: Opened, *, again: bool = True) -> None:
    end = opened.store.closed_segments()[-1].end
    while again and opened.tables.reappend_before(end):
        pass
    flush(opened.store)
    if again:
        opened.tables.write_now()
    trim_now(opened.store.trim(end))


def test_entries_are_appended_again_before_their_segment_goes() -> None:
    opened = Opened(MemoryFileSystem())
    opened.topics.create("orders", 1)
    opened.groups.create(SubscriptionGroup("billing", retry_max=3))
    for _ in range(2):
        fill_segments(opened)
        trim(opened)
    files = opened.cut()
    remove(files, CONFIG_FILES)
    again = Opened(files)
    assert queue_counts(again) == {"orders": 1}
    assert again.groups.require("billing").retry_max == 3


def test_records_of_tables_in_the_next_segment_were_those_of_rocketmq() -> None:
    """A blank lay between the snapshot of a clean stop and the records that the next start had appended."""
    opened = Opened(MemoryFileSystem())
    send(opened.store, b"one")
    flush(opened.store)
    end = opened.store.end_offset
    assert opened.tables.are_all_after(end)
    while opened.store.segment_count < 3:
        opened.topics.create(f"topic-{len(opened.topics)}", 1)
        flush(opened.store)
    assert opened.tables.are_all_after(end)
    assert not opened.tables.are_all_after(LOG_ORIGIN)
    assert not opened.tables.are_all_after(PhysicalOffset(opened.store.end_offset + 1))
    send(opened.store, b"two")
    flush(opened.store)
    assert not opened.tables.are_all_after(end)


def test_a_store_without_its_records_did_not_open_on_a_full_disk() -> None:
    """Retention had removed them for lack of space: no start could free the disk."""
    opened = Opened(MemoryFileSystem())
    opened.topics.create("orders", 1)
    opened.groups.create(SubscriptionGroup("billing", retry_max=3))
    fill_segments(opened)
    opened.tables.write_now()
    trim(opened, again=False)
    files = opened.cut()

    def act(name: str) -> None:
        if name == "tables.before_append":
            raise TroveError(errors.DISK_FULL)

    with armed(act):
        full = Opened(files)
    assert queue_counts(full) == {"orders": 1}
    assert full.groups.require("billing").retry_max == 3
    fill_segments(full)
    trim(full)
    files = full.cut()
    remove(files, CONFIG_FILES)
    assert queue_counts(Opened(files)) == {"orders": 1}


def test_a_file_changed_after_a_trim_is_imported() -> None:
    opened = Opened(MemoryFileSystem())
    for name in ("orders", "bills"):
        opened.topics.create(name, 1)
    fill_segments(opened)
    trim(opened)
    opened.topics.alter("bills", queue_count=8)
    files = opened.cut()
    edit_topics(files, lambda table: table.update(new=topic_json("new", 3)))
    assert queue_counts(Opened(files)) == {"orders": 1, "bills": 8, "new": 3}


def test_records_that_another_program_removed_are_appended_at_the_start() -> None:
    opened = Opened(MemoryFileSystem())
    opened.topics.create("orders", 1)
    fill_segments(opened)
    files = opened.close()
    before = Opened(files, IN_FILES)
    trim_now(before.store.trim(before.store.closed_segments()[-1].end))
    files = before.close()
    again = Opened(files)
    files = again.close()
    remove(files, CONFIG_FILES)
    assert queue_counts(Opened(files)) == {"orders": 1}


def test_a_deletion_under_way_was_undone_by_a_trim() -> None:
    opened = Opened(MemoryFileSystem())
    for name in ("orders", "bills"):
        opened.topics.create(name, 1)
    fill_segments(opened)
    change = opened.topics.begin_delete("bills")
    change.run()
    trim(opened)
    opened.topics.finish(change)
    assert Opened(opened.cut()).topics.names() == ["orders"]


def test_a_creation_under_way_was_lost_by_a_trim() -> None:
    opened = Opened(MemoryFileSystem())
    opened.topics.create("orders", 1)
    fill_segments(opened)
    (change, _) = opened.topics.begin_create_all([])
    assert change is None
    other = opened.topics.begin_internal("rmq_sys_trovemq_carried", 1)
    assert other is not None
    other.run()
    trim(opened)
    opened.topics.finish(other)
    assert "rmq_sys_trovemq_carried" in Opened(opened.cut()).topics


def test_a_note_named_a_copy_that_a_power_cut_took() -> None:
    """The entry was appended again during a change; the file was written before a sync of the copy."""
    opened = Opened(MemoryFileSystem())
    opened.topics.create("orders", 1)
    fill_segments(opened)
    other = opened.topics.begin_internal("rmq_sys_trovemq_carried", 1)
    assert other is not None
    other.run()
    flush(opened.store)
    synced = opened.store.flushed_offset
    assert opened.tables.reappend_before(opened.store.closed_segments()[-1].end) == 1
    work = opened.tables.begin_write()
    assert work is not None
    assert work.end > synced, "it waits for the copy"


# --- a log with another owner -----------------------------------------------------------------------------
def limited(files: MemoryFileSystem, commit_limit: PhysicalOffset) -> MessageStore:
    return MessageStore.open(files, SETTINGS, NOW_MS, commit_limit=commit_limit)


def test_a_node_that_follows_has_the_committed_tables_and_appends_nothing() -> None:
    opened = Opened(MemoryFileSystem())
    opened.topics.create("orders", 1)
    flush(opened.store)
    limit = opened.store.end_offset
    opened.topics.create("bills", 1)
    files = opened.cut()
    remove(files, CONFIG_FILES)
    end = opened.store.end_offset
    store = limited(files, limit)
    assert store.topics.names() == ["orders"]
    assert store.end_offset == end
    store.close(NOW_MS)
    assert limited(files, end).topics.names() == ["bills", "orders"]


def test_on_a_node_that_follows_records_win_over_a_changed_file() -> None:
    opened = Opened(MemoryFileSystem())
    opened.topics.create("orders", 1)
    files = opened.close()
    edit_topics(files, lambda table: table["orders"].update(readQueueNums=5))
    end = opened.store.end_offset
    store = limited(files, end)
    assert store.topics.require("orders").queue_count == 1
    assert store.end_offset == end


# --- RocketMQ's stores --------------------------------------------------------------------------------
@pytest.mark.parametrize("name", golden.GOLDEN_NAMES)
def test_a_golden_store_is_converted_and_made_from_its_log_alone(name: str, tmp_path: Path) -> None:
    root = golden.unpack(name, tmp_path)
    settings = golden.settings_of(golden.load_manifest(name), tables_in_log=True)
    found: list[tuple[dict[str, object], dict[str, object]]] = []
    documents = json.loads((root / TOPICS_PATH).read_bytes())["topicConfigTable"]
    for life in ("converted", "again", "from the log alone"):
        files = RealFileSystem(root)
        store = MessageStore.open(files, settings, NOW_MS)
        groups = SubscriptionGroups.load(files)
        assert store.tables is not None
        store.tables.attach(groups)
        found.append((dict(store.topics.values), dict(groups.values)))
        assert store.tables.begin_write() is None, life
        store.close(NOW_MS)
        written = json.loads((root / TOPICS_PATH).read_bytes())["topicConfigTable"]
        assert written == documents, "RocketMQ finds its topics as it wrote them"
        if life == "again":
            for path in CONFIG_FILES:
                (root / path).unlink(missing_ok=True)
    assert found[0] == found[1] == found[2]
    assert found[0][0] == documents
