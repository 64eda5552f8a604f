"""The key index against RocketMQ's own put, written plainly, and against a list of all entries."""

from __future__ import annotations

import errno
from dataclasses import dataclass, field, replace
from struct import Struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.engine import NOW_MS
from tests.support.projections import batch_of, stored, tree
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import LOG_ORIGIN, EpochMs, PhysicalOffset
from trovemq_proto.records import RecordBatch, index_hash
from trovemq_store.files.faulty import FaultyFileSystem, fail_always, fail_at
from trovemq_store.files.files import StorageError
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.index.index_file import IndexFile, file_size, make_index_file, place_index_file
from trovemq_store.index.key_index import KeyIndex
from trovemq_store.log.projection import DispatchBatch
from trovemq_store.settings import StoreSettings

SLOTS, ITEMS = 7, 12
SETTINGS = StoreSettings(index_slot_count=SLOTS, index_item_count=ITEMS)
ITEM = Struct(">iqii")

Entry = tuple[int, int, int]
"""(hash, physical offset, store timestamp)"""


@dataclass
class PlainFile:
    """IndexFile.putKey as RocketMQ writes it: one entry at a time, on plain lists."""

    begin: int = 0
    end: int = 0
    begin_physical: int = 0
    end_physical: int = 0
    hash_slot_count: int = 0
    count: int = 1
    slots: list[int] = field(default_factory=lambda: [0] * SLOTS)
    items: list[tuple[int, int, int, int]] = field(default_factory=lambda: [(0, 0, 0, 0)])

    def put(self, entry: Entry) -> bool:
        key_hash, physical, timestamp = entry
        if self.count >= ITEMS:
            return False
        previous = self.slots[key_hash % SLOTS]
        seconds = min(max(0, (timestamp - self.begin) // 1000), 2**31 - 1) if self.begin > 0 else 0
        self.items.append((key_hash, physical, seconds, previous))
        self.slots[key_hash % SLOTS] = self.count
        if self.count <= 1:
            self.begin_physical, self.begin = physical, timestamp
        self.hash_slot_count += previous == 0
        self.count += 1
        self.end_physical, self.end = physical, timestamp
        return True

    def pack(self) -> bytes:
        header = Struct(">qqqqii").pack(
            self.begin, self.end, self.begin_physical, self.end_physical, self.hash_slot_count, self.count
        )
        slots = b"".join(slot.to_bytes(4) for slot in self.slots)
        items = b"".join(ITEM.pack(*item) for item in self.items)
        return (header + slots + items).ljust(file_size(SLOTS, ITEMS), b"\0")


def plain_files(entries: list[Entry]) -> list[bytes]:
    files: list[PlainFile] = []
    for entry in entries:
        if not files or not files[-1].put(entry):
            last = files[-1] if files else PlainFile()
            # The quirk: a file begun because the last one was full starts with its end values.
            files.append(PlainFile(last.end, last.end, last.end_physical, last.end_physical))
            assert files[-1].put(entry)
    return [file.pack() for file in files]


class Names:
    """Names of new files; the clock may stand still, or be set back over a restart."""

    def __init__(self) -> None:
        self.now = 20_260_101_000_000_000

    def __call__(self) -> str:
        return f"{self.now:017d}"


def candidates(index: KeyIndex, key_hash: int, end: int) -> list[PhysicalOffset]:
    """Where records may have a key of that hash, below `end` of the log."""
    return list(index.candidates(key_hash, LOG_ORIGIN, PhysicalOffset(end)))


def opened(files: Any, trusted: PhysicalOffset | None = None, **arguments: Any) -> KeyIndex:
    index = KeyIndex(files, SETTINGS, Names())
    index.load(trusted, **arguments)
    return index


@given(
    st.lists(
        st.tuples(
            st.sampled_from([0, 1, 7, 8, 2**31 - 1]) | st.integers(0, 40),
            st.integers(0, 3),
            st.sampled_from([0, 400, 999, 1000, 1001, 3_600_000, 10**13, -5000]),
        ),
        max_size=60,
    ),
    st.lists(st.integers(1, 30), min_size=1, max_size=8),
    st.sampled_from([NOW_MS, 0, 1]),
)
def test_batches_write_what_single_puts_write(steps: list[Entry], sizes: list[int], now: int) -> None:
    physical = 0
    entries: list[Entry] = []
    for key_hash, step, time_step in steps:
        physical += step
        now = max(0, now + time_step)
        entries.append((key_hash, physical, now))
    files = MemoryFileSystem()
    made: list[IndexFile] = []
    done = turn = 0
    while done < len(entries):
        if not made or made[-1].full:
            make_index_file(files, "new", file_size(SLOTS, ITEMS))
            made.append(place_index_file(files, f"index/{len(made)}", "new", SLOTS, ITEMS))
            if len(made) > 1:
                made[-1].continue_from(made[-2])
        batch = entries[done : done + sizes[turn % len(sizes)]]
        hashes, places, times = (np.array(column, np.int64) for column in zip(*batch, strict=True))
        done += made[-1].put(hashes.astype(np.int32), places, times)
        turn += 1
    assert list(tree(files, "index").values()) == plain_files(entries)


# --- the projection against a list of all entries --------------------------------------------------
KEYS = ("Aa", "BB", "k1", "k2")


@dataclass(frozen=True)
class Sent:
    data: bytes
    physical_offset: int
    timestamp: EpochMs
    entries: tuple[Entry, ...]


class Model:
    def __init__(self) -> None:
        self.files: Any = FaultyFileSystem(MemoryFileSystem())
        self.log: list[Sent] = []
        self.now = NOW_MS
        self.min_physical = 0
        self.index = opened(self.files)

    @property
    def end(self) -> int:
        return self.log[-1].physical_offset + len(self.log[-1].data) if self.log else 0

    def append(self, messages: list[tuple[list[str], int]]) -> None:
        for keys, step in messages:
            self.now += step
            data = stored(self.end, len(self.log), self.now, keys=" ".join(keys), tag="t" if step else "")
            hashes = [index_hash("orders", key) for key in keys] + [index_hash("orders", "T#t")] * (step > 0)
            entries = tuple((key_hash, self.end, self.now) for key_hash in hashes)
            self.log.append(Sent(data, self.end, self.now, entries))
        self.replay()

    def replay(self) -> None:
        for start in range(0, len(self.log), 4):
            sent = self.log[start : start + 4]
            batch = batch_of(b"".join(one.data for one in sent), sent[0].physical_offset)
            if batch.end > self.index.position:
                try:
                    self.index.apply(batch)
                except StorageError:
                    return

    def fail(self, nth: int) -> None:
        """The disk fails once, somewhere in the next calls: nothing may be skipped or put twice."""
        inner = fail_at(("rename", "write", "scatter")[nth % 3], 1 + nth // 3, errno.ENOSPC, "index")
        self.files.decide = inner

    def no_files(self, on: int) -> None:
        """No index file can be made at all, or again."""
        self.files.decide = fail_always("create", errno.ENOSPC) if on % 2 else lambda operation, path: None

    def flush(self) -> None:
        self.index.flush()

    def crash(self) -> None:
        trusted = self.index.synced_position
        self.files = FaultyFileSystem(self.files.inner.after_power_cut())
        times = {sent.physical_offset: sent.timestamp for sent in self.log}
        self.index = opened(self.files, trusted, store_timestamp_at=times.get)
        assert self.index.position == self.index.synced_position == trusted
        self.replay()
        self.index.trim_before(PhysicalOffset(self.min_physical))

    def restart(self) -> None:
        self.files.decide = lambda operation, path: None
        self.index.flush()
        self.index.close()
        self.files = FaultyFileSystem(self.files.inner.after_process_kill())
        self.index = opened(self.files)
        self.replay()

    def cut(self, count: int) -> None:
        kept = self.log[: max(0, len(self.log) - count)]
        self.log = kept + [sent for sent in self.log[len(kept) :] if sent.physical_offset < self.min_physical]
        self.files.decide = lambda operation, path: None
        self.index.truncate_to(PhysicalOffset(self.end))

    def trim(self, index: int) -> None:
        if self.log:
            self.min_physical = max(self.min_physical, self.log[index % len(self.log)].physical_offset)
            self.index.trim_before(PhysicalOffset(self.min_physical))

    def check(self) -> None:
        # Of the record at the position some items may be there: a failure came between them.
        indexed = min(self.index.position, self.end)
        entries = [entry for sent in self.log for entry in sent.entries if entry[1] < indexed]
        for key_hash in {index_hash("orders", key) for key in (*KEYS, "T#t", "none")}:
            found = list(
                self.index.candidates(key_hash, PhysicalOffset(self.min_physical), PhysicalOffset(indexed))
            )
            assert found == [p for h, p, _ in reversed(entries) if h == key_hash and p >= self.min_physical]
            middle = (self.min_physical + indexed) // 2
            upper = [p for h, p, _ in reversed(entries) if h == key_hash and self.min_physical <= p < middle]
            assert (
                list(
                    self.index.candidates(key_hash, PhysicalOffset(self.min_physical), PhysicalOffset(middle))
                )
                == upper
            )


STEPS = st.lists(
    st.one_of(
        *[
            st.tuples(
                st.just("append"),
                st.lists(
                    st.tuples(
                        st.lists(st.sampled_from(KEYS), max_size=4), st.sampled_from([0, 1, 700, 1000, 9000])
                    ),
                    min_size=1,
                    max_size=6,
                ),
            )
        ]
        * 3,
        st.tuples(st.sampled_from(["flush", "crash", "restart"]), st.none()),
        st.tuples(st.sampled_from(["cut", "trim", "fail", "no_files"]), st.integers(0, 12)),
    ),
    max_size=14,
)


@given(STEPS)
def test_the_index_has_every_key_once(steps: list[tuple[str, Any]]) -> None:
    model = Model()
    for name, argument in steps:
        if argument is None:
            getattr(model, name)()
        else:
            getattr(model, name)(argument)
        model.check()
    model.files.decide = lambda operation, path: None
    model.replay()
    assert model.index.position == max(model.end, model.index.position)
    model.check()


# --- single cases ----------------------------------------------------------------------------------
def _log(count: int, keys: str = "k1 k2 k3", start: int = 0) -> bytes:
    data = b""
    for _ in range(count):
        data += stored(start + len(data), 0, NOW_MS + len(data), keys=keys)
    return data


def test_one_messages_keys_are_split_over_two_files() -> None:
    files = MemoryFileSystem()
    index = opened(files)
    data = _log(4)
    index.apply(batch_of(data, 0))
    assert index.file_names == ["20260101000000000", "20260101000000001"]
    last = 3 * len(data) // 4
    for key in ("k1", "k2", "k3"):
        assert candidates(index, index_hash("orders", key), len(data))[0] == last
    assert index.last_update() == (NOW_MS + last, last)
    assert index.take_full_files() == [("index/20260101000000000", NOW_MS + last)]
    assert index.take_full_files() == []


def test_full_files_are_synced_apart() -> None:
    files = MemoryFileSystem()
    index = opened(files)
    index.apply(batch_of(_log(4), 0))
    assert index.sync_full_files() == index.last_update()[0]
    assert index.sync_full_files() == 0
    after = files.after_power_cut()
    assert after.read_bytes("index/20260101000000000") == files.read_bytes("index/20260101000000000")
    assert index.synced_position == 0


def test_creation_is_tried_three_times_and_nothing_is_skipped() -> None:
    files = FaultyFileSystem(MemoryFileSystem())
    index = opened(files)
    data = _log(4)
    batch = batch_of(data, 0)
    index.apply(batch_of(data[: len(data) // 4 * 3], 0))
    files.decide = fail_always("create", errno.ENOSPC)
    with pytest.raises(StorageError):
        index.apply(batch)
    assert index.create_failures == 3
    assert index.position == len(data) // 4 * 3
    assert files.inner.list("index") == ["20260101000000000"]
    assert not files.inner.exists("trovemq/index-file.new")
    files.decide = lambda operation, path: None
    index.apply(batch)
    for key in ("k1", "k2", "k3"):
        places = candidates(index, index_hash("orders", key), len(data))
        assert places == [len(data) // 4 * n for n in (3, 2, 1, 0)]
    assert plain_files(
        [
            (index_hash("orders", key), len(data) // 4 * n, NOW_MS + len(data) // 4 * n)
            for n in range(4)
            for key in ("k1", "k2", "k3")
        ]
    ) == list(tree(files.inner, "index").values())


def test_a_second_attempt_is_enough() -> None:
    files = FaultyFileSystem(MemoryFileSystem(), fail_at("create", 2, errno.ENOSPC))
    index = opened(files)
    index.apply(batch_of(_log(4), 0))
    assert len(index.file_names) == 2


def test_records_of_deleted_topics_are_left_out() -> None:
    index = opened(MemoryFileSystem())
    data = _log(2)
    index.apply(batch_of(data, 0, alive=[False, True]))
    assert candidates(index, index_hash("orders", "k1"), len(data)) == [len(data) // 2]


def test_keyless_records_make_no_file() -> None:
    files = MemoryFileSystem()
    index = opened(files)
    index.apply(batch_of(_log(3, keys=""), 0))
    nothing = RecordBatch(b"", np.empty(0, np.int64), np.empty(0, np.int64))
    index.apply(DispatchBatch(nothing, PhysicalOffset(5000), PhysicalOffset(5000)))
    assert index.position == 5000
    assert files.list("index") == []
    assert index.last_update() == (0, 0)


def test_a_file_of_another_size_is_refused() -> None:
    files = MemoryFileSystem()
    files.write_atomic("index/20260101000000000", bytes(file_size(SLOTS, ITEMS) + 4))
    with pytest.raises(TroveError, match="maxHashSlotNum") as caught:
        opened(files)
    assert caught.value.symbol == "STORE_SETTINGS_MISMATCH"


def test_odd_names_are_skipped_and_an_empty_last_file_goes() -> None:
    files = MemoryFileSystem()
    files.write_atomic("index/notes.txt", b"?")
    files.write_atomic("index/20260101000000000", b"")
    assert opened(files).file_names == []
    assert files.list("index") == ["notes.txt"]


def test_another_brokers_index_continues_after_its_last_item() -> None:
    """The record of its last item is replayed and not put a second time; tags may be missing below."""
    files = MemoryFileSystem()
    data = _log(4)
    opened(files).apply(batch_of(data, 0))
    files.remove("trovemq/key-index.json")
    before = tree(files, "index")
    index = opened(files)
    assert index.position == index.tags_from == len(data) // 4 * 3
    index.apply(batch_of(data, 0))
    assert tree(files, "index") == before
    assert index.position == len(data)
    index.close()
    again = opened(files)
    assert (again.position, again.tags_from) == (len(data), len(data) // 4 * 3)


def test_the_position_of_a_clean_stop_counts_unless_another_broker_went_on() -> None:
    files = MemoryFileSystem()
    data = _log(2) + _log(1, keys="", start=len(_log(2)))
    index = opened(files)
    index.apply(batch_of(data, 0))
    index.close()
    note = files.read_bytes("trovemq/key-index.json")
    again = opened(files)
    assert (again.position, again.tags_from) == (len(data), 0)
    more = _log(1, start=len(data))
    again.apply(batch_of(more, len(data)))
    again.close()
    files.write_atomic("trovemq/key-index.json", note)
    foreign = opened(files)
    assert foreign.position == foreign.tags_from == len(data)
    before = tree(files, "index")
    foreign.apply(batch_of(more, len(data)))
    assert tree(files, "index") == before


def test_an_interrupted_record_is_completed_after_a_clean_stop() -> None:
    files = FaultyFileSystem(MemoryFileSystem())
    index = opened(files)
    data = _log(4)
    index.apply(batch_of(data[: len(data) // 4 * 3], 0))
    files.decide = fail_always("create", errno.ENOSPC)
    with pytest.raises(StorageError):
        index.apply(batch_of(data, 0))
    index.close()
    again = opened(files.inner)
    again.apply(batch_of(data, 0))
    for key in ("k1", "k2", "k3"):
        places = candidates(again, index_hash("orders", key), len(data))
        assert places == [len(data) // 4 * n for n in (3, 2, 1, 0)]


def test_a_newer_note_is_refused() -> None:
    files = MemoryFileSystem()
    files.write_atomic("trovemq/key-index.json", b'{"formatVersion": 2}')
    with pytest.raises(TroveError) as caught:
        opened(files)
    assert caught.value.symbol == "STORE_NEWER"


def test_a_walk_continues_from_its_place() -> None:
    index = opened(MemoryFileSystem())
    data = _log(20, keys="k1")
    index.apply(batch_of(data, 0))
    key_hash = index_hash("orders", "k1")
    expected = candidates(index, key_hash, len(data))
    found: list[int] = []
    place = None
    while True:
        walk = index.walk(key_hash, LOG_ORIGIN, PhysicalOffset(found[-1] if found else len(data)), place)
        found += walk.take(3)
        place = walk.place
        if walk.done:
            break
    assert found == expected
    for wrong in (("1", 1), (index.file_names[0], ITEMS + 5), (index.file_names[0], 0)):
        assert index.walk(key_hash, LOG_ORIGIN, PhysicalOffset(len(data)), wrong).take(99) == expected


def test_links_that_do_not_go_back_end_a_chain() -> None:
    files = MemoryFileSystem()
    index = opened(files)
    data = _log(3, keys="k1")
    index.apply(batch_of(data, 0))
    path = f"index/{index.file_names[0]}"
    for link in (2, 3, 99, 2**31 - 1):
        files.open(path).write(40 + 4 * SLOTS + 20 * 2 + 16, link.to_bytes(4))
        found = candidates(index, index_hash("orders", "k1"), len(data))
        assert found == [len(data) // 3 * 2, len(data) // 3]


def test_the_hash_without_an_absolute_value() -> None:
    """Math.abs(-2**31) stays negative in Java: `T#jllgvmc` has hash 0. At the log's very start its item
    is all zero, as unwritten ones are, and is kept all the same."""
    files = MemoryFileSystem()
    index = opened(files)
    data = stored(0, 0, NOW_MS, topic="T", keys="jllgvmc")
    index.apply(batch_of(data, 0))
    index.flush()
    assert index_hash("T", "jllgvmc") == 0
    for loaded in (index, opened(files), opened(files.after_power_cut(), PhysicalOffset(len(data)))):
        assert candidates(loaded, 0, len(data)) == [0]
        assert loaded.last_update()[1] == 0
    assert opened(files.after_power_cut(), PhysicalOffset(0)).file_names == []


def test_settings_are_the_defaults_of_rocketmq() -> None:
    assert file_size(StoreSettings().index_slot_count, StoreSettings().index_item_count) == 420_000_040
    assert replace(SETTINGS, index_item_count=2).index_item_count == 2
