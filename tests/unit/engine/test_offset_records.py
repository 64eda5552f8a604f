"""Consumer offsets as records of the log: starts with our file, others', and none; deletions, trims."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support import golden
from tests.support.engine import NOW_MS, flush, read_queue, send
from tests.unit.engine.test_table_log import (
    CONFIG_FILES,
    IN_FILES,
    Opened,
    fill_segments,
    remove,
    trim,
)
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import QueueId, QueueOffset
from trovemq_store.engine import table_log
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.trim import trim_now
from trovemq_store.files.fault_points import armed
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.files.real import RealFileSystem
from trovemq_store.topics import offsets as offsets_module
from trovemq_store.topics.offsets import OFFSETS_PATH, ConsumerOffsets
from trovemq_store.topics.subscription_groups import SubscriptionGroup
from trovemq_store.topics.table_notes import NOTES_PATH
from trovemq_store.topics.table_records import (
    META_QUEUE_ID,
    META_TOPIC,
    OFFSETS_KIND,
    PARTS_MAX,
    Entry,
    decode_table_record,
    encode_table_record,
    in_parts,
)

ALL_FILES = (*CONFIG_FILES, OFFSETS_PATH, f"{OFFSETS_PATH}.bak")
Offsets = dict[tuple[str, str, int], int]


def opened(files: MemoryFileSystem | None = None, messages: int = 20) -> Opened:
    """A new store with a topic of two queues, whose messages are on disk."""
    store = Opened(files or MemoryFileSystem())
    store.topics.create("orders", 2)
    for number in range(messages):
        send(store.store, b"%d" % number)
    flush(store.store)
    return store


def put(store: Opened, group: str, *offsets: int, topic: str = "orders") -> None:
    """As a call that sets the offsets of the topic's first queues, without the record."""
    for queue_id, offset in enumerate(offsets):
        store.store.offsets.commit(group, topic, QueueId(queue_id), QueueOffset(offset))
    store.store.offsets.record_next(group, topic)


def record(store: Opened) -> None:
    store.tables.record_offsets()
    flush(store.store)


def deliver(store: Opened, group: str, offset: int) -> None:
    """As a delivery, whose events say it: there is no record."""
    store.store.offsets.commit(group, "orders", QueueId(0), QueueOffset(offset))


def offsets_of(store: Opened | MessageStore) -> Offsets:
    found = (store.store if isinstance(store, Opened) else store).offsets.entries()
    return {(group, topic, queue_id): offset for group, topic, queue_id, offset in found}


def in_file(files: MemoryFileSystem) -> dict[str, dict[str, int]]:
    table: dict[str, dict[str, int]] = json.loads(files.read_bytes(OFFSETS_PATH))["offsetTable"]
    return table


def edit(files: MemoryFileSystem, change: Callable[[dict[str, Any]], object]) -> None:
    document = json.loads(files.read_bytes(OFFSETS_PATH))
    change(document["offsetTable"])
    files.write_atomic(OFFSETS_PATH, json.dumps(document).encode())


def offset_records(store: Opened) -> list[dict[str, Any]]:
    messages = read_queue(store.store, META_TOPIC, META_QUEUE_ID)
    found = [decode_table_record(message.body) for message in messages]
    return [dict(one.entries) for one in found if one.kind == OFFSETS_KIND]


# --- records ------------------------------------------------------------------------------------------
def test_offsets_that_come_together_are_one_record() -> None:
    store = opened()
    put(store, "billing", 3)
    put(store, "audit", 5, 0)
    record(store)
    assert offset_records(store) == [{"orders@billing": {"0": 3}, "orders@audit": {"0": 5, "1": 0}}]
    assert not store.files.exists(OFFSETS_PATH)
    assert store.tables.record_offsets() is None, "nothing is to be recorded"
    store.tables.write_now()
    assert in_file(store.files) == {"orders@billing": {"0": 3}, "orders@audit": {"0": 5, "1": 0}}
    assert store.tables.begin_write() is None


def test_the_file_of_offsets_won_over_later_records() -> None:
    store = opened()
    put(store, "billing", 9)
    record(store)
    store.tables.write_now()
    put(store, "billing", 4)  # a reset, which goes back
    put(store, "audit", 2)
    record(store)
    assert in_file(store.files) == {"orders@billing": {"0": 9}}
    again = Opened(store.cut())
    assert offsets_of(again) == {("billing", "orders", 0): 4, ("audit", "orders", 0): 2}


def test_an_offset_that_was_not_synced_is_gone_after_a_power_cut() -> None:
    store = opened()
    put(store, "billing", 3)
    record(store)
    put(store, "billing", 7)
    store.tables.record_offsets()
    assert offsets_of(Opened(store.files.after_power_cut())) == {("billing", "orders", 0): 3}
    assert offsets_of(Opened(store.files.after_process_kill())) == {("billing", "orders", 0): 7}


def test_deliveries_append_nothing_and_are_in_the_file() -> None:
    store = opened()
    deliver(store, "workers", 12)
    assert store.tables.record_offsets() is None
    assert offset_records(store) == []
    store.tables.write_now()
    assert offsets_of(Opened(store.cut())) == {("workers", "orders", 0): 12}


def test_a_clean_stop_leaves_a_whole_file_for_the_version_before() -> None:
    store = opened()
    put(store, "billing", 3)
    deliver(store, "workers", 12)
    record(store)
    before = MessageStore.open(store.close(), IN_FILES, NOW_MS)
    assert offsets_of(before) == {("billing", "orders", 0): 3, ("workers", "orders", 0): 12}


def test_a_start_of_our_own_file_appends_nothing() -> None:
    store = opened()
    put(store, "billing", 3)
    record(store)
    count = store.records()
    again = Opened(store.close())
    assert again.records() == count
    assert again.tables.begin_write() is None


def test_the_offsets_are_made_from_the_log_alone() -> None:
    store = opened()
    for number in (1, 2, 3):
        put(store, "billing", number)
        put(store, "audit", 2 * number)
        record(store)
    files = store.close()
    remove(files, ALL_FILES)
    again = Opened(files)
    assert offsets_of(again) == {("billing", "orders", 0): 3, ("audit", "orders", 0): 6}
    flush(again.store)
    again.tables.write_now()
    assert in_file(files) == {"orders@billing": {"0": 3}, "orders@audit": {"0": 6}}


def test_a_run_of_many_offsets_is_split_into_records_of_bounded_size() -> None:
    entries: list[Entry] = [(f"orders@g{number}", {"0": number, "1": 0}) for number in range(1_000)]
    entries.insert(500, ("orders@wide", {str(queue): 1 for queue in range(3 * PARTS_MAX)}))
    parts = list(in_parts(entries))
    assert [one for part in parts for one in part] == entries
    for part in parts:
        assert len(part) == 1 or sum(1 + len(value or ()) for _, value in part) <= PARTS_MAX
    assert list(in_parts([])) == []


def test_a_record_of_offsets_of_another_shape_is_no_record() -> None:
    values: list[dict[str, object]] = [{"orders@billing": 3}, {"orders@billing": []}]
    for value in values:
        with pytest.raises(ValueError, match="entries"):
            decode_table_record(encode_table_record(OFFSETS_KIND, "", value, {}))


def test_what_could_not_be_recorded_is_recorded_next() -> None:
    store = opened()
    put(store, "billing", 3)

    def full(name: str) -> None:
        if name == "tables.before_append":
            raise TroveError(errors.DISK_FULL)

    with armed(full), pytest.raises(TroveError):
        store.tables.record_offsets()
    put(store, "audit", 4)
    record(store)
    assert offset_records(store) == [{"orders@billing": {"0": 3}, "orders@audit": {"0": 4}}]


# --- deletions ----------------------------------------------------------------------------------------
def test_a_deleted_groups_offsets_stay_deleted() -> None:
    store = opened()
    store.groups.create(SubscriptionGroup("billing"))
    put(store, "billing", 3)
    put(store, "audit", 5)
    record(store)
    store.tables.write_now()
    store.store.offsets.delete_group("billing")
    record(store)
    assert offset_records(store)[-1] == {"orders@billing": None}
    files = store.cut()
    assert offsets_of(Opened(files)) == {("audit", "orders", 0): 5}
    files = files.after_power_cut()
    remove(files, ALL_FILES)
    assert offsets_of(Opened(files)) == {("audit", "orders", 0): 5}


@pytest.mark.parametrize("lost", [(), ALL_FILES])
def test_a_topic_that_was_made_again_had_the_offsets_of_the_deleted_one(lost: tuple[str, ...]) -> None:
    """The broker was killed between the record of the deletion and that of the offsets."""
    store = opened()
    put(store, "billing", 9)
    record(store)
    store.tables.write_now()
    work = store.store.begin_delete_topic("orders", NOW_MS)
    work.prepare()
    work.change.run()
    files = store.cut()
    remove(files, lost)
    again = opened(files, messages=12)
    assert offsets_of(again) == {}
    put(again, "billing", 2)
    record(again)
    files = again.cut()
    remove(files, lost)
    assert offsets_of(Opened(files)) == {("billing", "orders", 0): 2}


def test_a_topic_made_again_had_an_offset_set_during_its_deletion() -> None:
    """The record of that offset lay after the deletion, and the broker was killed before the next one."""
    store = opened()
    put(store, "billing", 9)
    record(store)
    work = store.store.begin_delete_topic("orders", NOW_MS)
    work.prepare()
    work.change.run()
    put(store, "billing", 7)
    put(store, "audit", 3)
    record(store)
    end = store.store.end_offset
    assert store.tables.reappend_before(end) == 1, "the topic"
    with pytest.raises(TroveError, match="being deleted"):
        store.tables.reappend_before(end)
    assert offsets_of(opened(store.cut(), messages=12)) == {}
    store.store.finish_delete_topic(work)
    record(store)
    assert offset_records(store) == [{"orders@billing": {"0": 9}}, {"orders@billing": None}]


def test_an_offset_set_during_a_failed_deletion_is_recorded_later() -> None:
    store = opened()
    work = store.store.begin_delete_topic("orders", NOW_MS)
    put(store, "billing", 7)
    record(store)
    assert offset_records(store) == []
    store.store.finish_delete_topic(work)
    record(store)
    assert offset_records(store) == [{"orders@billing": {"0": 7}}]


def test_a_file_written_during_a_deletion_had_the_deleted_topics_offsets() -> None:
    """It was captured after the deletion's record, and its content named that record as known."""
    store = opened()
    deliver(store, "billing", 9)
    work = store.store.begin_delete_topic("orders", NOW_MS)
    work.prepare()
    work.change.run()
    flush(store.store)
    store.tables.write_now()
    again = opened(store.cut(), messages=12)
    assert offsets_of(again) == {}


def test_the_deletion_of_a_topic_deletes_its_offsets() -> None:
    store = opened()
    put(store, "billing", 9)
    record(store)
    store.store.delete_topic("orders", NOW_MS)
    assert offset_records(store)[-1] == {"orders@billing": None}
    assert offsets_of(Opened(store.files.after_power_cut())) == {}


# --- other programs -----------------------------------------------------------------------------------
def test_the_offsets_of_an_old_store_are_converted_at_its_first_start() -> None:
    before = Opened(MemoryFileSystem(), IN_FILES)
    before.topics.create("orders", 2)
    for number in range(9):
        send(before.store, b"%d" % number)
    flush(before.store)
    for number in range(300):
        deliver(before, f"g{number}", number % 9)
    expected = offsets_of(before)
    files = before.close()
    store = Opened(files)
    assert offsets_of(store) == expected
    remove(files, ALL_FILES)
    assert offsets_of(Opened(files.after_power_cut())) == expected


def test_offsets_that_were_changed_by_hand_are_imported() -> None:
    store = opened()
    put(store, "billing", 3)
    put(store, "audit", 5)
    put(store, "gone", 1)
    record(store)
    files = store.close()

    def change(table: dict[str, Any]) -> None:
        table["orders@billing"]["0"] = 8
        table["orders@new"] = {"1": 0}
        del table["orders@gone"]

    edit(files, change)
    expected = {("billing", "orders", 0): 8, ("audit", "orders", 0): 5, ("new", "orders", 1): 0}
    again = Opened(files)
    assert offsets_of(again) == expected
    files = again.cut()
    remove(files, ALL_FILES)
    assert offsets_of(Opened(files)) == expected


def test_offsets_changed_after_a_crash_undid_the_last_records() -> None:
    store = opened()
    put(store, "billing", 3)
    put(store, "audit", 5)
    record(store)
    store.tables.write_now()
    put(store, "billing", 7)
    record(store)
    files = store.cut()
    edit(files, lambda table: table["orders@audit"].update({"0": 1}))
    assert offsets_of(Opened(files)) == {("billing", "orders", 0): 7, ("audit", "orders", 0): 1}


def test_an_imported_file_of_offsets_is_not_imported_twice() -> None:
    store = opened()
    put(store, "billing", 3)
    record(store)
    files = store.close()
    edit(files, lambda table: table["orders@billing"].update({"0": 8}))
    again = Opened(files)
    put(again, "billing", 4)
    record(again)
    assert offsets_of(Opened(again.cut())) == {("billing", "orders", 0): 4}


def test_the_version_before_moved_offsets_that_deliveries_had_moved() -> None:
    store = opened()
    put(store, "billing", 3)
    deliver(store, "workers", 5)
    record(store)
    deliver(store, "billing", 6)
    before = Opened(store.close(), IN_FILES)
    deliver(before, "workers", 9)
    deliver(before, "billing", 10)
    again = Opened(before.close())
    assert offsets_of(again) == {("billing", "orders", 0): 10, ("workers", "orders", 0): 9}


def test_the_second_copy_of_the_file_brought_a_deleted_groups_offsets_back() -> None:
    """Offsets that deliveries have moved are in the events."""
    store = opened()
    put(store, "billing", 3)
    put(store, "audit", 1)
    record(store)
    deliver(store, "workers", 5)
    store.tables.write_now()
    store.store.offsets.delete_group("audit")
    put(store, "billing", 8)
    record(store)
    store.tables.write_now()
    files = store.cut()
    files.write_atomic(OFFSETS_PATH, b"{")
    again = Opened(files)
    assert offsets_of(again) == {("billing", "orders", 0): 8}
    assert again.store.offsets.fault


def test_offsets_above_the_end_of_an_emptied_log_are_lowered_on_disk() -> None:
    store = opened()
    put(store, "billing", 9)
    record(store)
    files = store.close()
    for path in [path for path in files._files if not path.startswith("config/") and path != NOTES_PATH]:
        files.remove(path)
    again = Opened(files)
    assert again.store.recovery.lowered_offsets == (("orders", 1),)
    send(again.store, b"new")
    flush(again.store)
    third = Opened(files.after_process_kill())
    assert offsets_of(third) == {("billing", "orders", 0): 0}
    assert not third.store.recovery.lowered_offsets


def test_a_full_disk_keeps_no_store_with_lowered_offsets_from_opening() -> None:
    store = opened()
    put(store, "billing", 9)
    record(store)
    files = store.close()
    for path in [path for path in files._files if not path.startswith("config/")]:
        files.remove(path)

    def full(name: str) -> None:
        if name == "tables.before_append":
            raise TroveError(errors.DISK_FULL)

    again = Opened(files)
    again.store.offsets.commit("audit", "orders", QueueId(0), QueueOffset(5))
    with armed(full):
        lowered = again.tables.lower_offsets(lambda _topic, _queue_id: QueueOffset(0))
    assert lowered == {"orders": 1}
    assert list(again.store.offsets.unrecorded) == ["orders@audit"], "the next record has it"


# --- retention ----------------------------------------------------------------------------------------
def test_offsets_are_appended_again_before_their_segment_goes() -> None:
    store = opened()
    put(store, "billing", 3)
    deliver(store, "workers", 5)  # its events go, too
    record(store)
    for _ in range(2):
        fill_segments(store)
        trim(store)
    files = store.cut()
    remove(files, ALL_FILES)
    low = store.store.consume_queues.queues("orders")[0].min_offset
    assert offsets_of(Opened(files)) == {("billing", "orders", 0): 3, ("workers", "orders", 0): 5}
    assert low > 5


def test_only_offsets_below_the_new_beginning_are_appended_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_log, "REAPPENDED_AT_ONCE", 2)
    store = opened()
    for number in range(5):
        put(store, f"old{number}", number)
    record(store)
    fill_segments(store)
    end = store.store.closed_segments()[-1].end
    for number in range(50):
        put(store, f"new{number}", 1)
    record(store)
    counts = []
    while count := store.tables.reappend_before(end):
        counts.append(count)
    assert counts == [1, 2, 2, 1], "the topic, and the offsets in steps"
    flush(store.store)
    again = {name for one in offset_records(store)[-3:] for name in one}
    assert again == {f"orders@old{number}" for number in range(5)}


def test_offsets_whose_records_were_removed_are_appended_at_the_start() -> None:
    store = opened()
    put(store, "billing", 3)
    record(store)
    fill_segments(store)
    before = Opened(store.close(), IN_FILES)
    trim_now(before.store.trim(before.store.closed_segments()[-1].end))
    again = Opened(before.close())
    files = again.close()
    remove(files, ALL_FILES)
    assert offsets_of(Opened(files)) == {("billing", "orders", 0): 3}


# --- RocketMQ's stores --------------------------------------------------------------------------------
@pytest.mark.parametrize("name", golden.GOLDEN_NAMES)
def test_the_offsets_of_a_golden_store_are_converted_and_kept(name: str, tmp_path: Path) -> None:
    root = golden.unpack(name, tmp_path)
    settings = golden.settings_of(golden.load_manifest(name), tables_in_log=True)
    expected: Offsets | None = None
    for life in ("converted", "again", "from the log alone"):
        store = MessageStore.open(RealFileSystem(root), settings, NOW_MS)
        found = offsets_of(store)
        expected = found if expected is None else expected
        assert found == expected, life
        store.close(NOW_MS)
        written = ConsumerOffsets.load(RealFileSystem(root))
        assert {(g, t, q): offset for g, t, q, offset in written.entries()} == expected
        if life == "again":
            for path in ALL_FILES:
                (root / path).unlink(missing_ok=True)


def test_a_start_is_not_slower_by_the_square_of_the_offsets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = opened()
    for number in range(300):
        put(store, f"group-{number}", number % 10)
    record(store)
    files = store.close()
    made, value = Counter[str](), offsets_module._value

    def counted(queues: Mapping[QueueId, QueueOffset]) -> dict[str, object]:
        made["values"] += 1
        return value(queues)

    monkeypatch.setattr(offsets_module, "_value", counted)
    again = Opened(files)
    assert len(again.store.offsets) == 300
    assert 0 < made["values"] < 300 * 20, "each value is made a few times, not once for each other one"
