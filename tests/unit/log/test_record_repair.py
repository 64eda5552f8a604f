"""Damaged records are replaced in place by those of another copy, and by nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.engine import NOW_MS
from tests.support.followers import Leader, commit, copy, files_of, follower
from trovemq_proto import errors
from trovemq_proto.errors import ErrorSpec, TroveError
from trovemq_proto.positions import PhysicalOffset
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.log.reader import LogReader


class Pair:
    """A good copy, and one of the same bytes that is damaged."""

    def __init__(self) -> None:
        self.good = Leader()
        for number in range(40):
            self.good.send("orders", number % 2, 3, size=400 + number)
        self.files = MemoryFileSystem()
        self.store = follower(self.files)
        copy(self.good.store, self.store)
        commit(self.store, self.store.end_offset)
        self.whole = files_of(self.files, "commitlog")

    def damage(self, at: int, value: int) -> None:
        """One byte of the log, on disk and in memory."""
        segment = self.store.log.segments.at(PhysicalOffset(at))
        assert segment is not None
        content = self.files._files[segment.file.path]
        content.data[at - segment.start] ^= value
        content.synced = bytes(content.data)

    def damages(self) -> list[tuple[int, int]]:
        reader = LogReader(self.store.log, self.store.min_offset, self.store.end_offset)
        for _ in reader:
            pass
        return [(one.physical_offset, min(one.end, self.store.end_offset)) for one in reader.damages]

    def bytes_at(self, at: int, size: int) -> bytes:
        segment = self.good.store.log.segments.at(PhysicalOffset(at))
        assert segment is not None
        return bytes(self.good.store.log.read(PhysicalOffset(at), min(size, segment.end - at)))

    def repair(self) -> list[tuple[int, int]]:
        """Returns the ranges that were written."""
        written = list[tuple[int, int]]()
        for begin, end in self.damages():
            at = begin
            while at < end:
                size = end - at
                segment = self.store.log.segments.at(PhysicalOffset(at))
                assert segment is not None
                is_blank = end == segment.end and self.bytes_at(at, 8)[4:] == b"\xcb\xd4\x31\x94"
                data = self.bytes_at(at, 8 if is_blank else size)
                work = self.store.begin_repair(PhysicalOffset(at), data, PhysicalOffset(end))
                work.run()
                written.append((at, work.end))
                at = work.end
        return written


PAIR_ENDS = Pair().good.record_ends


@given(st.integers(0, PAIR_ENDS[-1] - 1), st.integers(1, 255))
def test_any_damaged_byte_is_repaired(at: int, value: int) -> None:
    pair = Pair()
    pair.damage(at, value)
    pair.repair()
    assert pair.damages() == []
    found = files_of(pair.files, "commitlog")
    if found != pair.whole:  # bytes that no CRC covers, or after a blank
        assert pair.whole.keys() == found.keys()
        assert sum(a != b for name in found for a, b in zip(found[name], pair.whole[name], strict=True)) == 1


def test_a_repair_writes_the_damaged_record_alone() -> None:
    pair = Pair()
    begin, end = PAIR_ENDS[6], PAIR_ENDS[7]
    pair.damage(end - 120, 1)
    assert pair.repair() == [(begin, end)]
    assert files_of(pair.files, "commitlog") == pair.whole


def test_a_repair_that_a_power_cut_interrupts_makes_nothing_worse() -> None:
    pair = Pair()
    begin, end = PAIR_ENDS[6], PAIR_ENDS[7]
    pair.damage(end - 120, 1)
    damaged = files_of(pair.files, "commitlog")
    data = pair.bytes_at(begin, end - begin)
    pair.store.begin_repair(PhysicalOffset(begin), data, PhysicalOffset(end))
    assert files_of(pair.files, "commitlog") == damaged, "the work has not begun"
    segment = pair.store.log.segments.at(PhysicalOffset(begin))
    assert segment is not None
    segment.file.write(begin - segment.start, data)  # without a sync
    for keep in (False, True):
        cut = pair.files.after_power_cut(lambda keep=keep: keep, unit=512)  # type: ignore[misc]
        assert files_of(cut, "commitlog") == (pair.whole if keep else damaged)
    pair.store.begin_repair(PhysicalOffset(begin), data, PhysicalOffset(end)).run()
    assert files_of(pair.files.after_power_cut(), "commitlog") == pair.whole


def refusal(pair: Pair, begin: int, data: bytes, end: int) -> ErrorSpec:
    before = files_of(pair.files, "commitlog")
    with pytest.raises(TroveError) as refused:
        pair.store.begin_repair(PhysicalOffset(begin), data, PhysicalOffset(end))
    assert files_of(pair.files, "commitlog") == before
    return refused.value.spec


def test_bytes_that_are_not_the_records_of_that_place_are_refused() -> None:
    pair = Pair()
    begin, end = PAIR_ENDS[6], PAIR_ENDS[7]
    good = pair.bytes_at(begin, end - begin)
    flipped = bytearray(good)
    flipped[-120] ^= 1
    for wrong in (bytes(flipped), good[:-1], b"", good[1:], pair.bytes_at(end, 200), bytes(len(good))):
        assert refusal(pair, begin, wrong, end) is errors.REPLICA_BYTES_ILLEGAL


def test_nothing_at_or_beyond_the_commit_is_repaired() -> None:
    pair = Pair()
    files = MemoryFileSystem()
    store = follower(files)
    copy(pair.good.store, store)
    commit(store, PhysicalOffset(PAIR_ENDS[6]))
    pair.store, pair.files = store, files
    begin, end = PAIR_ENDS[6], PAIR_ENDS[7]
    good = pair.bytes_at(begin, end - begin)
    assert store.repairable_end == begin
    assert refusal(pair, begin, good, end) is errors.REPLICA_OFFSET_MISMATCH
    before = PAIR_ENDS[5]
    both = pair.bytes_at(before, end - before)
    assert refusal(pair, before, both, end) is errors.REPLICA_BYTES_ILLEGAL, "a part lies beyond it"


def test_nothing_that_is_not_on_disk_is_repaired() -> None:
    pair = Pair()
    begin = pair.store.end_offset
    pair.good.send("orders", 0, 1)
    data = pair.bytes_at(begin, pair.good.store.end_offset - begin)
    pair.store.append_raw(begin, memoryview(data))
    pair.store.limit_commits(pair.store.end_offset)
    assert refusal(pair, begin, data, pair.store.end_offset) is errors.REPLICA_OFFSET_MISMATCH


def test_a_repaired_record_is_read_again() -> None:
    pair = Pair()
    begin, end = PhysicalOffset(PAIR_ENDS[6]), PhysicalOffset(PAIR_ENDS[7])
    pair.damage(end - 120, 1)
    with pytest.raises(TroveError) as met:
        pair.store.record_at(begin)
    assert met.value.spec is errors.RECORD_DAMAGED
    assert dict(pair.store.damage.places) == {begin: end - begin}
    pair.store.begin_repair(begin, pair.bytes_at(begin, end - begin), end).run()
    pair.store.damage.repaired(begin, end)
    found = pair.store.record_at(begin)
    assert found is not None
    assert bytes(found) == pair.bytes_at(begin, end - begin)
    assert (pair.store.damage.present, pair.store.damage.repaired_ranges) == ((0, 0), 1)
    pair.damage(end - 120, 1)
    with pytest.raises(TroveError):
        pair.store.record_at(begin)
    assert pair.store.damage.present == (1, end - begin), "it counts again"


def test_a_store_that_was_repaired_opens_without_damage() -> None:
    pair = Pair()
    pair.damage(PAIR_ENDS[7] - 120, 1)
    pair.repair()
    pair.store.close(NOW_MS)
    again = MessageStore.open(pair.files, pair.good.settings, NOW_MS, process_id=3)
    assert not again.recovery.damages
    assert again.end_offset == PAIR_ENDS[-1]
