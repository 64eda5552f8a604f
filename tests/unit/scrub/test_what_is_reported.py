"""A check's reports where a store lacks something, and where it changes while it is checked."""

from __future__ import annotations

import errno
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from tests.support.engine import NOW_MS, SMALL, flush, open_store, record, send
from tests.unit.scrub.test_live_scrub import (
    ITEMS_AT,
    LOG,
    QUEUE,
    begin,
    fill,
    index_file,
    patch,
    places,
    scrub,
)
from tests.unit.tools.test_tools import verify
from trovemq_proto.positions import PhysicalOffset, QueueId, QueueOffset
from trovemq_store.check import log_walk, queue_check
from trovemq_store.check.findings import EACH_MAX, REPORTED_MAX, Finding, Findings
from trovemq_store.check.layouts import read_queue
from trovemq_store.check.live_store import IndexMappings, LiveQueue
from trovemq_store.engine.trim import trim_now
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.files.real import RealFileSystem
from trovemq_store.index.consume_queue import UNIT_SIZE

SEGMENT = SMALL.commit_log_file_size


def test_findings_are_counted_beyond_those_that_are_named() -> None:
    named: list[Finding] = []
    findings = Findings(named.append)
    for number in range(REPORTED_MAX + 5):
        findings.add("file", number, "bad", note=number % 2 == 1)
    assert (findings.finding_count, findings.note_count) == (503, 502)
    assert len(named) == REPORTED_MAX


# --- the index --------------------------------------------------------------------------------------------
def test_two_items_that_name_the_same_one_before_them() -> None:
    files = MemoryFileSystem()
    store = open_store(files)
    fill(store, 40)
    path = index_file(store)
    view = files.open(path).view()
    before = {k: int.from_bytes(view[ITEMS_AT + 20 * k + 16 :][:4]) for k in range(1, 160)}
    item = next(k for k in before if before.get(before[k], 0))
    skipped = before[item]
    patch(files, path, ITEMS_AT + 20 * item + 16, before[skipped].to_bytes(4))
    found = scrub(store)
    assert (path, ITEMS_AT + 20 * item) in places(found), "names a record that another one names too"
    assert (path, ITEMS_AT + 20 * skipped) in places(found), "is in no chain now"


def test_damage_of_a_store_without_an_index() -> None:
    files = MemoryFileSystem()
    store = open_store(files, replace(SMALL, message_index_enable=False))
    fill(store, 20)
    patch(files, LOG, 4, b"\0")
    assert places(scrub(store)) == {(LOG, 0)}


def test_an_item_of_a_place_between_the_records() -> None:
    """The unused rest of a segment."""
    files = MemoryFileSystem()
    store = open_store(files)
    while store.end_offset < SEGMENT:
        count = store.consume_queues.next_offset("orders", QueueId(0))
        send(store, b"b" * 900, keys=f"k{count}")
    path = index_file(store)
    last_of_segment = store.consume_queues.next_offset("orders", QueueId(0)) - 1
    patch(files, path, ITEMS_AT + 20 * last_of_segment + 4, (SEGMENT - 4).to_bytes(8))
    found = scrub(store)
    assert (path, ITEMS_AT + 20 * last_of_segment) in places(found)
    assert ("index", 0) in places(found), "its record has none now"


def test_index_files_that_were_added_before_they_were_seen() -> None:
    store = open_store(MemoryFileSystem())
    fill(store, 10)
    mappings = IndexMappings(store)
    mappings.open()
    assert mappings.now(store.visible_offset) is not None
    fill(store, 100, 10)
    assert mappings.now(store.visible_offset) is None


def test_an_index_file_that_the_disk_cannot_read() -> None:
    store = open_store(MemoryFileSystem())
    fill(store, 10)
    checking, found = begin(store)
    ahead = next(checking.steps)
    assert ahead is not None
    assert ahead.path == index_file(store)
    checking.steps.send(OSError(errno.EIO, "bad sector"))
    for _ in checking.steps:
        pass
    assert [(each.file, each.offset) for each in found] == [(ahead.path, 0)]
    assert "bad sector" in found[0].what
    assert checking.progress.records == 10, "everything else is checked"
    assert checking.item_count == 0, "nothing of the file is looked at"


def test_records_that_are_not_indexed_yet_are_a_note(tmp_path: Path) -> None:
    """The index was switched off for a while, and the store was stopped in that time."""
    for number, enabled in enumerate((True, False)):
        store = open_store(RealFileSystem(tmp_path), replace(SMALL, message_index_enable=enabled))
        end = store.end_offset
        fill(store, 10, 10 * number)
        flush(store)
        store.close(NOW_MS + 100)
    code, found, summary = verify(tmp_path)
    assert (code, summary["findings"], summary["notes"]) == (0, 0, 1)
    assert f"10 records from {end} on are not indexed yet" in found[0]["what"]


# --- consume queues ---------------------------------------------------------------------------------------
def test_units_without_a_file(tmp_path: Path) -> None:
    """A whole queue, and the last file of one; a file that does not belong to a queue is named and
    skipped."""
    store = open_store(RealFileSystem(tmp_path))
    fill(store, 200)
    flush(store)
    store.close(NOW_MS + 1000)
    directory = tmp_path / "consumequeue/orders"
    (directory / "0" / "notes.txt").write_text("nothing of ours")
    for path in (directory / "1").iterdir():
        path.unlink()
    (directory / "1").rmdir()
    (directory / "2" / f"{400 * 2:020d}").unlink()
    code, found, _ = verify(tmp_path)
    assert code == 1
    missing = {(each["file"], each["offset"]): each["what"] for each in found if not each["note"]}
    assert missing == {
        ("consumequeue/orders/0/notes.txt", 0): "has 15 bytes, mappedFileSizeConsumeQueue is 400",
        ("consumequeue/orders/1", 0): "units 0 to 49 are missing",
        ("consumequeue/orders/2", 40 * UNIT_SIZE): "units 40 to 49 are missing",
    }
    assert read_queue(RealFileSystem(tmp_path), "orders", QueueId(0)).end == 50


def test_units_of_a_live_queue_that_are_asked_for_one_by_one() -> None:
    """Units outside of the queue are zeros; far ones are read without the units between them."""
    store = open_store(MemoryFileSystem())
    for _ in range(300):
        send(store, b"x")
    queue = store.consume_queues.queues("orders")[0]
    live = LiveQueue(queue, SMALL.consume_queue_file_size)
    assert live.at(np.array([-1, 300, 10_000]))["size"].tolist() == [0, 0, 0]
    found = live.at(np.array([299, -1, 0]))
    assert found["physical_offset"].tolist() == [
        queue.unit(QueueOffset(299))[0],
        0,
        queue.unit(QueueOffset(0))[0],
    ]


def test_a_topic_deleted_while_its_records_are_checked_is_not_a_finding() -> None:
    store = open_store(MemoryFileSystem(), topics=("orders", "gone"))
    fill(store, 20)
    fill(store, 20, topic="gone")
    checking, found = begin(store)
    while checking.progress.records == 0:
        next(checking.steps)
    store.consume_queues.delete_topic("gone")  # its deletion counts from the next step on
    next(checking.steps)
    store.deletions.add("gone", PhysicalOffset(store.end_offset + 1))
    for _ in checking.steps:
        pass
    assert found == []


def test_many_queues_and_many_bad_units_take_small_steps() -> None:
    files = MemoryFileSystem()
    store = open_store(files)
    store.topics.create("wide", queue_count=40)
    for queue_id in range(40):
        send(store, b"x", topic="wide", queue_id=queue_id)
    checking, found = begin(store)
    assert sum(1 for _ in checking.steps) > 40
    assert found == []


def test_of_many_units_without_a_record_the_first_hundred_are_named() -> None:
    files = MemoryFileSystem()
    settings = replace(SMALL, consume_queue_file_size=8_000)
    store = open_store(files, settings)
    for number in range(300):
        send(store, b"x", queue_id=number % 2)
    queue = store.consume_queues.queues("orders")[1]
    for offset in range(queue.max_offset):
        at = queue.unit(QueueOffset(offset))[0]
        segment = at // SEGMENT * SEGMENT
        patch(files, f"commitlog/{segment:020d}", at - segment + 4, b"\0")  # the record is damaged
        patch(files, QUEUE.format(1), UNIT_SIZE * offset, (at - 1).to_bytes(8))  # and the unit names another
    units = [each for each in scrub(store) if each.file == QUEUE.format(1)]
    assert len(units) == EACH_MAX + 1
    assert units[-1].what.startswith("50 more units")


def test_more_damages_than_are_kept_are_still_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_check, "DAMAGES_MAX", 1)
    files = MemoryFileSystem()
    store = open_store(files)
    fill(store, 20)
    at = [store.consume_queues.queues("orders")[queue_id].unit(QueueOffset(2))[0] for queue_id in (0, 2)]
    for each in at:
        patch(files, LOG, each + 4, b"\0")
    found = places(scrub(store))
    assert {(LOG, each) for each in at} <= found
    assert (QUEUE.format(0), 40) not in found, "its unit may be there: its record is damaged"


# --- the log ----------------------------------------------------------------------------------------------
def long_damage(files: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """The records between two places are overwritten, in a log that is searched 512 bytes at a time."""
    monkeypatch.setattr(log_walk, "SEARCH_BYTES", 512)
    store = open_store(files)
    fill(store, 60)
    queue = store.consume_queues.queues("orders")[3]
    begin_at, end_at = queue.unit(QueueOffset(1))[0], queue.unit(QueueOffset(6))[0]
    noise = record(b"x")[:8] + b"\1" * 80  # begins like a record, and is none
    patch(files, LOG, begin_at, (noise * 100)[: end_at - begin_at])
    return begin_at, end_at


def test_a_long_damage_is_searched_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    files = MemoryFileSystem()
    begin_at, end_at = long_damage(files, monkeypatch)
    store = open_store(files.after_process_kill())
    checking, found = begin(store)
    asked = [ahead.begin for ahead in checking.steps if ahead is not None]
    searched = [at for at in asked if begin_at < at < end_at]
    assert len(searched) == (end_at - begin_at - 1) // 512
    assert f"{end_at - begin_at} bytes are" in "".join(each.what for each in found)


def test_what_cannot_be_read_after_a_damage_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    files = MemoryFileSystem()
    begin_at, end_at = long_damage(files, monkeypatch)
    checking, found = begin(open_store(files.after_process_kill()))
    failure: OSError | None = None
    refused = 0
    while True:
        try:
            ahead = checking.steps.send(failure)
        except StopIteration:
            break
        searching = ahead is not None and ahead.path == LOG and begin_at < ahead.begin < end_at
        failure = OSError(errno.EIO, "bad sector") if searching else None
        refused += searching
    assert refused
    assert (LOG, begin_at) in places(found)
    assert checking.progress.position == checking.end


def test_a_segment_that_goes_while_a_damage_of_it_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    files = MemoryFileSystem()
    begin_at, end_at = long_damage(files, monkeypatch)
    store = open_store(files.after_process_kill())
    fill(store, 200, 60)
    flush(store)
    store.flush_projections()
    checking, found = begin(store)
    for ahead in checking.steps:
        if ahead is not None and ahead.path == LOG and begin_at < ahead.begin < end_at:
            break
    trim_now(store.trim(PhysicalOffset(SEGMENT)))
    for _ in islice(checking.steps, 1_000):
        pass
    assert found == []
    assert checking.progress.position == checking.end


def test_damage_in_the_last_bytes_of_the_log() -> None:
    files = MemoryFileSystem()
    store = open_store(files)
    fill(store, 20)
    last = max(queue.last_physical_end for queue in store.consume_queues.queues("orders"))
    at = max(
        queue.unit(QueueOffset(queue.max_offset - 1))[0] for queue in store.consume_queues.queues("orders")
    )
    patch(files, LOG, at, b"\xff" * (last - at))
    assert (LOG, at) in places(scrub(store))
