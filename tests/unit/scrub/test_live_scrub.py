"""The check of a store that is in use: nothing is found in a healthy one, and every damage by its place."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.engine import NOW_MS, SMALL, flush, open_store, send
from trovemq_proto.positions import QueueOffset
from trovemq_proto.records.layout import BODY_CRC_AT
from trovemq_store.check.checked_store import ReadAhead
from trovemq_store.check.findings import Finding, Findings
from trovemq_store.check.live_store import IndexMappings, LiveScrub
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.engine.trim import trim_now
from trovemq_store.files.faulty import FaultyFileSystem
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.files.real import RealFileSystem

STEP = 2048
LOG = "commitlog/00000000000000000000"
QUEUE = "consumequeue/orders/{}/00000000000000000000"
ITEMS_AT = 40 + 4 * SMALL.index_slot_count


def fill(store: MessageStore, count: int, first: int = 0, topic: str = "orders") -> None:
    for number in range(first, first + count):
        send(store, b"b" * (number % 300), NOW_MS + number, topic=topic, keys=f"k{number % 7} k",
             tag=f"t{number % 3}", unique_key=f"U{number}", queue_id=number % 4,
             append_property_crc=store.settings.append_property_crc)  # fmt: skip


@pytest.fixture
def files() -> MemoryFileSystem:
    return MemoryFileSystem()


@pytest.fixture
def store(files: MemoryFileSystem) -> MessageStore:
    opened = open_store(files, topics=("orders", "gone"))
    fill(opened, 150)
    return opened


def patch(files: MemoryFileSystem, path: str, at: int, data: bytes) -> tuple[str, int]:
    files.open(path).write(at, data)
    return path, at


def begin(store: MessageStore) -> tuple[LiveScrub, list[Finding]]:
    found: list[Finding] = []
    mappings = IndexMappings(store)
    mappings.open()
    index = mappings.now(store.visible_offset)
    assert index is not None
    return LiveScrub(store, index, Findings(found.append), STEP), found


def scrub(store: MessageStore, between: Callable[[int], None] = lambda _: None) -> list[Finding]:
    """The findings of a whole check; between(number) is called after each step."""
    checking, found = begin(store)
    for number, _ in enumerate(checking.steps):
        between(number)
    return found


def places(found: list[Finding]) -> set[tuple[str, int]]:
    return {(each.file, each.offset) for each in found if not each.note}


# --- healthy stores ---------------------------------------------------------------------------------------
def test_a_healthy_store(store: MessageStore) -> None:
    checking, found = begin(store)
    for _ in checking.steps:
        pass
    assert found == []
    assert checking.progress.position == checking.end == store.end_offset
    assert (checking.progress.records, checking.unit_count, checking.item_count) == (150, 150, 4 * 150)


def test_an_empty_store(files: MemoryFileSystem) -> None:
    assert scrub(open_store(files)) == []


def test_a_store_without_an_index(files: MemoryFileSystem) -> None:
    store = open_store(files, replace(SMALL, message_index_enable=False))
    fill(store, 20)
    assert scrub(store) == []


def test_a_store_that_was_opened_again(store: MessageStore, files: MemoryFileSystem) -> None:
    flush(store)
    store.close(NOW_MS + 1000)
    assert scrub(open_store(files)) == []


def test_the_steps_are_small(store: MessageStore) -> None:
    checking, _ = begin(store)
    position = checking.progress.position
    for _ in checking.steps:
        assert checking.progress.position - position <= SMALL.body_size_max + STEP
        position = checking.progress.position


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(st.lists(st.sampled_from("sssssdmtTf"), min_size=5, max_size=60))
def test_whatever_happens_meanwhile_a_healthy_store_has_no_findings(actions: list[str]) -> None:
    store = open_store(MemoryFileSystem(), topics=("orders", "gone"))
    fill(store, 120)
    fill(store, 12, topic="gone")
    numbers = iter(range(1000, 100_000))

    def act(step: int) -> None:
        action = actions[step % len(actions)]
        if action == "s":
            fill(store, 3, next(numbers))
        elif action == "m" and store.topics.get("gone") is not None:
            fill(store, 5, next(numbers), topic="gone")
        elif action == "d" and store.topics.get("gone") is not None:
            store.delete_topic("gone", NOW_MS)
        elif action == "t" and store.topics.get("gone") is None:
            store.topics.create("gone")
        elif action == "f":
            flush(store)
            store.flush_projections(index=True)
        elif action == "T" and (segments := store.closed_segments()):
            trim_now(store.trim(segments[0].end))

    assert scrub(store, act) == []


# --- damage -----------------------------------------------------------------------------------------------
def test_a_damaged_body(store: MessageStore, files: MemoryFileSystem) -> None:
    at = store.consume_queues.queues("orders")[1].unit(QueueOffset(3))[0]
    patch(files, LOG, at + BODY_CRC_AT, b"\1\2\3\4")
    assert places(scrub(store)) == {(LOG, at)}


@pytest.mark.parametrize(("field_at", "data"), [(0, b"\x7f"), (4, b"\0"), (28, b"\7"), (84, b"\xff\xff")])
def test_a_damaged_header(store: MessageStore, files: MemoryFileSystem, field_at: int, data: bytes) -> None:
    """Size, magic, physical offset, body size."""
    at = store.consume_queues.queues("orders")[1].unit(QueueOffset(3))[0]
    patch(files, LOG, at + field_at, data)
    found = scrub(store)
    assert places(found) == {(LOG, at)}
    assert [each.what for each in found if each.note] == ["4 items are of damaged records"]


def test_a_damaged_property(files: MemoryFileSystem) -> None:
    store = open_store(files, replace(SMALL, append_property_crc=True))
    fill(store, 20)
    at, size, _ = store.consume_queues.queues("orders")[1].unit(QueueOffset(3))
    record = bytes(files.open(LOG).view()[at : at + size])
    patch(files, LOG, at + record.index(b"UNIQ_KEY") + 9, b"X")
    assert (LOG, at) in places(scrub(store))


def test_a_whole_region_of_zeros(store: MessageStore, files: MemoryFileSystem) -> None:
    queue = store.consume_queues.queues("orders")[0]
    begin_at, end_at = queue.unit(QueueOffset(1))[0], queue.unit(QueueOffset(4))[0]
    patch(files, LOG, begin_at, bytes(end_at - begin_at))
    found = scrub(store)
    assert places(found) == {(LOG, begin_at)}
    assert f"{end_at - begin_at} bytes are zeros" in found[0].what


def test_a_unit_that_points_elsewhere(store: MessageStore, files: MemoryFileSystem) -> None:
    for queue_id, field in ((0, 7), (1, 11), (2, 19)):
        patch(files, QUEUE.format(queue_id), 20 * 5 + field, b"\xee")
    assert places(scrub(store)) == {(QUEUE.format(queue_id), 100) for queue_id in range(3)}


def test_a_blank_where_there_is_a_message(store: MessageStore, files: MemoryFileSystem) -> None:
    patch(files, QUEUE.format(1), 40, b"\0" * 8 + b"\x7f\xff\xff\xff" + b"\0" * 8)
    assert places(scrub(store)) == {(QUEUE.format(1), 40)}


def test_a_unit_without_a_record(store: MessageStore, files: MemoryFileSystem) -> None:
    """The log's records continue after a gap, in which a unit names a place that is not a record's."""
    queue = store.consume_queues.queues("orders")[2]
    at, size, _ = queue.unit(QueueOffset(4))
    patch(files, LOG, at, bytes(size))
    assert places(scrub(store)) == {(LOG, at)}  # its unit may be there
    patch(files, QUEUE.format(2), 80, (at + size + 1).to_bytes(8))
    assert places(scrub(store)) == {(LOG, at), (QUEUE.format(2), 80)}


def index_file(store: MessageStore) -> str:
    assert store.key_index is not None
    return f"index/{store.key_index.file_names[0]}"


@pytest.mark.parametrize(("field", "data"), [(0, b"\0\0\0\x2a"), (4, b"\0\0\0\0\0\0\0\1")])
def test_an_item_that_is_not_a_key_of_its_record(
    store: MessageStore, files: MemoryFileSystem, field: int, data: bytes
) -> None:
    place = index_file(store), ITEMS_AT + 20 * 17
    patch(files, place[0], place[1] + field, data)
    found = places(scrub(store))
    assert place in found
    assert ("index", 0) in found  # a key has no item now


def test_an_item_that_no_chain_reaches(store: MessageStore, files: MemoryFileSystem) -> None:
    path = index_file(store)
    view = files.open(path).view()
    with_older = [k for k in range(1, 200) if int.from_bytes(view[ITEMS_AT + 20 * k + 16 :][:4])]
    item = with_older[5]
    older = int.from_bytes(view[ITEMS_AT + 20 * item + 16 :][:4])
    patch(files, path, ITEMS_AT + 20 * item + 16, bytes(4))
    assert places(scrub(store)) == {(path, 32), (path, ITEMS_AT + 20 * older)}


@pytest.mark.parametrize("wrong", [b"\0\0\xff\xff", b"\xff\xff\xff\xff"])
def test_an_item_with_a_wrong_link(store: MessageStore, files: MemoryFileSystem, wrong: bytes) -> None:
    path = index_file(store)
    patch(files, path, ITEMS_AT + 20 * 9 + 16, wrong)
    assert (path, ITEMS_AT + 20 * 9) in places(scrub(store))


def test_a_slot_that_is_not_the_newest(store: MessageStore, files: MemoryFileSystem) -> None:
    path = index_file(store)
    view = files.open(path).view()
    slot = next(s for s in range(SMALL.index_slot_count) if int.from_bytes(view[40 + 4 * s :][:4]))
    patch(files, path, 40 + 4 * slot, b"\0\0\0\0")
    assert all(place[0] == path for place in places(scrub(store)))
    assert scrub(store)


@pytest.mark.untraced
@pytest.mark.parametrize("phase", range(4))
def test_a_flipped_bit_in_any_byte_that_means_something(files: MemoryFileSystem, phase: int) -> None:
    """Every 16th byte of log, queues and index; other phases, others."""
    store = open_store(files, replace(SMALL, append_property_crc=True))
    fill(store, 14)
    index = index_file(store)
    sizes = {LOG: store.end_offset, index: ITEMS_AT + 20 * (4 * 14 + 1)}
    for queue in store.consume_queues.queues("orders"):
        sizes[QUEUE.format(queue.queue_id)] = 20 * queue.max_offset
    # Item 0 is never used, and the seconds of item 1 mean nothing.
    meaningless = {(index, ITEMS_AT + at) for at in (*range(20), *range(32, 36))}
    assert scrub(store) == []
    for path, size in sizes.items():
        for at in range(4 * phase + phase % 2, size, 16):
            before = bytes(files.open(path).view()[at : at + 1])
            patch(files, path, at, bytes([before[0] ^ 1 << at % 7]))
            found = places(scrub(store))
            patch(files, path, at, before)
            assert bool(found) != ((path, at) in meaningless), (path, at)


def test_bytes_that_the_disk_cannot_read(store: MessageStore) -> None:
    checking, found = begin(store)
    failure: OSError | None = None
    failed: ReadAhead | None = None
    while True:
        try:
            ahead = checking.steps.send(failure)
        except StopIteration:
            break
        failure = None
        if ahead is not None and ahead.path == LOG and ahead.begin == 0:
            failed, failure = ahead, OSError(errno.EIO, "bad sector")
    assert failed is not None
    assert (LOG, 0) in places(found)
    assert checking.progress.position == checking.end


@pytest.mark.parametrize("steps", range(1, 60, 3))
def test_a_segment_that_retention_takes_meanwhile(tmp_path: Path, steps: int) -> None:
    """Its file is closed by then: nothing of it is read any more."""
    store = open_store(RealFileSystem(tmp_path))
    fill(store, 100)
    flush(store)
    store.flush_projections()
    checking, found = begin(store)
    for _ in islice(checking.steps, steps):
        pass
    trim_now(store.trim(store.closed_segments()[-1].end))
    for _ in checking.steps:
        pass
    assert found == []
    assert checking.progress.position == checking.end
    store.close(NOW_MS)


def test_damage_in_a_segment_that_retention_takes_meanwhile(tmp_path: Path) -> None:
    store = open_store(RealFileSystem(tmp_path))
    fill(store, 100)
    flush(store)
    store.flush_projections()
    with (tmp_path / LOG).open("r+b") as file:
        file.seek(store.consume_queues.queues("orders")[3].unit(QueueOffset(1))[0])
        file.write(bytes(8_000))
    checking, found = begin(store)
    while checking.progress.records == 0:
        next(checking.steps)
    trim_now(store.trim(store.closed_segments()[-1].end))
    for _ in checking.steps:
        pass
    assert found == []
    store.close(NOW_MS)


def test_damage_is_found_by_its_first_thousand_and_counted_in_all(
    store: MessageStore, files: MemoryFileSystem
) -> None:
    patch(files, QUEUE.format(1), 0, b"\xee" * 20 * 20)
    checking, found = begin(store)
    for _ in checking.steps:
        pass
    assert checking.findings.finding_count == len([each for each in found if not each.note]) >= 20


@pytest.mark.parametrize("bad", [(0, 4096), (8192, 12_288)])
def test_a_scrub_of_a_disk_with_a_bad_sector_ended_the_broker(bad: tuple[int, int]) -> None:
    """Also one that reading ahead did not meet: in the record that continues after that range, or of a file
    that was shortened."""
    files = FaultyFileSystem(MemoryFileSystem())
    store = open_store(files, replace(SMALL, commit_log_file_size=65_536))
    results = [send(store, bytes(700), NOW_MS, keys="k") for _ in range(40)]
    lying_there = [each for each in results if each.physical_offset < bad[1] and each.end > bad[0]]
    assert len(lying_there) > 2
    files.unreadable[LOG] = bad
    checking, found = begin(store)
    for _ in checking.steps:
        pass
    damages = [each for each in found if not each.note]
    assert {each.file for each in damages} == {LOG}
    assert min(each.offset for each in damages) == lying_there[0].physical_offset
    assert max(each.offset for each in damages) < lying_there[-1].end
    assert checking.progress.records == len(results) - len(lying_there)
